//! Tenants that come while others are busy: first calls of tenants that have no process, while a standby is ready, and what
//! the making of the next standby costs the others; and tenants that all come at the same time. Settings are the default ones.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::bed::{Bed, Running};
use super::fair::device_times;
use super::load::{self, Calls, until_standby};
use crate::Result;
use crate::bare::work::Work;
use crate::harness::pace;
use crate::harness::sampling::nanoseconds;
use crate::report::{Report, Unit};

/// Busy tenants, and calls in flight of each.
const BUSY: usize = 4;
const IN_FLIGHT: usize = 8;
/// Tenants that come while the others are busy, and as many that come while nobody is.
const NEW: usize = 6;
const WARM_UP: Duration = Duration::from_millis(700);
/// How long nothing is made before each newcomer.
const QUIET: Duration = Duration::from_millis(500);
/// Until there is a process: the driver makes one after the other.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(5);
/// Tenants that come at the same time, and calls in flight of each.
const AT_ONCE: usize = 24;
const EACH: usize = 4;
const FIRST_NS: f64 = 10e6;
const KEPT: f64 = 0.9;

pub(super) fn measure(bed: &Bed, report: &mut Report) -> Result<()> {
    let running = bed.start("")?;
    let busy_work = bed.inference();
    for tenant in 1..=BUSY {
        bed.register(&mut load::connect(&running, tenant)?, &[busy_work.function()])?;
    }
    for tenant in BUSY + 1..=BUSY + 2 * NEW {
        bed.register(&mut load::connect(&running, tenant)?, &["matmul"])?;
    }
    let (over, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    let keep_busy = |tenant: usize| -> Result<()> {
        let mut client = load::connect(&running, tenant)?;
        let calls = Calls::new(&mut client, busy_work.function(), busy_work, IN_FLIGHT)?;
        load::keep_until(&mut client, &calls, &over, |_, _| {
            answered.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
    };
    let beside = std::thread::scope(|scope| {
        let keep_busy = |tenant| keep_busy(tenant).map_err(|e| format!("tenant {tenant}: {e}"));
        let threads: Vec<_> = (1..=BUSY).map(|tenant| scope.spawn(move || keep_busy(tenant))).collect();
        let beside = arrive(&running, &answered);
        over.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().map_err(|_| "a client's thread panicked")??;
        }
        beside
    })?;
    let mut alone = Vec::new();
    for tenant in BUSY + NEW + 1..=BUSY + 2 * NEW {
        until_standby(&running)?;
        alone.push(first_call(&running, tenant)?);
    }
    let title = "first call of a tenant without a process, a standby ready, matmul 128²";
    let longest = |times: &[u64]| times.iter().copied().max().unwrap_or(0) as f64;
    report.at_most(
        FIRST_NS,
        format!("{title}, longest of {NEW}, nobody else"),
        longest(&alone),
        Unit::Nanoseconds,
    );
    report.info(
        format!("{title}, longest of {NEW}, beside {BUSY} busy tenants"),
        longest(&beside.first_calls),
        Unit::Nanoseconds,
    );
    let title = format!("{BUSY} busy tenants, inference ×500");
    report.info(format!("{title}, while no process is made"), beside.quiet.per_second(), Unit::PerSecond);
    report.info(
        format!("making a standby beside {BUSY} busy tenants"),
        beside.making.took.as_nanos() as f64 / NEW as f64,
        Unit::Nanoseconds,
    );
    report.at_least(
        KEPT,
        format!("{title}, while standbys are made / while none is"),
        beside.making.per_second() / beside.quiet.per_second(),
        Unit::Ratio,
    );
    drop(running);
    all_at_once(bed, report)
}

/// Tenants that begin at the same time, without a process for any of them, and go on until each has its first answer.
fn all_at_once(bed: &Bed, report: &mut Report) -> Result<()> {
    let (running, work) = (bed.start("")?, bed.inference());
    for tenant in 1..=AT_ONCE {
        bed.register(&mut load::connect(&running, tenant)?, &[work.function()])?;
    }
    let (over, waiting) = (AtomicBool::new(false), AtomicUsize::new(AT_ONCE));
    let barrier = Barrier::new(AT_ONCE);
    let one = |tenant: usize| -> Result<u64> {
        let ready = load::connect(&running, tenant).and_then(|mut client| {
            let calls = Calls::new(&mut client, work.function(), work, EACH)?;
            Ok((client, calls))
        });
        barrier.wait();
        let begin = Instant::now();
        let mut first = None;
        let kept = ready.and_then(|(mut client, calls)| {
            load::keep_until(&mut client, &calls, &over, |_, _| {
                if first.is_none() {
                    first = Some(nanoseconds(begin));
                    over.fetch_or(waiting.fetch_sub(1, Ordering::Relaxed) == 1, Ordering::Relaxed);
                }
                Ok(())
            })
        });
        // A tenant that failed must not keep the others waiting.
        kept.inspect_err(|_| over.store(true, Ordering::Relaxed))?;
        Ok(first.unwrap_or(0))
    };
    let mut firsts = std::thread::scope(|scope| {
        let one = |tenant| one(tenant).map_err(|e| format!("tenant {tenant}: {e}"));
        let threads: Vec<_> = (1..=AT_ONCE).map(|tenant| scope.spawn(move || one(tenant))).collect();
        let ended = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("a client's thread panicked".into())));
        ended.collect::<Result<Vec<u64>, String>>()
    })?;
    firsts.sort_unstable();
    let title = format!("{AT_ONCE} tenants that begin at the same time");
    report.info(format!("{title}, first answer, median"), firsts[AT_ONCE / 2] as f64, Unit::Nanoseconds);
    report.info(format!("{title}, first answer, last"), firsts[AT_ONCE - 1] as f64, Unit::Nanoseconds);
    let status = running.admin()?.status()?;
    let workers = || status.devices.iter().flat_map(|device| &device.workers);
    let lost: u64 = workers().map(|worker| worker.restarts).sum();
    let title = format!("{title}, that lost their process meanwhile");
    match workers().count() >= AT_ONCE {
        true => report.at_most(0.0, title, lost as f64, Unit::Count),
        // There is no slot for each.
        false => report.info(title, lost as f64, Unit::Count),
    }
    Ok(())
}

