//! Random numbers that are the same for a seed on every machine and with every version of every library: SplitMix64 (G.
//! Steele, D. Lea, C. Flood, OOPSLA 2014), and the distributions that traces need.

/// A sequence.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Another sequence, independent of the progress of this one.
    pub fn fork(&self, name: u64) -> Self {
        let mut forked = Self(self.0 ^ name.wrapping_mul(0xA24B_AED4_963E_E407));
        forked.any();
        forked
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// From 0 to 1, without 1.
    pub fn unit(&mut self) -> f64 {
        (self.any() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// The time to the next of events that come so often a second, in nanoseconds.
    pub fn interval_ns(&mut self, per_second: f64) -> u64 {
        (-(1.0 - self.unit()).ln() / per_second * 1e9) as u64
    }

    /// Normally distributed, with mean 0 and deviation 1 (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let (radius, angle) = (1.0 - self.unit(), self.unit() * std::f64::consts::TAU);
        (-2.0 * radius.ln()).sqrt() * angle.cos()
    }
}

/// Picks numbers with given odds, in logarithmic time.
#[derive(Debug, Clone)]
pub struct Odds(Vec<f64>);

impl Odds {
    /// As likely as these weights say.
    pub fn new(weights: impl IntoIterator<Item = f64>) -> Self {
        let mut sum = 0.0;
        Self(
            weights
                .into_iter()
                .map(|weight| {
                    sum += weight;
                    sum
                })
                .collect(),
        )
    }

    /// Zipf's law: the nth of `count` is as likely as n to the minus `exponent`.
    pub fn zipf(count: usize, exponent: f64) -> Self {
        Self::new((1..=count).map(|nth| (nth as f64).powf(-exponent)))
    }

    /// One of them.
    pub fn pick(&self, random: &mut Random) -> usize {
        let at = random.unit() * self.0.last().copied().unwrap_or(0.0);
        self.0.partition_point(|sum| *sum <= at).min(self.0.len().saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_of_a_seed_never_changes() {
        let mut random = Random::new(1_234_567);
        assert_eq!([random.any(), random.any()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

    #[test]
    fn intervals_have_the_rate_that_was_asked_for() {
        let mut random = Random::new(1);
        let sum: u64 = (0..10_000).map(|_| random.interval_ns(100.0)).sum();
        assert!((95..105).contains(&(sum / 1_000_000_000)), "{sum}");
    }

    #[test]
    fn zipfs_first_is_twice_as_likely_as_its_second() {
        let (mut random, odds) = (Random::new(1), Odds::zipf(1000, 1.0));
        let mut counts = vec![0_u32; 1000];
        (0..100_000).for_each(|_| counts[odds.pick(&mut random)] += 1);
        assert!((1.9..2.1).contains(&(f64::from(counts[0]) / f64::from(counts[1]))), "{:?}", &counts[..2]);
        assert!(counts[999] < 60);
    }

    #[test]
    fn normal_numbers_have_their_mean_and_deviation() {
        let mut random = Random::new(1);
        let all: Vec<f64> = (0..10_000).map(|_| random.normal()).collect();
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        let square = all.iter().map(|one| one * one).sum::<f64>() / all.len() as f64;
        assert!(mean.abs() < 0.05 && (0.95..1.05).contains(&square), "{mean} {square}");
    }
}
