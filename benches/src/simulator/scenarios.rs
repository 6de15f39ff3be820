//! What is simulated: each scenario is a few cases, and the numbers that they must reach.

use pappus_supervisor::schedule::TenantShare;

use super::costs::{Costs, Work};
use super::outcome::Outcome;
use super::random::{Odds, Random};
use super::rules;
use super::traces::{self, day};
use super::world::{Group, Setup, World};
use crate::Result;
use crate::report::{Report, Unit};

const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;
/// As the measurements on a GPU have it.
const EIGHT: &str = "workers=8,memory=64GiB";

/// What may be asked for.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Of random traces.
    pub seed: u64,
    /// Times are multiplied by this.
    pub scale: f64,
}

/// One simulation of a scenario.
#[derive(Debug, Clone)]
pub struct Case {
    /// The scenario's name, by which it is judged, too.
    pub name: String,
    /// Settings of the devices.
    pub settings: String,
    /// How many.
    pub devices: usize,
    /// Who calls.
    pub groups: Vec<Group>,
    /// In nanoseconds, before anything counts.
    pub warm_ns: u64,
    /// How long is counted.
    pub measured_ns: u64,
}

/// A case with what came of it.
#[derive(Debug)]
pub struct Run {
    /// Its name.
    pub case: String,
    /// What came of it.
    pub outcome: Outcome,
}

/// All cases of one scenario, for the same rules.
#[derive(Debug, Default)]
pub struct Runs(pub Vec<Run>);

impl Runs {
    fn of(&self, case: &str) -> Result<&Outcome> {
        let run = self.0.iter().find(|run| run.case == case);
        Ok(&run.ok_or_else(|| format!("no case {case:?} was simulated"))?.outcome)
    }

    fn rate(&self, case: &str) -> Result<f64> {
        Ok(self.of(case)?.per_second)
    }
}

/// A scenario.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    /// What it is called.
    pub name: &'static str,
    /// What it is about, in a line.
    pub about: &'static str,
    /// Its cases.
    pub cases: fn(&Options) -> Vec<Case>,
    /// What they must reach.
    pub judge: fn(&Runs, &mut Report) -> Result<()>,
}

/// All of them.
pub const ALL: [Scenario; 15] = [
    Scenario {
        name: "sparse",
        about: "32 tenants, a call every half second each, default settings",
        cases: sparse,
        judge: judge_sparse,
    },
    Scenario {
        name: "zipf",
        about: "256 tenants at the same rate in all, their popularity by Zipf's law",
        cases: zipf,
        judge: judge_zipf,
    },
    Scenario {
        name: "few",
        about: "8 tenants with 1, 2, 4, 8, 16 calls in flight each: turns off, on",
        cases: few,
        judge: judge_few,
    },
    Scenario {
        name: "saturated",
        about: "8 tenants that keep the device busy against one tenant, turns of 5 ms",
        cases: saturated,
        judge: judge_saturated,
    },
    Scenario {
        name: "nine",
        about: "9 busy tenants on 8 workers (replace, scrub), 9 and 32 by default, against 8",
        cases: nine,
        judge: judge_nine,
    },
    Scenario {
        name: "devices",
        about: "4 and 16 tenants on 1, 2, 4, 8 devices",
        cases: devices,
        judge: judge_devices,
    },
    Scenario {
        name: "endless",
        about: "a neighbour of kernels that never end",
        cases: endless,
        judge: judge_endless,
    },
    Scenario {
        name: "fairness",
        about: "8 tenants, loads of 10 to 1, kernels of 100 to 1",
        cases: fairness,
        judge: judge_fairness,
    },
    Scenario {
        name: "shares",
        about: "three busy tenants with weights 1, 2, 4",
        cases: shares,
        judge: judge_shares,
    },
    Scenario {
        name: "idle",
        about: "one busy tenant among seven that are idle",
        cases: idle,
        judge: judge_idle,
    },
    Scenario {
        name: "change",
        about: "what the cost of a change is worth to turns",
        cases: change,
        judge: none,
    },
    Scenario {
        name: "poisson",
        about: "32 tenants, 2000 calls a second at random",
        cases: poisson,
        judge: none,
    },
    Scenario { name: "bursts", about: "32 tenants that send 200 calls at once", cases: bursts, judge: none },
    Scenario { name: "zipf1000", about: "1000 tenants by Zipf's law", cases: zipf_1000, judge: none },
    Scenario { name: "day", about: "1000 tenants, a day like Azure Functions'", cases: a_day, judge: none },
];

