//! `pappus status`: what the supervisor, its devices and their workers are doing, and whether all is well.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use pappus_client::{Client, v1};

use super::verdict;
use crate::arguments::StatusArguments;
use crate::failure::{Failure, Result};
use crate::json;
use crate::table::{Align, Table};
use crate::units::{nanoseconds, rough_bytes};

/// The longest line, in characters: what most terminals show without breaking it.
pub(super) const WIDTH: usize = 120;

/// Asks once and prints, or only says whether calls can be made.
pub(crate) fn run(client: &mut Client, arguments: &StatusArguments, out: &mut dyn Write) -> Result<()> {
    let status = client.status()?;
    if arguments.ready {
        return readiness(&status);
    }
    if arguments.json.json {
        let mut value = json::status(&status);
        verdict::add_to(&mut value, &status);
        return Ok(writeln!(out, "{value}")?);
    }
    print(&status, out)
}

fn readiness(status: &v1::Status) -> Result<()> {
    match (status.ready, status.draining) {
        (true, _) => Ok(()),
        (false, true) => Err(Failure::Draining),
        (false, false) => Err(Failure::NotReady),
    }
}

fn print(status: &v1::Status, out: &mut dyn Write) -> Result<()> {
    let up = humantime::format_duration(Duration::from_secs(status.uptime_ms / 1000));
    // Only the operator is told since when.
    let up = if status.uptime_ms > 0 { format!(", up {up}") } else { String::new() };
    writeln!(out, "pappus {}{up}", status.version)?;
    if status.draining {
        let bold = Style::new().bold().fg_color(Some(AnsiColor::Yellow.into()));
        writeln!(out, "{bold}DRAINING{bold:#}: running calls finish, new ones are refused, then it ends")?;
    }
    write!(out, "functions: {}, modules registered by name: {}", status.functions, status.modules)?;
    // Only the operator is told how many; its own is one of them.
    match status.connections {
        0 => writeln!(out, "\n")?,
        connections => writeln!(out, ", connections: {connections}\n")?,
    }

    all_of_devices(status, out)?;
    sessions(status, out)?;
    writeln!(out)?;
    verdict::print(status, out)
}

/// Everything that is told of its devices.
pub(super) fn all_of_devices(status: &v1::Status, out: &mut dyn Write) -> Result<()> {
    devices(status, out)?;
    settings(status, out)?;
    memory(status, out)?;
    weights(status, out)?;
    workers(status, out)?;
    quarantined(status, out)?;
    kept_apart(status, out)?;
    budgets(status, out)?;
    tenants(status, out)
}

/// A line for each device.
pub(super) fn devices(status: &v1::Status, out: &mut dyn Write) -> Result<()> {
    let mut table = Table::new(&[
        ("DEVICE", Align::Left),
        ("KIND", Align::Left),
        ("MEMORY", Align::Right),
        ("ONE CALL", Align::Right),
        ("QUEUED", Align::Right),
        ("RUNNING", Align::Right),
        ("COMPLETED", Align::Right),
        ("FAILED", Align::Right),
        ("WHAT", Align::Left),
    ]);
    for device in &status.devices {
        table.row([
            device.name.clone(),
            device.kind.clone(),
            rough_bytes(device.memory_bytes),
            rough_bytes(device.largest_call_bytes),
            format!("{} of {}", device.queued, device.queue_calls_at_most),
            device.running.to_string(),
            device.completed.to_string(),
            device.failed.to_string(),
            what(device),
        ]);
    }
    Ok(table.print_within(WIDTH, out)?)
}

/// `NVIDIA H200, sm_90, driver 570.1`.
fn what(device: &v1::DeviceStatus) -> String {
    let driver = match device.driver.as_str() {
        "" => String::new(),
        version => format!("driver {version}"),
    };
    let lost = if device.lost { "LOST" } else { "" };
    let parts = [device.description.as_str(), &device.arch, &driver, lost];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
}

