//! Tenants that call now and then, with default settings: 32 of them, a matmul 128² every half second each.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use pappus_client::Client;

use super::bed::{Bed, Running};
use super::load::{self, Calls};
use crate::Result;
use crate::bare::work::Work;
use crate::harness::pace;
use crate::report::{Report, Unit};

const TENANTS: usize = 32;
const PERIOD: Duration = Duration::from_millis(500);
/// A tenant's measured calls, and the first ones, which start its process, load its function and make its graph.
const CALLS: u32 = 16;
const WARM_UP: u32 = 4;
const P50_NS: f64 = 1e6;
const P99_NS: f64 = 5e6;

pub(super) fn measure(bed: &Bed, report: &mut Report) -> Result<()> {
    let running = bed.start("")?;
    for tenant in 1..=TENANTS {
        bed.register(&mut load::connect(&running, tenant)?, &["matmul"])?;
    }
    let barrier = Barrier::new(TENANTS);
    let one = |tenant: usize| calls_of(&running, tenant, &barrier).map_err(|e| e.to_string());
    let counted = std::thread::scope(|scope| {
        let one = &one;
        let threads: Vec<_> = (1..=TENANTS).map(|tenant| scope.spawn(move || one(tenant))).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined
            .map(|result| result.unwrap_or_else(|_| Err("a client's thread panicked".into())))
            .collect::<Result<Vec<_>, String>>()
    })?;
    let mut latencies = Histogram::<u64>::new(3)?;
    counted.iter().try_for_each(|one| latencies.add(one))?;
    let title = "matmul 128², 32 tenants, a call every 0.5 s each, default settings";
    report.at_most(
        P50_NS,
        format!("{title}, p50"),
        latencies.value_at_quantile(0.5) as f64,
        Unit::Nanoseconds,
    );
    report.info(format!("{title}, p90"), latencies.value_at_quantile(0.9) as f64, Unit::Nanoseconds);
    report.at_most(
        P99_NS,
        format!("{title}, p99"),
        latencies.value_at_quantile(0.99) as f64,
        Unit::Nanoseconds,
    );
    report.info(format!("{title}, longest"), latencies.max() as f64, Unit::Nanoseconds);
    Ok(())
}

/// One tenant's calls, each at its own moment of the period. They count once all tenants have made their first ones: while a
/// process is made, others wait for the driver now and then, which `cold` measures.
fn calls_of(running: &Running, tenant: usize, barrier: &Barrier) -> Result<Histogram<u64>> {
    let ready = warmed_up(running, tenant);
    // A thread that failed must not keep the others waiting.
    barrier.wait();
    let (mut client, calls) = ready?;
    let mut latencies = Histogram::new(3)?;
    let begin = Instant::now() + PERIOD * u32::try_from(tenant)? / u32::try_from(TENANTS)?;
    for nth in 0..CALLS {
        pace::until(begin + PERIOD * nth);
        latencies.record(load::call(&mut client, &calls.calls[0])?)?;
    }
    calls.check()?;
    Ok(latencies)
}

/// A tenant whose process is there, and has served some calls.
fn warmed_up(running: &Running, tenant: usize) -> Result<(Client, Calls)> {
    let mut client = load::connect(running, tenant)?;
    let calls = Calls::new(&mut client, Work::Matmul.function(), Work::Matmul, 1)?;
    let begin = Instant::now();
    for nth in 0..WARM_UP {
        pace::until(begin + PERIOD * nth);
        load::call(&mut client, &calls.calls[0])?;
    }
    Ok((client, calls))
}
