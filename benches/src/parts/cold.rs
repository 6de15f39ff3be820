//! The first call of a registered function against hot calls: once it was just registered, and once behind a restart of the
//! supervisor, so that it has to read the function's record and plan it, too.

use std::time::Instant;

use hdrhistogram::Histogram;
use pappus_client::{Client, Invocation};

use super::ONE_WORKER;
use crate::Result;
use crate::harness::functions::Handed;
use crate::harness::sampling::nanoseconds;
use crate::harness::supervisor::Home;
use crate::report::{Report, Unit};

const FUNCTIONS: usize = 100;
/// Hot calls around each first call.
const HOT: usize = 5;
const TARGET_NS: f64 = 500e3;

pub(super) fn measure(report: &mut Report) -> Result<()> {
    let home = Home::new()?;
    let supervisor = home.start(ONE_WORKER)?;
    let mut client = supervisor.connect()?;
    let handed = Handed::put(&mut client, "hello")?;
    let names: Vec<String> = (0..=FUNCTIONS).map(|nth| format!("hello-{nth}")).collect();
    for name in &names {
        client.add_function(handed.named(name))?;
    }
    first_calls(&mut client, &names, "just registered", report)?;
    drop(client);
    supervisor.stop()?;

    let supervisor = home.start(ONE_WORKER)?;
    first_calls(&mut supervisor.connect()?, &names, "behind a restart", report)
}

/// What the first call of each of these functions takes over hot calls of the first one.
fn first_calls(client: &mut Client, names: &[String], when: &str, report: &mut Report) -> Result<()> {
    let mut timed = |name: &str| -> Result<u64> {
        let call = Invocation::new(name);
        let start = Instant::now();
        client.invoke(&call)?;
        Ok(nanoseconds(start))
    };
    let (hot_name, cold_names) = names.split_first().ok_or("no functions")?;
    // The worker gets its domain.
    timed(hot_name)?;
    let mut hot = Histogram::<u64>::new(3)?;
    let mut added = Histogram::<u64>::new(3)?;
    for name in cold_names {
        let mut around = Vec::with_capacity(HOT);
        for _ in 0..HOT {
            around.push(timed(hot_name)?);
        }
        around.sort_unstable();
        hot.record(around[HOT / 2])?;
        added.record(timed(name)?.saturating_sub(around[HOT / 2]))?;
    }
    let hot_p50 = hot.value_at_quantile(0.5) as f64;
    report.info(format!("{when}: hot call, p50"), hot_p50, Unit::Nanoseconds);
    report.tail(TARGET_NS, &format!("{when}: added by being the first call"), &added);
    Ok(())
}
