//! Rounds, medians, percentiles.

use std::time::Instant;

use hdrhistogram::Histogram;

use crate::Result;

/// Latencies of one kind: each round's for the ratio, all of them together for the tail.
#[derive(Debug)]
pub struct Samples {
    all: Histogram<u64>,
    medians: Vec<f64>,
}

impl Samples {
    /// None yet.
    pub fn new() -> Result<Self> {
        Ok(Self {
            // Three digits tell tenths of a percent apart; it grows as it must.
            all: Histogram::new(3)?,
            medians: Vec::new(),
        })
    }

    /// Measures `work` `times` times: one round.
    pub fn round(&mut self, times: u32, mut work: impl FnMut() -> Result<()>) -> Result<()> {
        let mut round = Histogram::<u64>::new(3)?;
        for _ in 0..times {
            let start = Instant::now();
            work()?;
            round.record(nanoseconds(start))?;
        }
        self.medians.push(round.value_at_quantile(0.5) as f64);
        self.all.add(&round)?;
        Ok(())
    }

    /// The median of the rounds' medians in nanoseconds.
    pub fn p50(&self) -> f64 {
        median(&self.medians)
    }

    /// The 99th percentile of everything in nanoseconds.
    pub fn p99(&self) -> f64 {
        self.all.value_at_quantile(0.99) as f64
    }

    /// The median over the rounds of how many times `floor`'s median this one's was.
    pub fn ratio_to(&self, floor: &Self) -> f64 {
        let ratios: Vec<f64> =
            self.medians.iter().zip(&floor.medians).map(|(mine, floor)| mine / floor).collect();
        median(&ratios)
    }
}

/// Nanoseconds since `start`.
pub fn nanoseconds(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// The middle value; the mean of the two middle ones; NaN of nothing.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.len() / 2, sorted.len() % 2) {
        (0, 0) => f64::NAN,
        (middle, 0) => (sorted[middle - 1] + sorted[middle]) / 2.0,
        (middle, _) => sorted[middle],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn ratios_pair_the_rounds() {
        let samples = |medians: &[f64]| Samples { medians: medians.to_vec(), ..Samples::new().unwrap() };
        // The machine became slower by ten: the ratio did not.
        let (slow, fast) = (samples(&[20.0, 200.0, 21.0]), samples(&[10.0, 100.0, 10.0]));
        assert_eq!(slow.ratio_to(&fast), 2.0);
    }
}
