//! Who calls when: calls that come whether or not those before them are answered. All of a trace is made before it is
//! replayed, from a seed, and is sorted by time.
//!
//! - here: regular calls, Poisson arrivals of tenants that are equally or unequally popular (Zipf), bursts.
//! - [`day`]: a day shaped like published traces of a serverless platform.
//! - [mod@file]: read from a file.

pub mod day;
pub mod file;

use super::costs::Work;
use super::random::{Odds, Random};

const S: f64 = 1e9;

/// A call of a trace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arrival {
    /// When it is sent.
    pub at_ns: u64,
    /// By which of the trace's tenants, from 0.
    pub tenant: usize,
    /// What it does.
    pub work: Work,
}

/// Every tenant calls once a period, each at its own moment of it.
pub fn regular(tenants: usize, period_ns: u64, until_ns: u64, work: Work) -> Vec<Arrival> {
    let nth = |nth: u64| (0..tenants).map(move |tenant| (nth, tenant));
    let at_ns = |nth: u64, tenant: usize| nth * period_ns + period_ns * tenant as u64 / tenants as u64;
    let all = (0..until_ns.div_ceil(period_ns)).flat_map(nth);
    let all = all.map(|(nth, tenant)| Arrival { at_ns: at_ns(nth, tenant), tenant, work });
    all.take_while(|arrival| arrival.at_ns < until_ns).collect()
}

/// So many calls a second in all, at random, of tenants that are as likely as `odds` say.
pub fn poisson(random: &Random, odds: &Odds, per_second: f64, until_ns: u64, work: Work) -> Vec<Arrival> {
    let (mut random, mut at_ns, mut arrivals) = (random.clone(), 0, Vec::new());
    loop {
        at_ns += random.interval_ns(per_second);
        if at_ns >= until_ns {
            return arrivals;
        }
        arrivals.push(Arrival { at_ns, tenant: odds.pick(&mut random), work });
    }
}

/// Tenants that say nothing for a while and then send much: bursts begin at random, so many a second for each tenant,
/// and each brings a random number of calls, `calls` of them in the mean, one right after the other at this rate.
pub fn bursts(
    random: &Random,
    tenants: usize,
    bursts_per_second: f64,
    calls: f64,
    calls_per_second: f64,
    until_ns: u64,
    work: Work,
) -> Vec<Arrival> {
    let mut arrivals = Vec::new();
    for tenant in 0..tenants {
        let (mut random, mut at_ns) = (random.fork(tenant as u64), 0);
        loop {
            at_ns += random.interval_ns(bursts_per_second);
            if at_ns >= until_ns {
                break;
            }
            // Geometrically distributed.
            loop {
                arrivals.push(Arrival { at_ns, tenant, work });
                at_ns += (S / calls_per_second) as u64;
                if random.unit() < 1.0 / calls {
                    break;
                }
            }
        }
    }
    sorted(arrivals, until_ns)
}

/// In the order of time, up to a moment.
fn sorted(mut arrivals: Vec<Arrival>, until_ns: u64) -> Vec<Arrival> {
    arrivals.retain(|arrival| arrival.at_ns < until_ns);
    arrivals.sort_by_key(|arrival| (arrival.at_ns, arrival.tenant));
    arrivals
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn regular_calls_are_spread_over_their_period() {
        let all = regular(4, SECOND, 2 * SECOND, Work::MATMUL);
        let moments: Vec<u64> = all.iter().map(|arrival| arrival.at_ns / (SECOND / 4)).collect();
        assert_eq!(moments, [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn random_traces_follow_their_seed_and_rate() {
        let odds = Odds::zipf(10, 1.0);
        let of = |seed| poisson(&Random::new(seed), &odds, 500.0, 10 * SECOND, Work::MATMUL);
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        assert!((4_700..5_300).contains(&of(1).len()), "{}", of(1).len());
        let bursts = bursts(&Random::new(1), 20, 0.5, 10.0, 1000.0, 20 * SECOND, Work::MATMUL);
        assert!((1_500..2_500).contains(&bursts.len()), "{}", bursts.len());
        assert!(bursts.is_sorted_by_key(|arrival| arrival.at_ns));
    }
}
