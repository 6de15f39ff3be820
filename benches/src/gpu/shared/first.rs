//! First calls of tenants who were never there, of a function that is registered, beside hot calls.

use super::super::bed::Bed;
use super::super::load::{self, Calls, FIRST_UID};
use super::SETTINGS;
use crate::Result;
use crate::bare::work::Work;
use crate::report::{Report, Unit};
use hdrhistogram::Histogram;

const NEWCOMERS: usize = 100;
const HOT: usize = 300;
/// What a first call may take more than a hot one, and the 99th percentile of first calls.
const MORE_NS: f64 = 1e6;
const P99_NS: f64 = 3e6;

pub(super) fn measure(bed: &Bed, report: &mut Report) -> Result<()> {
    let running = bed.start(SETTINGS)?;
    let mut owner = load::connect(&running, 1)?;
    bed.register(&mut owner, &["matmul"])?;
    let granted = format!("{}/matmul", FIRST_UID + 1);
    for tenant in 2..=u32::try_from(NEWCOMERS)? + 1 {
        owner.grant("matmul", &(FIRST_UID + tenant).to_string())?;
    }
    let own = Calls::new(&mut owner, "matmul", Work::Matmul, 1)?;
    let (mut hot, mut first) = (Histogram::<u64>::new(3)?, Histogram::<u64>::new(3)?);
    for nth in 0..2 * HOT {
        let took = load::call(&mut owner, &own.calls[0])?;
        if nth >= HOT {
            hot.record(took)?;
        }
    }
    for tenant in 2..=NEWCOMERS + 1 {
        let mut client = load::connect(&running, tenant)?;
        let calls = Calls::new(&mut client, &granted, Work::Matmul, 1)?;
        first.record(load::call(&mut client, &calls.calls[0])?)?;
        calls.check()?;
    }
    let title = "first call of a tenant never seen, function registered, matmul 128², isolation=auto";
    let hot_ns = hot.value_at_quantile(0.5) as f64;
    report.info(format!("{title}: a hot call beside it, p50"), hot_ns, Unit::Nanoseconds);
    let more = first.value_at_quantile(0.5) as f64 - hot_ns;
    report.at_most(MORE_NS, format!("{title}, p50 over a hot one"), more.max(0.0), Unit::Nanoseconds);
    report.at_most(P99_NS, format!("{title}, p99"), first.value_at_quantile(0.99) as f64, Unit::Nanoseconds);
    Ok(())
}
