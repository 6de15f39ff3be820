//! All records in memory, who may call what, and how often each blob is needed. Pure bookkeeping.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::function::loaded::Callers;
use crate::ids::TenantId;
use crate::store::records::{FunctionRecord, Hash, ModuleRecord};

/// One tenant's records.
#[derive(Debug, Default)]
pub struct TenantIndex {
    /// Functions by name.
    pub functions: BTreeMap<String, Arc<FunctionRecord>>,
    /// Modules by name.
    pub modules: BTreeMap<String, Arc<ModuleRecord>>,
    /// Who may call a function besides its owner.
    grants: HashMap<String, Callers>,
    blobs: HashMap<Hash, Blob>,
    /// Bytes of all blobs.
    blob_bytes: u64,
    /// Bytes of those that are modules.
    module_bytes: u64,
    /// Bytes that are on their way.
    pub incoming_bytes: u64,
}

#[derive(Debug, Default)]
struct Blob {
    /// How many records and connections need it.
    needed: u32,
    /// Of these, as a module.
    as_module: u32,
    bytes: u64,
}

impl TenantIndex {
    /// Whether the tenant holds this blob.
    pub fn has_blob(&self, hash: Hash) -> bool {
        self.blobs.contains_key(&hash)
    }

    /// Bytes of all its blobs, those on their way included.
    pub fn blob_bytes(&self) -> u64 {
        self.blob_bytes.saturating_add(self.incoming_bytes)
    }

    /// Bytes of its modules.
    pub fn module_bytes(&self) -> u64 {
        self.module_bytes
    }

    /// Bytes that modules with these contents would add.
    pub fn new_module_bytes(&self, modules: impl Iterator<Item = (Hash, u64)>) -> u64 {
        let mut seen = BTreeSet::new();
        let is_new = |hash: &Hash| self.blobs.get(hash).is_none_or(|blob| blob.as_module == 0);
        modules.filter(|(hash, _)| is_new(hash) && seen.insert(*hash)).map(|(_, bytes)| bytes).sum()
    }

    /// Bytes of modules that stay where `old` gives way to `new`, and those that come.
    pub fn replaced_module_bytes(&self, old: &FunctionRecord, new: &FunctionRecord) -> (u64, u64) {
        let mut uses: BTreeMap<Hash, u32> = BTreeMap::new();
        old.variants().for_each(|variant| *uses.entry(variant.sha256).or_default() += 1);
        new.variants().for_each(|variant| {
            uses.remove(&variant.sha256);
        });
        let freed = uses.iter().filter_map(|(hash, uses)| {
            self.blobs.get(hash).filter(|blob| blob.as_module <= *uses).map(|blob| blob.bytes)
        });
        let kept = self.module_bytes - freed.sum::<u64>();
        (kept, self.new_module_bytes(new.variants().map(|variant| (variant.sha256, variant.bytes))))
    }

    /// Blobs whose sizes no record tells.
    pub fn unmeasured(&self) -> Vec<Hash> {
        self.blobs.iter().filter(|(_, blob)| blob.bytes == 0).map(|(hash, _)| *hash).collect()
    }

    /// How large a blob is that somebody needs.
    pub fn measured(&mut self, hash: Hash, bytes: u64) {
        let Some(blob) = self.blobs.get_mut(&hash) else { return };
        let more = bytes.saturating_sub(std::mem::replace(&mut blob.bytes, bytes));
        self.blob_bytes += more;
        if blob.as_module > 0 {
            self.module_bytes += more;
        }
    }

    /// Somebody needs a blob.
    pub fn need(&mut self, hash: Hash) {
        self.blobs.entry(hash).or_default().needed += 1;
    }

    fn need_module(&mut self, hash: Hash, bytes: u64) {
        self.need(hash);
        self.measured(hash, bytes);
        if let Some(blob) = self.blobs.get_mut(&hash) {
            blob.as_module += 1;
            if blob.as_module == 1 {
                self.module_bytes += blob.bytes;
            }
        }
    }

    /// Somebody needs a blob no longer; true if nobody does.
    #[must_use]
    pub fn release(&mut self, hash: Hash) -> bool {
        let Some(blob) = self.blobs.get_mut(&hash) else {
            return false;
        };
        blob.needed -= 1;
        let unneeded = blob.needed == 0;
        if unneeded {
            self.blob_bytes -= blob.bytes;
            self.blobs.remove(&hash);
        }
        unneeded
    }

