//! The configuration file that packages install: it names every setting, with its default.

use std::collections::BTreeSet;

use clap::CommandFactory;

use super::file::File;
use super::flags::Flags;
use super::{SandboxSettings, Settings, TenantRules};
use crate::metrics::calls::MetricsOf;
use crate::quota::Limit;

const PACKAGED: &str = include_str!("../../../deploy/pappus.toml");

/// What no start accepts.
const PLACEHOLDER: &str = "CHANGE-ME";

/// Flags that no file has.
const FLAGS_ONLY: [&str; 6] = ["check", "completions", "config", "json", "list-devices", "man"];

/// The file with every setting in force, and with a token in place of its placeholder.
fn all_given() -> String {
    let given = |line: &str| match line.strip_prefix('#') {
        Some(setting) if !setting.is_empty() && !setting.starts_with(' ') => setting.to_owned(),
        _ => line.to_owned(),
    };
    let given = PACKAGED.lines().map(given).collect::<Vec<_>>().join("\n");
    given.replace(PLACEHOLDER, &"1".repeat(64))
}

#[test]
fn every_setting_has_a_line() {
    let table: toml::Table = all_given().parse().unwrap();
    let flags = Flags::command();
    let names = flags.get_arguments().filter_map(|argument| argument.get_long());
    let mut known: BTreeSet<&str> = names.filter(|name| !FLAGS_ONLY.contains(name)).collect();
    known.extend(["gateways", "tenant-defaults", "tenants", "unknown-tenants"]);
    assert_eq!(table.keys().map(String::as_str).collect::<BTreeSet<_>>(), known);
    let limits = Limit::ALL.map(|limit| limit.to_string());
    let defaults = table["tenant-defaults"].as_table().unwrap();
    let missing: Vec<_> = limits.iter().filter(|limit| !defaults.contains_key(*limit)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn what_is_commented_out_is_the_default() {
    let file: File = toml::from_str(&all_given()).unwrap();
    let mut settings = Settings {
        queue_calls: 1,
        queue_bytes: 1,
        default_deadline: std::time::Duration::MAX,
        max_deadline: std::time::Duration::MAX,
        poll_us: 1,
        cancel_grace: std::time::Duration::MAX,
        overrun_limit: std::time::Duration::MAX,
        quarantine_after: 1,
        fault_budget: 1,
        metrics_of: MetricsOf::Devices,
        kept_versions: 1,
        session_idle: std::time::Duration::MAX,
        session_grace: std::time::Duration::MAX,
        ..Settings::default()
    };
    let given = [
        ("queue-calls", file.queue_calls.map(|n| n.to_string())),
        ("queue-bytes", file.queue_bytes.clone()),
        ("default-deadline", file.default_deadline.clone()),
        ("max-deadline", file.max_deadline.clone()),
        ("poll-us", file.poll_us.map(|n| n.to_string())),
        ("cancel-grace", file.cancel_grace.clone()),
        ("overrun-limit", file.overrun_limit.clone()),
        ("quarantine-after", file.quarantine_after.map(|n| n.to_string())),
        ("fault-budget", file.fault_budget.map(|n| n.to_string())),
        ("metrics-of", file.metrics_of.clone()),
        ("kept-versions", file.kept_versions.map(|n| n.to_string())),
        ("session-idle", file.session_idle.clone()),
        ("session-grace", file.session_grace.clone()),
    ];
    let given = given.map(|(name, value)| (name, value.unwrap()));
    settings.give(&given).unwrap();
    assert_eq!(settings, Settings::default());

    let given = SandboxSettings::given(file.worker_uid, file.worker_memory.clone(), None).unwrap();
    assert_eq!(given, SandboxSettings::given(None, None, None).unwrap());
    assert!(file.worker_uid.is_some() && file.worker_memory.is_some());
    assert_eq!(file.device, Vec::<String>::new());
    let mut wrong = Vec::new();
    let rules = TenantRules::resolve(&file, &mut wrong);
    assert!(wrong.is_empty(), "{wrong:?}");
    let usual = TenantRules::default();
    assert_eq!((rules.accept_unknown, &rules.gateways), (usual.accept_unknown, &usual.gateways));
    assert_eq!((rules.defaults, rules.default_share), (usual.defaults, usual.default_share));
}

#[test]
fn a_placeholder_in_it_is_refused() {
    let with_placeholder = all_given().replace(&"1".repeat(64), PLACEHOLDER);
    let mut wrong = Vec::new();
    TenantRules::resolve(&toml::from_str(&with_placeholder).unwrap(), &mut wrong);
    assert!(wrong.iter().any(|why| why.to_string().contains("placeholder")), "{wrong:?}");
    assert_eq!(PACKAGED.matches(PLACEHOLDER).count(), 1);
}

#[test]
fn as_it_is_it_names_what_must_be_named() {
    let file: File = toml::from_str(PACKAGED).unwrap();
    let socket = file.socket.unwrap();
    assert_eq!(file.state_dir.unwrap().to_str(), Some("/var/lib/pappus"));
    // The unit listens where the file says.
    let unit = include_str!("../../../deploy/systemd/pappus-supervisor.socket");
    assert!(unit.lines().any(|line| line == format!("ListenStream={}", socket.display())), "{unit}");
    let mut admin = socket.into_os_string();
    admin.push(".admin");
    assert!(PACKAGED.contains(&format!("#admin-socket = {:?}", admin.to_str().unwrap())));
}
