//! How fast one user may open connections: all share the thread that accepts them, and to accept takes longer than to connect. Whoever is
//! too fast is turned away before anything is made for the connection, so that others need not wait behind it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::refusal::{Reason, Refusable};

/// Connections that a user may open in a second, in the long run. A client that starts a process for each call opens some
/// hundreds.
const PER_SECOND: u32 = 2_000;
/// Connections that a user may open at once.
const AT_ONCE: u32 = 2_000;
/// Users that are remembered; beyond, users within their pace are forgotten.
const REMEMBERED: usize = 1_024;

/// Who opened connections lately.
#[derive(Debug, Default)]
pub struct ConnectionPace {
    /// By uid, the moment at which its connections so far are within the permitted pace.
    over: HashMap<u32, Instant>,
}

/// Why a connection is turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "this user opens more than {PER_SECOND} connections a second: keep connections, each takes many calls"
)]
pub struct TooFast;

impl Refusable for TooFast {
    fn reason(&self) -> Reason {
        Reason::ResourceExhausted
    }

    fn retry_after_ms(&self) -> Option<u64> {
        Some(100)
    }
}

impl ConnectionPace {
    /// A user opens a connection, which does not count if it is turned away.
    pub fn opened(&mut self, uid: u32, now: Instant) -> Result<(), TooFast> {
        let one = Duration::from_secs(1) / PER_SECOND;
        let over = self.over.get(&uid).copied().unwrap_or(now).max(now);
        if over - now > one * (AT_ONCE - 1) {
            return Err(TooFast);
        }
        if self.over.len() >= REMEMBERED {
            self.over.retain(|_, over| *over > now);
        }
        self.over.insert(uid, over + one);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(pace: &mut ConnectionPace, uid: u32, now: Instant, tries: u32) -> u32 {
        (0..tries).filter(|_| pace.opened(uid, now).is_ok()).count() as u32
    }

    #[test]
    fn who_is_too_fast_waits_and_no_other_user_does() {
        let (mut pace, start) = (ConnectionPace::default(), Instant::now());
        assert_eq!(opened(&mut pace, 1, start, 3 * AT_ONCE), AT_ONCE);
        assert_eq!(opened(&mut pace, 2, start, 10), 10);
        let later = start + Duration::from_millis(500);
        assert_eq!(opened(&mut pace, 1, later, 3 * AT_ONCE), PER_SECOND / 2);
        // A user below the pace is never turned away.
        let slow = (0..3 * AT_ONCE).map(|n| start + Duration::from_secs(1) / PER_SECOND * n);
        assert!(slow.clone().all(|now| pace.opened(3, now).is_ok()));
    }

    #[test]
    fn users_that_are_slow_enough_are_forgotten() {
        let (mut pace, start) = (ConnectionPace::default(), Instant::now());
        for uid in 0..10 * REMEMBERED as u32 {
            pace.opened(uid, start + Duration::from_millis(uid.into())).unwrap();
        }
        assert!(pace.over.len() <= REMEMBERED);
    }
}
