//! What GPUs measure of themselves: energy, power, how busy they are. A worker process asks their management library: no
//! GPU library is ever loaded into this process. Where metrics are scraped, a thread keeps such a process and asks it; a
//! scrape shows what was answered last, and waits for nothing.
//!
//! ```text
//!           scraped
//! nothing ───────────► asking ──► again ten seconds later; after trouble, another process a minute later
//!    ▲                   │
//!    └───────────────────┘ nobody scraped for five minutes, or the supervisor ends
//! ```

use std::mem::Discriminant;
use std::sync::{Arc, Condvar};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pappus_protocol::from_worker::Reading;
use pappus_protocol::pipe::Flushed;
use pappus_protocol::{FromWorker, Kind, Layers, ToWorker};

use super::launcher::{Launcher, Role, Started};
use super::survey::{NoSurvey, SurveyError, answer, judge};
use super::target::DeviceTarget;
use crate::config::DeviceConfig;
use crate::limits::{MAX_ENERGY_MJ, MAX_POWER_MW};
use crate::sync::{OrderedMutex, rank};

/// What its processes look for.
const WHAT: &str = "what GPUs measure";

/// Why nothing was answered.
type Trouble = SurveyError;

/// How long what lasts.
#[derive(Debug, Clone, Copy)]
struct Times {
    /// From an answer to the next question.
    period: Duration,
    /// From trouble to the next process.
    pause: Duration,
    /// From the last scrape to the process's end: scrapes that are rarer find no readings.
    kept: Duration,
    /// From an answer to the moment from which it is not shown any more.
    shown: Duration,
}

const TIMES: Times = Times {
    period: Duration::from_secs(10),
    pause: Duration::from_secs(60),
    kept: Duration::from_secs(300),
    shown: Duration::from_secs(60),
};

/// Processes that can be asked.
pub trait Source: Send + Sync + 'static {
    /// One of them, which ends when it is dropped.
    type Process;

    /// Starts one.
    fn start(&self) -> Result<Self::Process, Trouble>;

    /// Asks one for the readings of all devices. After trouble it is not asked again.
    fn ask(&self, process: &mut Self::Process) -> Result<Vec<Reading>, Trouble>;
}

/// The devices of one kind, and what they measured last.
#[derive(Debug)]
pub struct Meter<S = Processes> {
    /// Their names, in the order of the readings.
    names: Vec<String>,
    source: S,
    times: Times,
    state: OrderedMutex<State, { rank::READINGS }>,
    closing: Condvar,
}

#[derive(Debug, Default)]
struct State {
    scraped: Option<Instant>,
    /// There while it asks.
    thread: Option<JoinHandle<()>>,
    read: Option<(Instant, Vec<Reading>)>,
    /// Kinds of trouble that were logged.
    logged: Vec<Discriminant<Trouble>>,
    closed: bool,
}

impl Meter {
    /// One for each kind of device that measures anything. A slice of a GPU does not: its GPU would speak for all slices.
    pub fn all<'a>(
        launcher: &Arc<Launcher>,
        devices: impl Iterator<Item = &'a DeviceConfig> + Clone,
    ) -> Vec<Arc<Self>> {
        let of = |kind: Kind| {
            let metered = |device: &&DeviceConfig| {
                device.kind == kind && kind.traits().has_meter && !kind.traits().is_slice(&device.uuid)
            };
            let devices = devices.clone().filter(metered);
            let (names, uuids): (Vec<_>, Vec<_>) =
                devices.map(|device| (device.name.clone(), device.uuid.clone())).unzip();
            let source = Processes { launcher: launcher.clone(), kind, uuids };
            (!names.is_empty()).then(|| Arc::new(Self::new(names, source, TIMES)))
        };
        Kind::ALL.into_iter().filter_map(of).collect()
    }
}

impl<S: Source> Meter<S> {
    fn new(names: Vec<String>, source: S, times: Times) -> Self {
        Self { names, source, times, state: OrderedMutex::default(), closing: Condvar::new() }
    }

    /// The names of devices and what each measured, as far as that is known now. From here on it is asked for.
    pub fn scrape(self: &Arc<Self>) -> Vec<(&str, Reading)> {
        let mut state = self.state.lock();
        let now = Instant::now();
        state.scraped = Some(now);
        if state.thread.is_none() && !state.closed {
            let meter = self.clone();
            let thread = std::thread::Builder::new().name("meter".to_owned()).spawn(move || meter.run());
            // Without one, the next scrape tries again.
            state.thread = thread.ok();
        }
        let is_shown = |read: Instant| now.saturating_duration_since(read) < self.times.shown;
        let read = state.read.as_ref().filter(|(read, _)| is_shown(*read));
        let readings = read.map(|(_, readings)| readings.clone()).unwrap_or_default();
        self.names.iter().map(String::as_str).zip(readings).collect()
    }

