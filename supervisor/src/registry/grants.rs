//! Who may call whose functions. A tenant that was granted a function may call it, and see its name, its inputs
//! and its outputs; nothing else of it. It names it OWNER/NAME.

use std::ops::Bound;
use std::sync::Arc;

use pappus_proto::v1;

use super::index::Index;
use super::registration::{Registry, unknown};
use crate::function::Loaded;
use crate::function::loaded::Callers;
use crate::ids::{FunctionId, TenantId};
use crate::limits::MAX_GRANTS;
use crate::refusal::{Reason, Refusal, failed, refusal};
use crate::store::records::GrantRecord;
use crate::store::state_dir::{Kind, StateDir, StateError};
use crate::tenant_name::is_tenant;
use crate::tenants::Account;

/// Reads what a tenant granted; what is left of functions that are gone goes.
pub(super) fn read(state: &StateDir, owner: TenantId, index: &mut Index) -> Result<(), StateError> {
    for GrantRecord { name, mut callers } in state.records(owner, Kind::Grant)? {
        if !index.tenant_mut(owner).functions.contains_key(&name) {
            state.remove_record(owner, Kind::Grant, &name)?;
            continue;
        }
        callers.sort_unstable();
        callers.dedup();
        index.grant(owner, &state.names().name(owner), &name, callers.into());
    }
    Ok(())
}

/// A function that one caller may not call any more.
#[derive(Debug)]
pub struct Revoked {
    /// Its name towards workers, if it was in memory.
    pub function: Option<FunctionId>,
    /// Whose it is.
    pub owner: TenantId,
    /// Who may not call it; none if nobody of that name ever was here.
    pub caller: Option<TenantId>,
}

