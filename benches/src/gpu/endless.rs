//! A neighbour of kernels that never end, again and again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use pappus_client::Invocation;
use pappus_client::v1::{Code, response};

use super::bed::Bed;
use super::fair::SETTINGS;
use super::load::{self, Calls};
use super::mps::{ENDLESS_CONFIG, ENDLESS_PTX};
use crate::Result;
use crate::bare::work::Work;
use crate::harness::functions::Handed;
use crate::harness::pace;
use crate::report::{Report, Unit};

/// Of endless calls, which `overrun-limit` ends before; how long they are made, and over how long a rate must hold.
const DEADLINE: Duration = Duration::from_secs(10);
const ENDLESS: Duration = Duration::from_secs(22);
const LONG: Duration = Duration::from_secs(10);
/// Calls in flight beside endless kernels.
const NEIGHBOURS: usize = 8;
/// A bin of answers in [`ENDLESS`].
const BIN: Duration = Duration::from_millis(100);

pub(super) fn measure(bed: &Bed, report: &mut Report) -> Result<()> {
    if bed.rehearses() {
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
