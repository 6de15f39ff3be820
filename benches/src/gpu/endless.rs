//! A neighbour of kernels that never end, or that trap, again and again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use pappus_client::Invocation;
use pappus_client::v1::{Code, response};

use super::bed::{Bed, Running};
use super::fair;
use super::fault::{BAD_CONFIG, BAD_PTX};
use super::load::{self, Calls};
use super::mps::{ENDLESS_CONFIG, ENDLESS_PTX};
use crate::Result;
use crate::bare::work::Work;
use crate::harness::functions::Handed;
use crate::harness::pace;
use crate::report::{Report, Unit};

/// Of bad calls: endless ones are ended before; how long they are made, and over how long a rate must hold.
const DEADLINE: Duration = Duration::from_secs(10);
const LASTS: Duration = Duration::from_secs(22);
const LONG: Duration = Duration::from_secs(10);
/// Calls in flight beside them.
const NEIGHBOURS: usize = 8;
/// A bin of answers in [`LASTS`].
const BIN: Duration = Duration::from_millis(100);

/// A function whose calls are bad for others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bad {
    name: &'static str,
    config: &'static str,
    ptx: &'static str,
    codes: &'static [Code],
}

/// Its kernel never ends.
pub(super) const ENDLESS: Bad = Bad {
    name: "endless",
    config: ENDLESS_CONFIG,
    ptx: ENDLESS_PTX,
    codes: &[Code::Overrun, Code::DeadlineExceeded],
};
/// Its kernel writes where nothing is.
pub(super) const STRAY: Bad =
    Bad { name: "stray", config: BAD_CONFIG, ptx: BAD_PTX, codes: &[Code::KernelFault] };

/// Calls of a bad function.
struct Ended {
    /// As they should.
    ended: u32,
    /// Before they began: quarantined after some, they are made again at once.
    refused: u32,
}

pub(super) fn measure(bed: &Bed, report: &mut Report) -> Result<()> {
    beside(bed, report, fair::SETTINGS, ENDLESS, 50e6)
}

/// What a neighbour of bad calls sees; its 99th percentile may be at most `p99_ns`.
pub(super) fn beside(bed: &Bed, report: &mut Report, settings: &str, bad: Bad, p99_ns: f64) -> Result<()> {
    if bed.rehearses() {
        report.skip(format!("the kernel of `{}` is for NVIDIA GPUs", bad.name));
        return Ok(());
    }
    let running = bed.start(settings)?;
    let mut client = load::connect(&running, 1)?;
    bed.register(&mut client, &["matmul"])?;
    let calls = Calls::new(&mut client, "matmul", Work::Matmul, NEIGHBOURS)?;
    let alone = answers(&mut client, &calls, Duration::from_secs(2), || Ok(()))?;
    let alone_per_second = alone.bins[10..].iter().sum::<u64>() as f64;
    let before = restarts(&running)?;
    let mut counted = Ended { ended: 0, refused: 0 };
    let beside = answers(&mut client, &calls, LASTS, || {
        counted = bad.call_again_and_again(&running)?;
        Ok(())
    })?;
    calls.check()?;
    let seconds = beside.bins.chunks(usize::try_from(1000 / BIN.as_millis())?);
    let shares = seconds.map(|bins| format!("{:.2}", bins.iter().sum::<u64>() as f64 / alone_per_second));
    let Bad { name, .. } = bad;
    eprintln!("  beside {name} calls, each second / alone: {}", shares.collect::<Vec<_>>().join(" "));
    let bins = LONG.as_millis() / BIN.as_millis();
    let least = beside.bins.windows(usize::try_from(bins)?).map(|bins| bins.iter().sum::<u64>()).min();
    let title =
        format!("neighbour of {name} kernels (again and again, {settings}), 8 calls in flight, matmul 128²");
    report.info(format!("{title}, bad calls ended"), f64::from(counted.ended), Unit::Count);
    report.info(format!("{title}, bad calls refused"), f64::from(counted.refused), Unit::Count);
    let restarts = restarts(&running)? - before;
    report.info(format!("{title}, processes replaced"), restarts as f64, Unit::Count);
    report.info(format!("{title}, p50"), beside.latencies.value_at_quantile(0.5) as f64, Unit::Nanoseconds);
    let p99 = beside.latencies.value_at_quantile(0.99) as f64;
    report.at_most(p99_ns, format!("{title}, p99"), p99, Unit::Nanoseconds);
    report.info(format!("{title}, longest"), beside.latencies.max() as f64, Unit::Nanoseconds);
    let rate = least.ok_or("it was measured for too short a time")? as f64 / LONG.as_secs_f64();
    report.at_least(0.4, format!("{title}, least of any 10 s / alone"), rate / alone_per_second, Unit::Ratio);
    Ok(())
}

/// How often a process took the place of another.
fn restarts(running: &Running) -> Result<u64> {
    let devices = running.admin()?.status()?.devices;
    Ok(devices.iter().flat_map(|device| &device.workers).map(|worker| worker.restarts).sum())
}

impl Bad {
    fn call_again_and_again(self, running: &Running) -> Result<Ended> {
        let mut client = load::connect(running, 2)?;
        let handed = Handed::put_own(&mut client, self.config, "ptx", self.ptx.as_bytes())?;
        client.add_function(handed.named(self.name))?;
        let (begin, mut counted) = (Instant::now(), Ended { ended: 0, refused: 0 });
        while begin.elapsed() < LASTS {
            let id = client.send_invocation(&Invocation::new(self.name).deadline(DEADLINE))?;
            let answer = client.recv_within(Duration::from_secs(30))?.ok_or("a bad call was not ended")?;
            match answer.body {
                Some(response::Body::Error(error)) if answer.id == id => {
                    match self.codes.contains(&error.code()) {
                        true => counted.ended += 1,
                        false => counted.refused += 1,
                    }
                }
                other => return Err(format!("a bad call ended with {other:?}").into()),
            }
        }
        Ok(counted)
    }
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
