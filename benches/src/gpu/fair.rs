//! How tenants share a GPU: device time of tenants that want different amounts of it, shares by weight, what an idle
//! neighbour leaves, and a neighbour whose kernels never end. Settings are the default ones but for the number of lanes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use pappus_client::Invocation;
use pappus_client::v1::{Code, response};

use super::bed::{Bed, Running};
use super::load::{self, Calls, FIRST_UID, Load, USUAL_ROUNDS, jain};
use super::mps::{ENDLESS_CONFIG, ENDLESS_PTX};
use crate::Result;
use crate::bare::work::Work;
use crate::harness::functions::{Form, Handed};
use crate::harness::pace;
use crate::report::{Report, Unit};

const SETTINGS: &str = "lanes=8,memory=64GiB";
const TENANTS: usize = 8;
/// Calls in flight of tenants that ask for much, and for little.
const IN_FLIGHT: [usize; 2] = [20, 2];
const WARM_UP: Duration = Duration::from_millis(1500);
const WINDOW: Duration = Duration::from_secs(1);
const WINDOWS: u32 = 4;
const WEIGHTS: [u32; 3] = [1, 2, 4];
/// Of endless calls, which `overrun-limit` ends before; how long they are made, and over how long a rate must hold.
const DEADLINE: Duration = Duration::from_secs(10);
const ENDLESS: Duration = Duration::from_secs(22);
const LONG: Duration = Duration::from_secs(10);
/// Calls in flight beside endless kernels.
const NEIGHBOURS: usize = 8;
/// A bin of answers in [`ENDLESS`].
const BIN: Duration = Duration::from_millis(100);

