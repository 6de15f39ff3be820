//! Settings that may change while the supervisor runs.

use std::time::Duration;

use bytesize::ByteSize;
use tracing::Level;

use super::words::did_you_mean;
use super::{ConfigError, bad, duration, size};
use crate::limits;
use crate::metrics::calls::MetricsOf;
use crate::schedule::Policy;

/// Settings that the admin socket can change while running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Most invocations waiting on one device.
    pub queue_calls: u64,
    /// Most inline bytes waiting on one device.
    pub queue_bytes: u64,
    /// Deadline of invocations that name none.
    pub default_deadline: Duration,
    /// Longest deadline.
    pub max_deadline: Duration,
    /// Spin time of idle workers in microseconds.
    pub poll_us: u32,
    /// How long a call that was cancelled may run on.
    pub cancel_grace: Duration,
    /// How long a call may keep others from a device that takes turns; zero: for ever.
    pub overrun_limit: Duration,
    /// Failures in a row after which a function is refused to its caller; 0: never.
    pub quarantine_after: u32,
    /// Worker processes that may end under one caller in a minute, on each device; 0: any number.
    pub fault_budget: u32,
    /// Older versions of a function that are kept when it is replaced.
    pub kept_versions: u32,
    /// How long a session may be without a call before it ends.
    pub session_idle: Duration,
    /// How long a drain waits for open sessions, whose calls are accepted meanwhile.
    pub session_grace: Duration,
    /// Lines of the log of this level and above are written; at a start as the environment says.
    pub log: Level,
    /// Whose calls the metrics count one by one.
    pub metrics_of: MetricsOf,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            queue_calls: 10_000,
            queue_bytes: 256 << 20,
            default_deadline: Duration::from_secs(30),
            max_deadline: Duration::from_secs(600),
            poll_us: 50,
            cancel_grace: Duration::from_secs(1),
            overrun_limit: Duration::from_secs(2),
            quarantine_after: 3,
            fault_budget: 5,
            kept_versions: 2,
            session_idle: Duration::from_secs(600),
            session_grace: Duration::from_secs(30),
            log: Level::INFO,
            metrics_of: MetricsOf::Tenants,
        }
    }
}

