//! Settings that may change while the supervisor runs.

use std::time::Duration;

use bytesize::ByteSize;

use super::{ConfigError, bad, duration, size};
use crate::limits;

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
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            queue_calls: 10_000,
            queue_bytes: 256 << 20,
            default_deadline: Duration::from_secs(30),
            max_deadline: Duration::from_secs(600),
            poll_us: 50,
        }
    }
}

impl Settings {
    /// Changes one setting by its name.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), ConfigError> {
        let number = |text: &str| text.parse::<u64>().map_err(|e| bad(name, value, e));
        match name {
            "queue-calls" => self.queue_calls = number(value)?,
            "queue-bytes" => self.queue_bytes = size(name, value)?,
            "default-deadline" => self.default_deadline = duration(name, value)?,
            "max-deadline" => self.max_deadline = duration(name, value)?,
            "poll-us" => match number(value)? {
                us @ 0..=limits::MAX_POLL_US => self.poll_us = us as u32,
                _ => return Err(bad(name, value, format!("at most {}", limits::MAX_POLL_US))),
            },
            _ => {
                return Err(bad(
                    name,
                    value,
                    "no such setting; there are queue-calls, queue-bytes, default-deadline, max-deadline, poll-us",
                ));
            }
        }
        Ok(())
    }

    /// Checks what settings demand of each other, once all are set.
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
        ]
    }
}
