//! Workers that tenants share (`isolation=auto`), everything else by default: many tenants who call now and then; first calls;
//! neighbours of kernels that never end or that trap; shares of device time; what fenced code costs; and, as a part of its own,
//! tenants with few calls in flight beside one tenant with as many.

mod code;
pub(super) mod crowds;
mod first;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::bed::{Bed, Running};
use super::load::{self, Calls};
use super::many::Crowd;
use super::{endless, fair};
use crate::Result;
use crate::bare::work::Work;
use crate::harness::pace;
use crate::report::{Report, Unit};

const SETTINGS: &str = "isolation=auto";
/// Tenants that call now and then, how often, and for how long.
const TENANTS: usize = 120;
const PERIOD: Duration = Duration::from_secs(4);
const LASTS: Duration = Duration::from_secs(20);
const ZIPF: Crowd =
    Crowd { tenants: 1000, per_second: 200.0, targets: &[("p50", 0.5, 1e6), ("p99", 0.99, 20e6)] };
/// Functions that are registered at once: as many as are compiled at once.
const REGISTERED_AT_ONCE: usize = 8;

/// What is measured by itself.
type Step = fn(&Bed, &mut Report) -> Result<()>;

pub(super) fn measure(bed: &Bed, report: &mut Report) -> Result<()> {
    let steps: [Step; 7] = [
        |bed, report| fair::contested(bed, report, SETTINGS, [bed.inference(); 2], 0.98),
        |bed, report| endless::beside(bed, report, SETTINGS, endless::ENDLESS, 20e6),
        |bed, report| endless::beside(bed, report, SETTINGS, endless::STRAY, 300e6),
        |bed, report| first::measure(bed, report),
        |bed, report| code::measure(bed, report),
        |bed, report| ZIPF.measure(bed, report, SETTINGS, SETTINGS),
        |bed, report| now_and_then(&bed.start(SETTINGS)?, bed, report),
    ];
    for step in steps {
        // What one step cannot measure, others can.
        if let Err(error) = step(bed, report) {
            report.fail(format!("{error}{}", bed.last_words()));
        }
    }
    Ok(())
}

/// Registers functions of the library for tenants 1 to `tenants`.
fn register(bed: &Bed, running: &Running, tenants: usize, functions: &[&str]) -> Result<()> {
    let next = AtomicUsize::new(1);
    let some = || -> Result<(), String> {
        loop {
            let tenant = next.fetch_add(1, Ordering::Relaxed);
            if tenant > tenants {
                return Ok(());
            }
            let registered =
                load::connect(running, tenant).and_then(|mut client| bed.register(&mut client, functions));
            registered.map_err(|e| format!("tenant {tenant}: {e}"))?;
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..REGISTERED_AT_ONCE).map(|_| scope.spawn(some)).collect();
        threads.into_iter().try_for_each(|thread| Ok(thread.join().map_err(|_| "a thread panicked")??))
    })
}

/// Tenants of which none was there before, each with a function of its own.
fn now_and_then(running: &Running, bed: &Bed, report: &mut Report) -> Result<()> {
    let begin = Instant::now();
    register(bed, running, TENANTS, &["matmul"])?;
    eprintln!("  {TENANTS} tenants registered a function in {:.1} s", begin.elapsed().as_secs_f64());
    let begin = Instant::now();
    let one = |tenant: usize| one_tenant(running, tenant, begin).map_err(|e| e.to_string());
    let counted = std::thread::scope(|scope| {
        let one = &one;
        let threads: Vec<_> = (1..=TENANTS).map(|tenant| scope.spawn(move || one(tenant))).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        let flat = joined.map(|result| result.unwrap_or_else(|_| Err("a client's thread panicked".into())));
        flat.collect::<Result<Vec<_>, String>>()
    })?;
    let mut latencies = Histogram::<u64>::new(3)?;
    let mut failed = 0;
    for (own, fails) in &counted {
        latencies.add(own)?;
        failed += fails;
    }
    let title = "matmul 128², 120 tenants, a call every 4 s each, isolation=auto, from a cold start";
    let at = |quantile| latencies.value_at_quantile(quantile) as f64;
    report.at_most(1e6, format!("{title}, p50"), at(0.5), Unit::Nanoseconds);
    report.at_most(10e6, format!("{title}, p99"), at(0.99), Unit::Nanoseconds);
    report.info(format!("{title}, longest"), latencies.max() as f64, Unit::Nanoseconds);
    report.at_most(0.0, format!("{title}, failed"), f64::from(failed), Unit::Count);
    Ok(())
}

/// One tenant's calls, each at its own moment of the period: how long the good ones took, and how many failed.
fn one_tenant(running: &Running, tenant: usize, begin: Instant) -> Result<(Histogram<u64>, u32)> {
    let mut client = load::connect(running, tenant)?;
    let calls = Calls::new(&mut client, Work::Matmul.function(), Work::Matmul, 1)?;
    let first = begin + PERIOD * u32::try_from(tenant)? / u32::try_from(TENANTS)?;
    let (mut latencies, mut failed) = (Histogram::new(3)?, 0);
    for nth in 0.. {
        let at = first + PERIOD * nth;
        if at >= begin + LASTS {
            break;
        }
        pace::until(at);
        match load::call(&mut client, &calls.calls[0]) {
            Ok(took) => latencies.record(took)?,
            Err(why) => {
                if failed == 0 {
                    eprintln!("  tenant {tenant}: {why}");
                }
                failed += 1;
            }
        }
    }
    if failed == 0 {
        calls.check()?;
    }
    Ok((latencies, failed))
}
