//! Waiting for a moment, for calls at a rate.

use std::time::Instant;

/// Returns at `moment`, or at once where that has passed.
pub fn until(moment: Instant) {
    loop {
        let left = moment.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        // It may return early.
        std::thread::park_timeout(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_wait_never_ends_early() {
        let moment = Instant::now() + Duration::from_millis(2);
        until(moment);
        assert!(Instant::now() >= moment);
        until(moment);
    }
}
