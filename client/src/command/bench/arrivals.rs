//! When calls are due, counted from the start of a run: at random, evenly, or as a trace says; of several tenants in one order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use crate::arguments::ArrivalKind;

/// Calls of one tenant at a rate, without an end.
#[derive(Debug)]
pub(super) struct Arrivals {
    kind: ArrivalKind,
    gap_s: f64,
    last_s: f64,
    random: Random,
}

impl Arrivals {
    /// So many calls a second. Tenants with the same rate and another seed do not call at the same moments.
    pub(super) fn new(kind: ArrivalKind, rate: f64, seed: u64) -> Self {
        let mut random = Random(seed);
        let gap_s = rate.recip();
        // Even calls begin somewhere in the first gap.
        let last_s = if kind == ArrivalKind::Uniform { (random.unit() - 1.0) * gap_s } else { 0.0 };
        Self { kind, gap_s, last_s, random }
    }
}

impl Iterator for Arrivals {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.last_s += match self.kind {
            ArrivalKind::Uniform => self.gap_s,
            // The time between two independent arrivals is distributed exponentially.
            ArrivalKind::Poisson => -self.random.unit().ln() * self.gap_s,
        };
        Duration::try_from_secs_f64(self.last_s).ok()
    }
}

/// Numbers that look random and are the same for the same seed (SplitMix64).
#[derive(Debug)]
struct Random(u64);

impl Random {
    /// Above 0 and at most 1.
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        ((mixed >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}

/// Calls of several tenants in the order in which they are due, each with the number of its tenant.
#[derive(Debug)]
pub(super) struct Merged<I> {
    streams: Vec<I>,
    heads: BinaryHeap<Reverse<(Duration, usize)>>,
    end: Duration,
}

impl<I: Iterator<Item = Duration>> Merged<I> {
    /// What is due before the end.
    pub(super) fn new(mut streams: Vec<I>, end: Duration) -> Self {
        let heads = streams.iter_mut().enumerate();
        let heads = heads.filter_map(|(tenant, stream)| Some(Reverse((stream.next()?, tenant)))).collect();
        Self { streams, heads, end }
    }
}

impl<I: Iterator<Item = Duration>> Iterator for Merged<I> {
    type Item = (Duration, usize);

    fn next(&mut self) -> Option<Self::Item> {
        let Reverse((due, tenant)) = self.heads.pop()?;
        if let Some(next) = self.streams[tenant].next() {
            self.heads.push(Reverse((next, tenant)));
        }
        (due < self.end).then_some((due, tenant))
    }
}

/// The calls of a trace, by tenant: lines of `SECONDS [TENANT]`; empty ones, and those behind a `#`, count for nothing.
pub(super) fn trace(text: &str, tenants: &[&str]) -> Result<Vec<Vec<Duration>>, String> {
    let mut calls = vec![Vec::new(); tenants.len()];
    for (number, line) in (1..).zip(text.lines()) {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(seconds) = words.next() else { continue };
        let due = seconds.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let due =
            due.ok_or_else(|| format!("line {number}: expected seconds from the start, got {seconds:?}"))?;
        let tenant = match words.next() {
            None => 0,
            Some(name) => tenants
                .iter()
                .position(|tenant| *tenant == name)
                .ok_or_else(|| format!("line {number}: {name:?} is no tenant of --tenants"))?,
        };
        if let Some(more) = words.next() {
            return Err(format!("line {number}: expected SECONDS [TENANT], got {more:?} behind"));
        }
        calls[tenant].push(due);
    }
    calls.iter_mut().for_each(|calls| calls.sort());
    match calls.iter().all(Vec::is_empty) {
        true => Err("there is no call in it".into()),
        false => Ok(calls),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gaps_of(kind: ArrivalKind, rate: f64, count: usize) -> Vec<f64> {
        let due: Vec<f64> = Arrivals::new(kind, rate, 7).take(count).map(|due| due.as_secs_f64()).collect();
        due.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    #[test]
    fn even_calls_keep_their_distance_and_begin_within_it() {
        assert!(gaps_of(ArrivalKind::Uniform, 50.0, 1000).iter().all(|gap| (gap - 0.02).abs() < 1e-6));
        let firsts: Vec<_> =
            (0..100).filter_map(|seed| Arrivals::new(ArrivalKind::Uniform, 50.0, seed).next()).collect();
        assert!(firsts.iter().all(|first| *first <= Duration::from_millis(20)));
        assert!(firsts.iter().any(|first| *first < Duration::from_millis(2)));
        assert!(firsts.iter().any(|first| *first > Duration::from_millis(18)));
    }

    #[test]
    fn random_calls_have_the_mean_and_the_spread_of_a_poisson_process() {
        let gaps = gaps_of(ArrivalKind::Poisson, 200.0, 100_001);
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean * 200.0 - 1.0).abs() < 0.02, "{mean}");
        // Of an exponential distribution the deviation is the mean.
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.02, "{}", variance.sqrt());
        let long = gaps.iter().filter(|gap| **gap > 3.0 / 200.0).count() as f64 / gaps.len() as f64;
        assert!((long - (-3.0f64).exp()).abs() < 0.005, "{long}");
    }

    #[test]
    fn a_seed_gives_the_same_calls_and_another_one_others() {
        let calls = |seed| Arrivals::new(ArrivalKind::Poisson, 10.0, seed).take(20).collect::<Vec<_>>();
        assert_eq!(calls(3), calls(3));
        assert_ne!(calls(3), calls(4));
    }

    #[test]
    fn tenants_take_turns_as_their_calls_are_due() {
        let of = |kind, rate, seed| Arrivals::new(kind, rate, seed);
        let streams = vec![of(ArrivalKind::Poisson, 100.0, 1), of(ArrivalKind::Uniform, 300.0, 2)];
        let calls: Vec<_> = Merged::new(streams, Duration::from_secs(10)).collect();
        assert!(calls.windows(2).all(|pair| pair[0].0 <= pair[1].0));
        assert!(calls.iter().all(|(due, _)| *due < Duration::from_secs(10)));
        let of_second = calls.iter().filter(|(_, tenant)| *tenant == 1).count();
        assert_eq!(of_second, 3000);
        assert!((calls.len() - of_second).abs_diff(1000) < 100, "{}", calls.len());
    }

    #[test]
    fn a_trace_says_when_and_who() {
        let ms = Duration::from_millis;
        let text = "# two tenants\n0.5 b\n\n0.25   # the first tenant's\n0.1 b\n";
        assert_eq!(trace(text, &["a", "b"]), Ok(vec![vec![ms(250)], vec![ms(100), ms(500)]]));
        for (wrong, why) in [
            ("", "no call"),
            ("1\nx", "line 2: expected seconds"),
            ("-1", "line 1: expected seconds"),
            ("1 c", "\"c\" is no tenant"),
            ("1 a 2", "\"2\" behind"),
        ] {
            let said = trace(wrong, &["a"]).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
    }
}