impl Settings {
    /// Changes one setting by its name.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), ConfigError> {
        let number =
            |text: &str| text.parse::<u64>().map_err(|_| bad(name, value, "expected a whole number"));
        match name {
            "queue-calls" => self.queue_calls = number(value)?,
            "queue-bytes" => self.queue_bytes = size(name, value)?,
            "default-deadline" => self.default_deadline = duration(name, value)?,
            "max-deadline" => self.max_deadline = duration(name, value)?,
            "poll-us" => match number(value)? {
                us @ 0..=limits::MAX_POLL_US => self.poll_us = us as u32,
                _ => return Err(bad(name, value, format!("at most {}", limits::MAX_POLL_US))),
            },
            "cancel-grace" => self.cancel_grace = duration(name, value)?,
            "overrun-limit" => self.overrun_limit = overrun_limit(name, value)?,
            "quarantine-after" => self.quarantine_after = few(name, value)?,
            "fault-budget" => self.fault_budget = few(name, value)?,
            "kept-versions" => match number(value)? {
                kept @ 0..=limits::MAX_KEPT_VERSIONS => self.kept_versions = kept as u32,
                _ => return Err(bad(name, value, format!("at most {}", limits::MAX_KEPT_VERSIONS))),
            },
            "session-idle" => self.session_idle = duration(name, value)?,
            "session-grace" => self.session_grace = duration(name, value)?,
            "log" => {
                let level = value.parse();
                self.log =
                    level.map_err(|_| bad(name, value, "expected error, warn, info, debug or trace"))?;
            }
            "metrics-of" => {
                let of = MetricsOf::ALL.iter().find(|(_, named)| *named == value);
                self.metrics_of =
                    of.ok_or_else(|| bad(name, value, "expected devices, tenants or functions"))?.0;
            }
            _ => {
                let values = self.values();
                let meant = did_you_mean(name, values.iter().map(|(name, _)| *name));
                return Err(ConfigError::Unknown { name: name.to_owned(), meant });
            }
        }
        Ok(())
    }

    /// Sets what flags and file say.
    pub fn give(&mut self, given: &[(&'static str, String)]) -> Result<(), ConfigError> {
        given.iter().try_for_each(|(name, value)| self.set(name, value))?;
        if !given.iter().any(|(name, _)| *name == "default-deadline") {
            // A short maximum alone also shortens the default.
            self.default_deadline = self.default_deadline.min(self.max_deadline);
        }
        Ok(())
    }

    /// Checks settings against each other, once all are set.
    pub fn check(&self) -> Result<(), ConfigError> {
        match self.default_deadline > self.max_deadline {
            true => Err(bad(
                "default-deadline",
                &humantime::format_duration(self.default_deadline).to_string(),
                "would exceed max-deadline",
            )),
            false => Ok(()),
        }
    }

    /// All settings by name.
    pub fn values(&self) -> Vec<(&'static str, String)> {
        vec![
            ("queue-calls", self.queue_calls.to_string()),
            ("queue-bytes", ByteSize::b(self.queue_bytes).display().iec().to_string()),
            ("default-deadline", humantime::format_duration(self.default_deadline).to_string()),
            ("max-deadline", humantime::format_duration(self.max_deadline).to_string()),
            ("poll-us", self.poll_us.to_string()),
            ("cancel-grace", humantime::format_duration(self.cancel_grace).to_string()),
            ("overrun-limit", humantime::format_duration(self.overrun_limit).to_string()),
            ("quarantine-after", self.quarantine_after.to_string()),
            ("fault-budget", self.fault_budget.to_string()),
            ("kept-versions", self.kept_versions.to_string()),
            ("session-idle", humantime::format_duration(self.session_idle).to_string()),
            ("session-grace", humantime::format_duration(self.session_grace).to_string()),
            ("log", self.log.to_string().to_lowercase()),
            ("metrics-of", self.metrics_of.name().to_owned()),
        ]
    }

    /// How failures are answered.
    pub fn policy(&self) -> Policy {
        Policy {
            quarantine_after: self.quarantine_after,
            fault_budget: self.fault_budget,
            cancel_grace_ns: self.cancel_grace.as_nanos().min(u128::from(u64::MAX)) as u64,
            polls: self.poll_us > 0 && has_processors_to_poll(),
            overrun_ns: self.overrun_limit.as_nanos().min(u128::from(u64::MAX)) as u64,
        }
    }
}

/// True if there are processors enough for three threads that poll (the worker that has the device, the one that is next,
/// the supervisor's) and one that works.
fn has_processors_to_poll() -> bool {
    limits::processors() >= 4
}

/// How long a call may keep others from a device; zero means for ever.
pub(super) fn overrun_limit(name: &str, value: &str) -> Result<Duration, ConfigError> {
    let (least, most) = (limits::MIN_OVERRUN_MS, limits::MAX_OVERRUN_MS);
    let parsed = if value == "0" { Some(Duration::ZERO) } else { humantime::parse_duration(value).ok() };
    let may = |limit: &Duration| {
        limit.is_zero() || (Duration::from_millis(least)..=Duration::from_millis(most)).contains(limit)
    };
    parsed.filter(may).ok_or_else(|| bad(name, value, "expected 100ms to 1h such as 2s, or 0 for no limit"))
}

/// A count of failures; 0 means that they are not counted.
fn few(name: &str, value: &str) -> Result<u32, ConfigError> {
    match value.parse() {
        Ok(count @ 0..=limits::MAX_FAILURES) => Ok(count),
        Ok(_) => Err(bad(name, value, format!("at most {}", limits::MAX_FAILURES))),
        Err(_) => Err(bad(name, value, format!("expected a number of at most {}", limits::MAX_FAILURES))),
    }
}
