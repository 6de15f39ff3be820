//! What came of a run, as a table and as JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::judge::{Amounts, Round};
use super::run::Outcome;

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
        "{:>6} {:>8} {:>6} {:>9} {:>9} {:>9} {:>7} {:>8} {:>7} {:>7}  against it",
        "s", "honest", "wrong", "p50 ms", "p99 ms", "operator", "MiB", "beyond", "fds", "lines/s"
    );
    let line = |name: String, round: &Round, against: &dyn std::fmt::Debug| {
        println!(
            "{name:>6} {:>8} {:>6} {:>9} {:>9} {:>9} {:>7} {:>8} {:>7} {:>7}  {against:?}",
            round.calls,
            round.wrong.len(),
            ms(round.p50),
            ms(round.p99),
            ms(round.operator),
            mib(round.most.resident),
            mib(round.beyond.resident),
            round.most.descriptors,
            round.log_lines
        );
    };
    line("idle".to_owned(), &outcome.undisturbed, &"");
    for (round, against) in &outcome.rounds {
        line(round.at.to_string(), round, against);
        round.wrong.iter().for_each(|why| println!("       {why}"));
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

fn round(round: &Round) -> Value {
    json!({
        "at_s": round.at, "calls": round.calls, "wrong": round.wrong, "p50_ms": ms(round.p50), "p99_ms": ms(round.p99),
        "operator_ms": ms(round.operator), "most": amounts(round.most), "beyond": amounts(round.beyond),
        "log_lines_per_second": round.log_lines,
    })
}

fn names(judgements: &[super::judge::Judgement]) -> Vec<String> {
    judgements.iter().map(|judgement| format!("{judgement:?}")).collect()
}

/// For programs.
pub(crate) fn json(outcome: &Outcome) -> Value {
    let options = &outcome.options;
    let rounds = outcome.rounds.iter().map(|(measured, against)| {
        let mut value = round(measured);
        value["against"] = json!(names(against));
        value
    });
    json!({
        "seed": options.seed, "seconds": options.seconds, "workers": options.workers, "switch": options.switch,
        "quotas": if options.tight { "tight" } else { "default" }, "without": options.without,
        "undisturbed": round(&outcome.undisturbed), "idle": amounts(outcome.idle), "rounds": rounds.collect::<Vec<_>>(),
        "back_ms": outcome.recovery.took.map(ms), "left_over": amounts(outcome.recovery.beyond),
        "played": played(outcome), "against": names(&outcome.against),
    })
}