impl Case {
    fn new(name: impl Into<String>, settings: &str, groups: Vec<Group>) -> Self {
        let (name, settings) = (name.into(), settings.to_owned());
        Self { name, settings, devices: 1, groups, warm_ns: 4 * S, measured_ns: 2 * S }
    }

    fn on(self, devices: usize) -> Self {
        Self { devices, ..self }
    }

    fn lasting(self, warm_s: u64, measured_s: u64) -> Self {
        Self { warm_ns: warm_s * S, measured_ns: measured_s * S, ..self }
    }

    /// Simulates it, with these rules on top of its own.
    pub fn run(&self, rules_on_top: &str, options: &Options) -> Result<Outcome> {
        self.run_with(rules_on_top, options, Costs::H200)
    }

    fn run_with(&self, rules_on_top: &str, options: &Options, costs: Costs) -> Result<Outcome> {
        let scaled = |ns: u64| (ns as f64 * options.scale) as u64;
        let mut shape = rules::shape(&rules::merged(&self.settings, rules_on_top))?;
        shape.change_ns = costs.change_ns;
        let setup = Setup {
            shape,
            devices: self.devices,
            costs,
            groups: self.groups.clone(),
            warm_ns: scaled(self.warm_ns),
            measured_ns: scaled(self.measured_ns),
            window_ns: scaled(S).min(S),
        };
        Ok(World::new(setup)?.run())
    }
}

fn none(_: &Runs, _: &mut Report) -> Result<()> {
    Ok(())
}

fn sparse(options: &Options) -> Vec<Case> {
    let until_ns = ((30.0 + 60.0) * options.scale * S as f64) as u64;
    let trace = traces::regular(32, 500 * MS, until_ns, Work::MATMUL);
    vec![Case::new("32 tenants", "", vec![Group::tracing("tenants", 32, trace)]).lasting(30, 60)]
}

fn judge_sparse(runs: &Runs, report: &mut Report) -> Result<()> {
    let all = &runs.of("32 tenants")?.groups[0];
    report.at_most(1e6, "32 tenants, a call per 0.5 s each, p50", all.p50_ms * 1e6, Unit::Nanoseconds);
    report.at_most(5e6, "… p99", all.p99_ms * 1e6, Unit::Nanoseconds);
    Ok(())
}

fn zipf(options: &Options) -> Vec<Case> {
    let until_ns = ((90.0 + 120.0) * options.scale * S as f64) as u64;
    let odds = Odds::zipf(256, 1.0);
    let trace = traces::poisson(&Random::new(options.seed), &odds, 64.0, until_ns, Work::MATMUL);
    // As long as calls of `gpu-check sparse` may take.
    let tenants = || Group { deadline_ns: Some(2 * S), ..Group::tracing("tenants", 256, trace.clone()) };
    let case = |name: &str, settings: &str| Case::new(name, settings, vec![tenants()]).lasting(90, 120);
    vec![case(ZIPF, ""), case(ZIPF_SCRUB, "tenant-switch=scrub")]
}

const ZIPF: &str = "256 tenants, replace";
const ZIPF_SCRUB: &str = "256 tenants, scrub";

fn judge_zipf(runs: &Runs, report: &mut Report) -> Result<()> {
    for name in [ZIPF, ZIPF_SCRUB] {
        let all = &runs.of(name)?.groups[0];
        report.at_most(1e6, format!("{name}, 64 calls/s, p50"), all.p50_ms * 1e6, Unit::Nanoseconds);
        report.at_most(50e6, "… p90", all.p90_ms * 1e6, Unit::Nanoseconds);
        report.at_most(1e9, "… longest", all.max_ms * 1e6, Unit::Nanoseconds);
    }
    Ok(())
}

