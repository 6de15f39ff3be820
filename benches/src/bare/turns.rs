//! Processes that keep lanes busy on one GPU, one process at a time: a turn passes from one to the next through a word of
//! shared memory, which all of them poll. What a scheduler in between is measured against.

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use pappus_shmem::{SharedWords, memfd};

use super::cuda::{Gpu, Pinned};
use super::loops::{PATIENCE, Rate, Setup, WARM_UP, prepare};
use super::program::{Chosen, output};
use super::work::{Lane, Program};
use crate::Result;
use crate::harness::sampling::nanoseconds;

/// Words of the page, each in a line of a processor's cache of its own: whose turn it is, as a number that rises; how many
/// processes are ready, of all measurements so far; how many measurements are over.
const TURN: usize = 0;
const READY: usize = 16;
const OVER: usize = 32;

/// Which process one is.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// Counted from 0.
    pub nth: u64,
    /// Of so many.
    pub of: u64,
}

/// The page, as one process sees it.
#[derive(Debug)]
struct Page {
    words: SharedWords,
    place: Place,
}

impl Page {
    fn word(&self, at: usize) -> &AtomicU64 {
        &self.words.words()[at]
    }

    /// Waits until all are ready for a measurement.
    fn together(&self, measurement: u64) -> Result<()> {
        let all = self.place.of * (measurement + 1);
        self.word(READY).fetch_add(1, Ordering::AcqRel);
        until(|| self.word(READY).load(Ordering::Acquire) >= all)
    }

    fn is_over(&self, measurement: u64) -> bool {
        self.word(OVER).load(Ordering::Acquire) > measurement
    }

    /// Waits for the turn of the process before this one, or for this one's; false if the measurement is over.
    fn comes_next(&self, measurement: u64) -> Result<bool> {
        let of = self.place.of;
        let before = (self.place.nth + of - 1) % of;
        let is = || [before, self.place.nth].contains(&(self.word(TURN).load(Ordering::Acquire) % of));
        until(|| is() || self.is_over(measurement))?;
        Ok(!self.is_over(measurement))
    }

    /// Waits for the turn; false if the measurement is over.
    fn has_turn(&self, measurement: u64) -> Result<bool> {
        let has = || self.word(TURN).load(Ordering::Acquire) % self.place.of == self.place.nth;
        until(|| has() || self.is_over(measurement))?;
        Ok(!self.is_over(measurement))
    }

    fn pass_on(&self) {
        self.word(TURN).fetch_add(1, Ordering::AcqRel);
    }
}

/// Polls; an error after too long.
fn until(is_so: impl Fn() -> bool) -> Result<()> {
    let start = Instant::now();
    while !is_so() {
        if start.elapsed() > PATIENCE {
            return Err("another process has not passed its turn on for 20 s".into());
        }
        std::hint::spin_loop();
    }
    Ok(())
}

/// When a turn goes on to the next process.
#[derive(Debug, Clone, Copy)]
pub struct Passing {
    /// Calls follow each other on every lane for so long.
    pub quantum: Duration,
    /// The next process submits once nothing more is submitted, while the last calls still run.
    pub early: bool,
    /// The first calls of a turn are submitted while the process before has the device, behind a gate that opens with the
    /// turn.
    pub ahead: bool,
}

/// Is one of the processes: the page is its standard input. One measurement for each number of lanes.
pub fn serve(
    gpu: &Gpu,
    program: &Program,
    setups: impl Iterator<Item = Setup>,
    place: Place,
    passing: Passing,
) -> Result<Vec<Rate>> {
    let page = memfd::judge_arena(std::io::stdin().as_fd().try_clone_to_owned()?, u64::MAX)?;
    let page = Page { words: SharedWords::open(&page)?, place };
    let measure = |(measurement, setup)| {
        let lanes = prepare(gpu, program, setup)?;
        page.together(measurement)?;
        by_turns(&page, measurement, &lanes, setup, passing)
    };
    (0..).zip(setups).map(measure).collect()
}

