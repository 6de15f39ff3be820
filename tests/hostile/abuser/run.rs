//! One run.
//!
//! ```text
//! start ──► undisturbed ──► beside guests ──► abused, judged round by round ──► the abusers leave ──► back within five seconds
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::Result;
use super::honest::{self, Sample};
use super::judge::{self, Amounts, Judgement, Round};
use super::options::Options;
use super::supervisor::{self, Abusers, HONEST, Supervisor};
use super::watch::{Reading, Watch};

/// How long honest tenants are measured undisturbed: of a run this part, within these bounds.
const UNDISTURBED: u32 = 5;
const SHORTEST: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(10);
/// How long lines of the log are counted together by the supervisor, which has a budget for so long.
const LOG_PERIOD: Duration = Duration::from_secs(10);
/// Of what is wrong, so much is told.
const TOLD: usize = 5;
/// How long after the abusers left everything is back; and on a machine that is busy with other things.
const BACK: Duration = Duration::from_secs(5);
const BACK_BUSY: Duration = Duration::from_secs(20);
/// Between two looks whether everything is back.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A while, measured.
#[derive(Debug, Default)]
pub(crate) struct Lap {
    /// Seconds since the abuse began, at its end.
    pub(crate) at: u64,
    pub(crate) p50: Duration,
    /// The most that the supervisor took.
    pub(crate) most: Amounts,
    /// What is judged.
    pub(crate) round: Round,
    pub(crate) against: Vec<Judgement>,
}

/// After the abusers left.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    /// How long it took; none: it was not back in time.
    pub(crate) took: Option<Duration>,
    /// What was beyond an idle supervisor's and its caches, at the last look.
    pub(crate) beyond: Amounts,
}

/// What came of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) options: Options,
    pub(crate) undisturbed: Lap,
    /// Beside as many tenants that behave as will abuse; none where latencies are not judged.
    pub(crate) beside_guests: Option<Lap>,
    /// The most that the honest p99 may be.
    pub(crate) bound: Option<Duration>,
    /// What an idle supervisor takes, its honest clients connected.
    pub(crate) idle: Amounts,
    pub(crate) laps: Vec<Lap>,
    pub(crate) recovery: Recovery,
    /// Parts that were played, by name.
    pub(crate) played: Vec<String>,
    /// All judgements against it.
    pub(crate) against: Vec<Judgement>,
    /// The end of the log of a run that is bad.
    pub(crate) log: String,
}

impl Outcome {
    pub(crate) fn is_good(&self) -> bool {
        self.against.is_empty()
    }
}

/// What is measured, as it comes.
struct Measured {
    samples: Receiver<Sample>,
    /// How long one that connects waits, each time.
    arrivals: Receiver<Duration>,
    readings: Receiver<Reading>,
}

/// Runs it.
pub(crate) fn run(options: &Options) -> Result<Outcome> {
    let mut supervisor = Supervisor::start(options)?;
    let (sent_samples, samples) = channel();
    let (sent_readings, readings) = channel();
    let (sent_arrivals, arrivals) = channel();
    let measured = Measured { samples, arrivals, readings };
    let over = AtomicBool::new(false);
    let socket = supervisor.socket();
    let watch = Watch::new(supervisor.pid(), supervisor.admin_socket());
    std::thread::scope(|scope| {
        // However this ends, the threads must end, too.
        let ends = Over(&over);
        for (nth, tenant) in HONEST.into_iter().enumerate() {
            let (socket, over, samples) = (&socket, &over, sent_samples.clone());
            let seed = options.seed.wrapping_add(nth as u64);
            scope.spawn(move || honest::live(socket, tenant, seed, over, &samples));
        }
        let (socket, over) = (&socket, &over);
        scope.spawn(move || honest::arrive(socket, over, &sent_arrivals));
        scope.spawn(move || {
            if let Err(why) = watch.live(over, &sent_readings) {
                eprintln!("the operator sees nothing any more: {why}");
            }
        });
        drop(sent_samples);
        let outcome = measured.judged(options, &mut supervisor);
        drop(ends);
        // A client that waits for an answer which never comes gets the end of its connection.
        supervisor.end();
        outcome
    })
}

/// Ends the run when dropped.
struct Over<'r>(&'r AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Measured {
    fn judged(&self, options: &Options, supervisor: &mut Supervisor) -> Result<Outcome> {
        let whole = Duration::from_secs(options.seconds);
        // The first calls load their functions and start processes.
        let measured = (whole / UNDISTURBED).clamp(SHORTEST, LONGEST);
        self.lap(supervisor, measured / 4, Amounts::default())?;
        let undisturbed = self.lap(supervisor, measured, Amounts::default())?;
        if let Some(why) = undisturbed.round.wrong.first() {
            return Err(format!("honest tenants fail undisturbed: {why}").into());
        }
        let idle = undisturbed.most;
        let beside_guests = match options.latency {
            true => Some(self.beside_guests(options, supervisor, measured)?),
            false => None,
        };
        let bound = beside_guests
            .as_ref()
            .map(|guests| judge::latency_bound(undisturbed.round.p99, guests.round.p99));

        let mut laps = Vec::new();
        let mut abusers = supervisor.abuse(options)?;
        let began = Instant::now();
        while began.elapsed() < whole && supervisor.is_alive() {
            let left = whole.saturating_sub(began.elapsed());
            // A rest that is too short for a judgement belongs to the round before it.
            let lasts = if left < options.round * 3 / 2 { left } else { options.round };
            let mut lap = self.lap(supervisor, lasts, idle)?;
            lap.at = began.elapsed().as_secs();
            lap.against = judge::round(&lap.round, bound);
            progress(&lap);
            laps.push(lap);
            still_there(&mut abusers)?;
        }
        drop(abusers);
        let recovery = self.recovery(supervisor, idle, if options.latency { BACK } else { BACK_BUSY })?;
        let judged: Vec<_> = laps.iter().map(|lap| lap.against.clone()).collect();
        let against = judge::whole(&judged, recovery.took.is_some(), supervisor.is_alive());
        let log = if against.is_empty() { String::new() } else { end_of(&supervisor.whole_log()?) };
        let played = supervisor.played()?;
        let options = options.clone();
        Ok(Outcome { options, undisturbed, beside_guests, bound, idle, laps, recovery, played, against, log })
    }

