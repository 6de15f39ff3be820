//! Numbers that stand for tenants, and their names. A tenant that the configuration does not name is its uid.

use std::collections::HashMap;
use std::sync::Arc;

use crate::ids::TenantId;
use crate::sync::{OrderedRwLock, rank};
use crate::tenant_name::{FIRST_NAMED, is_number, is_tenant_name, uid};

/// Names ↔ numbers; a number never changes its name while the supervisor runs.
#[derive(Debug, Default)]
pub struct Names(OrderedRwLock<Known, { rank::NAMES }>);

#[derive(Debug, Default)]
struct Known {
    names: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, TenantId>,
}

impl Names {
    /// The tenant that the configuration does not name and whose uid this is.
    pub fn of_uid(uid: u32) -> TenantId {
        TenantId::new(uid)
    }

    /// The tenant of this name, if it is a uid or was named before.
    pub fn find(&self, name: &str) -> Option<TenantId> {
        if name.as_bytes().first().is_some_and(u8::is_ascii_digit) && is_number(name) {
            return uid(name).map(Self::of_uid);
        }
        self.0.read().numbers.get(name).copied()
    }

    /// The tenant of this name, which gets a number if it has none; none where that cannot be a name, or there
    /// are too many.
    pub fn number(&self, name: &str) -> Option<TenantId> {
        if let Some(found) = self.find(name) {
            return Some(found);
        }
        if !is_tenant_name(name) {
            return None;
        }
        let mut known = self.0.write();
        if let Some(found) = known.numbers.get(name) {
            return Some(*found);
        }
        let number = FIRST_NAMED.checked_add(known.names.len() as u32).filter(|n| *n != u32::MAX)?;
        let number = TenantId::new(number);
        let name: Arc<str> = name.into();
        known.names.push(name.clone());
        known.numbers.insert(name, number);
        Some(number)
    }

    /// A tenant's name.
    pub fn name(&self, tenant: TenantId) -> Arc<str> {
        let named = tenant.get().checked_sub(FIRST_NAMED);
        let known = self.0.read();
        let name = named.and_then(|at| known.names.get(at as usize));
        name.cloned().unwrap_or_else(|| tenant.to_string().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenant_name::is_tenant;

    #[test]
    fn a_uid_is_its_own_name_and_others_get_numbers_that_stay() {
        let names = Names::default();
        assert_eq!(
            (names.find("1000"), &*names.name(Names::of_uid(1000))),
            (Some(Names::of_uid(1000)), "1000")
        );
        assert_eq!(names.find("acme"), None);
        let acme = names.number("acme").unwrap();
        let other = names.number("1password").unwrap();
        assert!(acme >= TenantId::new(FIRST_NAMED) && other > acme);
        assert_eq!((names.number("acme"), names.find("acme")), (Some(acme), Some(acme)));
        assert_eq!((&*names.name(acme), &*names.name(other)), ("acme", "1password"));
    }

    #[test]
    fn one_tenant_has_one_name() {
        let names = Names::default();
        for bad in ["", "01", "00", "4294901760", "4294967295", "99999999999", "+1", "a/b", ".a", "a b"] {
            assert!(!is_tenant(bad) && names.number(bad).is_none(), "{bad}");
        }
        assert!(is_tenant("0") && is_tenant("4294901759") && is_tenant("acme"));
        assert!(is_tenant_name("acme") && !is_tenant_name("7"));
    }
}
