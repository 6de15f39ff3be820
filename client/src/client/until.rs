//! How long something may take, and when that time is over.

use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// An end of waiting, if there is one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Until(Option<(Instant, Duration)>);

impl Until {
    /// However long it takes.
    pub(super) const NEVER: Self = Self(None);

    /// From now on for so long. Longer than the clock goes is for ever.
    pub(super) fn within(patience: Duration) -> Self {
        Self(Instant::now().checked_add(patience).map(|end| (end, patience)))
    }

    /// What is left, if there is an end.
    pub(super) fn left(self) -> Option<Duration> {
        self.0.map(|(end, _)| end.saturating_duration_since(Instant::now()))
    }

    pub(super) fn is_over(self) -> bool {
        self.left() == Some(Duration::ZERO)
    }

    /// An error once it is over: whoever is waited for is silent.
    pub(super) fn check(self) -> Result<()> {
        match self.0 {
            Some((_, patience)) if self.is_over() => Err(Error::Silent { patience }),
            _ => Ok(()),
        }
    }
}
