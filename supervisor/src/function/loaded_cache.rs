//! Functions in memory, and which of them go.
//!
//! ```text
//! room is needed ─┬─ the owner is at its limit ────────► its own that was used longest ago
//!                 └─ all tenants are at theirs together ► one of the tenant's that has most, if that is more than its share
//! no call used it for a while, and no tenant that may is connected ► goes
//! ```
//!
//! What calls hold stays.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use pappus_shmem::ValidatedMemfd;

use super::loaded::{Callers, Charges, Loaded, Parsed};
use crate::defences::Defence;
use crate::ids::{FunctionId, TenantId};
use crate::quota::Scope;
use crate::store::records::FunctionRecord;
use crate::sync::{OrderedRwLock, rank};
use crate::tenants::{Account, Limit, QuotaError, Taken};

/// Functions of all tenants together that are kept where a test has [`Defence::OwnFunctions`] off.
const SHARED: usize = 64;

/// Of one owner, by name.
type Slots = HashMap<String, Slot>;

#[derive(Debug)]
struct Slot {
    function: Arc<Loaded>,
    used: AtomicU64,
}

impl Slot {
    /// True if only this cache has the function. The count only grows under the lock that the caller holds.
    fn is_free(&self) -> bool {
        Arc::strong_count(&self.function) == 1
    }
}

/// Loaded functions by owner and name.
#[derive(Debug, Default)]
pub struct LoadedCache {
    slots: OrderedRwLock<HashMap<TenantId, Slots>, { rank::LOADED }>,
    clock: AtomicU64,
    /// What the clock was at the last look for functions that nothing uses.
    last_look: AtomicU64,
    ids: AtomicU64,
    on_eviction: OnceLock<OnEviction>,
}

/// Told of a function that is not in memory any more and may come back under another name.
struct OnEviction(Box<dyn Fn(&Loaded) + Send + Sync>);

impl fmt::Debug for OnEviction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnEviction")
    }
}

/// What the owner of a function in memory is charged for it.
fn needed(parsed: &Parsed) -> [(Limit, u64); 2] {
    [(Limit::LoadedFunctions, 1), (Limit::PlanBytes, parsed.bytes())]
}

impl LoadedCache {
    /// From now on, `told` is called when a function goes for lack of room or use. Set once.
    pub fn on_eviction(&self, told: impl Fn(&Loaded) + Send + Sync + 'static) {
        let _ = self.on_eviction.set(OnEviction(Box::new(told)));
    }

    /// The functions in memory: of one owner, or of all.
    pub fn all(&self, owner: Option<TenantId>) -> Vec<Arc<Loaded>> {
        let slots = self.slots.read();
        let of = slots.iter().filter(|(tenant, _)| owner.is_none_or(|owner| owner == **tenant));
        of.flat_map(|(_, mine)| mine.values().map(|slot| slot.function.clone())).collect()
    }

    /// The function, if it is in memory.
    pub fn get(&self, owner: TenantId, name: &str) -> Option<Arc<Loaded>> {
        let slots = self.slots.read();
        let slot = slots.get(&owner)?.get(name)?;
        slot.used.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        Some(slot.function.clone())
    }

    /// The function, if it is in memory; to ask does not count as a use.
    pub fn peek(&self, owner: TenantId, name: &str) -> Option<Arc<Loaded>> {
        self.slots.read().get(&owner)?.get(name).map(|slot| slot.function.clone())
    }

    /// Of the functions that workers know by these ids, those that are in memory.
    pub fn by_id(&self, ids: impl Iterator<Item = FunctionId>) -> HashMap<FunctionId, Arc<Loaded>> {
        let wanted: HashSet<FunctionId> = ids.collect();
        if wanted.is_empty() {
            return HashMap::new();
        }
        let slots = self.slots.read();
        let all = slots.values().flat_map(HashMap::values).map(|slot| &slot.function);
        let known = all.flat_map(|function| [function.id, function.id.checked()].map(|id| (id, function)));
        known.filter(|(id, _)| wanted.contains(id)).map(|(id, function)| (id, function.clone())).collect()
    }

