//! What came of a run, as a table and as JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::judge::Amounts;
use super::run::{Lap, Outcome};

fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e4).round() / 10.0
}

fn mib(bytes: u64) -> u64 {
    bytes >> 20
}

/// How often each part was played.
fn played(outcome: &Outcome) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for part in &outcome.played {
        *counts.entry(part.as_str()).or_default() += 1;
    }
    counts
}

/// For people.
pub(crate) fn print(outcome: &Outcome) {
    let options = &outcome.options;
    println!(
        "seed {}, {} s, {} workers, {}, quotas {}",
        options.seed,
        options.seconds,
        options.workers,
        options.switch,
        if options.tight { "tight" } else { "default" }
    );
    println!(
        "{:>6} {:>8} {:>6} {:>9} {:>9} {:>9} {:>9} {:>7} {:>8} {:>7} {:>7}  against it",
        "s", "honest", "wrong", "p50 ms", "p99 ms", "operator", "newcomer", "MiB", "beyond", "fds", "lines/s"
    );
    let line = |name: String, lap: &Lap| {
        let Lap { p50, most, round, against, .. } = lap;
        println!(
            "{name:>6} {:>8} {:>6} {:>9} {:>9} {:>9} {:>9} {:>7} {:>8} {:>7} {:>7}  {against:?}",
            round.calls,
            round.wrong.len(),
            ms(*p50),
            ms(round.p99),
            ms(round.operator),
            ms(round.newcomer),
            mib(most.resident),
            mib(round.beyond.resident),
            most.descriptors,
            round.log_lines
        );
    };
    line("idle".to_owned(), &outcome.undisturbed);
    if let Some(lap) = &outcome.beside_guests {
        line("guests".to_owned(), lap);
    }
    if let Some(bound) = outcome.bound {
        println!("from here on p99 may be {} ms", ms(bound));
    }
    for lap in &outcome.laps {
        line(lap.at.to_string(), lap);
        lap.round.wrong.iter().for_each(|why| println!("       {why}"));
    }
    match outcome.recovery.took {
        Some(took) => println!("back {} ms after the abusers left", ms(took)),
        None => println!("not back in time: {:?} beyond an idle supervisor", outcome.recovery.beyond),
    }
    println!("played: {:?}", played(outcome));
    match outcome.is_good() {
        true => println!("good"),
        false => println!("BAD: {:?}; the end of its log:\n{}", outcome.against, outcome.log),
    }
}

fn amounts(amounts: Amounts) -> Value {
    let Amounts { resident, shared, descriptors, threads, connections } = amounts;
    json!({
        "resident_bytes": resident, "shared_bytes": shared, "descriptors": descriptors, "threads": threads,
        "connections": connections,
    })
}

fn lap(lap: &Lap) -> Value {
    let round = &lap.round;
    json!({
        "at_s": lap.at, "calls": round.calls, "wrong": round.wrong, "p50_ms": ms(lap.p50), "p99_ms": ms(round.p99),
        "operator_ms": ms(round.operator), "newcomer_ms": ms(round.newcomer), "most": amounts(lap.most), "beyond": amounts(round.beyond),
        "log_lines_per_second": round.log_lines, "against": names(&lap.against),
    })
}

fn names(judgements: &[super::judge::Judgement]) -> Vec<String> {
    judgements.iter().map(|judgement| format!("{judgement:?}")).collect()
}

/// For programs.
pub(crate) fn json(outcome: &Outcome) -> Value {
    let options = &outcome.options;
    let laps: Vec<_> = outcome.laps.iter().map(lap).collect();
    json!({
        "seed": options.seed, "seconds": options.seconds, "workers": options.workers, "switch": options.switch,
        "quotas": if options.tight { "tight" } else { "default" }, "without": options.without,
        "undisturbed": lap(&outcome.undisturbed), "beside_guests": outcome.beside_guests.as_ref().map(lap),
        "bound_ms": outcome.bound.map(ms), "idle": amounts(outcome.idle), "rounds": laps,
        "back_ms": outcome.recovery.took.map(ms), "left_over": amounts(outcome.recovery.beyond),
        "played": played(outcome), "against": names(&outcome.against),
    })
}
