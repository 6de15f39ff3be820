//! Controls: each defence switched off in a supervisor that was built for tests, abused with the part of the grammar
//! that it stands against. The same judge must call that run bad, and the one with the defence good.

use super::Result;
use super::grammar::Part;
use super::judge::Judgement;
use super::options::Options;
use super::{report, run};

/// A defence, or several that only together let something through, by the names in `PAPPUS_TEST_UNDEFENDED`; what finds out that it is off; what is said then, any of these.
struct Control {
    defence: &'static str,
    parts: &'static [Part],
    notices: &'static [Judgement],
    workers: Option<u64>,
}

/// One with as many workers as the options say.
const fn control(defence: &'static str, parts: &'static [Part], notices: &'static [Judgement]) -> Control {
    Control { defence, parts, notices, workers: None }
}

const CONTROLS: [Control; 12] = [
    control("decoding", &[Part::Hollow], &[Judgement::Memory]),
    control("request-bytes", &[Part::Halves], &[Judgement::Memory]),
    control("descriptors", &[Part::Descriptors], &[Judgement::Descriptors]),
    control("plan-bytes", &[Part::Plans], &[Judgement::Memory]),
    control("weight-sharing,weight-bytes", &[Part::Weights], &[Judgement::SharedMemory]),
    Control {
        // Three wait for each other least undisturbed, which bounds p99 closest.
        workers: Some(3),
        ..control("fair-turns,slow-requests", &[Part::Failures], &[Judgement::Latency])
    },
    control(
        "client-io",
        &[Part::BusyInodes, Part::SlowCloses],
        &[Judgement::Answers, Judgement::Latency, Judgement::Operator],
    ),
    control("urgent-bytes", &[Part::Urgent], &[Judgement::Answers, Judgement::Latency, Judgement::Operator]),
    control("logs", &[Part::Tokens, Part::LateSeals], &[Judgement::Log]),
    control("answer-bytes", &[Part::Deaf], &[Judgement::Memory]),
    control("own-functions", &[Part::Cycle], &[Judgement::Evicted]),
    control("whole-device", &[Part::WholeDevice], &[Judgement::Latency, Judgement::Answers]),
];

/// Runs one control, or all; true if each said what it must.
pub(crate) fn run(options: &Options, wanted: &str) -> Result<bool> {
    let chosen: Vec<_> =
        CONTROLS.iter().filter(|control| wanted == "all" || wanted == control.defence).collect();
    if chosen.is_empty() {
        let names = CONTROLS.iter().map(|control| control.defence).collect::<Vec<_>>();
        return Err(format!("no defence is called {wanted}; there are {}", names.join(", ")).into());
    }
    let mut rows = Vec::new();
    for control in chosen {
        let (parts, workers) = (control.parts.to_vec(), control.workers.unwrap_or(options.workers));
        let with = Options { parts, workers, without: None, ..options.clone() };
        let without = Options { without: Some(control.defence.to_owned()), ..with.clone() };
        let (with, without) = (run::run(&with)?, run::run(&without)?);
        let noticed = without.against.iter().any(|judgement| control.notices.contains(judgement));
        for outcome in [&with, &without] {
            report::print(outcome);
        }
        rows.push((control, with.against, without.against, noticed));
    }
    println!("{:<28} {:<20} {:<44} verdict", "defence", "with it", "without it");
    for (control, with, without, noticed) in &rows {
        let verdict = if *noticed && with.is_empty() { "good" } else { "BAD" };
        let (with, without) = (format!("{with:?}"), format!("{without:?}"));
        println!("{:<28} {with:<20} {without:<44} {verdict}", control.defence);
    }
    Ok(rows.iter().all(|(_, with, _, noticed)| *noticed && with.is_empty()))
}