    /// Puts a function into memory, unless it got there meanwhile. `current` says who may call the function besides its
    /// owner, as long as the record is listed. A function that was removed meanwhile does not come back: removal takes
    /// it out of the list first, out of here then.
    pub fn insert(
        &self,
        account: Arc<Account>,
        record: Arc<FunctionRecord>,
        parsed: Parsed,
        current: impl FnOnce() -> Option<Callers>,
    ) -> Result<Option<Arc<Loaded>>, QuotaError> {
        if let Some(there) = self.get(account.tenant, &record.name)
            && Arc::ptr_eq(&there.record, &record)
        {
            return Ok(Some(there));
        }
        if Defence::OwnFunctions.is_off() {
            self.evict_beyond(SHARED);
        }
        let place = self.make_room(&account, Limit::LoadedFunctions, 1)?;
        let bytes = self.make_room(&account, Limit::PlanBytes, parsed.bytes())?;
        let mut all = self.slots.write();
        Ok(self.put(&mut all, account, record, parsed, current, [place, bytes]).cloned())
    }

    /// Gives a function its checked version, with machine code for each of its modules. The checked version is charged for
    /// by itself and goes with the function. A checked version that got there meanwhile stays.
    pub fn insert_checked(
        &self,
        function: &Loaded,
        parsed: Parsed,
        code: Vec<ValidatedMemfd>,
    ) -> Result<Arc<Loaded>, QuotaError> {
        let account = &function.account;
        let bytes = parsed.bytes() + code.iter().map(ValidatedMemfd::bytes).sum::<u64>();
        let place = self.make_room(account, Limit::LoadedFunctions, 1)?;
        let bytes = self.make_room(account, Limit::PlanBytes, bytes)?;
        let (id, record) = (function.id.checked(), function.record.clone());
        let taken = [place, bytes];
        let mut checked = Loaded::new(id, account.clone(), record, parsed, Callers::default(), taken);
        checked.code = Some(code);
        Ok(function.checked.get_or_init(|| Arc::new(checked)).clone())
    }

    /// True if, with the function, half of the memory of its owner and of all tenants stays free.
    pub fn has_room(account: &Account, parsed: &Parsed) -> bool {
        needed(parsed).into_iter().all(|(limit, amount)| account.leaves_half(limit, amount))
    }

    /// As [`LoadedCache::insert`], if there is room without evicting a function. Half of the owner's limits, and half of all
    /// tenants' together, are left for functions that are called.
    pub fn insert_if_room(
        &self,
        account: Arc<Account>,
        record: Arc<FunctionRecord>,
        parsed: Parsed,
        current: impl FnOnce() -> Option<Callers>,
    ) {
        if !Self::has_room(&account, &parsed) {
            return;
        }
        if let [Ok(place), Ok(bytes)] = needed(&parsed).map(|(limit, amount)| account.take(limit, amount)) {
            let mut all = self.slots.write();
            self.put(&mut all, account, record, parsed, current, [place, bytes]);
        }
    }