fn settings(status: &v1::Status, out: &mut dyn Write) -> Result<()> {
    writeln!(out)?;
    let mut table = Table::new(&[
        ("DEVICE", Align::Left),
        ("WORKERS", Align::Right),
        ("LANES", Align::Right),
        ("TURNS", Align::Left),
        ("STANDBYS", Align::Left),
        ("SCRUB", Align::Left),
    ]);
    for device in &status.devices {
        table.row([
            device.name.clone(),
            device.workers_at_most.to_string(),
            device.lanes.to_string(),
            match device.turns {
                true => nanoseconds(device.quantum_us * 1000),
                false => "off".to_owned(),
            },
            format!("{} of {} ready", device.standbys_ready, device.standbys),
            match (device.kind.as_str(), device.scrub_calls) {
                ("cpu", _) => "-",
                (_, true) => "call",
                (_, false) => "switch",
            }
            .to_owned(),
        ]);
    }
    Ok(table.print_within(WIDTH, out)?)
}

/// A table below the one before; nothing where it has no rows.
fn print_if_any(table: &Table, out: &mut dyn Write) -> Result<()> {
    if !table.is_empty() {
        writeln!(out)?;
        table.print_within(WIDTH, out)?;
    }
    Ok(())
}

/// Only the operator is told.
fn memory(status: &v1::Status, out: &mut dyn Write) -> Result<()> {
    let mut table = Table::new(&[
        ("MEMORY", Align::Left),
        ("CONTEXTS", Align::Right),
        ("STACKS", Align::Right),
        ("LEASES", Align::Right),
        ("WEIGHTS", Align::Right),
        ("FREE", Align::Right),
    ]);
    let told = status.devices.iter().filter_map(|device| Some((device, device.memory.as_ref()?)));
    for (device, memory) in told {
        table.row([
            device.name.clone(),
            rough_bytes(memory.context_bytes),
            rough_bytes(memory.stack_bytes),
            rough_bytes(memory.lease_bytes),
            rough_bytes(memory.weight_bytes),
            rough_bytes(memory.free_bytes),
        ]);
    }
    print_if_any(&table, out)
}

/// What happened to weights, where there were calls of functions that have some.
fn weights(status: &v1::Status, out: &mut dyn Write) -> Result<()> {
    let mut table = Table::new(&[
        ("WEIGHTS", Align::Left),
        ("THERE", Align::Right),
        ("AT MOST", Align::Right),
        ("CALLS", Align::Right),
        ("HITS", Align::Right),
        ("LOADS", Align::Right),
        ("LOADED", Align::Right),
        ("AHEAD", Align::Right),
        ("IN PLACE", Align::Right),
        ("EVICTIONS", Align::Right),
    ]);
    let told = status.devices.iter().filter_map(|device| Some((device, device.weights.as_ref()?)));
    for (device, weights) in told.filter(|(_, weights)| weights.calls > 0) {
        table.row([
            device.name.clone(),
            rough_bytes(weights.bytes),
            weights.most_bytes.map_or("-".to_owned(), rough_bytes),
            weights.calls.to_string(),
            weights.hits.to_string(),
            weights.loads.to_string(),
            rough_bytes(weights.loaded_bytes),
            weights.loads_ahead.to_string(),
            weights.loads_in_place.to_string(),
            weights.evictions.to_string(),
        ]);
    }
    print_if_any(&table, out)
}

/// Functions that are refused for a while; nothing where there are none.
fn quarantined(status: &v1::Status, out: &mut dyn Write) -> Result<()> {
    let mut table = Table::new(&[
        ("QUARANTINED", Align::Left),
        ("DEVICE", Align::Left),
        ("OWNER", Align::Left),
        ("CALLER", Align::Left),
        ("FAILURES", Align::Right),
        ("FOR", Align::Right),
    ]);
    let all = status.devices.iter().flat_map(|device| &device.quarantined);
    for one in all {
        table.row([
            one.function.clone(),
            one.device.clone(),
            one.owner.clone(),
            one.caller.clone(),
            one.failures.to_string(),
            nanoseconds(one.retry_after_ms * 1_000_000),
        ]);
    }
    print_if_any(&table, out)
}