    #[must_use]
    fn release_module(&mut self, hash: Hash) -> bool {
        if let Some(blob) = self.blobs.get_mut(&hash) {
            blob.as_module -= 1;
            if blob.as_module == 0 {
                self.module_bytes -= blob.bytes;
            }
        }
        self.release(hash)
    }

    /// Adds a function and what it needs.
    pub fn add_function(&mut self, record: Arc<FunctionRecord>) {
        self.need(record.config);
        record.variants().for_each(|v| self.need_module(v.sha256, v.bytes));
        for weight in &record.weights {
            self.need(weight.sha256);
            self.measured(weight.sha256, weight.bytes);
        }
        self.functions.insert(record.name.clone(), record);
    }

    /// A function that is not listed any more needs its blobs no longer; those that nobody does.
    #[must_use]
    pub fn release_function(&mut self, record: &FunctionRecord) -> Vec<Hash> {
        let mut unneeded: Vec<Hash> =
            record.variants().map(|v| v.sha256).filter(|hash| self.release_module(*hash)).collect();
        let others = std::iter::once(record.config).chain(record.weights.iter().map(|w| w.sha256));
        unneeded.extend(others.filter(|hash| self.release(*hash)));
        unneeded
    }

    /// Adds a module and what it needs.
    pub fn add_module(&mut self, record: Arc<ModuleRecord>) {
        record.variants.iter().for_each(|v| self.need_module(v.sha256, v.bytes));
        self.modules.insert(record.name.clone(), record);
    }

    /// Takes a module out; the blobs that nobody needs any more.
    #[must_use]
    pub fn remove_module(&mut self, record: &ModuleRecord) -> Vec<Hash> {
        self.modules.remove(&record.name);
        record.variants.iter().map(|v| v.sha256).filter(|hash| self.release_module(*hash)).collect()
    }

    /// Who may call a function besides its owner.
    pub fn callers(&self, function: &str) -> Callers {
        self.grants.get(function).cloned().unwrap_or_default()
    }
}

/// All tenants.
#[derive(Debug, Default)]
pub struct Index {
    tenants: HashMap<TenantId, TenantIndex>,
    /// By a caller's name, what others granted: OWNER/NAME.
    granted: HashMap<Box<str>, BTreeSet<Box<str>>>,
}

impl Index {
    /// A tenant's records, if there are any.
    pub fn tenant(&self, tenant: TenantId) -> Option<&TenantIndex> {
        self.tenants.get(&tenant)
    }

    /// A tenant's records.
    pub fn tenant_mut(&mut self, tenant: TenantId) -> &mut TenantIndex {
        self.tenants.entry(tenant).or_default()
    }