/// Calls of the busy tenants in some time.
#[derive(Default)]
struct Made {
    calls: u64,
    took: Duration,
}

impl Made {
    fn per_second(&self) -> f64 {
        self.calls as f64 / self.took.as_secs_f64()
    }
}

struct Beside {
    first_calls: Vec<u64>,
    quiet: Made,
    making: Made,
}

/// Newcomers come one after the other; the busy tenants are counted before each, and from its call until the next standby is
/// ready.
fn arrive(running: &Running, answered: &AtomicU64) -> Result<Beside> {
    let give_up = Instant::now() + PATIENCE;
    while device_times(running, BUSY)?.contains(&0.0) && Instant::now() < give_up {
        pace::until(Instant::now() + LOOK);
    }
    let mut beside = Beside { first_calls: Vec::new(), quiet: Made::default(), making: Made::default() };
    for tenant in BUSY + 1..=BUSY + NEW {
        until_standby(running)?;
        pace::until(Instant::now() + WARM_UP);
        count(&mut beside.quiet, answered, || {
            pace::until(Instant::now() + QUIET);
            Ok(())
        })?;
        let first = count(&mut beside.making, answered, || {
            let first = first_call(running, tenant)?;
            until_standby(running)?;
            Ok(first)
        })?;
        beside.first_calls.push(first);
    }
    Ok(beside)
}

fn count<T>(made: &mut Made, answered: &AtomicU64, happens: impl FnOnce() -> Result<T>) -> Result<T> {
    let (before, begin) = (answered.load(Ordering::Relaxed), Instant::now());
    let happened = happens()?;
    made.calls += answered.load(Ordering::Relaxed) - before;
    made.took += begin.elapsed();
    Ok(happened)
}

/// The nanoseconds that a tenant's first call takes, behind its connection and its arena.
fn first_call(running: &Running, tenant: usize) -> Result<u64> {
    let mut client = load::connect(running, tenant)?;
    let calls = Calls::new(&mut client, "matmul", Work::Matmul, 1)?;
    let took = load::call(&mut client, &calls.calls[0])?;
    calls.check()?;
    Ok(took)
}
