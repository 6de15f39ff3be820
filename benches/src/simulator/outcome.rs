//! What is recorded of a simulation, and what came of it.

use std::collections::HashMap;

use hdrhistogram::Histogram;
use pappus_supervisor::ids::TenantId;
use serde::Serialize;

use super::device::{Counts, Device};
use super::world::{Load, Setup};
use crate::Result;
use crate::gpu::load::jain;

/// What came of a simulation.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// Calls that ended well, a second, of all groups.
    pub per_second: f64,
    /// By group.
    pub groups: Vec<GroupOutcome>,
    /// Jain's index of the device time of tenants that always have calls, by their weights: the least and the mean of all
    /// windows; none where there are no two such tenants.
    pub jain: Option<Jain>,
    /// Processes that serve a domain, in the mean and at most, on all devices.
    pub residents: f64,
    /// At most.
    pub most_residents: usize,
    /// Changes of the chips between processes, a second.
    pub changes_per_second: f64,
    /// Turns granted, a second.
    pub turns_per_second: f64,
    /// Processes made.
    pub makes: u64,
    /// Residents that gave way.
    pub evictions: u64,
    /// Processes scrubbed.
    pub scrubs: u64,
    /// Processes killed.
    pub kills: u64,
}

/// How evenly device time is shared.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Jain {
    /// In the worst window.
    pub least: f64,
    /// Over all of the time.
    pub whole: f64,
    /// Of all windows.
    pub mean: f64,
}

/// What came of one group.
#[derive(Debug, Clone, Serialize)]
pub struct GroupOutcome {
    /// Its name.
    pub name: String,
    /// Calls that ended well.
    pub calls: u64,
    /// Calls that did not.
    pub failed: u64,
    /// Calls that ended well, a second.
    pub per_second: f64,
    /// Calls that ended well in the worst ten windows in a row, a second.
    pub least_per_second: f64,
    /// Latencies in milliseconds, from sending to the answer.
    pub p50_ms: f64,
    /// See there.
    pub p90_ms: f64,
    /// See there.
    pub p99_ms: f64,
    /// See there.
    pub max_ms: f64,
    /// Its part of the device time of all.
    pub device_share: f64,
}

/// Windows in a row whose rate counts as one.
const WINDOWS: usize = 10;

#[derive(Debug)]
struct GroupRecord {
    latencies: Histogram<u64>,
    failed: u64,
    in_window: u64,
    windows: Vec<u64>,
    device_ns: u64,
}

/// Records a simulation.
#[derive(Debug)]
pub struct Recorder {
    names: Vec<String>,
    warm_ns: u64,
    measured_ns: u64,
    window_ns: u64,
    groups: Vec<GroupRecord>,
    /// Weights of tenants that always have calls, by group.
    weights: Vec<Option<u32>>,
    /// How many such tenants there are.
    steady: usize,
    /// Their device time in this window, by weight.
    had: HashMap<TenantId, f64>,
    /// … and in all windows.
    had_in_all: HashMap<TenantId, f64>,
    jain: Vec<f64>,
    residents: usize,
    window_residents: usize,
    most_residents: usize,
    looks: u64,
    windows: u64,
    /// What was counted when counting began.
    before: Option<(Counts, u64)>,
}

impl Recorder {
    /// Of a simulation that did not begin.
    pub fn new(setup: &Setup) -> Result<Self> {
        // Of any length, three digits of each.
        let record = |_: &_| -> Result<GroupRecord> {
            let latencies = Histogram::new(3)?;
            Ok(GroupRecord { latencies, failed: 0, in_window: 0, windows: Vec::new(), device_ns: 0 })
        };
        let weight = |group: &super::world::Group| match group.load {
            Load::Loop { .. } => Some(group.share.weight),
            Load::Trace(_) => None,
        };
        let weights: Vec<Option<u32>> = setup.groups.iter().map(weight).collect();
        let steady = setup.groups.iter().zip(&weights).filter(|(_, weight)| weight.is_some());
        Ok(Self {
            names: setup.groups.iter().map(|group| group.name.clone()).collect(),
            warm_ns: setup.warm_ns,
            measured_ns: setup.measured_ns,
            window_ns: setup.window_ns,
            groups: setup.groups.iter().map(record).collect::<Result<_>>()?,
            steady: steady.map(|(group, _)| group.tenants).sum(),
            weights,
            had: HashMap::new(),
            had_in_all: HashMap::new(),
            jain: Vec::new(),
            residents: 0,
            window_residents: 0,
            most_residents: 0,
            looks: 0,
            windows: 0,
            before: None,
        })
    }

    /// A call of a group is over.
    pub fn call(&mut self, now_ns: u64, group: usize, sent_ns: u64, well: bool) {
        if now_ns < self.warm_ns {
            return;
        }
        let record = &mut self.groups[group];
        if well {
            record.in_window += 1;
            record.latencies += now_ns - sent_ns;
        } else {
            record.failed += 1;
        }
    }