const IN_FLIGHT: [usize; 5] = [1, 2, 4, 8, 16];

fn few(_: &Options) -> Vec<Case> {
    let case = |turns: &'static str| {
        IN_FLIGHT.map(|in_flight| {
            let groups = vec![Group::looping("tenants", 8, in_flight, Work::MATMUL)];
            let settings = rules::merged(EIGHT, &format!("turns={turns}"));
            Case::new(format!("{in_flight} in flight, turns={turns}"), &settings, groups).lasting(5, 3)
        })
    };
    ["off", "on"].into_iter().flat_map(case).collect()
}

fn judge_few(runs: &Runs, report: &mut Report) -> Result<()> {
    let mut before = 0.0;
    for in_flight in IN_FLIGHT {
        let rate = |turns: &str| runs.rate(&format!("{in_flight} in flight, turns={turns}"));
        let (off, on) = (rate("off")?, rate("on")?);
        let title = format!("8 tenants, {in_flight} in flight each");
        report.at_least(0.97, format!("{title}, turns=on / turns=off"), on / off, Unit::Ratio);
        if before > 0.0 {
            report.at_least(1.0, format!("{title}, / half as many"), on / before, Unit::Ratio);
        }
        before = on;
    }
    Ok(())
}

const WORKS: [Work; 2] = [Work::MATMUL, Work::INFERENCE];

fn saturated(_: &Options) -> Vec<Case> {
    let case = |work: Work| {
        [1, 8].into_iter().flat_map(move |tenants| {
            [16, 32].map(|in_flight| {
                let groups = vec![Group::looping("tenants", tenants, in_flight, work)];
                let name = format!("{}, {tenants} × {in_flight}", work.name);
                Case::new(name, &rules::merged(EIGHT, "turns=on"), groups)
            })
        })
    };
    WORKS.into_iter().flat_map(case).collect()
}

fn judge_saturated(runs: &Runs, report: &mut Report) -> Result<()> {
    for Work { name, .. } in WORKS {
        for in_flight in [16, 32] {
            let [one, eight] = [1, 8].map(|n| runs.of(&format!("{name}, {n} × {in_flight}")));
            let eight = eight?;
            let title = format!("{name}, 8 tenants with {in_flight} in flight each");
            let ratio = eight.per_second / one?.per_second;
            report.at_least(0.95, format!("{title}, / one tenant"), ratio, Unit::Ratio);
            report.info(format!("{title}, p99"), eight.groups[0].p99_ms * 1e6, Unit::Nanoseconds);
        }
    }
    Ok(())
}

const NINE: [(&str, &str, usize); 5] = [
    ("8 on 8", "workers=8,memory=64GiB", 8),
    ("9 on 8, replace", "workers=8,memory=64GiB,tenant-switch=replace", 9),
    ("9 on 8, scrub", "workers=8,memory=64GiB,tenant-switch=scrub", 9),
    ("9 by default", "", 9),
    ("32 by default", "", 32),
];

fn nine(_: &Options) -> Vec<Case> {
    let case = |work: Work| {
        NINE.map(|(name, settings, tenants)| {
            let groups = vec![Group::looping("tenants", tenants, 16, work)];
            // 32 processes take 21 s to start.
            let warm_s = if tenants == 32 { 28 } else { 6 };
            Case::new(format!("{}, {name}", work.name), settings, groups).lasting(warm_s, 6)
        })
    };
    WORKS.into_iter().flat_map(case).collect()
}

