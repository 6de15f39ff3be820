//! Many tenants by Zipf's law, each of whom makes a matmul 128² at random moments: four times as many as there may be workers.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use pappus_client::Error;
use pappus_client::v1::{Code, DeviceStatus, Timings};

use super::bed::{Bed, Running};
use super::load::{self, Calls, FIRST_UID};
use crate::Result;
use crate::bare::work::Work;
use crate::harness::pace;
use crate::harness::sampling::nanoseconds;
use crate::report::{Report, Unit};
use crate::simulator::random::{Odds, Random};

/// How long it counts.
const COUNTED: Duration = Duration::from_secs(16);
/// Nothing counts before there are as many processes as may be: once no slot got its first one for [`SETTLED`] looks, or after
/// [`LONGEST_WARM_UP`].
const SETTLED: u32 = 2;
const LONGEST_WARM_UP: Duration = Duration::from_secs(100);
/// How often it is said what the processes do.
const LOOK: Duration = Duration::from_secs(4);
/// How often who waits looks whether everything was counted.
const GLANCE: Duration = Duration::from_millis(500);
/// Longer than any call may take.
const DEADLINE: Duration = Duration::from_secs(2);
const SEED: u64 = 20_261_122;

/// Tenants who call now and then, and what is asked of their calls.
#[derive(Debug, Clone, Copy)]
pub(super) struct Crowd {
    pub(super) tenants: u32,
    /// Calls a second in all.
    pub(super) per_second: f64,
    /// Latencies in nanoseconds that a part of the calls, such as 0.5, may take.
    pub(super) targets: &'static [(&'static str, f64, f64)],
}

/// By default settings, and where workers change hands by a scrub.
const MANY: Crowd = Crowd {
    tenants: 256,
    per_second: 64.0,
    targets: &[("p50", 0.5, 1e6), ("p90", 0.9, 50e6), ("longest", 1.0, 1e9)],
};

pub(super) fn measure(bed: &Bed, report: &mut Report) -> Result<()> {
    MANY.measure(bed, report, "tenant-switch=scrub", "scrub")?;
    MANY.measure(bed, report, "", "default settings")
}

impl Crowd {
    /// The moments of each tenant's calls, since the beginning.
    fn moments(&self) -> Vec<Vec<Duration>> {
        let tenants = self.tenants as usize;
        let (mut random, odds) = (Random::new(SEED), Odds::zipf(tenants, 1.0));
        let (mut at_ns, mut all) = (0, vec![Vec::new(); tenants]);
        let end_ns = (LONGEST_WARM_UP + COUNTED).as_nanos() as u64;
        loop {
            at_ns += random.interval_ns(self.per_second);
            if at_ns >= end_ns {
                return all;
            }
            all[odds.pick(&mut random)].push(Duration::from_nanos(at_ns));
        }
    }

    /// Lets them call with these settings of the device.
    pub(super) fn measure(&self, bed: &Bed, report: &mut Report, settings: &str, called: &str) -> Result<()> {
        let Self { tenants, per_second, targets } = *self;
        let title = format!(
            "matmul 128², {tenants} tenants by Zipf's law, {per_second} calls a second in all, {called}"
        );
        let running = bed.start(settings)?;
        let moments = self.moments();
        // One of them owns the function: its code is judged once, and every caller is a domain of its own.
        let mut owner = load::connect(&running, 1)?;
        bed.register(&mut owner, &["matmul"])?;
        for tenant in 2..=tenants {
            owner.grant("matmul", &(FIRST_UID + tenant).to_string())?;
        }
        let granted = format!("{}/matmul", FIRST_UID + 1);
        let begin = Instant::now() + Duration::from_millis(200);
        let (calling, failed) = (AtomicBool::new(true), AtomicU64::new(0));
        // When it begins to count.
        let warm = OnceLock::<Instant>::new();
        let one = |tenant: usize, at: &[Duration]| -> Result<Times, String> {
            let run = || -> Result<Times> {
                let mut client = load::connect(&running, tenant)?;
                let calls = Calls::new(&mut client, &granted, Work::Matmul, 1)?;
                let call = calls.of(&granted).deadline(DEADLINE);
                let mut times = Times::new()?;
                for at in at {
                    let due = begin + *at;
                    let is_counted = || warm.get().is_some_and(|warm| *warm + COUNTED <= due);
                    // Who calls rarely waits for no moment that counts no more.
                    while Instant::now() < due && !is_counted() {
                        pace::until(due.min(Instant::now() + GLANCE));
                    }
                    if is_counted() {
                        break;
                    }
                    let counts = warm.get().is_some_and(|warm| *warm <= due);
                    match client.invoke(&call) {
                        Ok(answer) if counts => times.divide(answer.timings.unwrap_or_default())?,
                        Ok(_) => {}
                        // It counts as long as it waited; where a device is not fast enough, the part must end all the same.
                        Err(Error::Refused(error)) if error.code() == Code::DeadlineExceeded => {
                            failed.fetch_add(u64::from(counts), Ordering::Relaxed);
                        }
                        Err(error) => return Err(error.into()),
                    }
                    if counts {
                        // From the moment on that it was due: a call that waits for the one before it counts, too.
                        times.latencies.record(nanoseconds(due))?;
                    }
                }
                Ok(times)
            };
            run().map_err(|e| format!("tenant {tenant}: {e}"))
        };
        let mut times = Times::new()?;
        std::thread::scope(|scope| -> Result<()> {
            let one = &one;
            let callers = moments.iter().enumerate().filter(|(_, at)| !at.is_empty());
            let threads: Vec<_> = callers.map(|(nth, at)| scope.spawn(move || one(nth + 1, at))).collect();
            let watch = scope.spawn(|| watch(&running, begin, &calling, &warm));
            let mut joined = threads.into_iter().map(|thread| thread.join());
            let done = joined.try_for_each(|counted| -> Result<()> {
                times.add(&counted.map_err(|_| "a client's thread panicked")??)
            });
            calling.store(false, Ordering::Relaxed);
            watch.join().map_err(|_| "the watching thread panicked")?;
            done
        })?;
        times.say();
        let latencies = times.latencies;
        for &(name, quantile, target) in targets {
            let value = latencies.value_at_quantile(quantile) as f64;
            report.at_most(target, format!("{title}, {name}"), value, Unit::Nanoseconds);
        }
        for (name, quantile) in [("p99", 0.99), ("longest", 1.0)] {
            if !targets.iter().any(|(known, ..)| *known == name) {
                let value = latencies.value_at_quantile(quantile) as f64;
                report.info(format!("{title}, {name}"), value, Unit::Nanoseconds);
            }
        }
        let failed = failed.into_inner() as f64;
        report.info(format!("{title}, calls whose deadline of 2 s passed"), failed, Unit::Count);
        Ok(())
    }
}

