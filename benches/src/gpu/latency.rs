//! What a hot call costs beyond the device's work: calls back to back against the bare graph with its copies,
//! while the worker polls and while it blocks; and at 25 calls a second.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use pappus_client::{Client, Invocation};

use super::bed::Bed;
use super::load::{self, Calls};
use crate::Result;
use crate::bare::work::Work;
use crate::harness::functions::polled;
use crate::harness::pace;
use crate::harness::sampling::{median, nanoseconds};
use crate::report::{Report, Unit};

const ROUNDS: usize = 3;
const CALLS: u32 = 3000;
const WARM_UP: u32 = 300;
/// Open loop.
const EVERY: Duration = Duration::from_millis(40);
const PACED_CALLS: u32 = 100;
const POLLING_NS: f64 = 15e3;
const BLOCKING_NS: f64 = 40e3;

/// How those wait who have nothing to do.
struct Way {
    title: &'static str,
    poll_us: u32,
    client_polls: bool,
    target: Option<f64>,
}

const WAYS: [Way; 3] = [
    Way { title: "worker and client poll", poll_us: 1000, client_polls: true, target: Some(POLLING_NS) },
    Way { title: "worker polls, client blocks", poll_us: 1000, client_polls: false, target: None },
    Way { title: "both block", poll_us: 0, client_polls: false, target: Some(BLOCKING_NS) },
];

pub(super) fn measure(bed: &Bed, report: &mut Report) -> Result<()> {
    let running = bed.start("workers=1,lanes=8,memory=16GiB")?;
    let mut client = running.connect()?;
    bed.register(&mut client, &["matmul", "hello"])?;
    for (work, name, bare) in
        [(Work::Matmul, "matmul 128²", "--work=matmul"), (Work::Empty, "empty kernel", "--work=empty")]
    {
        let calls = Calls::new(&mut client, work.function(), work, 1)?;
        let call = &calls.calls[0];
        let mut added: Vec<Vec<f64>> = WAYS.iter().map(|_| Vec::new()).collect();
        let mut ours: Vec<Histogram<u64>> = Vec::new();
        for _ in &WAYS {
            ours.push(Histogram::new(3)?);
        }
        let (mut bare_p50, mut bare_p99) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let floor = bed.one_by_one(&[bare, "--graph"])?;
            bare_p50.push(floor.p50_ns);
            bare_p99.push(floor.p99_ns);
            for ((way, all), added) in WAYS.iter().zip(&mut ours).zip(&mut added) {
                running.set("poll-us", way.poll_us)?;
                let round = back_to_back(&mut client, call, way.client_polls)?;
                added.push(round.value_at_quantile(0.5) as f64 - floor.p50_ns);
                all.add(&round)?;
            }
        }
        calls.check()?;
        report.info(format!("{name}, bare graph with copies, p50"), median(&bare_p50), Unit::Nanoseconds);
        report.info(format!("{name}, bare graph with copies, p99"), median(&bare_p99), Unit::Nanoseconds);
        for ((way, all), added) in WAYS.iter().zip(&ours).zip(&added) {
            let title = format!("{name}, {}", way.title);
            report.info(format!("{title}, p50"), all.value_at_quantile(0.5) as f64, Unit::Nanoseconds);
            report.info(format!("{title}, p99"), all.value_at_quantile(0.99) as f64, Unit::Nanoseconds);
            let (what, value) = (format!("{title}, added p50"), median(added));
            match way.target {
                Some(target) => report.at_most(target, what, value, Unit::Nanoseconds),
                None => report.info(what, value, Unit::Nanoseconds),
            }
        }
        let floor = bed.one_by_one(&[bare, "--graph", "--every-us=40000"])?;
        report.info(format!("{name}, 25 calls/s, bare, p50"), floor.p50_ns, Unit::Nanoseconds);
        for (title, poll_us) in [("polling", 1000), ("blocking", 0)] {
            running.set("poll-us", poll_us)?;
            let paced = paced(&mut client, call)?;
            for (name_of, quantile) in [("p50", 0.5), ("p99", 0.99)] {
                let what = format!("{name}, 25 calls/s, {title}, {name_of}");
                report.info(what, paced.value_at_quantile(quantile) as f64, Unit::Nanoseconds);
            }
        }
    }
    Ok(())
}

fn back_to_back(client: &mut Client, call: &Invocation, polls: bool) -> Result<Histogram<u64>> {
    let mut latencies = Histogram::new(3)?;
    for nth in 0..WARM_UP + CALLS {
        let taken = if polls { polled(client, call)? } else { load::call(client, call)? };
        if nth >= WARM_UP {
            latencies.record(taken)?;
        }
    }
    Ok(latencies)
}

fn paced(client: &mut Client, call: &Invocation) -> Result<Histogram<u64>> {
    let mut latencies = Histogram::new(3)?;
    let begin = Instant::now();
    for nth in 0..PACED_CALLS {
        // From when the call was due: a late one makes those behind it late.
        let due = begin + EVERY * nth;
        pace::until(due);
        load::call(client, call)?;
        latencies.record(nanoseconds(due))?;
    }
    Ok(latencies)
}