fn judge_nine(runs: &Runs, report: &mut Report) -> Result<()> {
    for Work { name, .. } in WORKS {
        let eight = runs.rate(&format!("{name}, 8 on 8"))?;
        for ((case, ..), target) in NINE[1..].iter().zip([0.6, 0.9, 0.9, 0.9]) {
            let outcome = runs.of(&format!("{name}, {case}"))?;
            let title = format!("{name}, {case}");
            report.at_least(target, format!("{title}, / 8 on 8"), outcome.per_second / eight, Unit::Ratio);
            let whole = outcome.jain.map_or(0.0, |jain| jain.whole);
            report.at_least(0.95, format!("{title}, Jain's index of device time"), whole, Unit::Ratio);
        }
    }
    Ok(())
}

const DEVICES: [usize; 4] = [1, 2, 4, 8];

fn devices(_: &Options) -> Vec<Case> {
    let mut cases = Vec::new();
    for work in WORKS {
        for tenants in [4, 16] {
            for devices in DEVICES.into_iter().filter(|devices| *devices <= tenants) {
                let groups = vec![Group::looping("tenants", tenants, 16, work)];
                let name = format!("{}, {tenants} tenants, {devices} devices", work.name);
                cases.push(Case::new(name, "", groups).on(devices).lasting(10, 2));
            }
        }
    }
    let one = vec![Group::looping("tenants", 1, 8, Work::MATMUL)];
    cases.push(Case::new("one tenant that fits, 2 devices", "", one).on(2));
    cases
}

fn judge_devices(runs: &Runs, report: &mut Report) -> Result<()> {
    for Work { name, .. } in WORKS {
        for tenants in [4, 16] {
            let rate = |devices| runs.rate(&format!("{name}, {tenants} tenants, {devices} devices"));
            let one = rate(1)?;
            for devices in DEVICES[1..].iter().copied().filter(|devices| *devices <= tenants) {
                let what = format!("{name}, {tenants} tenants, {devices} devices / one");
                report.at_least(0.95 * devices as f64, what, rate(devices)? / one, Unit::Ratio);
            }
        }
    }
    let stays = runs.of("one tenant that fits, 2 devices")?.residents;
    report.at_most(1.0, "a tenant that fits one of 2 devices, devices that it uses", stays, Unit::Count);
    Ok(())
}

fn endless(_: &Options) -> Vec<Case> {
    let neighbour = || Group::looping("neighbour", 1, 8, Work::MATMUL);
    let endless = Group { deadline_ns: Some(10 * S), ..Group::looping("endless", 1, 1, Work::ENDLESS) };
    vec![
        Case::new("alone", EIGHT, vec![neighbour()]),
        Case::new("beside endless kernels", EIGHT, vec![neighbour(), endless]).lasting(4, 60),
    ]
}

fn judge_endless(runs: &Runs, report: &mut Report) -> Result<()> {
    let beside = &runs.of("beside endless kernels")?.groups[0];
    report.at_most(50e6, "neighbour of endless kernels, p99", beside.p99_ms * 1e6, Unit::Nanoseconds);
    let ratio = beside.least_per_second / runs.rate("alone")?;
    report.at_least(0.4, "… over any 10 s, / its rate alone", ratio, Unit::Ratio);
    Ok(())
}

fn fairness(_: &Options) -> Vec<Case> {
    let long = Work::lasting("long", 3_500_000, 4.6);
    let group = |name: &str, in_flight, work| Group::looping(name, 2, in_flight, work);
    let groups = vec![
        group("short, light", 64, Work::MATMUL),
        group("short, heavy", 640, Work::MATMUL),
        group("long, light", 64, long),
        group("long, heavy", 640, long),
    ];
    vec![Case::new("8 tenants", EIGHT, groups).lasting(5, 10)]
}

fn judge_fairness(runs: &Runs, report: &mut Report) -> Result<()> {
    let jain = runs.of("8 tenants")?.jain.map_or(0.0, |jain| jain.least);
    let what = "8 tenants, load 10:1, kernels 100:1, Jain's index of device time in 1 s";
    report.at_least(0.99, what, jain, Unit::Ratio);
    Ok(())
}

