//! What rules about tenants that are read again change, in the words of the configuration.
//!
//! What a tenant has from `[tenant-defaults]` changes with these, and is listed there once.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::time::Duration;

use super::tenants::{TenantRule, TenantRules};
use crate::quota::Limit;
use crate::schedule::TenantShare;

/// A setting that has another value than before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingChange {
    /// Its key.
    pub name: &'static str,
    /// Its value until now.
    pub before: String,
    /// Its value from now on.
    pub after: String,
}

/// What changes for one tenant.
#[derive(Debug, PartialEq, Eq)]
pub struct TenantChanges {
    /// The tenant's name; none for the defaults.
    pub tenant: Option<String>,
    /// The settings that differ, at least one.
    pub changes: Vec<SettingChange>,
}

type Values = Vec<(&'static str, String)>;

/// Who may be a tenant at all.
pub fn access(before: &TenantRules, after: &TenantRules) -> Vec<SettingChange> {
    let values = |rules: &TenantRules| {
        let unknown = if rules.accept_unknown { "accept" } else { "refuse" };
        vec![("unknown-tenants", unknown.to_owned()), ("gateways", list(&rules.gateways))]
    };
    differing(values(before), values(after))
}

/// The defaults first, then tenants by name: those that are named, are named no more, or have something else.
pub fn tenants<'r>(
    before: &'r TenantRules,
    after: &'r TenantRules,
) -> impl Iterator<Item = TenantChanges> + 'r {
    // What a tenant has that is given nothing else.
    let (default, later) = (values(before, None), values(after, None));
    let all = TenantChanges { tenant: None, changes: differing(default.clone(), later.clone()) };
    let names: BTreeSet<&String> = before.tenants.keys().chain(after.tenants.keys()).collect();
    let changed = names.into_iter().filter(|name| before.find(name) != after.find(name));
    let named = changed.map(move |name| {
        let (was, is) = (before.find(name), after.find(name));
        let mut changes = differing(access_of(was), access_of(is));
        let both = values(before, was).into_iter().zip(values(after, is));
        let own = both.zip(default.iter().zip(&later));
        // What it has from the defaults, before as after, is theirs.
        let other =
            own.filter(|((was, is), (default, later))| was != is && (was != *default || is != *later));
        changes.extend(other.map(|(((name, before), (_, after)), _)| SettingChange { name, before, after }));
        TenantChanges { tenant: Some(name.clone()), changes }
    });
    std::iter::once(all).chain(named).filter(|tenant| !tenant.changes.is_empty())
}

/// An amount as the configuration has it.
pub fn amount(limit: Limit, amount: u64) -> String {
    match amount {
        u64::MAX => "unlimited".to_owned(),
        amount => limit.show(amount),
    }
}

/// How a tenant is known.
fn access_of(rule: Option<&TenantRule>) -> Values {
    let uids = rule.map_or("none".to_owned(), |rule| list(&rule.uids));
    // A hash is no secret, and long.
    let tokens = rule.map_or(Vec::new(), |rule| rule.tokens.iter().map(short).collect());
    vec![("uid", uids), ("token-sha256", list(&tokens))]
}

fn short(hash: &impl Display) -> String {
    hash.to_string().chars().take(8).chain(std::iter::once('…')).collect()
}

/// A tenant's quotas and share, as names and values.
fn values(rules: &TenantRules, rule: Option<&TenantRule>) -> Values {
    let quota = rule.map_or(rules.defaults, |rule| rule.quota);
    let TenantShare { weight, class, overrun_ns, isolation } =
        rule.map_or(rules.default_share, |rule| rule.share);
    let overrun = match overrun_ns {
        None => "as the setting".to_owned(),
        Some(ns) => humantime::format_duration(Duration::from_nanos(ns)).to_string(),
    };
    let mut values: Values =
        Limit::ALL.iter().map(|limit| (limit.name(), amount(*limit, quota.get(*limit)))).collect();
    values.extend([
        ("weight", weight.to_string()),
        ("class", class.name().to_owned()),
        ("overrun-limit", overrun),
        ("isolation", isolation.name().to_owned()),
    ]);
    values
}

fn list(of: &[impl Display]) -> String {
    match of {
        [] => "none".to_owned(),
        several => several.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}

fn differing(before: Values, after: Values) -> Vec<SettingChange> {
    let both = before.into_iter().zip(after).filter(|(before, after)| before != after);
    both.map(|((name, before), (_, after))| SettingChange { name, before, after }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::file::File;
    use super::*;

    fn rules(text: &str) -> TenantRules {
        let file: File = toml::from_str(text).unwrap();
        TenantRules::resolve(&file, &mut Vec::new())
    }

    fn told(before: &str, after: &str) -> Vec<String> {
        let (before, after) = (rules(before), rules(after));
        let line = |tenant: &Option<String>, change: &SettingChange| {
            let SettingChange { name, before, after } = change;
            format!("{} {name}: {before} -> {after}", tenant.as_deref().unwrap_or("all"))
        };
        tenants(&before, &after)
            .flat_map(|TenantChanges { tenant, changes }| {
                changes.iter().map(|change| line(&tenant, change)).collect::<Vec<_>>()
            })
            .collect()
    }

    #[test]
    fn what_changes_is_told_once_where_it_is_set() {
        let before = "[tenant-defaults]\ncalls = 9\n[tenants.a]\nuid = 1\n[tenants.b]\nuid = 2\ncalls = 3";
        assert!(told(before, before).is_empty());
        let after = "[tenant-defaults]\ncalls = 7\n[tenants.a]\nuid = 1\n[tenants.b]\nuid = 2\ncalls = 3";
        assert_eq!(told(before, after), ["all calls: 9 -> 7"]);
        // A key that is left out goes back to the default.
        let without = after.replace("\ncalls = 3", "\nweight = 2");
        assert_eq!(told(before, &without), ["all calls: 9 -> 7", "b calls: 3 -> 7", "b weight: 1 -> 2"]);
        let sizes = before.replace("calls = 3", "arena-bytes = '2KiB'\noverrun-limit = '1s'");
        assert_eq!(
            told(before, &sizes),
            [
                "b arena-bytes: 274877906944 (256.0 GiB) -> 2048 (2.0 KiB)",
                "b calls: 3 -> 9",
                "b overrun-limit: as the setting -> 1s"
            ]
        );
    }

    #[test]
    fn tenants_that_come_and_go_are_told_with_how_they_are_known() {
        let token = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
        let named = format!("[tenants.a]\nuid = [1, 2]\ntoken-sha256 = '{token}'\nclass = 'batch'");
        assert_eq!(
            told("", &named),
            ["a uid: none -> 1, 2", "a token-sha256: none -> 9f86d081…", "a class: normal -> batch"]
        );
        assert_eq!(told(&named, "").len(), 3);
        let (before, after) = (rules(""), rules("unknown-tenants = 'refuse'\ngateways = [33, 34]"));
        let access = access(&before, &after);
        let told: Vec<_> = access.iter().map(|c| (c.name, &*c.before, &*c.after)).collect();
        assert_eq!(told, [("unknown-tenants", "accept", "refuse"), ("gateways", "none", "33, 34")]);
    }
}
