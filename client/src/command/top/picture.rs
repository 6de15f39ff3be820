//! Four tables of what a supervisor does, made of its answers. A rate is the difference to the answers before.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use pappus_client::v1;

use crate::command::status::domain;
use crate::table::{Align, Table, plain};
use crate::units::{nanoseconds, rough_bytes};

/// What a supervisor answered at one moment.
#[derive(Debug)]
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) status: v1::Status,
    /// All tenants, where the supervisor tells of them.
    pub(super) tenants: Option<Vec<v1::TenantInfo>>,
}

/// What is shown of it.
#[derive(Debug)]
pub(super) struct Picture {
    /// What supervisor it is, in a line.
    pub(super) title: String,
    pub(super) panes: [Pane; 4],
}

/// One table.
#[derive(Debug)]
pub(super) struct Pane {
    pub(super) name: &'static str,
    pub(super) columns: Vec<(&'static str, Align)>,
    /// The column by which it is sorted at first; by falling numbers, or rising words.
    pub(super) sorted_by: usize,
    pub(super) rows: Vec<Vec<Cell>>,
}

/// What stands in a row and a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cell {
    /// As it is shown.
    pub(super) text: String,
    /// As it is sorted; words have none.
    pub(super) number: Option<u64>,
}

fn word(text: &str) -> Cell {
    Cell { text: plain(text), number: None }
}

fn number(number: u64) -> Cell {
    Cell { text: number.to_string(), number: Some(number) }
}

fn bytes(bytes: u64) -> Cell {
    Cell { text: rough_bytes(bytes), number: Some(bytes) }
}

fn time(ns: u64) -> Cell {
    Cell { text: nanoseconds(ns), number: Some(ns) }
}

/// `3 of 8`.
fn of(part: u64, whole: u64) -> Cell {
    Cell { text: format!("{part} of {whole}"), number: Some(part) }
}

/// How fast counts grow.
#[derive(Clone, Copy)]
struct Pace(Option<Duration>);

impl Pace {
    /// Of a count that was another one before, how much a second.
    fn a_second(self, now: u64, before: Option<u64>) -> Cell {
        let (Some(over), Some(before)) = (self.0, before) else { return unknown() };
        // In thousandths, which sort by themselves.
        let rate = now.saturating_sub(before) as f64 / over.as_secs_f64();
        Cell { text: format!("{rate:.1}"), number: Some((rate * 1000.0) as u64) }
    }

    /// Of a time in nanoseconds, which part of the time that went by.
    fn share(self, now: u64, before: Option<u64>) -> Cell {
        let (Some(over), Some(before)) = (self.0, before) else { return unknown() };
        let share = now.saturating_sub(before) as f64 / over.as_nanos() as f64 * 100.0;
        Cell { text: format!("{share:.1} %"), number: Some((share * 1000.0) as u64) }
    }
}

fn unknown() -> Cell {
    Cell { text: "-".into(), number: Some(0) }
}

impl Picture {
    /// What there is to see, with rates where there was a sample before.
    pub(super) fn of(now: &Sample, before: Option<&Sample>) -> Self {
        let over = before.map(|before| now.at.saturating_duration_since(before.at));
        let pace = Pace(over.filter(|over| !over.is_zero()));
        let then = before.map(|before| &before.status);
        let status = &now.status;
        let up = humantime::format_duration(Duration::from_secs(status.uptime_ms / 1000));
        // Only the operator is told since when, and how many.
        let more = match status.connections {
            0 => String::new(),
            connections => format!(", up {up}, connections: {connections}"),
        };
        Self {
            title: format!("pappus {}{more}, functions: {}", plain(&status.version), status.functions),
            panes: [
                devices(status, then, pace),
                workers(status, then, pace),
                tenants(now, before, pace),
                functions(status, then, pace),
            ],
        }
    }
}

impl Pane {
    /// The same as text, sorted as at first.
    pub(super) fn to_table(&self) -> Table {
        let mut table = Table::new(&self.columns);
        for row in sorted(&self.rows, self.sorted_by, false) {
            table.push(row.iter().map(|cell| cell.text.clone()).collect());
        }
        table
    }
}

/// Rows by one of their columns: numbers fall and words rise, or the other way round. Equal ones stay as they are.
pub(super) fn sorted(rows: &[Vec<Cell>], by: usize, reversed: bool) -> Vec<&Vec<Cell>> {
    let mut rows: Vec<_> = rows.iter().collect();
    rows.sort_by(|a, b| {
        let (Some(a), Some(b)) = (a.get(by), b.get(by)) else { return std::cmp::Ordering::Equal };
        let order = match (a.number, b.number) {
            (Some(a), Some(b)) => b.cmp(&a),
            _ => a.text.cmp(&b.text),
        };
        if reversed { order.reverse() } else { order }
    });
    rows
}