    fn put<'a>(
        &self,
        all: &'a mut HashMap<TenantId, Slots>,
        account: Arc<Account>,
        record: Arc<FunctionRecord>,
        parsed: Parsed,
        current: impl FnOnce() -> Option<Callers>,
        taken: Charges,
    ) -> Option<&'a Arc<Loaded>> {
        let callers = current()?;
        let name = record.name.clone();
        let slots = all.entry(account.tenant).or_default();
        if slots.get(&name).is_some_and(|slot| Arc::ptr_eq(&slot.function.record, &record)) {
            return slots.get(&name).map(|slot| &slot.function);
        }
        let id = FunctionId::new(1 + self.ids.fetch_add(1, Ordering::Relaxed));
        let function = Arc::new(Loaded::new(id, account, record, parsed, callers, taken));
        let used = AtomicU64::new(self.clock.fetch_add(1, Ordering::Relaxed));
        slots.insert(name.clone(), Slot { function, used });
        slots.get(&name).map(|slot| &slot.function)
    }

    /// Takes a function out of memory, so that no call finds it any more.
    pub fn remove(&self, owner: TenantId, name: &str) -> Option<Arc<Loaded>> {
        let mut slots = self.slots.write();
        let mine = slots.get_mut(&owner)?;
        let slot = mine.remove(name);
        if mine.is_empty() {
            slots.remove(&owner);
        }
        slot.map(|slot| slot.function)
    }

    /// Takes so much of what functions in memory need. Where it does not fit, functions go that no call holds.
    pub fn make_room(&self, account: &Arc<Account>, limit: Limit, amount: u64) -> Result<Taken, QuotaError> {
        loop {
            let why = match account.take(limit, amount) {
                Ok(taken) => return Ok(taken),
                Err(why) => why,
            };
            let found = amount <= why.most
                && (limit == Limit::PlanBytes && account.plans.give_up_one()
                    || match why.scope {
                        Scope::Tenant => self.evict_of(account.tenant, limit),
                        Scope::AllTenants => self.evict_of_largest(account, limit, why.most),
                    });
            if !found {
                return Err(why);
            }
        }
    }

    /// Evicts a function of the owner that has most of something, if an owner has more than an equal share of the total;
    /// false if nothing could go.
    fn evict_of_largest(&self, account: &Arc<Account>, limit: Limit, most: u64) -> bool {
        let mut owners: Vec<(u64, TenantId)> = {
            let slots = self.slots.read();
            let accounts = slots.values().filter_map(|of_one| of_one.values().next());
            accounts.map(|slot| (slot.function.account.used(limit), slot.function.owner)).collect()
        };
        let asks_first = !owners.iter().any(|(_, owner)| *owner == account.tenant);
        let share = most / (owners.len() + usize::from(asks_first)) as u64;
        owners.retain(|(used, _)| *used > share);
        owners.sort_unstable_by(|one, other| other.cmp(one));
        owners.into_iter().any(|(_, owner)| self.evict_of(owner, limit))
    }

    /// Evicts an owner's least recently used function that no call holds and that has something of what is needed; false
    /// if there is none.
    fn evict_of(&self, owner: TenantId, limit: Limit) -> bool {
        self.evict_if(owner, |slots| {
            let helps = |slot: &&Slot| {
                slot.is_free() && (limit != Limit::WeightBytes || slot.function.packed_weight_bytes() > 0)
            };
            let oldest = slots.values().filter(helps).min_by_key(|slot| slot.used.load(Ordering::Relaxed));
            oldest.map(|slot| slot.function.record.name.clone())
        })
    }

    /// Evicts the least recently used functions of any owner until at most so many are left, as a cache does that knows no
    /// tenants.
    fn evict_beyond(&self, most: usize) {
        loop {
            let oldest = {
                let slots = self.slots.read();
                let free = slots.values().flat_map(HashMap::values).filter(|slot| slot.is_free());
                let oldest = free.min_by_key(|slot| slot.used.load(Ordering::Relaxed));
                let all: usize = slots.values().map(HashMap::len).sum();
                oldest.filter(|_| all > most).map(|slot| slot.function.owner)
            };
            if !oldest.is_some_and(|owner| self.evict_of(owner, Limit::LoadedFunctions)) {
                return;
            }
        }
    }

    /// Evicts functions that no call used since this was called last, unless a tenant that may is connected. Blocking:
    /// memory is given back.
    pub fn evict_unused(&self, is_wanted: impl Fn(&Loaded) -> bool) {
        let since = self.last_look.swap(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        let is_unused = |slot: &Slot| slot.is_free() && slot.used.load(Ordering::Relaxed) < since;
        let mut unused: Vec<Arc<Loaded>> = {
            let slots = self.slots.read();
            let all = slots.values().flat_map(HashMap::values).filter(|slot| is_unused(slot));
            all.map(|slot| slot.function.clone()).collect()
        };
        unused.retain(|function| !is_wanted(function));
        for function in unused {
            let (owner, id) = (function.owner, function.id);
            let name = function.record.name.clone();
            drop(function);
            self.evict_if(owner, |slots| {
                slots.get(&name).is_some_and(|slot| slot.function.id == id && is_unused(slot)).then_some(name)
            });
        }
    }

    /// Evicts a function whose machine code is not what it was: it is loaded anew.
    pub fn evict(&self, function: &Loaded) {
        let name = &function.record.name;
        let is_it = |slot: &Slot| slot.function.id == function.id;
        self.evict_if(function.owner, |slots| slots.get(name).is_some_and(is_it).then(|| name.clone()));
    }

    /// Evicts the owner's function that `choose` names; false if none.
    fn evict_if(&self, owner: TenantId, choose: impl FnOnce(&Slots) -> Option<String>) -> bool {
        let evicted = {
            let mut slots = self.slots.write();
            let Some(mine) = slots.get_mut(&owner) else { return false };
            let Some(slot) = choose(mine).and_then(|name| mine.remove(&name)) else { return false };
            if mine.is_empty() {
                slots.remove(&owner);
            }
            slot.function
        };
        self.tell(&evicted);
        true
    }

    fn tell(&self, function: &Loaded) {
        if let Some(OnEviction(told)) = self.on_eviction.get() {
            told(function);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::Quota;
    use crate::store::records::Hash;
    use crate::tenants::{Ledger, Machine};

    fn account(tenant: u32, functions: u64, ledger: &Arc<Ledger>) -> Arc<Account> {
        let mut quota = Quota::default();
        quota.set(Limit::LoadedFunctions, functions);
        Account::new(TenantId::new(tenant), tenant.to_string().into(), quota, ledger.clone())
    }

    fn ledger() -> Arc<Ledger> {
        Arc::new(Ledger::new(Machine { memory_bytes: 1 << 30, descriptors: 1000, processes: 0 }))
    }

    fn function(name: &str) -> (Arc<FunctionRecord>, Parsed) {
        let config = r#"{"modules": [], "kernels": [], "blueprint":
            {"inputs": [], "weights": [], "buffers": {}, "outputs": [], "control_flow": []}}"#;
        let record = FunctionRecord {
            name: name.into(),
            config: Hash([0; 32]),
            modules: Box::default(),
            weights: Box::default(),
            inputs: Box::default(),
            outputs: Box::default(),
            input_types: Box::default(),
            state_bytes: 0,
            composition: None,
            number: 1,
            largest: 0,
        };
        let parsed = Parsed {
            blueprint: pappus_blueprint::parse(config.as_bytes()).unwrap(),
            config: config.into(),
            weights: None,
            runs_on: vec![],
            steps: None,
        };
        (record.into(), parsed)
    }

    fn listed() -> Option<Callers> {
        Some(Callers::default())
    }

    fn load(cache: &LoadedCache, account: &Arc<Account>, name: &str) -> Result<Arc<Loaded>, QuotaError> {
        let (record, parsed) = function(name);
        cache.insert(account.clone(), record, parsed, listed).map(Option::unwrap)
    }

    fn count(cache: &LoadedCache, account: &Account) -> usize {
        cache.slots.read().get(&account.tenant).map_or(0, HashMap::len)
    }

    #[test]
    fn a_tenant_that_cycles_functions_evicts_its_own() {
        let (cache, ledger) = (LoadedCache::default(), ledger());
        let (honest, cycling) = (account(1, 512, &ledger), account(2, 3, &ledger));
        let kept = load(&cache, &honest, "model").unwrap().id;
        for n in 0..2000 {
            load(&cache, &cycling, &format!("f{n}")).unwrap();
            // The one that is used stays.
            assert!(cache.get(cycling.tenant, "f0").is_some());
        }
        assert_eq!(cache.get(honest.tenant, "model").unwrap().id, kept);
        assert_eq!((count(&cache, &cycling), cycling.used(Limit::LoadedFunctions)), (3, 3));
    }

    #[test]
    fn what_calls_hold_stays_and_counts() {
        let (cache, ledger) = (LoadedCache::default(), ledger());
        let one = account(1, 2, &ledger);
        let held = [load(&cache, &one, "a").unwrap(), load(&cache, &one, "b").unwrap()];
        let why = load(&cache, &one, "c").unwrap_err();
        assert_eq!((why.limit, why.used), (Limit::LoadedFunctions, 2));
        drop(held);
        load(&cache, &one, "c").unwrap();
        assert!(cache.get(one.tenant, "a").is_none() && cache.get(one.tenant, "b").is_some());
        let used = one.used(Limit::PlanBytes);
        assert!(cache.remove(one.tenant, "b").is_some() && cache.remove(one.tenant, "c").is_some());
        assert!(used > 0 && one.used(Limit::PlanBytes) == 0);
    }

    #[test]
    fn what_is_only_expected_to_be_used_takes_no_others_place() {
        let (cache, ledger) = (LoadedCache::default(), ledger());
        let one = account(1, 4, &ledger);
        let expect = |name| {
            let (record, parsed) = function(name);
            cache.insert_if_room(one.clone(), record, parsed, listed);
            cache.peek(one.tenant, name).is_some()
        };
        load(&cache, &one, "called").unwrap();
        let bytes = one.used(Limit::PlanBytes);
        // Half is left for those that are called.
        assert_eq!([expect("expected"), expect("one too many")], [true, false]);
        assert_eq!((one.used(Limit::LoadedFunctions), one.used(Limit::PlanBytes)), (2, 2 * bytes));
        // Of the memory, too.
        let mut quota = Quota::default();
        for (most_bytes, fits) in [(6 * bytes - 1, false), (6 * bytes, true)] {
            quota.set(Limit::PlanBytes, most_bytes);
            one.allow(quota);
            assert_eq!(expect("another"), fits);
        }
        // One that is gone meanwhile does not come back.
        let (record, parsed) = function("gone");
        one.allow(Quota::default());
        cache.insert_if_room(one.clone(), record, parsed, || None);
        assert!(cache.peek(one.tenant, "gone").is_none());
        assert_eq!((one.used(Limit::LoadedFunctions), one.used(Limit::PlanBytes)), (3, 3 * bytes));
    }

    #[test]
    fn the_tenant_with_most_gives_way_where_all_have_no_room() {
        let (cache, ledger) = (LoadedCache::default(), ledger());
        let most = ledger.most(Limit::LoadedFunctions);
        let (large, small, new) =
            (account(1, most, &ledger), account(2, most, &ledger), account(3, most, &ledger));
        for n in 0..most - 10 {
            load(&cache, &large, &n.to_string()).unwrap();
        }
        (0..10).for_each(|n| drop(load(&cache, &small, &n.to_string()).unwrap()));
        // Neither the largest itself nor a new tenant takes anything from the small one.
        load(&cache, &large, "more").unwrap();
        for n in 0..100 {
            load(&cache, &new, &n.to_string()).unwrap();
        }
        assert_eq!((count(&cache, &small), count(&cache, &new)), (10, 100));
        assert_eq!(count(&cache, &large) as u64, most - 110);
        // Below its share no tenant gives way: where the largest holds on to its functions, the others are refused.
        let held: Vec<_> = (0..most).filter_map(|n| cache.get(large.tenant, &n.to_string())).collect();
        let more = cache.get(large.tenant, "more");
        let why = load(&cache, &new, "one too many").unwrap_err();
        assert_eq!((why.scope, count(&cache, &small)), (Scope::AllTenants, 10));
        drop((held, more));
        load(&cache, &new, "now").unwrap();
    }

    #[test]
    fn what_nothing_uses_goes_unless_it_is_wanted() {
        let (cache, ledger) = (LoadedCache::default(), ledger());
        let (gone, here) = (account(1, 9, &ledger), account(2, 9, &ledger));
        let told = Arc::new(AtomicU64::new(0));
        let by = told.clone();
        cache.on_eviction(move |function| by.store(function.id.get(), Ordering::Relaxed));
        for account in [&gone, &here] {
            ["used", "unused"].iter().for_each(|name| drop(load(&cache, account, name).unwrap()));
        }
        let unused = cache.get(gone.tenant, "unused").unwrap().id;
        let look = || cache.evict_unused(|function| function.owner == here.tenant);
        look();
        assert_eq!((count(&cache, &gone), count(&cache, &here)), (2, 2), "just loaded");
        assert!(cache.get(gone.tenant, "used").is_some());
        look();
        assert_eq!((count(&cache, &gone), count(&cache, &here)), (1, 2));
        assert_eq!(told.load(Ordering::Relaxed), unused.get());
        // What a call holds stays.
        let held = cache.get(gone.tenant, "used").unwrap();
        (0..2).for_each(|_| look());
        assert_eq!(count(&cache, &gone), 1);
        drop(held);
        (0..2).for_each(|_| look());
        assert_eq!((count(&cache, &gone), gone.used(Limit::LoadedFunctions)), (0, 0));
    }
}
