//! How tenants share a GPU: device time of tenants that want different amounts of it, shares by weight, what an idle
//! neighbour leaves. Settings are the default ones but for the number of lanes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::bed::{Bed, Running};
use super::load::{self, Calls, FIRST_UID, Load, USUAL_ROUNDS, jain};
use crate::Result;
use crate::bare::work::Work;
use crate::harness::pace;
use crate::report::{Report, Unit};

pub(super) const SETTINGS: &str = "lanes=8,memory=64GiB";
const TENANTS: usize = 8;
/// Calls in flight of tenants that ask for much, and for little.
const IN_FLIGHT: [usize; 2] = [20, 2];
const WARM_UP: Duration = Duration::from_millis(1500);
/// Until all have a process: the driver makes one after the other.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);
const WINDOW: Duration = Duration::from_secs(1);
const WINDOWS: u32 = 8;
const WEIGHTS: [u32; 3] = [1, 2, 4];
pub(super) fn measure(bed: &Bed, report: &mut Report) -> Result<()> {
    let mixed = [Work::Matmul, bed.inference()];
    contested(bed, report, SETTINGS, mixed, 0.99)?;
    weighted(bed, report)?;
    idle(bed, report)
}

/// A tenant that calls all the time.
#[derive(Clone, Copy)]
struct Wants {
    work: Work,
    in_flight: usize,
}

/// Device time of each tenant in windows of a second, while all of them call.
fn windows(bed: &Bed, running: &Running, all: &[Wants]) -> Result<Vec<Vec<f64>>> {
    for (tenant, wants) in (1..).zip(all) {
        bed.register(&mut load::connect(running, tenant)?, &[wants.work.function()])?;
    }
    let over = AtomicBool::new(false);
    let one = |tenant: usize, wants: Wants| -> Result<(), String> {
        let run = || -> Result<()> {
            let mut client = load::connect(running, tenant)?;
            let calls = Calls::new(&mut client, wants.work.function(), wants.work, wants.in_flight)?;
            load::keep_until(&mut client, &calls, &over, |_, _| Ok(()))
        };
        run().map_err(|e| format!("tenant {tenant}: {e}"))
    };
    std::thread::scope(|scope| {
        let one = &one;
        let threads = (1..).zip(all).map(|(tenant, wants)| scope.spawn(move || one(tenant, *wants)));
        let threads: Vec<_> = threads.collect();
        let seen = watch(running, all.len());
        over.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().map_err(|_| "a client's thread panicked")??;
        }
        seen
    })
}

fn watch(running: &Running, tenants: usize) -> Result<Vec<Vec<f64>>> {
    // One that has no process has no share.
    let give_up = Instant::now() + PATIENCE;
    while device_times(running, tenants)?.contains(&0.0) && Instant::now() < give_up {
        pace::until(Instant::now() + LOOK);
    }
    pace::until(Instant::now() + WARM_UP);
    let mut next = Instant::now();
    let mut before = device_times(running, tenants)?;
    let mut windows = Vec::new();
    for _ in 0..WINDOWS {
        next += WINDOW;
        pace::until(next);
        let now = device_times(running, tenants)?;
        windows.push(now.iter().zip(&before).map(|(now, before)| now - before).collect());
        before = now;
    }
    Ok(windows)
}

/// Device time that tenants used so far, in nanoseconds.
pub(super) fn device_times(running: &Running, tenants: usize) -> Result<Vec<f64>> {
    let status = running.admin()?.status()?;
    let of = |tenant: u32| {
        // Their uids, or the names that a configuration gave them.
        let names = [(FIRST_UID + tenant).to_string(), format!("t{tenant}")];
        let all = status.devices.iter().flat_map(|device| &device.tenants);
        all.filter(|one| names.contains(&one.tenant)).map(|one| one.device_ns as f64).sum()
    };
    Ok((1..=u32::try_from(tenants)?).map(of).collect())
}