    /// Asks until nobody wants to know.
    fn run(&self) {
        let mut process = None;
        loop {
            let asked = match &mut process {
                Some(process) => self.source.ask(process),
                None => self.source.start().and_then(|fresh| self.source.ask(process.insert(fresh))),
            };
            let pause = match asked {
                Ok(readings) => {
                    self.state.lock().read = Some((Instant::now(), readings));
                    self.times.period
                }
                Err(why) => {
                    process = None;
                    self.log(&why);
                    self.times.pause
                }
            };
            let mut state = self.state.lock().wait_timeout_while(&self.closing, pause, |state| !state.closed);
            let is_wanted = state.scraped.is_some_and(|scraped| scraped.elapsed() < self.times.kept);
            if state.closed || !is_wanted {
                state.thread = None;
                return;
            }
        }
    }

    /// Says each kind of trouble once.
    fn log(&self, why: &Trouble) {
        let kind = std::mem::discriminant(why);
        let is_known = self.state.lock().logged.contains(&kind);
        if is_known {
            tracing::debug!("GPUs' energy and use are not in the metrics: {why}");
        } else {
            tracing::warn!("GPUs' energy and use are not in the metrics: {why}");
            self.state.lock().logged.push(kind);
        }
    }

    /// Nothing is asked any more. The thread ends its process.
    pub fn close(&self) -> Option<JoinHandle<()>> {
        let mut state = self.state.lock();
        state.closed = true;
        self.closing.notify_all();
        state.thread.take()
    }
}

/// Processes that know the devices of one kind.
#[derive(Debug)]
pub struct Processes {
    launcher: Arc<Launcher>,
    kind: Kind,
    uuids: Vec<String>,
}

impl Source for Processes {
    type Process = Started;

    fn start(&self) -> Result<Started, Trouble> {
        let started = self.launcher.start(Role::Meter, &DeviceTarget::any(self.kind), None);
        started.map_err(|source| Trouble::Start { what: WHAT, source })
    }

    fn ask(&self, process: &mut Started) -> Result<Vec<Reading>, Trouble> {
        let answer = converse(process, &self.uuids);
        judge(&self.launcher, process, WHAT, answer).map(|(_, readings)| readings)
    }
}

type Answer = (Layers, Vec<Reading>);

/// The readings of these devices, or what the process says is missing.
fn converse(process: &mut Started, uuids: &[String]) -> Result<Result<Answer, Trouble>, NoSurvey> {
    process.outbox.push_to_worker(&ToWorker::Read { devices: uuids.to_vec() });
    match process.outbox.flush()? {
        Flushed::All => answer(&mut process.inbox, |message| taken(message, uuids.len())),
        // It answers what it does not read.
        Flushed::Pending => Err(NoSurvey::Unexpected("answers without questions".to_owned())),
    }
}

/// An answer about so many devices, without values that no device can have.
fn taken(message: FromWorker<'_>, devices: usize) -> Result<Answer, NoSurvey> {
    match message {
        FromWorker::Readings(answer) if answer.devices.len() == devices => {
            Ok((answer.layers, answer.devices.into_iter().map(possible).collect()))
        }
        FromWorker::Readings(answer) => {
            Err(NoSurvey::Unexpected(format!("{} readings of {devices} devices", answer.devices.len())))
        }
        other => Err(NoSurvey::Unexpected(format!("{other:?}"))),
    }
}