    /// What tenants had of one device since the last window's end.
    pub fn device(
        &mut self,
        now_ns: u64,
        had: impl Iterator<Item = (usize, TenantId, u64)>,
        residents: usize,
    ) {
        let counts = now_ns > self.warm_ns;
        for (group, tenant, ns) in had.filter(|_| counts) {
            self.groups[group].device_ns += ns;
            if let Some(weight) = self.weights[group] {
                *self.had.entry(tenant).or_default() += ns as f64 / f64::from(weight);
            }
        }
        if counts {
            self.window_residents += residents;
            self.looks += 1;
        }
    }

    /// A window is over.
    pub fn window_ends(&mut self, now_ns: u64, devices: &[Device]) {
        if now_ns < self.warm_ns {
            return;
        }
        if self.before.is_none() {
            self.before = Some(sums(devices));
            // This window may have begun before anything counted.
            self.groups.iter_mut().for_each(|group| group.in_window = 0);
            self.had.clear();
            self.window_residents = 0;
            return;
        }
        self.windows += 1;
        for group in &mut self.groups {
            group.windows.push(std::mem::take(&mut group.in_window));
        }
        self.residents += self.window_residents;
        self.most_residents = self.most_residents.max(std::mem::take(&mut self.window_residents));
        let had = std::mem::take(&mut self.had);
        had.iter().for_each(|(tenant, ns)| *self.had_in_all.entry(*tenant).or_default() += ns);
        self.jain.extend(evenness(had, self.steady));
    }

    /// What came of it.
    pub fn outcome(self, devices: &[Device]) -> Outcome {
        let seconds = self.measured_ns as f64 / 1e9;
        let window_s = self.window_ns as f64 / 1e9;
        let (after, changes) = sums(devices);
        let (before, changes_before) = self.before.unwrap_or_default();
        let all_ns: u64 = self.groups.iter().map(|group| group.device_ns).sum();
        let groups: Vec<GroupOutcome> = self
            .names
            .into_iter()
            .zip(&self.groups)
            .map(|(name, group)| {
                let calls = group.latencies.len();
                let ms = |quantile| group.latencies.value_at_quantile(quantile) as f64 / 1e6;
                let rows = group.windows.windows(WINDOWS.min(group.windows.len()).max(1));
                let least = rows.map(|row| row.iter().sum::<u64>() as f64 / row.len() as f64 / window_s);
                GroupOutcome {
                    name,
                    calls,
                    failed: group.failed,
                    per_second: calls as f64 / seconds,
                    least_per_second: least.min_by(f64::total_cmp).unwrap_or(0.0),
                    p50_ms: ms(0.5),
                    p90_ms: ms(0.9),
                    p99_ms: ms(0.99),
                    max_ms: group.latencies.max() as f64 / 1e6,
                    device_share: group.device_ns as f64 / all_ns.max(1) as f64,
                }
            })
            .collect();
        let windows = self.windows.max(1) as f64;
        let whole = evenness(self.had_in_all, self.steady).unwrap_or(1.0);
        let jain = self.jain.iter().copied().min_by(f64::total_cmp).map(|least| Jain {
            least,
            whole,
            mean: self.jain.iter().sum::<f64>() / self.jain.len() as f64,
        });
        Outcome {
            per_second: groups.iter().map(|group| group.per_second).sum(),
            groups,
            jain,
            residents: self.residents as f64 / windows,
            most_residents: self.most_residents,
            changes_per_second: (changes - changes_before) as f64 / seconds,
            turns_per_second: (after.turns - before.turns) as f64 / seconds,
            makes: after.makes - before.makes,
            evictions: after.evictions - before.evictions,
            scrubs: after.scrubs - before.scrubs,
            kills: after.kills - before.kills,
        }
    }
}

/// What is counted of all devices.
fn sums(devices: &[Device]) -> (Counts, u64) {
    let counts = devices.iter().map(Device::counts).fold(Counts::default(), |a, b| Counts {
        turns: a.turns + b.turns,
        makes: a.makes + b.makes,
        evictions: a.evictions + b.evictions,
        scrubs: a.scrubs + b.scrubs,
        kills: a.kills + b.kills,
    });
    (counts, devices.iter().map(Device::changes).sum())
}

/// Jain's index of what so many tenants had; none for fewer than two, or where none had anything.
fn evenness(had: HashMap<TenantId, f64>, tenants: usize) -> Option<f64> {
    let mut shares: Vec<f64> = had.into_values().collect();
    // In the order of size: sums must not depend on that of a map.
    shares.sort_unstable_by(f64::total_cmp);
    shares.resize(tenants, 0.0);
    (tenants > 1 && shares.iter().any(|share| *share > 0.0)).then(|| jain(&shares))
}