pub(super) fn measure(bed: &Bed, report: &mut Report) -> Result<()> {
    contested(bed, report)?;
    weighted(bed, report)?;
    idle(bed, report)?;
    endless(bed, report)
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
fn device_times(running: &Running, tenants: usize) -> Result<Vec<f64>> {
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
fn contested(bed: &Bed, report: &mut Report) -> Result<()> {
    let running = bed.start(SETTINGS)?;
    let wants = |nth: usize| Wants {
        work: if nth.is_multiple_of(2) { Work::Matmul } else { bed.inference() },
        in_flight: IN_FLIGHT[nth / 2 % 2],
    };
    let all: Vec<Wants> = (0..TENANTS).map(wants).collect();
    let windows = windows(bed, &running, &all)?;
    let worst = windows.iter().map(|times| jain(times)).fold(f64::INFINITY, f64::min);
    let title = "8 tenants, 20 and 2 calls in flight, matmul 128² and inference ×500, windows of 1 s";
    report.at_least(0.99, format!("{title}, Jain's index of device time"), worst, Unit::Ratio);
    for (nth, wants) in all.iter().enumerate() {
        let used = windows.iter().map(|times| times[nth]).sum::<f64>() / 1e9 / f64::from(WINDOWS);
        let (what, in_flight) = (wants.work.function(), wants.in_flight);
        let title = format!("device time of tenant {}, {what}, {in_flight} in flight, of a second", nth + 1);
        report.info(title, used, Unit::Ratio);
    }
    Ok(())
}

/// Tenants with weights get device time by them.
fn weighted(bed: &Bed, report: &mut Report) -> Result<()> {
    if bed.rehearses() {
        report.skip("weights are for devices that tenants take turns on");
        return Ok(());
    }
    let tenants = (1..).zip(WEIGHTS).map(|(nth, weight): (u32, u32)| {
        format!("[tenants.t{nth}]\nuid = {}\nweight = {weight}\n", FIRST_UID + nth)
    });
    let running = bed.start_configured(SETTINGS, &tenants.collect::<String>())?;
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

/// What tenants without calls leave to the one that has some.
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

/// A neighbour of kernels that never end.
fn endless(bed: &Bed, report: &mut Report) -> Result<()> {
    if !matches!(bed.form(), Form::Ptx(_)) {
        report.skip("the endless kernel is for NVIDIA GPUs");
        return Ok(());
    }
    let running = bed.start(SETTINGS)?;
    let mut client = load::connect(&running, 1)?;
    bed.register(&mut client, &["matmul"])?;
    let calls = Calls::new(&mut client, "matmul", Work::Matmul, NEIGHBOURS)?;
    let alone = answers(&mut client, &calls, Duration::from_secs(2), || Ok(()))?;
    let alone_per_second = alone.bins[10..].iter().sum::<u64>() as f64;
    let (mut ended, mut refused) = (0_u32, 0_u32);
    let beside = answers(&mut client, &calls, ENDLESS, || {
        let mut client = load::connect(&running, 2)?;
        let handed = Handed::put_own(&mut client, ENDLESS_CONFIG, "ptx", ENDLESS_PTX.as_bytes())?;
        client.add_function(handed.named("endless"))?;
        let begin = Instant::now();
        while begin.elapsed() < ENDLESS {
            let id = client.send_invocation(&Invocation::new("endless").deadline(DEADLINE))?;
            let answer =
                client.recv_within(Duration::from_secs(30))?.ok_or("an endless call was not ended")?;
            match answer.body {
                Some(response::Body::Error(error)) if answer.id == id => match error.code() {
                    Code::Overrun | Code::DeadlineExceeded => ended += 1,
                    // Quarantined after some: it is asked for again at once.
                    _ => refused += 1,
                },
                other => return Err(format!("an endless call ended with {other:?}").into()),
            }
        }
        Ok(())
    })?;
    let seconds = beside.bins.chunks(usize::try_from(1000 / BIN.as_millis())?);
    let shares = seconds.map(|bins| format!("{:.2}", bins.iter().sum::<u64>() as f64 / alone_per_second));
    eprintln!("  beside endless kernels, each second / alone: {}", shares.collect::<Vec<_>>().join(" "));
    let bins = LONG.as_millis() / BIN.as_millis();
    let least = beside.bins.windows(usize::try_from(bins)?).map(|bins| bins.iter().sum::<u64>()).min();
    let title =
        "neighbour of endless kernels (deadline 10 s, again and again), 8 calls in flight, matmul 128²";
    report.info(format!("{title}, endless calls ended"), f64::from(ended), Unit::Count);
    report.info(format!("{title}, endless calls refused"), f64::from(refused), Unit::Count);
    report.info(format!("{title}, p50"), beside.latencies.value_at_quantile(0.5) as f64, Unit::Nanoseconds);
    report.at_most(
        50e6,
        format!("{title}, p99"),
        beside.latencies.value_at_quantile(0.99) as f64,
        Unit::Nanoseconds,
    );
    report.info(format!("{title}, longest"), beside.latencies.max() as f64, Unit::Nanoseconds);
    let rate = least.ok_or("it was measured for too short a time")? as f64 / LONG.as_secs_f64();
    report.at_least(0.4, format!("{title}, least of any 10 s / alone"), rate / alone_per_second, Unit::Ratio);
    Ok(())
}

/// What one tenant saw.
struct Answers {
    latencies: Histogram<u64>,
    /// Answers in each [`BIN`].
    bins: Vec<u64>,
}

/// Answers to calls for so long, while something else happens.
fn answers(
    client: &mut pappus_client::Client,
    calls: &Calls,
    lasts: Duration,
    happens: impl FnOnce() -> Result<()> + Send,
) -> Result<Answers> {
    let over = AtomicBool::new(false);
    let mut latencies = Histogram::new(3)?;
    let mut bins = vec![0; usize::try_from(lasts.as_millis() / BIN.as_millis())?];
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let begin = Instant::now();
            let happened = happens().map_err(|e| e.to_string());
            pace::until(begin + lasts);
            over.store(true, Ordering::Relaxed);
            happened
        });
        let begin = Instant::now();
        let kept = load::keep_until(client, calls, &over, |now, took| {
            let bin = (now - begin).as_millis() / BIN.as_millis();
            if let Some(bin) = bins.get_mut(usize::try_from(bin)?) {
                *bin += 1;
                latencies.record(took)?;
            }
            Ok(())
        });
        other.join().map_err(|_| "the other tenant's thread panicked")??;
        kept
    })?;
    Ok(Answers { latencies, bins })
}
