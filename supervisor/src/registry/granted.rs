//! Grants, found by the tenant that has them. Pure bookkeeping: its lock is held for one change or one page.

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;

use super::views::Page;
use crate::function::loaded::Callers;

/// By a caller's name, what others granted to it: OWNER/NAME.
#[derive(Debug, Default)]
pub(super) struct Granted(HashMap<Box<str>, BTreeSet<Box<str>>>);

impl Granted {
    /// From now on `after` may call a function besides its owner, and no more `before`. Both are sorted.
    pub(super) fn change(&mut self, owner: &str, function: &str, before: &Callers, after: &Callers) {
        let reference = format!("{owner}/{function}");
        for caller in before.iter().filter(|caller| after.binary_search(caller).is_err()) {
            if let Some(granted) = self.0.get_mut(caller) {
                granted.remove(&*reference);
                if granted.is_empty() {
                    self.0.remove(caller);
                }
            }
        }
        for caller in after.iter().filter(|caller| before.binary_search(caller).is_err()) {
            self.0.entry(caller.clone()).or_default().insert(reference.as_str().into());
        }
    }

    /// How many functions an owner granted to a tenant.
    pub(super) fn count(&self, caller: &str, owner: &str) -> usize {
        // No name has a slash, behind which this one's functions are.
        let first = format!("{owner}/");
        let all = self
            .0
            .get(caller)
            .into_iter()
            .flat_map(|all| all.range::<str, _>((Bound::Included(&*first), Bound::Unbounded)));
        all.take_while(|reference| reference.starts_with(&first)).count()
    }

    /// At most so many of what was granted to a tenant, sorted, after `after`, without what declined owners granted.
    pub(super) fn page(
        &self,
        caller: &str,
        after: &str,
        most: usize,
        is_declined: impl Fn(&str) -> bool,
    ) -> Page<Box<str>> {
        let mut page = Page { items: Vec::new(), more: false };
        let Some(all) = self.0.get(caller) else { return page };
        let mut rest = all.range::<str, _>((Bound::Excluded(after), Bound::Unbounded));
        while let Some(reference) = rest.next() {
            match reference.split_once('/') {
                Some((owner, _)) if is_declined(owner) => {
                    // All of this owner's lie before the character behind the slash.
                    let next = format!("{owner}0");
                    rest = all.range::<str, _>((Bound::Included(&*next), Bound::Unbounded));
                }
                _ if page.items.len() == most => {
                    page.more = true;
                    break;
                }
                _ => page.items.push(reference.clone()),
            }
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_are_found_from_the_callers_side() {
        let mut granted = Granted::default();
        let callers = |names: &[&str]| -> Callers { names.iter().map(|name| Box::from(*name)).collect() };
        let none = Callers::default();
        granted.change("acme", "f", &none, &callers(&["7", "b"]));
        granted.change("acme", "g", &none, &callers(&["b"]));
        let none_declined = |_: &str| false;
        let to =
            |granted: &Granted, caller: &str| granted.page(caller, "", 10, none_declined).items.join(" ");
        assert_eq!(to(&granted, "b"), "acme/f acme/g");
        let one = granted.page("b", "", 1, none_declined);
        assert_eq!((&*one.items[0], one.more), ("acme/f", true));
        granted.change("acm", "f", &none, &callers(&["b"]));
        assert_eq!(["acm", "acme", "acmex", "7"].map(|owner| granted.count("b", owner)), [1, 2, 0, 0]);
        let but = |name: &'static str| move |owner: &str| owner == name;
        let b = |after, most, declined| granted.page("b", after, most, but(declined));
        assert_eq!(b("", 10, "acme").items.join(" "), "acm/f");
        assert_eq!(b("", 10, "acm").items.join(" "), "acme/f acme/g");
        assert_eq!([b("", 1, "acme").more, b("", 1, "acm").more], [false, true]);
        assert!(b("acme/f", 10, "acme").items.is_empty());
        granted.change("acm", "f", &callers(&["b"]), &none);
        assert_eq!(granted.page("b", "acme/f", 1, none_declined).items.join(" "), "acme/g");
        granted.change("acme", "f", &callers(&["7", "b"]), &callers(&["7"]));
        assert_eq!((to(&granted, "b"), to(&granted, "7")), ("acme/g".into(), "acme/f".into()));
        granted.change("acme", "f", &callers(&["7"]), &none);
        granted.change("acme", "g", &callers(&["b"]), &none);
        assert!(granted.0.is_empty());
    }
}