    /// Tenants that ever had anything here.
    pub fn tenants(&self) -> impl Iterator<Item = TenantId> + '_ {
        self.tenants.keys().copied()
    }

    /// Functions and modules of everyone.
    pub fn counts(&self) -> (u64, u64) {
        let sum = |f: fn(&TenantIndex) -> usize| self.tenants.values().map(f).sum::<usize>() as u64;
        (sum(|t| t.functions.len()), sum(|t| t.modules.len()))
    }

    /// From now on exactly these may call a function besides its owner.
    pub fn grant(&mut self, owner: TenantId, owner_name: &str, function: &str, callers: Callers) {
        let before = self.tenant(owner).map(|mine| mine.callers(function)).unwrap_or_default();
        let reference = format!("{owner_name}/{function}");
        for caller in before.iter().filter(|caller| !callers.contains(caller)) {
            if let Some(granted) = self.granted.get_mut(caller) {
                granted.remove(&*reference);
                if granted.is_empty() {
                    self.granted.remove(caller);
                }
            }
        }
        for caller in callers.iter().filter(|caller| !before.contains(caller)) {
            self.granted.entry(caller.clone()).or_default().insert(reference.as_str().into());
        }
        let grants = &mut self.tenant_mut(owner).grants;
        match callers.is_empty() {
            true => drop(grants.remove(function)),
            false => drop(grants.insert(function.to_owned(), callers)),
        }
    }

    /// What others granted to a tenant: OWNER/NAME, sorted.
    pub fn granted_to(&self, caller: &str) -> Option<&BTreeSet<Box<str>>> {
        self.granted.get(caller)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::records::{FunctionModule, Variant, Weight};

    const TENANT: TenantId = TenantId::new(1);

    fn hash(n: u8) -> Hash {
        Hash([n; 32])
    }

    fn variant(n: u8, bytes: u64) -> Variant {
        Variant { format: "wasm".into(), arch: "".into(), sha256: hash(n), bytes }
    }

    fn function(name: &str, variants: Vec<Variant>, weight_bytes: u64) -> FunctionRecord {
        FunctionRecord {
            name: name.into(),
            config: hash(9),
            modules: Box::new([FunctionModule { name: "m".into(), variants: variants.into() }]),
            weights: Box::new([Weight { name: "w".into(), sha256: hash(8), bytes: weight_bytes }]),
            inputs: Box::default(),
            outputs: Box::default(),
        }
    }

    #[test]
    fn bytes_count_once_however_many_need_them() {
        let mut mine = TenantIndex::default();
        let first = function("a", vec![variant(1, 10), variant(2, 20)], 100);
        let second = function("b", vec![variant(1, 10)], 100);
        let module = ModuleRecord { name: "m".into(), variants: vec![variant(1, 10)] };
        let all = [(hash(1), 10), (hash(2), 20), (hash(1), 10)];
        assert_eq!(mine.new_module_bytes(all.into_iter()), 30);
        mine.add_function(first.clone().into());
        assert_eq!(mine.unmeasured(), [hash(9)]);
        mine.measured(hash(9), 1000);
        mine.add_function(second.clone().into());
        mine.add_module(module.clone().into());
        assert_eq!((mine.module_bytes(), mine.blob_bytes()), (30, 1130));
        assert_eq!(mine.new_module_bytes(all.into_iter()), 0);
        assert_eq!(mine.release_function(&first), [hash(2)]);
        assert_eq!((mine.module_bytes(), mine.blob_bytes()), (10, 1110));
        let mut gone = mine.release_function(&second);
        gone.sort();
        assert_eq!(gone, [hash(8), hash(9)]);
        assert_eq!(mine.remove_module(&module), [hash(1)]);
        assert_eq!((mine.module_bytes(), mine.blob_bytes()), (0, 0));
    }

    #[test]
    fn a_replacement_counts_for_what_is_there_afterwards() {
        let mut mine = TenantIndex::default();
        let old = function("a", vec![variant(1, 10), variant(2, 20)], 100);
        mine.add_function(old.clone().into());
        // 2 stays, 1 goes, 3 comes.
        let new = function("a", vec![variant(2, 20), variant(3, 40)], 100);
        assert_eq!(mine.replaced_module_bytes(&old, &new), (20, 40));
        // Another one needs 1, too.
        mine.add_module(ModuleRecord { name: "m".into(), variants: vec![variant(1, 10)] }.into());
        assert_eq!(mine.replaced_module_bytes(&old, &new), (30, 40));
        mine.add_function(new.into());
        assert_eq!(mine.release_function(&old), [], "1 is the module's, all others the new one's");
        assert_eq!(mine.module_bytes(), 70);
    }

    #[test]
    fn grants_are_found_from_both_sides() {
        let mut index = Index::default();
        let callers = |names: &[&str]| -> Callers { names.iter().map(|name| Box::from(*name)).collect() };
        index.grant(TENANT, "acme", "f", callers(&["7", "b"]));
        index.grant(TENANT, "acme", "g", callers(&["b"]));
        let granted = |index: &Index, to: &str| -> Vec<String> {
            index.granted_to(to).into_iter().flatten().map(ToString::to_string).collect()
        };
        assert_eq!(granted(&index, "b"), ["acme/f", "acme/g"]);
        index.grant(TENANT, "acme", "f", callers(&["7"]));
        assert_eq!(
            (granted(&index, "b"), granted(&index, "7")),
            (vec!["acme/g".into()], vec!["acme/f".into()])
        );
        assert_eq!(index.tenant(TENANT).unwrap().callers("f"), callers(&["7"]));
        index.grant(TENANT, "acme", "f", Callers::default());
        index.grant(TENANT, "acme", "g", Callers::default());
        assert!(index.granted.is_empty() && index.tenant(TENANT).unwrap().grants.is_empty());
    }
}