/// What keeps out of workers that tenants share; nothing where nothing does.
fn kept_apart(status: &v1::Status, out: &mut dyn Write) -> Result<()> {
    let mut table = Table::new(&[
        ("NOT SHARED", Align::Left),
        ("DEVICE", Align::Left),
        ("OWNER", Align::Left),
        ("CALLER", Align::Left),
        ("WHY", Align::Left),
        ("FOR", Align::Right),
    ]);
    for device in &status.devices {
        for one in &device.kept_apart {
            let until = match one.for_ms {
                0 => "until replaced".to_owned(),
                ms => nanoseconds(ms * 1_000_000),
            };
            table.row([
                one.function.clone(),
                device.name.clone(),
                one.owner.clone(),
                one.caller.clone(),
                one.why.clone(),
                until,
            ]);
        }
    }
    print_if_any(&table, out)
}

/// Device time by tenant; nothing where none used any.
fn tenants(status: &v1::Status, out: &mut dyn Write) -> Result<()> {
    let mut table = Table::new(&[
        ("TENANT", Align::Left),
        ("DEVICE", Align::Left),
        ("DEVICE TIME", Align::Right),
        ("WEIGHT", Align::Right),
        ("CLASS", Align::Left),
    ]);
    for device in &status.devices {
        for one in device.tenants.iter().filter(|one| one.device_ns > 0) {
            table.row([
                one.tenant.clone(),
                device.name.clone(),
                nanoseconds(one.device_ns),
                one.weight.to_string(),
                one.class.clone(),
            ]);
        }
    }
    print_if_any(&table, out)
}

/// Open sessions; nothing where there are none.
fn sessions(status: &v1::Status, out: &mut dyn Write) -> Result<()> {
    let mut table = Table::new(&[
        ("SESSION OF", Align::Left),
        ("TENANT", Align::Left),
        ("STATE", Align::Right),
        ("IN MEMORY OF", Align::Left),
        ("CALLS", Align::Right),
        ("OPEN CALLS", Align::Right),
        ("AGE", Align::Right),
        ("IDLE", Align::Right),
    ]);
    for one in &status.sessions {
        table.row([
            one.function.clone(),
            one.tenant.clone(),
            rough_bytes(one.bytes),
            if one.device.is_empty() { "the host".to_owned() } else { one.device.clone() },
            one.calls.to_string(),
            one.open_calls.to_string(),
            nanoseconds(one.age_ms * 1_000_000),
            nanoseconds(one.idle_ms * 1_000_000),
        ]);
    }
    print_if_any(&table, out)
}

/// Fault budgets that are not whole; nothing where all are.
fn budgets(status: &v1::Status, out: &mut dyn Write) -> Result<()> {
    let mut table = Table::new(&[
        ("FAULT BUDGET", Align::Left),
        ("DEVICE", Align::Left),
        ("LEFT", Align::Left),
        ("WAITS", Align::Right),
    ]);
    for device in &status.devices {
        for budget in &device.budgets {
            table.row([
                budget.caller.clone(),
                device.name.clone(),
                format!("{} of {} a minute", budget.left, budget.per_minute),
                match budget.waits_ms {
                    0 => "-".to_owned(),
                    ms => nanoseconds(ms * 1_000_000),
                },
            ]);
        }
    }
    print_if_any(&table, out)
}