fn devices(status: &v1::Status, then: Option<&v1::Status>, pace: Pace) -> Pane {
    use Align::{Left, Right};
    let before = |name: &str| then.and_then(|then| then.devices.iter().find(|device| device.name == name));
    let row = |device: &v1::DeviceStatus| {
        let there = device.workers.iter().filter(|worker| worker.pid != 0).count() as u64;
        let used = device.memory.map(|memory| memory.total_bytes.saturating_sub(memory.free_bytes));
        let done = |device: &v1::DeviceStatus| device.completed + device.failed;
        vec![
            word(&device.name),
            word(if device.lost { "LOST" } else { &device.kind }),
            of(device.queued, device.queue_calls_at_most),
            number(device.running),
            pace.a_second(done(device), before(&device.name).map(done)),
            number(device.completed),
            number(device.failed),
            of(there, device.workers_at_most.into()),
            used.map_or_else(unknown, bytes),
            bytes(device.memory_bytes),
        ]
    };
    Pane {
        name: "devices",
        columns: vec![
            ("DEVICE", Left),
            ("KIND", Left),
            ("QUEUED", Right),
            ("RUNNING", Right),
            ("CALLS/S", Right),
            ("COMPLETED", Right),
            ("FAILED", Right),
            ("WORKERS", Right),
            ("TAKEN", Right),
            ("MEMORY", Right),
        ],
        sorted_by: 0,
        rows: status.devices.iter().map(row).collect(),
    }
}

fn workers(status: &v1::Status, then: Option<&v1::Status>, pace: Pace) -> Pane {
    use Align::{Left, Right};
    // Places without a process have no number that tells them apart.
    let there = then.into_iter().flat_map(|then| &then.devices).flat_map(|device| &device.workers);
    let before: HashMap<u32, u64> =
        there.filter(|worker| worker.pid != 0).map(|worker| (worker.pid, worker.completed)).collect();
    let mut rows = Vec::new();
    for device in &status.devices {
        for worker in &device.workers {
            rows.push(vec![
                number(worker.pid.into()),
                word(&device.name),
                word(&worker.state),
                of(worker.busy_lanes.into(), device.lanes.into()),
                pace.a_second(worker.completed, before.get(&worker.pid).copied()),
                number(worker.completed),
                number(worker.restarts),
                bytes(worker.context_bytes + worker.lent_bytes),
                bytes(worker.weight_bytes),
                word(&domain(worker)),
            ]);
        }
    }
    Pane {
        name: "workers",
        columns: vec![
            ("WORKER", Right),
            ("DEVICE", Left),
            ("STATE", Left),
            ("LANES", Right),
            ("CALLS/S", Right),
            ("COMPLETED", Right),
            ("RESTARTS", Right),
            ("TAKEN", Right),
            ("WEIGHTS", Right),
            ("FOR", Left),
        ],
        sorted_by: 5,
        rows,
    }
}

/// Device time of each tenant on all devices.
fn device_times(status: &v1::Status) -> HashMap<&str, u64> {
    let mut times = HashMap::new();
    for one in status.devices.iter().flat_map(|device| &device.tenants) {
        *times.entry(&*one.tenant).or_default() += one.device_ns;
    }
    times
}

fn tenants(now: &Sample, before: Option<&Sample>, pace: Pace) -> Pane {
    use Align::{Left, Right};
    let times = device_times(&now.status);
    let earlier = before.map(|before| device_times(&before.status)).unwrap_or_default();
    let budget = |tenant: &str| {
        let all = now.status.devices.iter().flat_map(|device| &device.budgets);
        let least = all.filter(|budget| budget.caller == tenant).min_by_key(|budget| budget.left)?;
        Some(of(least.left.into(), least.per_minute.into()))
    };
    let row = |info: &v1::TenantInfo| {
        let ns = times.get(&*info.name).copied().unwrap_or(info.device_ns);
        let used = |name: &str| info.quotas.iter().find(|quota| quota.name == name).map(|quota| quota.used);
        vec![
            word(&info.name),
            number(info.connections),
            used("calls").map_or_else(unknown, number),
            used("queued-calls").map_or_else(unknown, number),
            pace.share(ns, earlier.get(&*info.name).copied()),
            time(ns),
            used("device-memory").map_or_else(unknown, bytes),
            number(info.weight.into()),
            word(&info.class),
            budget(&info.name).unwrap_or_else(|| word("whole")),
        ]
    };
    let rows = match &now.tenants {
        Some(tenants) => tenants.iter().map(row).collect(),
        None => {
            let mut names: HashMap<&str, v1::TenantInfo> = HashMap::new();
            for one in now.status.devices.iter().flat_map(|device| &device.tenants) {
                let (name, class) = (one.tenant.clone(), one.class.clone());
                let info = v1::TenantInfo { name, class, weight: one.weight, ..Default::default() };
                names.insert(&one.tenant, info);
            }
            let mut infos: Vec<_> = names.into_values().collect();
            infos.sort_by(|a, b| a.name.cmp(&b.name));
            infos.iter().map(row).collect()
        }
    };
    Pane {
        name: "tenants",
        columns: vec![
            ("TENANT", Left),
            ("CONNECTIONS", Right),
            ("CALLS", Right),
            ("QUEUED", Right),
            ("SHARE", Right),
            ("DEVICE TIME", Right),
            ("MEMORY", Right),
            ("WEIGHT", Right),
            ("CLASS", Left),
            ("FAULT BUDGET", Left),
        ],
        sorted_by: 5,
        rows,
    }
}

