//! How busy devices are: a domain on one device, the domains on a device, and running averages.

/// A domain is cold on a device where it had no call for so long.
pub(super) const WARM_NS: u64 = 10_000_000_000;
/// How much of an average one more value is.
pub(super) const WEIGHT: f64 = 0.125;
/// A domain that had calls on a device so long ago counts there by a third: one that is busy is without a call for a moment, when
/// all that it had in flight are answered, and others that came then would stay for a round of turns.
const LATELY_NS: f64 = 50e6;

/// A domain on one device.
#[derive(Debug, Clone, Default)]
pub(super) struct Presence {
    pub(super) in_flight: u32,
    /// When its last call there ended.
    pub(super) used_ns: Option<u64>,
    /// When the first call that found nothing there ended. Earlier calls waited with it until then.
    pub(super) warm_ns: u64,
    /// The time of a call there, divided by the calls in flight: what one more call in the queue costs.
    pub(super) per_call: Average,
}

impl Presence {
    /// How much this domain counts among the domains with calls there lately, from 0 to 1.
    pub(super) fn lately(&self, now_ns: u64) -> f64 {
        match (self.in_flight, self.used_ns) {
            (0, None) => 0.0,
            (0, Some(used_ns)) => fades(used_ns, now_ns),
            _ => 1.0,
        }
    }

    /// True if the domain had no call there for long.
    pub(super) fn is_cold(&self, now_ns: u64) -> bool {
        self.in_flight == 0 && self.used_ns.is_none_or(|used_ns| now_ns.saturating_sub(used_ns) > WARM_NS)
    }
}

/// How many domains have calls on a device, and had lately.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Busy {
    pub(super) now: u32,
    /// As it was when the number changed last.
    lately: f64,
    at_ns: u64,
}

impl Busy {
    pub(super) fn set(&mut self, now_ns: u64, now: u32) {
        *self = Self { now, lately: self.lately(now_ns), at_ns: now_ns };
    }

    pub(super) fn lately(&self, now_ns: u64) -> f64 {
        let now = f64::from(self.now);
        now + (self.lately - now) * fades(self.at_ns, now_ns)
    }

    /// Now or lately, whichever is more.
    pub(super) fn most(&self, now_ns: u64) -> f64 {
        self.lately(now_ns).max(self.now.into())
    }
}

/// How much of what was still counts.
fn fades(was_ns: u64, now_ns: u64) -> f64 {
    (-(now_ns.saturating_sub(was_ns) as f64) / LATELY_NS).exp()
}

/// A running average of what was measured.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Average(Option<f64>);

impl Average {
    pub(super) fn add(&mut self, value: f64) {
        self.0 = Some(self.0.map_or(value, |mean| mean + (value - mean) * WEIGHT));
    }

    pub(super) fn or(self, unmeasured: f64) -> f64 {
        self.0.unwrap_or(unmeasured)
    }
}