/// Only the operator is told.
fn workers(status: &v1::Status, out: &mut dyn Write) -> Result<()> {
    if status.devices.iter().all(|device| device.workers.is_empty()) {
        return Ok(());
    }
    let all =
        || status.devices.iter().flat_map(|device| device.workers.iter().map(move |worker| (device, worker)));
    writeln!(out)?;
    let mut table = Table::new(&[
        ("WORKER", Align::Right),
        ("DEVICE", Align::Left),
        ("STATE", Align::Left),
        ("LANES", Align::Right),
        ("COMPLETED", Align::Right),
        ("RESTARTS", Align::Right),
        ("DEVICE TIME", Align::Right),
        ("FOR", Align::Left),
    ]);
    for (device, worker) in all() {
        table.row([
            worker.pid.to_string(),
            device.name.clone(),
            worker.state.clone(),
            format!("{}/{}", worker.busy_lanes, device.lanes),
            worker.completed.to_string(),
            worker.restarts.to_string(),
            // Only turns measure it.
            if device.turns { nanoseconds(worker.device_ns) } else { "-".to_owned() },
            domain(worker),
        ]);
    }
    table.print_within(WIDTH, out)?;
    writeln!(out)?;
    let mut table = Table::new(&[
        ("WORKER", Align::Right),
        ("FUNCTIONS", Align::Right),
        ("CONTEXT", Align::Right),
        ("LENT", Align::Right),
        ("WEIGHTS", Align::Right),
        ("LAST GONE", Align::Left),
    ]);
    for (_, worker) in all() {
        table.row([
            worker.pid.to_string(),
            worker.functions.to_string(),
            rough_bytes(worker.context_bytes),
            rough_bytes(worker.lent_bytes),
            rough_bytes(worker.weight_bytes),
            if worker.last_gone.is_empty() { "-".to_owned() } else { worker.last_gone.clone() },
        ]);
    }
    table.print_within(WIDTH, out)?;
    sandboxes(all().map(|(_, worker)| worker), out)
}

/// The layers around workers, which are the same for all workers of a kind of device.
fn sandboxes<'a>(workers: impl Iterator<Item = &'a v1::WorkerStatus>, out: &mut dyn Write) -> Result<()> {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    workers
        .filter(|worker| worker.pid != 0)
        .for_each(|worker| *counts.entry(worker.sandbox.join(",")).or_default() += 1);
    let mut table = Table::new(&[("WORKERS", Align::Right), ("SANDBOX", Align::Left)]);
    for (layers, workers) in counts {
        table.row([workers.to_string(), if layers.is_empty() { "not told yet".to_owned() } else { layers }]);
    }
    print_if_any(&table, out)
}

