//! Tenants spread over two GPUs against the same tenants on one, with 16 calls in flight each.

use std::collections::{HashMap, HashSet};

use super::bed::{Bed, Running};
use super::load::{self, Load, USUAL_ROUNDS};
use crate::Result;
use crate::bare::work::Work;
use crate::report::{Report, Unit};

const TENANTS: [usize; 2] = [4, 16];
const IN_FLIGHT: usize = 16;
const TARGET: f64 = 1.9;
const SETTINGS: &str = "lanes=8,memory=64GiB";

pub(super) fn measure(bed: &Bed, report: &mut Report) -> Result<()> {
    if !bed.has_second() {
        report.skip("needs two GPUs");
        return Ok(());
    }
    for tenants in TENANTS {
        let one = rates(bed, &bed.start(SETTINGS)?, tenants)?;
        let both = bed.start_two(SETTINGS)?;
        let two = rates(bed, &both, tenants)?;
        for ((name, one), (_, two)) in one.iter().zip(&two) {
            let title = format!("{name}, {tenants} tenants");
            report.info(format!("{title}, one GPU"), *one, Unit::PerSecond);
            report.info(format!("{title}, two GPUs"), *two, Unit::PerSecond);
            report.at_least(TARGET, format!("{title}, two GPUs / one"), two / one, Unit::Ratio);
        }
        report.info(format!("{tenants} tenants, on both GPUs"), on_both(&both)? as f64, Unit::Count);
    }
    Ok(())
}

/// Calls a second of both workloads.
fn rates(bed: &Bed, running: &Running, tenants: usize) -> Result<Vec<(&'static str, f64)>> {
    for tenant in 1..=tenants {
        bed.register(&mut load::connect(running, tenant)?, &["inference", "matmul"])?;
    }
    let works = [("inference ×500", bed.inference()), ("matmul 128²", Work::Matmul)];
    let rate = |(name, work)| -> Result<(&'static str, f64)> {
        let load = Load {
            work,
            tenants,
            connections: 1,
            in_flight: IN_FLIGHT,
            rounds: USUAL_ROUNDS,
            measured: bed.measured,
        };
        Ok((name, load::run(running, load, 1)?.all.per_second))
    };
    works.into_iter().map(rate).collect()
}

/// How many tenants have workers on both.
fn on_both(running: &Running) -> Result<usize> {
    let status = running.admin()?.status()?;
    let mut found = HashMap::<String, HashSet<String>>::new();
    for device in &status.devices {
        for worker in device.workers.iter().filter(|worker| !worker.caller.is_empty()) {
            found.entry(worker.caller.clone()).or_default().insert(device.name.clone());
        }
    }
    Ok(found.values().filter(|devices| devices.len() > 1).count())
}
