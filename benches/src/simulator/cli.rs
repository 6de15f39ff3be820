//! What may be asked of the simulator, and what it prints.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::outcome::Outcome;
use super::scenarios::{ALL, Case, Options, Run, Runs, Scenario};
use super::traces::file;
use super::world::Group;
use crate::Result;
use crate::machine::Machine;
use crate::report::{Figure, Report};

/// What is asked for.
#[derive(Debug, clap::Args)]
pub struct Asked {
    /// What to simulate, by name [default: everything but traces of minutes].
    #[arg(value_name = "SCENARIO")]
    scenarios: Vec<String>,
    /// Say which scenarios there are, and no more.
    #[arg(long)]
    list: bool,
    /// Replay the calls of a file instead: a line `SECOND, TENANT, MILLISECONDS` for each.
    #[arg(long, value_name = "FILE", conflicts_with = "scenarios")]
    trace: Option<PathBuf>,
    /// Compare: settings as `--device` takes them, on top of those of the scenario; give it once for each column.
    #[arg(long, value_name = "SETTINGS")]
    rules: Vec<String>,
    /// Of random traces.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// So many devices in every case.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64))]
    devices: Option<u64>,
    /// Simulate so many times as long.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    scale: f64,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
}

/// What `simulate --help` ends with.
pub const EXAMPLES: &str = "Examples:\n  \
    scripts/bench simulate --list                      what there is\n  \
    scripts/bench simulate nine                        nine busy tenants on eight workers\n  \
    scripts/bench simulate few --rules turns=on --rules turns=on,quantum=2ms\n                                                     \
    two rules side by side\n  \
    scripts/bench simulate day --seed 7 --json         one random day, for a program\n  \
    scripts/bench simulate --trace calls.csv --devices 2 --rules workers=16\n\n\
    Time is virtual: it needs no GPU, starts no process, and prints the same for a seed on every machine.\n\
    docs/simulator.md says what is modelled, where each cost comes from and how far it is off.";

/// One simulation, as JSON shows it.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    scenario: &'a str,
    case: &'a str,
    rules: &'a str,
    devices: usize,
    #[serde(flatten)]
    outcome: Outcome,
}

/// All of them.
#[derive(Debug, Serialize)]
struct All<'a> {
    seed: u64,
    simulations: Vec<Shown<'a>>,
    figures: &'a [Figure],
}

/// What is simulated and how it is judged.
struct Plan {
    name: String,
    about: String,
    cases: Vec<Case>,
    scenario: Option<Scenario>,
}

/// Simulates what is asked for.
pub fn run(asked: &Asked, out: &mut dyn Write) -> Result<()> {
    if asked.list {
        for scenario in ALL {
            writeln!(out, "{:<10} {}", scenario.name, scenario.about)?;
        }
        return Ok(());
    }
    if !(asked.scale > 0.0 && asked.scale <= 1000.0) {
        return Err("--scale must be more than 0 and 1000 at most, e.g. --scale 0.5".into());
    }
    let options = Options { seed: asked.seed, scale: asked.scale };
    let plans = plans(asked, &options)?;
    let own = vec![String::new()];
    let rules = if asked.rules.is_empty() { &own } else { &asked.rules };
    let mut report = Report::new(Machine::describe());
    let mut shown = Vec::new();
    for plan in &plans {
        if !asked.json {
            writeln!(out, "{}: {}\n", plan.name, plan.about)?;
            heading(out)?;
        }
        let before = report.len();
        for rules in rules {
            let runs = simulate(plan, rules, asked, &options, out)?;
            if let Some(scenario) = plan.scenario {
                report.begin(scenario.name);
                (scenario.judge)(&runs, &mut report)?;
            }
            for (run, case) in runs.0.into_iter().zip(&plan.cases) {
                let devices = asked.devices.map_or(case.devices, |devices| devices as usize);
                let (scenario, case) = (plan.name.as_str(), case.name.as_str());
                shown.push(Shown { scenario, case, rules, devices, outcome: run.outcome });
            }
        }
        if !asked.json {
            writeln!(out)?;
            if report.len() > before {
                report.print_from(before, out)?;
            }
        }
    }
    if asked.json {
        let all = All { seed: asked.seed, simulations: shown, figures: report.figures() };
        writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?;
    }
    Ok(())
}

