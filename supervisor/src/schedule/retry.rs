//! Calls whose process ended are run again: functions are pure, and a call that merely shared a worker
//! with a guilty one is owed its result.
//!
//! ```text
//! started ──its process ended──► suspect ──alone, its process ended──► guilty
//!    ▲              └─ it never had the call, or something else ended it ─┐
//!    └────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A call whose processes are ended from outside again and again is given up, but it is not guilty; neither is one under
//! which the device fails again and again though no kernel of it did.
//!
//! A suspect waits in front of its domain's younger calls and runs alone from then on. Alone means that no other call
//! is in its worker, and where faults hit the calls of other workers, too, that none is on the device.

use super::limits::MAX_RUNS;
use super::types::{Ended, Loss};

/// What is known of one call's attempts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Attempts {
    /// How often it was started.
    runs: u8,
    suspect: bool,
}

/// A call that waited on a device and is to wait elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Withdrawn<C> {
    /// The call.
    pub call: C,
    /// Inline bytes that it holds while it waits.
    pub bytes: u64,
    /// What is known of its attempts.
    pub attempts: Attempts,
}

impl Attempts {
    /// Of a call that runs alone from the beginning.
    pub(super) fn of_suspect() -> Self {
        Self { runs: 0, suspect: true }
    }

    /// True if the call runs alone from now on, since a process ended under it.
    pub(super) fn is_suspect(&self) -> bool {
        self.suspect
    }

    /// It is in a worker.
    pub(super) fn started(&mut self) {
        self.runs += 1;
    }

    /// It is out of its worker, where it was not for long enough to count.
    pub(super) fn moved_out(&mut self) {
        self.runs = self.runs.saturating_sub(1);
    }

    /// Its process is gone. Why the call does not run again, if it does not. `late`: the deadline passed; `detached`: the
    /// client gave the call up.
    pub(super) fn lost(&mut self, loss: Loss, late: bool, detached: bool) -> Option<Ended> {
        if late {
            return Some(Ended::Deadline);
        }
        if detached {
            return Some(Ended::Detached);
        }
        match loss {
            Loss::InIt if self.suspect || self.runs >= MAX_RUNS => return Some(Ended::Guilty),
            // Alone, and still of no kernel of its own: that is not held against it.
            Loss::Unexplained if self.runs >= MAX_RUNS => return Some(Ended::Interrupted),
            Loss::InIt | Loss::Unexplained => self.suspect = true,
            Loss::EndedFromOutside if self.runs >= MAX_RUNS => return Some(Ended::Interrupted),
            // Says nothing about the call.
            Loss::EndedFromOutside => {}
            Loss::NeverHanded => self.moved_out(),
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(mut attempts: Attempts) -> Attempts {
        attempts.started();
        attempts
    }

    #[test]
    fn the_second_process_that_ends_makes_a_call_guilty() {
        let mut attempts = started(Attempts::default());
        assert_eq!(attempts.lost(Loss::InIt, false, false), None);
        assert!(attempts.is_suspect());
        attempts = started(attempts);
        assert_eq!(attempts.lost(Loss::InIt, false, false), Some(Ended::Guilty));
        assert_eq!(started(Attempts::of_suspect()).lost(Loss::InIt, false, false), Some(Ended::Guilty));
    }

    #[test]
    fn a_call_that_its_process_never_had_was_not_started() {
        let mut attempts = Attempts::default();
        for _ in 0..9 {
            attempts = started(attempts);
            assert_eq!(attempts.lost(Loss::NeverHanded, false, false), None);
        }
        assert_eq!(attempts, Attempts::default());
    }

    #[test]
    fn processes_that_are_ended_from_outside_make_no_call_guilty() {
        for mut attempts in [Attempts::default(), Attempts::of_suspect()] {
            for _ in 1..MAX_RUNS {
                let suspect = attempts.is_suspect();
                attempts = started(attempts);
                assert_eq!(attempts.lost(Loss::EndedFromOutside, false, false), None);
                assert_eq!(attempts.is_suspect(), suspect);
            }
            assert_eq!(
                started(attempts).lost(Loss::EndedFromOutside, false, false),
                Some(Ended::Interrupted)
            );
        }
    }

    #[test]
    fn a_call_that_is_late_or_given_up_does_not_run_again() {
        let mut attempts = started(Attempts::default());
        assert_eq!(attempts.lost(Loss::InIt, true, true), Some(Ended::Deadline));
        assert_eq!(attempts.lost(Loss::NeverHanded, false, true), Some(Ended::Detached));
    }

    #[test]
    fn a_device_that_fails_under_a_call_says_that_it_is_to_run_alone_and_no_more() {
        let mut attempts = started(Attempts::default());
        for _ in 1..MAX_RUNS {
            assert_eq!(attempts.lost(Loss::Unexplained, false, false), None);
            assert!(attempts.is_suspect());
            attempts.started();
        }
        let mut guilty = attempts;
        assert_eq!(attempts.lost(Loss::Unexplained, false, false), Some(Ended::Interrupted));
        assert_eq!(guilty.lost(Loss::InIt, false, false), Some(Ended::Guilty), "a kernel of its own");
    }
}