    /// Measures for a while beside as many tenants that behave as will abuse.
    fn beside_guests(&self, options: &Options, supervisor: &mut Supervisor, lasts: Duration) -> Result<Lap> {
        let (over, socket) = (AtomicBool::new(false), supervisor.socket());
        // Theirs do not count.
        let (sent, _kept) = channel();
        std::thread::scope(|scope| {
            let _ends = Over(&over);
            for (nth, guest) in supervisor::guests().enumerate() {
                let (socket, over, sent) = (&socket, &over, sent.clone());
                let seed = options.seed.wrapping_sub(nth as u64);
                scope.spawn(move || honest::live(socket, guest, seed, over, &sent));
            }
            self.lap(supervisor, lasts / 4, Amounts::default())?;
            self.lap(supervisor, lasts, Amounts::default())
        })
    }

    /// Measures for a while.
    fn lap(&self, supervisor: &mut Supervisor, lasts: Duration, idle: Amounts) -> Result<Lap> {
        super::rest(lasts);
        let samples: Vec<Sample> = self.samples.try_iter().collect();
        let mut times: Vec<_> = samples.iter().map(|sample| sample.took).collect();
        times.sort_unstable();
        let silent =
            HONEST.into_iter().filter(|tenant| samples.iter().all(|sample| sample.tenant != *tenant));
        let silent: Vec<_> = silent.map(|tenant| format!("{tenant}: no answer at all")).collect();
        let wrong = samples.iter().filter_map(|sample| sample.wrong.clone());
        let mut round = Round {
            calls: samples.len(),
            wrong: wrong.chain(silent).take(TOLD).collect(),
            p99: judge::percentile(&times, 99),
            // A while has part of one more period.
            log_lines: supervisor.new_log()?.lines().count() as u64 / (lasts + LOG_PERIOD).as_secs(),
            ..Round::default()
        };
        // One that waits still has waited for as long.
        round.newcomer = self.arrivals.try_iter().max().unwrap_or(lasts);
        let readings: Vec<Reading> = self.readings.try_iter().collect();
        if readings.is_empty() {
            round.operator = lasts;
        }
        let mut most = Amounts::default();
        let mut beyond = Vec::new();
        for reading in readings {
            let (takes, shown) = (amounts(&reading), shown(&reading));
            most = most.or(takes);
            beyond.push(takes.beyond(idle).beyond(shown));
            round.evicted |= reading.held.evicted > 0;
            round.operator = round.operator.max(reading.operator.saturating_sub(reading.late));
        }
        round.beyond = judge::lasting(&beyond);
        Ok(Lap { p50: judge::percentile(&times, 50), most, round, ..Lap::default() })
    }

    /// Waits until everything is back, or for as long as that may take and this machine is late itself.
    fn recovery(
        &self,
        supervisor: &mut Supervisor,
        idle: Amounts,
        mut patience: Duration,
    ) -> Result<Recovery> {
        let began = Instant::now();
        let mut recovery = Recovery::default();
        // Those from before they left say nothing.
        self.readings.try_iter().for_each(drop);

        while supervisor.is_alive() && began.elapsed() < patience {
            let Ok(reading) = self.readings.recv_timeout(LOOK_AGAIN) else { continue };
            patience += reading.late;
            let kept = Amounts { resident: reading.held.caches, connections: 0, ..shown(&reading) };
            recovery.beyond = amounts(&reading).beyond(idle).beyond(kept);
            if judge::is_back(recovery.beyond) {
                recovery.took = Some(began.elapsed());
                break;
            }
        }
        Ok(recovery)
    }
}

fn amounts(reading: &Reading) -> Amounts {
    let Reading { resident, shared, descriptors, threads, held, .. } = *reading;
    Amounts { resident, shared, descriptors, threads, connections: held.connections }
}

/// What the quotas show of it.
fn shown(reading: &Reading) -> Amounts {
    let held = reading.held;
    Amounts {
        resident: held.memory,
        shared: held.weights,
        descriptors: held.descriptors,
        threads: 0,
        connections: held.connections,
    }
}

fn still_there(abusers: &mut Abusers) -> Result<()> {
    match abusers.ended() {
        Some(why) => Err(why.into()),
        None => Ok(()),
    }
}

fn progress(lap: &Lap) {
    let Lap { at, round, against, .. } = lap;
    let p99 = round.p99.as_secs_f64() * 1e3;
    let beyond = round.beyond.resident >> 20;
    eprintln!(
        "{at} s: {} honest calls, p99 {p99:.1} ms, {beyond} MiB beyond what is shown, against it: {against:?}",
        round.calls
    );
}

fn end_of(log: &str) -> String {
    const LINES: usize = 40;
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}