fn shares(_: &Options) -> Vec<Case> {
    let group = |weight: u32| Group {
        share: TenantShare { weight, ..TenantShare::default() },
        ..Group::looping(format!("weight {weight}"), 1, 32, Work::MATMUL)
    };
    vec![Case::new("1:2:4", EIGHT, [1, 2, 4].map(group).into()).lasting(5, 10)]
}

fn judge_shares(runs: &Runs, report: &mut Report) -> Result<()> {
    for (group, weight) in runs.of("1:2:4")?.groups.iter().zip([1.0, 2.0, 4.0]) {
        let off = (group.device_share / (weight / 7.0) - 1.0).abs();
        report.at_most(0.02, format!("{}, off its share by", group.name), off, Unit::Ratio);
    }
    Ok(())
}

fn idle(_: &Options) -> Vec<Case> {
    let busy = || Group::looping("busy", 1, 16, Work::MATMUL);
    // Each calls once, and keeps its process.
    let calls = traces::regular(7, S, S, Work::MATMUL);
    vec![
        Case::new("alone", EIGHT, vec![busy()]).lasting(5, 2),
        Case::new("among idle ones", EIGHT, vec![busy(), Group::tracing("idle", 7, calls)]).lasting(5, 2),
    ]
}

fn judge_idle(runs: &Runs, report: &mut Report) -> Result<()> {
    let ratio = runs.of("among idle ones")?.groups[0].per_second / runs.rate("alone")?;
    report.at_least(0.97, "one busy tenant among seven idle ones, / alone", ratio, Unit::Ratio);
    Ok(())
}

/// The cost of a change itself cannot be set by rules: early turns and quanta are what there is to compare.
fn change(_: &Options) -> Vec<Case> {
    let groups = || vec![Group::looping("tenants", 8, 16, Work::MATMUL)];
    let settings = |on_top: &str| rules::merged(&rules::merged(EIGHT, "turns=on"), on_top);
    let case = |on_top: &str| Case::new(format!("8 × 16, {on_top}"), &settings(on_top), groups());
    ["quantum=1ms", "quantum=2ms", "quantum=5ms", "quantum=10ms"].map(case).into()
}

fn poisson(options: &Options) -> Vec<Case> {
    let until_ns = (45.0 * options.scale * S as f64) as u64;
    let odds = Odds::new([1.0; 32]);
    let trace = traces::poisson(&Random::new(options.seed), &odds, 2000.0, until_ns, Work::MATMUL);
    vec![Case::new("2000/s", "workers=32", vec![Group::tracing("tenants", 32, trace)]).lasting(25, 20)]
}

fn bursts(options: &Options) -> Vec<Case> {
    let until_ns = (45.0 * options.scale * S as f64) as u64;
    let random = Random::new(options.seed);
    let trace = traces::bursts(&random, 32, 0.1, 200.0, 20_000.0, until_ns, Work::MATMUL);
    vec![Case::new("bursts", "", vec![Group::tracing("tenants", 32, trace)]).lasting(25, 20)]
}

fn zipf_1000(options: &Options) -> Vec<Case> {
    let until_ns = (210.0 * options.scale * S as f64) as u64;
    let odds = Odds::zipf(1000, 1.0);
    let trace = traces::poisson(&Random::new(options.seed), &odds, 200.0, until_ns, Work::MATMUL);
    let case = |name: &str, settings: &str| {
        Case::new(name, settings, vec![Group::tracing("tenants", 1000, trace.clone())]).lasting(90, 120)
    };
    vec![case("replace", ""), case("replace, 4 standbys", "standbys=4"), case("scrub", "tenant-switch=scrub")]
}

fn a_day(options: &Options) -> Vec<Case> {
    let until_ns = (600.0 * options.scale * S as f64) as u64;
    let trace = day::day(&Random::new(options.seed), 1000, 200.0, until_ns);
    let case = |name: &str, settings: &str| {
        Case::new(name, settings, vec![Group::tracing("tenants", 1000, trace.clone())]).lasting(60, 540)
    };
    vec![case("replace", ""), case("scrub", "tenant-switch=scrub")]
}