/// In each turn at least one call on every lane, then as many as begin within the quantum; then the turn goes on.
fn by_turns(page: &Page, measurement: u64, lanes: &[Lane], setup: Setup, passing: Passing) -> Result<Rate> {
    let mut latencies = Histogram::new(3)?;
    let mut calls = 0;
    let start = Instant::now() + WARM_UP;
    let end = start + setup.measured;
    let mut since = vec![Instant::now(); lanes.len()];
    let mut running = vec![false; lanes.len()];
    let mut gate = Pinned::new(4096)?;
    let mut turns = 0u32;
    let mut launching = Duration::ZERO;
    loop {
        let ahead = passing.ahead && page.comes_next(measurement)?;
        if ahead || page.has_turn(measurement)? {
            turns += 1;
            let begin = Instant::now();
            for (lane, running) in lanes.iter().zip(&mut running) {
                if ahead {
                    lane.hold(&gate, turns)?;
                }
                lane.submit(setup.clearing)?;
                *running = true;
            }
            launching += begin.elapsed();
        }
        let goes_on = page.has_turn(measurement)?;
        gate.write(0, &turns.to_le_bytes());
        if !goes_on {
            break;
        }
        let turn_ends = Instant::now() + passing.quantum;
        let (mut left, mut passed_on, mut last_seen) = (lanes.len(), false, Instant::now());
        while left > 0 {
            for (nth, lane) in lanes.iter().enumerate().filter(|(nth, _)| running[*nth]).collect::<Vec<_>>() {
                if !lane.passed()? {
                    continue;
                }
                let now = Instant::now();
                if now >= start && now < end {
                    calls += 1;
                    latencies.record(nanoseconds(since[nth]))?;
                }
                (since[nth], last_seen) = (now, now);
                if now < turn_ends && now < end {
                    lane.submit(setup.clearing)?;
                } else {
                    (running[nth], left) = (false, left - 1);
                    if passing.early && !passed_on && now < end {
                        page.pass_on();
                        passed_on = true;
                    }
                }
            }
            if last_seen.elapsed() > PATIENCE {
                return Err("a call has not ended for 20 s: the device hangs".into());
            }
        }
        if Instant::now() >= end {
            // The turn stays here: the next measurement begins with it.
            page.word(OVER).store(measurement + 1, Ordering::Release);
            break;
        }
        if !passed_on {
            page.pass_on();
        }
    }
    if page.place.nth == 0 {
        let each = launching.as_micros() / u128::from(turns.max(1));
        eprintln!("  submitting the first calls of a turn, {} lanes: {each} µs", lanes.len());
    }
    // Calls behind the gate are over before it goes.
    for lane in lanes {
        lane.wait()?;
    }
    Ok(Rate::new(1, lanes.len(), calls, setup.measured, &latencies))
}

/// Processes that are killed and reaped on drop.
struct Processes(Vec<Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Both fail only where it has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs so many processes at once; the rates of all together, one for each number of lanes.
pub fn measure(chosen: &Chosen, of: usize, args: &[String], connections: u32) -> Result<Vec<f64>> {
    let (_words, page) = SharedWords::create("pappus-bench-turns")?;
    let mut processes = Processes(Vec::with_capacity(of));
    for nth in 0..of {
        let place = [format!("--nth={nth}"), format!("--of={of}")];
        let mut command = chosen.command("turns", &[args, &place].concat(), connections)?;
        let page: OwnedFd = page.as_fd().try_clone_to_owned()?;
        processes.0.push(command.stdin(page).stdout(Stdio::piped()).spawn()?);
    }
    let mut all: Vec<f64> = Vec::new();
    for child in &mut processes.0 {
        let rates: Vec<Rate> = serde_json::from_str(&output(child)?)
            .map_err(|e| format!("a bare program that passes turns ended; its error is above ({e})"))?;
        all.resize(rates.len(), 0.0);
        all.iter_mut().zip(rates).for_each(|(all, rate)| *all += rate.per_second);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_goes_around_and_ends_with_the_measurement() {
        let (words, memfd) = SharedWords::create("turns").unwrap();
        drop(words);
        let page = |nth| {
            let words = SharedWords::open(&memfd).unwrap();
            Page { words, place: Place { nth, of: 3 } }
        };
        let turns = std::sync::Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for nth in 0..3 {
                let (page, turns) = (page(nth), &turns);
                scope.spawn(move || {
                    for measurement in 0..2 {
                        page.together(measurement).unwrap();
                        while page.has_turn(measurement).unwrap() {
                            let mut turns = turns.lock().unwrap();
                            turns.push(nth);
                            if turns.len() as u64 == 10 * (measurement + 1) {
                                page.word(OVER).store(measurement + 1, Ordering::Release);
                                break;
                            }
                            page.pass_on();
                        }
                    }
                });
            }
        });
        let turns = turns.into_inner().unwrap();
        assert_eq!(turns[..10], [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]);
        assert_eq!(turns[10..], [0, 1, 2, 0, 1, 2, 0, 1, 2, 0], "who had it begins");
    }
}