/// Ten times as much is asked for by some, and kernels are a hundred times as long.
pub(super) fn contested(
    bed: &Bed,
    report: &mut Report,
    settings: &str,
    works: [Work; 2],
    target: f64,
) -> Result<()> {
    let running = bed.start(settings)?;
    let wants = |nth: usize| Wants { work: works[nth % 2], in_flight: IN_FLIGHT[nth / 2 % 2] };
    let all: Vec<Wants> = (0..TENANTS).map(wants).collect();
    let windows = windows(bed, &running, &all)?;
    let worst = windows.iter().map(|times| jain(times)).fold(f64::INFINITY, f64::min);
    let [one, other] = works.map(Work::function);
    let title = format!("8 tenants, 20 and 2 calls in flight, {one} and {other}, windows of 1 s, {settings}");
    report.at_least(target, format!("{title}, Jain's index of device time"), worst, Unit::Ratio);
    for (second, times) in (1..).zip(&windows) {
        for (which, extreme) in [("least", extreme(times, f64::min)), ("most", extreme(times, f64::max))] {
            let (nth, ns) = extreme;
            report.info(format!("second {second}, {which}: tenant {}", nth + 1), ns / 1e9, Unit::Ratio);
        }
    }
    for (nth, wants) in all.iter().enumerate() {
        let used = windows.iter().map(|times| times[nth]).sum::<f64>() / 1e9 / f64::from(WINDOWS);
        let (what, in_flight) = (wants.work.function(), wants.in_flight);
        let title = format!("device time of tenant {}, {what}, {in_flight} in flight, of a second", nth + 1);
        report.info(title, used, Unit::Ratio);
    }
    Ok(())
}

/// Which tenant has the least or the most device time, and how much.
fn extreme(times: &[f64], of: fn(f64, f64) -> f64) -> (usize, f64) {
    let found = times.iter().copied().reduce(of).unwrap_or(0.0);
    (times.iter().position(|ns| *ns == found).unwrap_or(0), found)
}

/// Tenants with weights get device time by them.
fn weighted(bed: &Bed, report: &mut Report) -> Result<()> {
    if bed.rehearses() {
        report.skip("weights are for devices that tenants take turns on");
        return Ok(());
    }
    let running = bed.start_configured(SETTINGS, &load::weighted(&WEIGHTS))?;
    let all = WEIGHTS.map(|_| Wants { work: Work::Matmul, in_flight: 16 });
    let windows = windows(bed, &running, &all)?;
    let used = |nth: usize| windows.iter().map(|times| times[nth]).sum::<f64>();
    let (all_used, all_weights) = ((0..WEIGHTS.len()).map(used).sum::<f64>(), WEIGHTS.iter().sum::<u32>());
    let off = (0..)
        .zip(WEIGHTS)
        .map(|(nth, weight)| (used(nth) / all_used * f64::from(all_weights) / f64::from(weight) - 1.0).abs());
    let what = "weights 1:2:4, matmul 128², most that a share of device time is off by";
    report.at_most(0.02, what, off.fold(0.0, f64::max), Unit::Ratio);
    Ok(())
}

/// The device time that tenants without calls leave to the one with calls.
fn idle(bed: &Bed, report: &mut Report) -> Result<()> {
    let load = |work| Load {
        work,
        tenants: 1,
        connections: 1,
        in_flight: 16,
        rounds: USUAL_ROUNDS,
        measured: bed.measured,
    };
    let (alone, beside) = (bed.start(SETTINGS)?, bed.start(SETTINGS)?);
    for (running, tenants) in [(&alone, 1), (&beside, TENANTS)] {
        for tenant in 1..=tenants {
            let mut client = load::connect(running, tenant)?;
            bed.register(&mut client, &["matmul", "inference"])?;
            let calls = Calls::new(&mut client, "matmul", Work::Matmul, 1)?;
            load::call(&mut client, &calls.calls[0])?;
        }
    }
    for (name, work) in [("matmul 128²", Work::Matmul), ("inference ×500", bed.inference())] {
        let rate = |running| -> Result<f64> { Ok(load::run(running, load(work), 1)?.all.per_second) };
        let (alone, beside) = (rate(&alone)?, rate(&beside)?);
        let what = format!("{name}, beside 7 idle tenants / alone");
        report.at_least(0.97, what, beside / alone, Unit::Ratio);
    }
    Ok(())
}
