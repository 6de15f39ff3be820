//! Calls of a bare program: in a closed loop over many lanes, or one by one at a rate.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::cuda::Gpu;
use super::work::{Lane, Program};
use crate::Result;
use crate::harness::pace;
use crate::harness::sampling::nanoseconds;

/// Calls of each lane before anything counts: clocks rise, and first launches cost more.
pub(super) const WARM_UP: Duration = Duration::from_millis(300);
/// How long one call may take; more means that the device hangs.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// How calls are made.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// Threads that submit and ask.
    pub threads: usize,
    /// Lanes of each thread.
    pub lanes: usize,
    /// True if a call is one graph; otherwise kernels and copies are launched one by one.
    pub graph: bool,
    /// True if a call's memory is filled with zeros behind it.
    pub clearing: bool,
    /// How long to measure.
    pub measured: Duration,
}

/// What a closed loop reached.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Threads that submitted.
    pub threads: usize,
    /// Calls in flight in all.
    pub lanes: usize,
    /// Calls a second.
    pub per_second: f64,
    /// Nanoseconds from a call's submission to its end seen, half of the calls.
    pub p50_ns: f64,
    /// … of all but one in a hundred.
    pub p99_ns: f64,
}

impl Rate {
    /// From what was counted in `elapsed`.
    pub fn new(
        threads: usize,
        lanes: usize,
        calls: u64,
        elapsed: Duration,
        latencies: &Histogram<u64>,
    ) -> Self {
        Self {
            threads,
            lanes,
            per_second: calls as f64 / elapsed.as_secs_f64(),
            p50_ns: latencies.value_at_quantile(0.5) as f64,
            p99_ns: latencies.value_at_quantile(0.99) as f64,
        }
    }
}

/// The one with the most calls a second.
pub fn best(rates: &[Rate]) -> Option<&Rate> {
    rates.iter().max_by(|a, b| a.per_second.total_cmp(&b.per_second))
}

/// Keeps every lane of every thread busy.
pub fn closed(gpu: &Gpu, program: &Program, setup: Setup) -> Result<Rate> {
    let barrier = Barrier::new(setup.threads);
    let one = || -> Result<(u64, Histogram<u64>), String> {
        let lanes = prepare(gpu, program, setup).map_err(|e| e.to_string());
        // A thread that failed must not keep the others waiting.
        barrier.wait();
        spin(&lanes?, setup).map_err(|e| e.to_string())
    };
    let mut latencies = Histogram::new(3)?;
    let mut calls = 0;
    let counts = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..setup.threads).map(|_| scope.spawn(one)).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        let flat = joined.map(|result| result.unwrap_or_else(|_| Err("a lane's thread panicked".into())));
        flat.collect::<Result<Vec<_>, String>>()
    })?;
    for (count, histogram) in counts {
        calls += count;
        latencies.add(histogram)?;
    }
    Ok(Rate::new(setup.threads, setup.threads * setup.lanes, calls, setup.measured, &latencies))
}

/// A thread's lanes, each with one call behind it.
pub(super) fn prepare(gpu: &Gpu, program: &Program, setup: Setup) -> Result<Vec<Lane>> {
    gpu.enter()?;
    let mut lanes = Vec::with_capacity(setup.lanes);
    for _ in 0..setup.lanes {
        lanes.push(lane(program, setup.graph)?);
    }
    Ok(lanes)
}

fn lane(program: &Program, graph: bool) -> Result<Lane> {
    let mut lane = Lane::new(program)?;
    if graph {
        lane.capture()?;
    }
    lane.submit(false)?;
    wait(&lane)?;
    Ok(lane)
}

/// Asks lane after lane and submits the next call where one is over.
fn spin(lanes: &[Lane], setup: Setup) -> Result<(u64, Histogram<u64>)> {
    let mut latencies = Histogram::new(3)?;
    let mut calls = 0;
    let mut since: Vec<Instant> = Vec::with_capacity(lanes.len());
    for lane in lanes {
        since.push(Instant::now());
        lane.submit(setup.clearing)?;
    }
    let start = Instant::now() + WARM_UP;
    let end = start + setup.measured;
    let mut last_seen = Instant::now();
    loop {
        for (lane, since) in lanes.iter().zip(&mut since) {
            if !lane.passed()? {
                continue;
            }
            let now = Instant::now();
            if now >= end {
                return Ok((calls, latencies));
            }
            if now >= start {
                calls += 1;
                latencies.record(nanoseconds(*since))?;
            }
            (*since, last_seen) = (now, now);
            lane.submit(setup.clearing)?;
        }
        if last_seen.elapsed() > PATIENCE {
            return Err("no call has ended for 20 s: the device hangs".into());
        }
    }
}

/// One call after the other, back to back or one every `every`.
pub fn one_by_one(
    program: &Program,
    graph: bool,
    every: Option<Duration>,
    measured: Duration,
) -> Result<Rate> {
    let lane = lane(program, graph)?;
    let mut latencies = Histogram::new(3)?;
    let warm = Instant::now() + WARM_UP;
    while every.is_none() && Instant::now() < warm {
        lane.submit(false)?;
        wait(&lane)?;
    }
    let begin = Instant::now();
    let mut calls = 0;
    while begin.elapsed() < measured {
        if let Some(every) = every {
            pace::until(begin + every * calls);
        }
        let start = Instant::now();
        lane.submit(false)?;
        wait(&lane)?;
        latencies.record(nanoseconds(start))?;
        calls += 1;
    }
    Ok(Rate::new(1, 1, calls.into(), begin.elapsed(), &latencies))
}

fn wait(lane: &Lane) -> Result<()> {
    let start = Instant::now();
    while !lane.passed()? {
        if start.elapsed() > PATIENCE {
            return Err("a call has not ended for 20 s: the device hangs".into());
        }
        std::hint::spin_loop();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_rate_is_the_highest_and_its_percentiles_are_the_histograms() {
        let mut latencies = Histogram::new(3).unwrap();
        (1..=100u64).for_each(|ns| latencies.record(ns * 10).unwrap());
        let rates: Vec<Rate> = [(1, 10), (8, 40), (32, 30)]
            .map(|(lanes, calls)| Rate::new(1, lanes, calls, Duration::from_secs(2), &latencies))
            .to_vec();
        let best = best(&rates).unwrap();
        assert_eq!((best.lanes, best.per_second), (8, 20.0));
        assert_eq!((best.p50_ns, best.p99_ns), (500.0, 990.0));
        assert!(super::best(&[]).is_none());
    }
}