fn plans(asked: &Asked, options: &Options) -> Result<Vec<Plan>> {
    if let Some(path) = &asked.trace {
        return Ok(vec![replayed(path, options)?]);
    }
    let find = |name: &String| {
        let found = ALL.into_iter().find(|scenario| scenario.name == name);
        found.ok_or_else(|| {
            format!("there is no scenario {name:?}: simulate --list says which there are").into()
        })
    };
    let scenarios: Vec<Scenario> = match &asked.scenarios[..] {
        [] => ALL.into(),
        names => names.iter().map(find).collect::<Result<_>>()?,
    };
    let plan = |scenario: Scenario| Plan {
        name: scenario.name.to_owned(),
        about: scenario.about.to_owned(),
        cases: (scenario.cases)(options),
        scenario: Some(scenario),
    };
    Ok(scenarios.into_iter().map(plan).collect())
}

/// The calls of a file.
fn replayed(path: &Path, options: &Options) -> Result<Plan> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let (trace, tenants) = file::parse(&text).map_err(|e| format!("{}: {e}", path.display()))?;
    let name = path.display().to_string();
    let about = format!("{} calls of {tenants} tenants", trace.len());
    // A moment for the last answers.
    let last_ns = trace.last().map_or(0, |arrival| arrival.at_ns) + 1_000_000_000;
    let case = Case {
        name: "trace".to_owned(),
        settings: String::new(),
        devices: 1,
        groups: vec![Group::tracing("tenants", tenants, trace)],
        warm_ns: 0,
        measured_ns: (last_ns as f64 / options.scale) as u64,
    };
    Ok(Plan { name, about, cases: vec![case], scenario: None })
}

fn simulate(plan: &Plan, rules: &str, asked: &Asked, options: &Options, out: &mut dyn Write) -> Result<Runs> {
    let mut runs = Runs::default();
    for case in &plan.cases {
        let devices = asked.devices.map_or(case.devices, |devices| devices as usize);
        let case = Case { devices, ..case.clone() };
        let outcome = case.run(rules, options)?;
        if !asked.json {
            let title = if rules.is_empty() { case.name.clone() } else { format!("{} [{rules}]", case.name) };
            print(&title, &outcome, out)?;
        }
        runs.0.push(Run { case: case.name, outcome });
    }
    Ok(runs)
}

fn heading(out: &mut dyn Write) -> Result<()> {
    writeln!(
        out,
        "{:<44} {:>9} {:>8} {:>8} {:>8} {:>9} {:>6} {:>6} {:>8} {:>6} {:>6} {:>6}",
        "",
        "calls/s",
        "p50 ms",
        "p90",
        "p99",
        "longest",
        "failed",
        "Jain",
        "changes/s",
        "resid.",
        "gone",
        "killed"
    )?;
    Ok(())
}

fn print(title: &str, outcome: &Outcome, out: &mut dyn Write) -> Result<()> {
    for (nth, group) in outcome.groups.iter().enumerate() {
        let title = match (nth, outcome.groups.len()) {
            (0, 1) => title.to_owned(),
            (0, _) => format!("{title}: {}", group.name),
            _ => format!("  … {}", group.name),
        };
        write!(
            out,
            "{title:<44} {:>9.0} {:>8.3} {:>8.3} {:>8.3} {:>9.3} {:>6}",
            group.per_second, group.p50_ms, group.p90_ms, group.p99_ms, group.max_ms, group.failed
        )?;
        if nth == 0 {
            let jain = outcome.jain.map_or("-".to_owned(), |jain| format!("{:.3}", jain.least));
            write!(
                out,
                " {jain:>6} {:>9.0} {:>6.1} {:>6} {:>6}",
                outcome.changes_per_second,
                outcome.residents,
                outcome.evictions + outcome.scrubs,
                outcome.kills
            )?;
        }
        writeln!(out)?;
    }
    Ok(())
}