fn functions(status: &v1::Status, then: Option<&v1::Status>, pace: Pace) -> Pane {
    use Align::{Left, Right};
    let before: HashMap<(&str, &str), &v1::FunctionUse> = then
        .map(|then| then.uses.iter().map(|one| ((&*one.owner, &*one.function), one)).collect())
        .unwrap_or_default();
    let quarantined = |one: &v1::FunctionUse| {
        let mut all = status.devices.iter().flat_map(|device| &device.quarantined);
        all.any(|other| other.function == one.function && other.owner == one.owner)
    };
    let row = |one: &v1::FunctionUse| {
        let earlier = before.get(&(&*one.owner, &*one.function));
        let done = |one: &v1::FunctionUse| one.completed + one.failed;
        vec![
            word(&one.function),
            word(&one.owner),
            pace.a_second(done(one), earlier.map(|one| done(one))),
            number(one.completed),
            number(one.failed),
            pace.share(one.device_ns, earlier.map(|one| one.device_ns)),
            time(one.device_ns),
            time(one.device_ns.checked_div(one.completed).unwrap_or(0)),
            word(if quarantined(one) { "quarantined" } else { "-" }),
        ]
    };
    Pane {
        name: "functions",
        columns: vec![
            ("FUNCTION", Left),
            ("OWNER", Left),
            ("CALLS/S", Right),
            ("COMPLETED", Right),
            ("FAILED", Right),
            ("SHARE", Right),
            ("DEVICE TIME", Right),
            ("A CALL", Right),
            ("REFUSED", Left),
        ],
        sorted_by: 6,
        rows: status.uses.iter().map(row).collect(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A supervisor with two functions, so many calls of which ended.
    pub(in super::super) fn sample(at: Instant, calls: u64) -> Sample {
        let used = |function: &str, factor: u64| v1::FunctionUse {
            owner: "acme\x1b[31m".into(),
            function: function.into(),
            completed: calls * factor,
            failed: factor,
            device_ns: calls * factor * 1_000_000,
        };
        let tenant = v1::TenantDeviceTime {
            tenant: "acme".into(),
            device_ns: calls * 1_000_000,
            ..Default::default()
        };
        let device = v1::DeviceStatus {
            name: "cpu".into(),
            kind: "cpu".into(),
            completed: calls,
            workers: vec![v1::WorkerStatus { pid: 7, completed: calls, ..Default::default() }],
            tenants: vec![tenant],
            ..Default::default()
        };
        let uses = vec![used("small", 1), used("large", 2)];
        let status =
            v1::Status { ready: true, connections: 1, devices: vec![device], uses, ..Default::default() };
        Sample { at, status, tenants: None }
    }

    #[test]
    fn rates_are_differences() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let (before, now) = (sample(start, 100), sample(start + 2 * second, 300));
        let cell = |picture: &Picture, pane: usize, column: &str| {
            let pane = &picture.panes[pane];
            let at = pane.columns.iter().position(|(name, _)| *name == column).unwrap();
            pane.rows[0][at].text.clone()
        };
        let picture = Picture::of(&now, Some(&before));
        assert_eq!([0, 1, 3].map(|pane| cell(&picture, pane, "CALLS/S")), ["100.0"; 3]);
        assert_eq!([2, 3].map(|pane| cell(&picture, pane, "SHARE")), ["10.0 %"; 2]);
        assert_eq!(cell(&picture, 3, "A CALL"), "1.00 ms");
        assert_eq!(cell(&picture, 3, "OWNER"), "acme\\u{1b}[31m");
        assert_eq!(cell(&Picture::of(&now, None), 0, "CALLS/S"), "-");
    }

    #[test]
    fn numbers_fall_and_words_rise() {
        let rows = [vec![word("b"), number(9)], vec![word("a"), number(10)], vec![word("c"), number(10)]];
        let order = |by, reversed| {
            sorted(&rows, by, reversed).iter().map(|row| row[0].text.clone()).collect::<String>()
        };
        assert_eq!(
            [order(0, false), order(0, true), order(1, false), order(1, true)],
            ["abc", "cba", "acb", "bac"]
        );
        assert_eq!(order(7, false), "bac");
    }
}