fn possible(Reading { energy_mj, power_mw, busy_percent, memory_busy_percent }: Reading) -> Reading {
    let part = |percent: &u32| *percent <= 100;
    Reading {
        energy_mj: energy_mj.filter(|energy| *energy <= MAX_ENERGY_MJ),
        power_mw: power_mw.filter(|power| *power <= MAX_POWER_MW),
        busy_percent: busy_percent.filter(part),
        memory_busy_percent: memory_busy_percent.filter(part),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{self, Receiver, Sender};

    use pappus_protocol::from_worker::Readings;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const NONE: Reading =
        Reading { energy_mj: None, power_mw: None, busy_percent: None, memory_busy_percent: None };

    /// Processes that answer what the test says, when the test says it.
    struct Fake {
        answers: OrderedMutex<Receiver<Result<u32, Trouble>>, { rank::CONTROL_GROUPS }>,
        living: Arc<AtomicUsize>,
        started: Arc<AtomicUsize>,
    }

    struct Living(Arc<AtomicUsize>);

    impl Drop for Living {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    impl Source for Fake {
        type Process = Living;

        fn start(&self) -> Result<Living, Trouble> {
            self.started.fetch_add(1, Ordering::SeqCst);
            self.living.fetch_add(1, Ordering::SeqCst);
            Ok(Living(self.living.clone()))
        }

        fn ask(&self, _: &mut Living) -> Result<Vec<Reading>, Trouble> {
            // A test that is over has no more answers.
            let answer = self.answers.lock().recv().unwrap_or(Ok(0));
            answer.map(|power| vec![Reading { power_mw: Some(power), ..NONE }])
        }
    }

    fn meter(times: Times) -> (Arc<Meter<Fake>>, Sender<Result<u32, Trouble>>) {
        let (says, answers) = mpsc::channel();
        let source =
            Fake { answers: OrderedMutex::new(answers), living: Arc::default(), started: Arc::default() };
        (Arc::new(Meter::new(vec!["cuda:0".to_owned()], source, times)), says)
    }

    fn ends(meter: &Meter<Fake>, says: Sender<Result<u32, Trouble>>) {
        drop(says);
        meter.close().into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(meter.source.living.load(Ordering::SeqCst), 0);
    }

    fn until(holds: impl Fn() -> bool) {
        while !holds() {
            std::thread::yield_now();
        }
    }

    fn missing() -> Trouble {
        Trouble::Missing("no library".to_owned())
    }

    #[test]
    fn a_scrape_waits_for_no_answer_and_shows_the_last_one() {
        let (meter, says) = meter(Times { period: Duration::ZERO, ..TIMES });
        assert_eq!(meter.scrape(), [], "the process has not answered");
        says.send(Ok(7)).unwrap();
        let shown = |power| [("cuda:0", Reading { power_mw: Some(power), ..NONE })];
        until(|| meter.scrape() == shown(7));
        assert_eq!(meter.scrape(), shown(7), "the next answer is not there");
        says.send(Ok(8)).unwrap();
        until(|| meter.scrape() == shown(8));
        assert_eq!(meter.source.started.load(Ordering::SeqCst), 1, "one process answers all");
        ends(&meter, says);
        assert!(meter.close().is_none());
        meter.scrape();
        assert!(meter.state.lock().thread.is_none(), "nothing starts behind the end");
    }

    #[test]
    fn after_trouble_no_process_is_there_until_the_pause_is_over() {
        let (meter, says) = meter(Times { pause: HOUR, ..TIMES });
        meter.scrape();
        says.send(Err(missing())).unwrap();
        until(|| !meter.state.lock().logged.is_empty());
        for _ in 0..100 {
            assert_eq!(meter.scrape(), []);
        }
        assert_eq!(meter.source.living.load(Ordering::SeqCst), 0);
        assert_eq!(meter.source.started.load(Ordering::SeqCst), 1);
        ends(&meter, says);
        // The control: without a pause.
        let (meter, says) = self::meter(Times { pause: Duration::ZERO, ..TIMES });
        meter.scrape();
        (0..3).for_each(|_| says.send(Err(missing())).unwrap());
        until(|| meter.source.started.load(Ordering::SeqCst) > 3);
        assert_eq!(meter.state.lock().logged.len(), 1, "one kind of trouble is logged once");
        ends(&meter, says);
    }

    #[test]
    fn a_process_that_nobody_asks_ends_and_old_readings_are_not_shown() {
        let times = Times { period: Duration::ZERO, kept: Duration::ZERO, ..TIMES };
        let (meter, says) = meter(Times { shown: Duration::ZERO, ..times });
        for started in 1..=2 {
            assert_eq!(meter.scrape(), []);
            says.send(Ok(7)).unwrap();
            until(|| meter.state.lock().thread.is_none());
            until(|| meter.source.living.load(Ordering::SeqCst) == 0);
            assert_eq!(meter.source.started.load(Ordering::SeqCst), started);
        }
        assert!(meter.state.lock().read.is_some());
        ends(&meter, says);
    }

    #[test]
    fn what_no_device_can_have_is_not_believed() {
        let take = |devices: Vec<Reading>| {
            let readings = Readings { devices, layers: Layers::default() };
            taken(FromWorker::Readings(readings), 1).map(|(_, readings)| readings)
        };
        let most = Reading {
            energy_mj: Some(MAX_ENERGY_MJ),
            power_mw: Some(MAX_POWER_MW),
            busy_percent: Some(100),
            memory_busy_percent: Some(0),
        };
        assert_eq!(take(vec![most]).unwrap(), [most]);
        let absurd = Reading {
            energy_mj: Some(u64::MAX),
            power_mw: Some(u32::MAX),
            busy_percent: Some(101),
            memory_busy_percent: Some(u32::MAX),
        };
        assert_eq!(take(vec![absurd]).unwrap(), [NONE]);
        assert_eq!(
            take(vec![Reading { power_mw: Some(5), ..absurd }]).unwrap(),
            [Reading { power_mw: Some(5), ..NONE }]
        );
        for devices in [vec![], vec![most; 2], vec![most; 10_000]] {
            let count = devices.len();
            let why = take(devices).unwrap_err().to_string();
            assert_eq!(why, format!("it sent {count} readings of 1 devices"));
        }
        assert!(taken(FromWorker::Yield, 1).is_err());
    }
}
