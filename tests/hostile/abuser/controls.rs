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
}

const CONTROLS: [Control; 11] = [
    Control { defence: "decoding", parts: &[Part::Hollow], notices: &[Judgement::Memory] },
    Control { defence: "request-bytes", parts: &[Part::Halves], notices: &[Judgement::Memory] },
    Control { defence: "descriptors", parts: &[Part::Descriptors], notices: &[Judgement::Descriptors] },
    Control { defence: "plan-bytes", parts: &[Part::Plans], notices: &[Judgement::Memory] },
    Control {
        defence: "weight-sharing,weight-bytes",
        parts: &[Part::Weights],
        notices: &[Judgement::SharedMemory],
    },
    Control {
        defence: "fair-turns",
        parts: &[Part::Failures, Part::Floods],
        notices: &[Judgement::Latency, Judgement::Operator],
    },
    Control {
        defence: "client-io",
        parts: &[Part::BusyInodes, Part::SlowCloses],
        notices: &[Judgement::Answers, Judgement::Latency, Judgement::Operator],
    },
    Control { defence: "logs", parts: &[Part::Tokens, Part::LateSeals], notices: &[Judgement::Log] },
    Control { defence: "answer-bytes", parts: &[Part::Deaf], notices: &[Judgement::Memory] },
    Control { defence: "loaded-functions", parts: &[Part::Cycle], notices: &[Judgement::Latency] },
    Control {
        defence: "whole-device",
        parts: &[Part::WholeDevice],
        notices: &[Judgement::Latency, Judgement::Answers],
    },
];

/// Runs one control, or all of them; whether each said what it must.
pub(crate) fn run(options: &Options, wanted: &str) -> Result<bool> {
    let chosen: Vec<_> =
        CONTROLS.iter().filter(|control| wanted == "all" || wanted == control.defence).collect();
    if chosen.is_empty() {
        let names = CONTROLS.iter().map(|control| control.defence).collect::<Vec<_>>();
        return Err(format!("no defence is called {wanted}; there are {}", names.join(", ")).into());
    }
    let mut rows = Vec::new();
    for control in chosen {
        let with = Options { parts: control.parts.to_vec(), without: None, ..options.clone() };
        let without = Options { without: Some(control.defence.to_owned()), ..with.clone() };
        let (with, without) = (run::run(&with)?, run::run(&without)?);
        let noticed = without.against.iter().any(|judgement| control.notices.contains(judgement));
        for outcome in [&with, &without] {
            report::print(outcome);
        }
        rows.push((control, with.against, without.against, noticed));
    }
    println!("{:<16} {:<28} {:<40} verdict", "defence", "with it", "without it");
    for (control, with, without, noticed) in &rows {
        let verdict = if *noticed && with.is_empty() { "good" } else { "BAD" };
        let (with, without) = (format!("{with:?}"), format!("{without:?}"));
        println!("{:<16} {with:<28} {without:<40} {verdict}", control.defence);
    }
    Ok(rows.iter().all(|(_, with, _, noticed)| *noticed && with.is_empty()))
}
