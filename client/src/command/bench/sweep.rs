//! Which rate a sweep tries next: each higher than the last by a factor until one does not hold, then two between.

use std::time::Duration;

use super::tally::Tally;

/// Rates that are tried between the last that held and the first that did not.
const BETWEEN: u32 = 2;
/// So many answers for each call that was due: where fewer come, a queue grows.
const KEEPS_UP: f64 = 0.95;
/// The highest rate that is tried.
const MOST: f64 = 1e6;

/// What a rate that holds may do.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) failed_share: f64,
    pub(super) p99: Option<Duration>,
}

impl Limits {
    /// True if what was measured holds.
    pub(super) fn hold(&self, all: &Tally) -> bool {
        all.due > 0
            && all.failed_share() <= self.failed_share
            && self.p99.is_none_or(|most| all.p99() <= most)
            && all.came as f64 >= KEEPS_UP * all.due as f64
    }
}

/// A sweep on its way.
#[derive(Debug)]
pub(super) struct Sweep {
    step: f64,
    between: u32,
    /// The highest rate that held.
    pub(super) held: Option<f64>,
    /// The lowest that did not.
    failed: Option<f64>,
}

impl Sweep {
    pub(super) fn new(step: f64) -> Self {
        Self { step, between: BETWEEN, held: None, failed: None }
    }

    /// Takes what became of a rate, and says which to try next; none where all is known.
    pub(super) fn next(&mut self, rate: f64, holds: bool) -> Option<f64> {
        match holds {
            true => self.held = Some(self.held.map_or(rate, |held| held.max(rate))),
            false => self.failed = Some(self.failed.map_or(rate, |failed| failed.min(rate))),
        }
        match (self.held, self.failed) {
            (Some(held), None) => Some(held * self.step).filter(|next| *next <= MOST),
            (Some(held), Some(failed)) if self.between > 0 && held < failed => {
                self.between -= 1;
                // In the middle as factors go.
                Some((held * failed).sqrt())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tally::Rules;
    use super::*;

    /// The rates that are tried where all up to `most` hold.
    fn tried(first: f64, most: f64) -> (Vec<f64>, Option<f64>) {
        let mut sweep = Sweep::new(2.0);
        let next = |rate: &f64| sweep.next(*rate, *rate <= most);
        let rates = std::iter::successors(Some(first), next).collect();
        (rates, sweep.held)
    }

    #[test]
    fn a_sweep_climbs_and_then_looks_between() {
        let (rates, held) = tried(10.0, 60.0);
        let expected = [10.0, 20.0, 40.0, 80.0, 56.57, 67.27];
        assert_eq!(rates.len(), expected.len());
        assert!(
            rates.iter().zip(expected).all(|(rate, expected)| (rate - expected).abs() < 0.01),
            "{rates:?}"
        );
        assert!((held.unwrap() - 56.57).abs() < 0.01);
    }

    #[test]
    fn a_sweep_ends_where_nothing_or_everything_holds() {
        assert_eq!(tried(10.0, 1.0), (vec![10.0], None));
        let (rates, held) = tried(1e5, f64::INFINITY);
        assert_eq!((rates, held), (vec![1e5, 2e5, 4e5, 8e5], Some(8e5)));
    }

    #[test]
    fn a_rate_holds_within_all_limits() {
        let ms = Duration::from_millis;
        let rules = Rules { from: ms(0), to: ms(1000), until: ms(1000), deadline: ms(500) };
        let measured = |answered: u64, latency: u64, failed: u64, lost: u64| {
            let mut tally = Tally::new(rules);
            for _ in 0..answered + failed + lost {
                tally.begins(ms(1), ms(1));
            }
            (0..answered).for_each(|_| tally.ends(ms(1), ms(1), ms(1 + latency), Ok(())));
            (0..failed).for_each(|_| tally.fails(ms(1), "X"));
            tally
        };
        let limits = Limits { failed_share: 0.01, p99: Some(ms(50)) };
        assert!(limits.hold(&measured(99, 40, 1, 0)));
        assert!(!limits.hold(&measured(98, 40, 2, 0)));
        assert!(!limits.hold(&measured(99, 60, 1, 0)));
        // Answers that come behind the end: a queue has grown.
        assert!(!limits.hold(&measured(94, 40, 0, 6)));
        assert!(!limits.hold(&measured(0, 0, 0, 0)));
        assert!(Limits { p99: None, ..limits }.hold(&measured(99, 60, 1, 0)));
    }
}