impl Registry {
    /// The owner and the name in it that a caller means: NAME is its own, OWNER/NAME another's.
    fn resolve<'n>(&self, caller: &Account, reference: &'n str) -> Option<(TenantId, &'n str)> {
        match reference.split_once('/') {
            None => Some((caller.tenant, reference)),
            Some((owner, name)) => Some((self.tenants.names().find(owner)?, name)),
        }
    }

    /// The function that a caller means, if it is in memory and the caller may call it.
    pub fn find(&self, caller: &Account, reference: &str) -> Option<Arc<Loaded>> {
        let (owner, name) = self.resolve(caller, reference)?;
        self.loaded.get(owner, name).filter(|function| function.may_call(caller))
    }

    /// As [`Registry::find`], from disk if need be. Whoever may not call a function learns nothing of it, not even
    /// that it is there.
    pub fn load(&self, caller: &Account, reference: &str) -> Result<Arc<Loaded>, Refusal> {
        let nothing = || unknown("function", reference);
        let (owner, name) = self.resolve(caller, reference).ok_or_else(nothing)?;
        if owner == caller.tenant {
            return self.load_own(owner, name);
        }
        if !self.is_granted(caller, owner, name) {
            return Err(nothing());
        }
        let function = self.load_own(owner, name).map_err(|error| match error.reason {
            Reason::NotFound => nothing(),
            code => {
                tracing::debug!(
                    caller = &*caller.name,
                    function = reference,
                    "a granted function does not load: {error}"
                );
                refusal(code, format!("{reference} cannot be loaded here: its owner can see why"))
            }
        })?;
        // It may have been revoked while it was loaded.
        if function.may_call(caller) { Ok(function) } else { Err(nothing()) }
    }

    fn is_granted(&self, caller: &Account, owner: TenantId, name: &str) -> bool {
        self.index()
            .tenant(owner)
            .is_some_and(|theirs| theirs.callers(name).contains(&Box::from(&*caller.name)))
    }

    /// The name of a tenant's own function, which OWN/NAME is another spelling of.
    pub(super) fn own<'n>(&self, account: &Account, reference: &'n str) -> Result<&'n str, Refusal> {
        match self.resolve(account, reference) {
            Some((owner, name)) if owner == account.tenant => Ok(name),
            Some((owner, name)) if self.is_granted(account, owner, name) => {
                let why = format!("{reference} is another tenant's: you may call it, not read or change it");
                Err(refusal(Reason::PermissionDenied, why))
            }
            _ => Err(unknown("function", reference)),
        }
    }

    /// Lets another tenant call a function. That nobody has such a name is not said: it would tell who is here.
    pub fn grant(&self, account: &Account, request: &v1::Grant) -> Result<(), Refusal> {
        let name = self.own(account, &request.function)?;
        let caller = check_caller(&request.tenant)?;
        if *caller == *account.name {
            return Err(refusal(Reason::InvalidArgument, "it is yours: a grant is for another tenant"));
        }
        let mut index = self.index();
        let mut callers = self.callers_of(&index, account, name)?.to_vec();
        let Err(at) = callers.binary_search_by(|name| (**name).cmp(caller)) else { return Ok(()) };
        if callers.len() >= MAX_GRANTS {
            let why =
                format!("{name} is granted to {MAX_GRANTS} tenants, the most that is allowed: revoke some");
            return Err(refusal(Reason::ResourceExhausted, why));
        }
        callers.insert(at, caller.into());
        self.change_callers(&mut index, account, name, callers)
    }

    /// A tenant may call a function no longer; calls that were accepted finish.
    pub fn revoke(&self, account: &Account, request: &v1::Grant) -> Result<Revoked, Refusal> {
        let name = self.own(account, &request.function)?;
        let caller = check_caller(&request.tenant)?;
        let mut index = self.index();
        let mut callers = self.callers_of(&index, account, name)?.to_vec();
        let at = callers.binary_search_by(|name| (**name).cmp(caller)).map_err(|_| {
            let why = format!(
                "{name} is not granted to {caller}: `pappus function grants {name}` shows to whom it is"
            );
            refusal(Reason::NotFound, why)
        })?;
        callers.remove(at);
        self.change_callers(&mut index, account, name, callers)?;
        let function = self.loaded.get(account.tenant, name).map(|function| function.id);
        Ok(Revoked { function, owner: account.tenant, caller: self.tenants.names().find(caller) })
    }

    /// Who may call a function besides its owner.
    pub fn list_grants(&self, account: &Account, reference: &str) -> Result<v1::Grants, Refusal> {
        let name = self.own(account, reference)?;
        let callers = self.callers_of(&self.index(), account, name)?;
        Ok(v1::Grants { tenants: callers.iter().map(ToString::to_string).collect() })
    }

    fn callers_of(&self, index: &Index, account: &Account, name: &str) -> Result<Callers, Refusal> {
        let mine = index.tenant(account.tenant).filter(|mine| mine.functions.contains_key(name));
        Ok(mine.ok_or_else(|| unknown("function", name))?.callers(name))
    }

    /// On disk, then for who looks, then for functions in memory.
    fn change_callers(
        &self,
        index: &mut Index,
        account: &Account,
        name: &str,
        callers: Vec<Box<str>>,
    ) -> Result<(), Refusal> {
        let record = GrantRecord { name: name.to_owned(), callers };
        let stored = match record.callers.is_empty() {
            true => self.state.remove_record(account.tenant, Kind::Grant, name),
            false => self.state.put_grants(account.tenant, &record),
        };
        stored.map_err(|e| failed("cannot store the grant", &e))?;
        let callers: Callers = record.callers.into();
        index.grant(account.tenant, &account.name, name, callers.clone());
        if let Some(function) = self.loaded.get(account.tenant, name) {
            function.grant(callers);
        }
        Ok(())
    }

    /// A function is about to go, and its grants with it.
    pub(super) fn forget_grants(
        &self,
        index: &mut Index,
        account: &Account,
        name: &str,
    ) -> Result<(), Refusal> {
        match self.callers_of(index, account, name)?.is_empty() {
            true => Ok(()),
            false => self.change_callers(index, account, name, Vec::new()),
        }
    }

    /// What others granted to a tenant, at most so many after `after`, and whether there are more.
    pub(super) fn granted(
        &self,
        index: &Index,
        account: &Account,
        after: &str,
        most: usize,
    ) -> (Vec<v1::FunctionInfo>, bool) {
        let after = if after.contains('/') { after } else { "" };
        let behind = (Bound::Excluded(after), Bound::Unbounded);
        let mut all = index.granted_to(&account.name).into_iter().flat_map(|all| all.range::<str, _>(behind));
        let info = |reference: &str| {
            let (owner, name) = self.resolve(account, reference)?;
            let record = index.tenant(owner)?.functions.get(name)?;
            let output = |name: &str| v1::OutputInfo { name: name.to_owned(), ..Default::default() };
            Some(v1::FunctionInfo {
                name: reference.to_owned(),
                inputs: record.inputs.iter().map(ToString::to_string).collect(),
                outputs: record.outputs.iter().map(|o| output(&o.name)).collect(),
                granted: true,
                ..Default::default()
            })
        };
        let page = all.by_ref().take(most).filter_map(|reference| info(reference)).collect();
        (page, all.next().is_some())
    }
}

fn check_caller(tenant: &str) -> Result<&str, Refusal> {
    match is_tenant(tenant) {
        true => Ok(tenant),
        false => Err(refusal(
            Reason::InvalidArgument,
            format!("{tenant:?} is no tenant: expected a name such as acme, or a uid such as 1000"),
        )),
    }
}
