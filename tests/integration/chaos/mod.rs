//! Exactly one answer for every accepted call, whatever happens: clients of all kinds call a supervisor while
//! processes are killed and stopped, descriptors, memory and disk run out, and supervisors drain and die.
//! What every client saw is judged afterwards, and nothing may be left over.
//!
//! - [`history`]: what happened.
//! - [`checker`]: whether that may happen; pure.
//! - [`functions`], [`caller`], [`clients`]: who calls what, and how.
//! - [`injector`]: what is done to the system.
//! - [`drift`]: what is left over.
//! - [`round`]: one run of all of it.
//!
//! The test below is a short run with a seed of the day's; `scripts/chaos` makes a long one of it:
//! `PAPPUS_CHAOS_FAULTS` and `PAPPUS_CHAOS_SEED` say how long and which, `PAPPUS_CHAOS_JSON` where its result goes.

mod caller;
mod checker;
#[cfg(test)]
mod checker_tests;
mod clients;
mod drift;
mod functions;
mod history;
mod injector;
mod round;

use std::io::{IsTerminal, Write};
use std::time::Instant;

use serde_json::json;

use self::round::{Outcome, Wanted};

/// Of the short run.
const FEW_FAULTS: u32 = 60;
/// Of one supervisor of a long run.
const ROUND_FAULTS: u32 = 200;
/// Of the short run: fixed, so that a failure of a change is a failure of that change.
const SEED: u64 = 1;

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text:?} is no number")))
}

#[test]
fn every_call_gets_one_right_answer_whatever_happens() {
    let Some(faults) = setting("PAPPUS_CHAOS_FAULTS") else {
        let outcome = round::run(Wanted { seed: SEED, faults: FEW_FAULTS });
        assert!(outcome.right > 0, "{outcome:?}");
        return;
    };
    long(faults, setting("PAPPUS_CHAOS_SEED").unwrap_or(SEED));
}

/// Round after round, until there were so many faults; says how it goes.
fn long(faults: u64, seed: u64) {
    let start = Instant::now();
    let mut sum = Outcome::default();
    let mut rounds = 0;
    while sum.faults() < faults {
        sum.add(&round::run(Wanted { seed: seed.wrapping_add(rounds), faults: ROUND_FAULTS }));
        rounds += 1;
        let progress = format!(
            "round {rounds}: {} of {faults} faults, {} of {} neighbours' calls right, {:.0} s",
            sum.faults(),
            sum.right,
            sum.neighbours,
            start.elapsed().as_secs_f64()
        );
        let mut out = std::io::stderr();
        let _ = match out.is_terminal() {
            true => write!(out, "\r{progress}"),
            false => writeln!(out, "{progress}"),
        };
    }
    println!("\nseed {seed}, {rounds} rounds, {:.0} s", start.elapsed().as_secs_f64());
    for (what, times) in &sum.injected {
        println!("  {what:<20} {times:>8}");
    }
    let Outcome { calls, neighbours, right, refused, unanswered, .. } = sum;
    println!("  {:<20} {:>8}", "faults in all", sum.faults());
    println!("  {:<20} {calls:>8}", "calls");
    println!(
        "  {:<20} {neighbours:>8}: right {right}, refused for lack of something injected {refused},",
        "of neighbours"
    );
    println!("  {:<20} {:>8}  ended with their connection {unanswered}, wrong 0, missing 0", "", "");
    if let Some(path) = std::env::var_os("PAPPUS_CHAOS_JSON") {
        let report = json!({
            "seed": seed, "rounds": rounds, "seconds": start.elapsed().as_secs_f64(),
            "faults": sum.faults(), "injected": sum.injected, "calls": calls,
            "neighbours": {"calls": neighbours, "right": right, "refused": refused, "ended_with_connection": unanswered,
                           "wrong": 0, "missing": 0},
        });
        std::fs::write(path, format!("{report:#}\n")).unwrap();
    }
}
