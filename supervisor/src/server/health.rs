//! What is watched so that an orchestrator can be told how the supervisor is: whether decisions are still made, and
//! whether the state directory can be written. The words of `/readyz`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pappus_protocol::now_ns;
use tokio::sync::watch;

use crate::metrics;
use crate::store::StateDir;

/// How long no device may say how it is before the supervisor counts as stuck: it is asked every second.
const MOST_SILENCE: Duration = Duration::from_secs(30);
/// How long an outcome of a look at the state directory is believed.
const FRESH: Duration = Duration::from_secs(2);
/// How long a look at the state directory is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// Why the supervisor is not ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotReady {
    /// Devices are looked for, and what is registered is read.
    Starting,
    /// It is about to end.
    Draining,
    /// No device has a worker that takes calls.
    NoWorker,
    /// Nobody can connect, for this reason.
    Socket(String),
    /// Nothing can be registered, for this reason.
    State(String),
}

impl NotReady {
    /// All there are, as metrics call them.
    pub const NAMES: [&str; 5] = ["starting", "draining", "no-worker", "socket", "state"];

    /// What metrics call it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Starting => Self::NAMES[0],
            Self::Draining => Self::NAMES[1],
            Self::NoWorker => Self::NAMES[2],
            Self::Socket(_) => Self::NAMES[3],
            Self::State(_) => Self::NAMES[4],
        }
    }
}

impl fmt::Display for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Starting => f.write_str("starting: devices are looked for and what is registered is read"),
            Self::Draining => f.write_str("draining: accepted calls are finished, new ones are refused"),
            Self::NoWorker => f.write_str("no worker is ready on any device: calls wait; the log says why"),
            Self::Socket(why) => write!(f, "nobody can connect: {why}"),
            Self::State(why) => {
                write!(f, "the state directory cannot be written, nothing can be registered: {why}")
            }
        }
    }
}

/// When every device last said how it is. Who asks takes the locks that calls take; one that is held for ever shows here.
#[derive(Debug, Default)]
pub(super) struct Heartbeat(AtomicU64);

impl Heartbeat {
    /// Every device answered.
    pub(super) fn beat(&self) {
        self.0.store(now_ns(), Ordering::Relaxed);
    }

    /// How long none came, if that is too long.
    pub(super) fn missed(&self) -> Option<Duration> {
        missed(self.0.load(Ordering::Relaxed), now_ns())
    }
}

/// How long nothing came since `last`, if that is too long; before the first beat it is not.
fn missed(last: u64, now: u64) -> Option<Duration> {
    let silence = Duration::from_nanos(now.saturating_sub(last));
    (last != 0 && silence > MOST_SILENCE).then_some(silence)
}

/// Finds out if the state directory can be written: tried when somebody asks, by one thread at a time, and at most once
/// in a while, so that frequent questions make no work for the disk. A disk that does not answer keeps that one thread.
#[derive(Debug)]
pub(super) struct StateCheck {
    state: Arc<StateDir>,
    known: watch::Sender<Known>,
}

/// The last result, and the attempt that runs.
///
/// ```text
/// unknown ── begin ──▶ looked at ── end ──▶ known ── begin, once it is not fresh ──▶ looked at
/// ```
#[derive(Debug, Default)]
struct Known {
    since: Option<Instant>,
    at: Option<Instant>,
    why_not: Option<String>,
}

impl Known {
    /// True if whoever asks now has to look.
    fn begin(&mut self, now: Instant) -> bool {
        let looks =
            self.since.is_none() && self.at.is_none_or(|at| now.saturating_duration_since(at) >= FRESH);
        if looks {
            self.since = Some(now);
        }
        looks
    }

    fn end(&mut self, why_not: Option<String>, now: Instant) {
        *self = Self { since: None, at: Some(now), why_not };
    }
}

impl StateCheck {
    /// Of this directory.
    pub(super) fn of(state: Arc<StateDir>) -> Arc<Self> {
        Arc::new(Self { state, known: watch::Sender::default() })
    }

    /// Why it cannot be written, if so.
    pub(super) async fn why_not(self: &Arc<Self>) -> Option<String> {
        if self.known.send_if_modified(|known| known.begin(Instant::now())) {
            let this = self.clone();
            tokio::task::spawn_blocking(move || {
                let why_not = this.state.try_out().map(metrics::state_free).err();
                let why_not = why_not.map(|error| error.to_string());
                this.known.send_modify(|known| known.end(why_not, Instant::now()));
            });
        }
        let mut known = self.known.subscribe();
        let ended = tokio::time::timeout(PATIENCE, known.wait_for(|known| known.since.is_none())).await;
        match ended {
            Ok(Ok(known)) => known.why_not.clone(),
            _ => {
                let since = self.known.borrow().since.map(|since| since.elapsed().as_secs());
                Some(format!("the disk has not answered for {} s", since.unwrap_or_default()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_supervisor_is_stuck_after_half_a_minute_of_silence() {
        let second = 1_000_000_000;
        assert_eq!(missed(0, 100 * second), None, "it has not begun");
        assert_eq!(missed(5 * second, 35 * second), None);
        assert_eq!(missed(5 * second, 36 * second), Some(Duration::from_secs(31)));
        assert_eq!(missed(6 * second, 5 * second), None, "another thread was quicker");
    }

    #[test]
    fn the_disk_is_asked_by_one_and_not_all_the_time() {
        let mut known = Known::default();
        let start = Instant::now();
        assert!(known.begin(start));
        assert!(!known.begin(start + 10 * FRESH), "it is looked at");
        known.end(Some("full".to_owned()), start + FRESH);
        assert_eq!(known.why_not.as_deref(), Some("full"));
        assert!(!known.begin(start + FRESH), "it is known");
        assert!(known.begin(start + 2 * FRESH));
        known.end(None, start + 2 * FRESH);
        assert_eq!(known.why_not, None);
    }

    #[test]
    fn every_reason_has_a_name_of_its_own() {
        let all = [
            NotReady::Starting,
            NotReady::Draining,
            NotReady::NoWorker,
            NotReady::Socket("gone".into()),
            NotReady::State("full".into()),
        ];
        assert_eq!(all.each_ref().map(NotReady::name), NotReady::NAMES);
        assert!(all[4].to_string().ends_with(": full"));
    }
}