/// What calls took, and what of it they waited for a worker, ran, and spent on their way.
struct Times {
    latencies: Histogram<u64>,
    queued: Histogram<u64>,
    ran: Histogram<u64>,
    besides: Histogram<u64>,
}

impl Times {
    fn new() -> Result<Self> {
        let histogram = || Histogram::new(3);
        Ok(Self { latencies: histogram()?, queued: histogram()?, ran: histogram()?, besides: histogram()? })
    }

    /// Enters what the supervisor says of a call.
    fn divide(&mut self, timings: Timings) -> Result<()> {
        let ran_ns = timings.copy_in_ns + timings.execute_ns + timings.copy_out_ns;
        self.queued.record(timings.queued_ns)?;
        self.ran.record(ran_ns)?;
        Ok(self.besides.record(timings.total_ns.saturating_sub(timings.queued_ns + ran_ns))?)
    }

    fn add(&mut self, other: &Self) -> Result<()> {
        self.latencies.add(&other.latencies)?;
        self.queued.add(&other.queued)?;
        self.ran.add(&other.ran)?;
        Ok(self.besides.add(&other.besides)?)
    }

    /// What kept calls that were answered, in milliseconds.
    fn say(&self) {
        for (what, times) in [
            ("queued", &self.queued),
            ("copied and executed", &self.ran),
            ("handed over, prepared and waited for the turn", &self.besides),
        ] {
            let at = |quantile| times.value_at_quantile(quantile) as f64 / 1e6;
            let [p50, p90, p99] = [0.5, 0.9, 0.99].map(at);
            eprintln!("  {what}: p50 {p50:.2} ms, p90 {p90:.2} ms, p99 {p99:.2} ms");
        }
    }
}

/// Says every few seconds what the device's processes do, and finds out when there are as many as may be.
fn watch(running: &Running, begin: Instant, calling: &AtomicBool, warm: &OnceLock<Instant>) {
    let (mut most, mut settled) = (0, 0);
    for nth in 0.. {
        pace::until(begin + LOOK * nth);
        if !calling.load(Ordering::Relaxed) {
            return;
        }
        match running.admin().and_then(|mut admin| Ok(admin.status()?)) {
            Ok(status) => {
                status.devices.iter().for_each(|device| say(begin.elapsed(), device));
                let workers = status.devices.iter().flat_map(|device| &device.workers);
                let used = workers.filter(|worker| worker.state != "unused").count();
                settled = if used > most { 0 } else { settled + 1 };
                most = most.max(used);
            }
            Err(error) => eprintln!("{error}"),
        }
        if most > 0 && settled >= SETTLED || begin.elapsed() >= LONGEST_WARM_UP {
            let _ = warm.set(Instant::now());
        }
    }
}

fn say(after: Duration, device: &DeviceStatus) {
    let mut states = BTreeMap::<&str, usize>::new();
    for worker in &device.workers {
        *states.entry(&worker.state).or_default() += 1;
    }
    let states: Vec<_> = states.iter().map(|(state, workers)| format!("{workers} {state}")).collect();
    let (restarts, scrubs) = device
        .workers
        .iter()
        .fold((0, 0), |(restarts, scrubs), worker| (restarts + worker.restarts, scrubs + worker.scrubs));
    eprintln!(
        "  {:3} s: workers: {}; calls: {} wait, {} done, {} failed; {restarts} restarts, {scrubs} scrubs",
        after.as_secs(),
        states.join(", "),
        device.queued,
        device.completed,
        device.failed,
    );
}
