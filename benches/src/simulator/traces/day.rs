//! A day shaped like what a large serverless platform published of itself: M. Shahrad and others, "Serverless in the Wild:
//! Characterizing and Optimizing the Serverless Workload at a Large Cloud Provider", USENIX ATC 2020, two weeks of Azure
//! Functions in July 2019. Taken from there:
//!
//! - 45 % of applications are called once an hour or less on average, 81 % once a minute or less; those that are called more
//!   often make 99.6 % of all calls. Here an application is a tenant.
//! - About half of all calls come day and night alike; the rest follows the time of day.
//! - How long functions run on average is distributed log-normally: in seconds, with mean -0.38 and deviation 2.36 of the
//!   logarithm. Here a thousandth of that, since what runs is the kernels only, and no longer than a second.
//!
//! The hours of the day are passed through in the time that the trace lasts; rates are not scaled.

use super::{Arrival, S, sorted};
use crate::simulator::costs::Work;
use crate::simulator::random::Random;

/// Parts of tenants that call at most once an hour, and at most once a minute.
const HOURLY: f64 = 0.45;
const MINUTELY: f64 = 0.81;
/// Rates of those: calls a second from here …
const RAREST: f64 = 1.0 / 86_400.0;
const HOUR: f64 = 1.0 / 3_600.0;
const MINUTE: f64 = 1.0 / 60.0;
/// The mean and the deviation of the logarithm of milliseconds.
const LOG_MEAN: f64 = -0.38;
const LOG_DEVIATION: f64 = 2.36;
const LONGEST_NS: f64 = 1e9;
const SHORTEST_NS: f64 = 5e3;
/// Calls that come at any time of the day.
const BASE: f64 = 0.5;

/// A day of so many tenants with so many calls a second in the mean.
pub fn day(random: &Random, tenants: usize, per_second: f64, until_ns: u64) -> Vec<Arrival> {
    let mut rates = rates(random, tenants);
    // Those that call most make up the rest, as they do in the trace.
    let [rare, often] =
        [true, false].map(|is_rare| rates.iter().filter(|rate| (**rate <= MINUTE) == is_rare).sum::<f64>());
    let scale = (per_second - rare).max(0.0) / often;
    rates.iter_mut().filter(|rate| **rate > MINUTE).for_each(|rate| *rate *= scale);
    let mut arrivals = Vec::new();
    for (tenant, rate) in rates.into_iter().enumerate() {
        let mut random = random.fork(tenant as u64);
        let work = work(&mut random);
        // The hour at which it is called most.
        let peak = random.unit();
        let mut at_ns = 0;
        // Thinned from a rate that is never exceeded.
        loop {
            at_ns += random.interval_ns(rate * 2.0 * (1.0 - BASE) + rate * BASE);
            if at_ns >= until_ns {
                break;
            }
            let hour = at_ns as f64 / until_ns as f64;
            let now = BASE + (1.0 - BASE) * (1.0 + ((hour - peak) * std::f64::consts::TAU).cos());
            if random.unit() * (2.0 - BASE) < now {
                arrivals.push(Arrival { at_ns, tenant, work });
            }
        }
    }
    sorted(arrivals, until_ns)
}

/// How often tenants call, a second: log-uniformly within the parts that are published.
fn rates(random: &Random, tenants: usize) -> Vec<f64> {
    let mut random = random.fork(u64::MAX);
    let between = |from: f64, to: f64, at: f64| from * (to / from).powf(at);
    (0..tenants)
        .map(|tenant| {
            let at = random.unit();
            match (tenant as f64 + 0.5) / tenants as f64 {
                part if part < HOURLY => between(RAREST, HOUR, at),
                part if part < MINUTELY => between(HOUR, MINUTE, at),
                // Four orders of magnitude above.
                _ => between(MINUTE * 1.01, MINUTE * 1e4, at),
            }
        })
        .collect()
}

fn work(random: &mut Random) -> Work {
    let ms = (LOG_MEAN + LOG_DEVIATION * random.normal()).exp();
    let ns = (ms * S / 1e3).clamp(SHORTEST_NS, LONGEST_NS);
    Work::lasting("of a day", ns as u64, 4.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNTIL_NS: u64 = 600_000_000_000;

    #[test]
    fn tenants_are_as_busy_as_was_published() {
        let rates = rates(&Random::new(1), 1000);
        let at_most = |most: f64| rates.iter().filter(|rate| **rate <= most).count();
        assert_eq!((at_most(HOUR), at_most(MINUTE)), (450, 810));
        let all = day(&Random::new(1), 1000, 200.0, UNTIL_NS);
        assert!((100_000..140_000).contains(&all.len()), "{}", all.len());
        let mut counts = vec![0_usize; 1000];
        all.iter().for_each(|arrival| counts[arrival.tenant] += 1);
        let often: usize = counts[810..].iter().sum();
        assert!(often * 1000 > all.len() * 980, "{often} of {}", all.len());
    }

    #[test]
    fn kernels_last_as_long_as_functions_by_a_thousandth() {
        let mut random = Random::new(1);
        let mut all: Vec<u64> = (0..10_001).filter_map(|_| work(&mut random).alone_ns).collect();
        all.sort_unstable();
        // e to the -0.38 milliseconds.
        assert!((620_000..750_000).contains(&all[5_000]), "{}", all[5_000]);
        assert!(all[0] >= 5_000 && all[10_000] <= 1_000_000_000);
    }
}
