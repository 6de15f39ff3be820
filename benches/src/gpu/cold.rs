//! First calls of functions that are registered but in no worker yet. Each has a module of its own. Once they were just
//! registered, and once behind a restart of the supervisor, so that it has to read and plan them, too.

use hdrhistogram::Histogram;
use pappus_client::Client;

use super::bed::Bed;
use super::fault;
use super::load::{self, Calls};
use crate::Result;
use crate::bare::work::Work;
use crate::harness::functions::Handed;
use crate::report::{Report, Unit};

const FUNCTIONS: usize = 100;
/// Hot calls before each first call.
const HOT: usize = 9;
const P50_NS: f64 = 500e3;
const P99_NS: f64 = 1e6;

pub(super) fn measure(bed: &Bed, report: &mut Report) -> Result<()> {
    let running = bed.start("workers=1,lanes=8,memory=16GiB")?;
    let mut client = running.connect()?;
    bed.register(&mut client, &["matmul"])?;
    let names: Vec<String> = (0..FUNCTIONS).map(|nth| format!("matmul-{nth}")).collect();
    for name in &names {
        // An entry more makes it a module, and machine code, of its own.
        let tail = format!("\n.visible .entry {}() {{ ret; }}\n", name.replace('-', "_"));
        let handed = Handed::put_as(&mut client, "matmul", bed.form(), &tail)?;
        client.add_function(handed.named(name))?;
    }
    first_calls(&mut client, &names, "just registered", report)?;
    drop(client);

    let running = bed.restart(running)?;
    first_calls(&mut running.connect()?, &names, "behind a restart", report)
}

/// What the first call of each of these functions takes over hot calls of another.
fn first_calls(client: &mut Client, names: &[String], when: &str, report: &mut Report) -> Result<()> {
    let hot = Calls::new(client, "matmul", Work::Matmul, 1)?;
    // The worker gets its domain, the graph is made.
    for _ in 0..100 {
        load::call(client, &hot.calls[0])?;
    }
    // Not what is measured: contexts of compilations, or of the supervisor before, end and hold the driver's locks.
    fault::recover();
    let mut hot_calls = Histogram::<u64>::new(3)?;
    let mut added = Histogram::<u64>::new(3)?;
    for name in names {
        // In the same arena: pinning one is paid once for many calls.
        let cold = hot.of(name);
        let mut around = Vec::with_capacity(HOT);
        for _ in 0..HOT {
            around.push(load::call(client, &hot.calls[0])?);
        }
        around.sort_unstable();
        hot_calls.record(around[HOT / 2])?;
        added.record(load::call(client, &cold)?.saturating_sub(around[HOT / 2]))?;
        hot.check()?;
    }
    let at = |histogram: &Histogram<u64>, quantile| histogram.value_at_quantile(quantile) as f64;
    report.info(format!("{when}: hot call, p50"), at(&hot_calls, 0.5), Unit::Nanoseconds);
    let title = format!("{when}: added by being the first call");
    report.at_most(P50_NS, format!("{title}, p50"), at(&added, 0.5), Unit::Nanoseconds);
    report.at_most(P99_NS, format!("{title}, p99"), at(&added, 0.99), Unit::Nanoseconds);
    Ok(())
}