/// Whose functions a worker runs, and for whom if that is another tenant.
pub(super) fn domain(worker: &v1::WorkerStatus) -> String {
    if worker.shared {
        return "all".to_owned();
    }
    match (worker.owner.as_str(), worker.caller.as_str()) {
        ("", "") => "-".to_owned(),
        (owner, caller) if owner == caller => owner.to_owned(),
        (owner, caller) => format!("{caller} with {owner}/"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draining_stands_on_a_line_of_its_own() {
        let show = |draining| {
            let status = v1::Status { version: "1".into(), draining, ..Default::default() };
            let mut out = anstream::StripStream::new(Vec::new());
            print(&status, &mut out).unwrap();
            String::from_utf8(out.into_inner()).unwrap()
        };
        assert!(show(true).starts_with("pappus 1\nDRAINING: "), "{}", show(true));
        assert!(!show(false).contains("DRAINING"));
    }

    #[test]
    fn what_a_tenant_is_not_told_is_not_shown() {
        let show = |connections, workers| {
            let device = v1::DeviceStatus { workers, ..Default::default() };
            let status = v1::Status { connections, devices: vec![device], ..Default::default() };
            let mut out = anstream::StripStream::new(Vec::new());
            print(&status, &mut out).unwrap();
            String::from_utf8(out.into_inner()).unwrap()
        };
        let tenant = show(0, vec![]);
        assert!(tenant.contains("modules registered by name: 0\n"), "{tenant}");
        assert!(!tenant.contains("LAST GONE") && !tenant.contains("connections"), "{tenant}");
        let resident =
            v1::WorkerStatus { context_bytes: 3 << 20, weight_bytes: 7 << 20, ..Default::default() };
        let operator = show(2, vec![resident]);
        assert!(operator.contains("3.0 MiB") && operator.contains("7.0 MiB"), "{operator}");
        assert!(
            operator.contains("by name: 0, connections: 2\n") && operator.contains("LAST GONE"),
            "{operator}"
        );
    }

    #[test]
    fn a_supervisor_that_is_not_ready_says_why() {
        let judge = |ready, draining| readiness(&v1::Status { ready, draining, ..Default::default() });
        judge(true, false).unwrap();
        for (draining, words) in [(true, "draining"), (false, "no worker")] {
            let why = judge(false, draining).unwrap_err().to_string();
            assert!(why.starts_with("not ready: ") && why.contains(words), "{why}");
        }
    }

    /// Everything as large and as long as it can be.
    fn crowded() -> v1::Status {
        let name = "n".repeat(128);
        let worker = v1::WorkerStatus {
            pid: 4_194_304,
            state: "starting".into(),
            completed: 10_000_000_000,
            restarts: 1_000_000,
            device_ns: 99_999_000_000_000,
            owner: name.clone(),
            caller: "c".repeat(128),
            sandbox: [
                "seccomp,landlock,uid,userns,pidns,netns,mountns,ipcns,utsns,cgroupns,cgroup".to_owned()
            ]
            .into(),
            last_gone: "settings changed".into(),
            ..Default::default()
        };
        let quarantine = v1::Quarantine {
            function: name.clone(),
            owner: name.clone(),
            caller: name.clone(),
            device: "cuda:MIG-01234567-89ab-cdef-0123-456789abcdef".into(),
            failures: 3,
            retry_after_ms: 300_000,
        };
        let kept_apart = v1::KeptApart {
            function: name.clone(),
            owner: name.clone(),
            caller: name.clone(),
            why: "it took longer than shared-limit there".into(),
            ..Default::default()
        };
        let device = v1::DeviceStatus {
            name: quarantine.device.clone(),
            kind: "cuda".into(),
            memory_bytes: 150 << 30,
            queued: 10_000,
            queue_calls_at_most: 10_000,
            completed: 10_000_000_000,
            failed: 10_000_000_000,
            description: "NVIDIA H200 MIG 1g.18gb, and what else a driver may call it \x1b[31m".repeat(2),
            lost: true,
            workers: vec![worker],
            memory: Some(v1::DeviceMemory::default()),
            weights: Some(v1::DeviceWeights {
                calls: 10_000_000_000,
                hits: 9_999_999_999,
                ..Default::default()
            }),
            budgets: vec![v1::FaultBudget { caller: name.clone(), waits_ms: 1000, ..Default::default() }],
            tenants: vec![v1::TenantDeviceTime { tenant: name, device_ns: 1, ..Default::default() }],
            quarantined: vec![quarantine],
            kept_apart: vec![kept_apart],
            ..Default::default()
        };
        v1::Status { connections: 1, devices: vec![device; 3], ..Default::default() }
    }

    #[test]
    fn no_line_is_longer_than_a_terminal_shows_or_holds_what_one_obeys() {
        let mut out = anstream::StripStream::new(Vec::new());
        print(&crowded(), &mut out).unwrap();
        let text = String::from_utf8(out.into_inner()).unwrap();
        for line in text.lines() {
            assert!(line.chars().count() <= WIDTH, "{}: {line}", line.chars().count());
        }
        assert!(!text.contains('\x1b') && text.contains("WORKERS  SANDBOX"), "{text}");
        assert!(text.lines().last().unwrap().starts_with("not well: "), "{text}");
    }
}
