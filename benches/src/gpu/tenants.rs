//! Eight tenants in eight workers that submit by turns, against one tenant with the same lanes; the same with
//! turns switched off, with other quanta, and with nine tenants on eight workers.

use super::bed::{Bed, Running};
use super::load::{self, Calls, Load, Reached, USUAL_ROUNDS, jain};
use crate::Result;
use crate::bare::work::Work;
use crate::report::{Report, Unit};

const WORKERS: usize = 8;
const QUANTA_MS: [u32; 3] = [2, 5, 10];
const DEFAULT_QUANTUM_MS: u32 = 5;
const TARGET: f64 = 0.95;
/// What nine tenants on eight workers reach of eight.
const REPLACE_TARGET: f64 = 0.6;
const SCRUB_TARGET: f64 = 0.9;
/// Tenants by default settings, where there is a worker for each, and what they reach of eight.
const WIDE: [usize; 2] = [9, 32];
const WIDE_TARGET: f64 = 0.9;

pub(super) fn measure(bed: &Bed, report: &mut Report) -> Result<()> {
    let mut alone = Vec::new();
    let running = bed.start("workers=1,lanes=8,memory=16GiB")?;
    register(bed, &running, 0..1)?;
    for (work, name) in works(bed) {
        let rate = load::run(&running, one_tenant(bed, work), 0)?.all;
        report.info(format!("{name}, one tenant, 8 lanes"), rate.per_second, Unit::PerSecond);
        alone.push(rate.per_second);
    }
    drop(running);

    for quantum in QUANTA_MS {
        let running = bed.start(&settings(&format!("turns=on,quantum={quantum}ms")))?;
        register(bed, &running, 1..WORKERS + 1)?;
        for ((work, name), alone) in works(bed).iter().zip(&alone) {
            let reached = load::run(&running, tenants(bed, *work, WORKERS), 1)?;
            let title = format!("{name}, 8 tenants by turns, quantum {quantum} ms");
            shown(report, &title, &reached);
            let (what, ratio) = (format!("{title}, / one tenant"), reached.all.per_second / alone);
            if quantum == DEFAULT_QUANTUM_MS {
                report.at_least(TARGET, what, ratio, Unit::Ratio);
            } else {
                report.info(what, ratio, Unit::Ratio);
            }
        }
    }

    let running = bed.start(&settings("turns=off"))?;
    register(bed, &running, 1..WORKERS + 1)?;
    for ((work, name), alone) in works(bed).iter().zip(&alone) {
        let reached = load::run(&running, tenants(bed, *work, WORKERS), 1)?;
        let title = format!("{name}, 8 tenants, turns off");
        shown(report, &title, &reached);
        report.info(format!("{title}, / one tenant"), reached.all.per_second / alone, Unit::Ratio);
    }
    drop(running);
    bare(bed, report)
}

/// What bare programs lose by the same turns: passed on behind the last call, while the last calls still run, and with the
/// next program's first calls submitted ahead, behind a gate.
fn bare(bed: &Bed, report: &mut Report) -> Result<()> {
    let quantum = format!("--quantum-us={}", DEFAULT_QUANTUM_MS * 1000);
    for ((_, name), work) in works(bed).iter().zip(["--work=inference", "--work=matmul"]) {
        let args = [work, "--graph", "--clearing", &quantum];
        let alone: f64 = bed.by_turns(&args, 1, &[8])?.iter().sum();
        for (how, early) in [
            ("behind its last call", None),
            ("while its last calls run", Some("--early")),
            ("behind its last call, submitted ahead", Some("--ahead")),
        ] {
            let args = [&args[..], early.as_slice()].concat();
            let all: f64 = bed.by_turns(&args, WORKERS, &[8])?.iter().sum();
            let title = format!("{name}, 8 bare programs by turns, passed on {how}");
            report.info(&title, all, Unit::PerSecond);
            report.info(format!("{title}, / one"), all / alone, Unit::Ratio);
        }
    }
    Ok(())
}

/// One tenant more than there are workers: a tenant has to give its worker away again and again, and the next one gets
/// another process or the same one scrubbed.
pub(super) fn nine(bed: &Bed, report: &mut Report) -> Result<()> {
    let running = bed.start(&settings(&format!("turns=on,quantum={DEFAULT_QUANTUM_MS}ms")))?;
    register(bed, &running, 1..WORKERS + 1)?;
    let mut eight = Vec::new();
    for (work, name) in works(bed) {
        let reached = load::run(&running, tenants(bed, work, WORKERS), 1)?;
        report.info(format!("{name}, 8 tenants"), reached.all.per_second, Unit::PerSecond);
        eight.push(reached.all.per_second);
    }
    drop(running);
    for (switch, target) in [("replace", REPLACE_TARGET), ("scrub", SCRUB_TARGET)] {
        nine_with(bed, &eight, switch, target, report)?;
    }
    wide(bed, report)
}

/// More tenants than eight, by default settings: each of them has a process, and only turns change.
fn wide(bed: &Bed, report: &mut Report) -> Result<()> {
    let running = bed.start("")?;
    let most = WIDE.into_iter().fold(WORKERS, usize::max);
    register(bed, &running, 1..most + 1)?;
    for tenant in 1..most + 1 {
        have_process(bed, &running, tenant)?;
    }
    for (work, name) in works(bed) {
        let eight = load::run(&running, tenants(bed, work, WORKERS), 1)?.all.per_second;
        report.info(format!("{name}, 8 tenants, default settings"), eight, Unit::PerSecond);
        for count in WIDE {
            // Some rounds of turns: one of 32 tenants takes a third of a second.
            let load = Load { measured: bed.measured * 5, ..tenants(bed, work, count) };
            let reached = load::run(&running, load, 1)?;
            let title = format!("{name}, {count} tenants, default settings");
            shown(report, &title, &reached);
            report.at_least(
                WIDE_TARGET,
                format!("{title}, / 8 tenants"),
                reached.all.per_second / eight,
                Unit::Ratio,
            );
        }
    }
    Ok(())
}

/// A tenant's first call brings it a process. To make two dozen of them beside busy tenants took the driver more than 20 s on an H200,
/// which is not what is measured here.
fn have_process(bed: &Bed, running: &Running, tenant: usize) -> Result<()> {
    let (mut client, work) = (load::connect(running, tenant)?, bed.inference());
    let one = Calls::new(&mut client, work.function(), work, 1)?;
    load::call(&mut client, &one.calls[0])?;
    one.check()
}

fn nine_with(bed: &Bed, eight: &[f64], switch: &str, target: f64, report: &mut Report) -> Result<()> {
    let turns = format!("turns=on,quantum={DEFAULT_QUANTUM_MS}ms,tenant-switch={switch}");
    let running = bed.start(&settings(&turns))?;
    register(bed, &running, 1..WORKERS + 2)?;
    for ((work, name), eight) in works(bed).iter().zip(eight) {
        let before = switches(&running)?;
        // Every tenant loses its worker again and again, so no tenant is ever warm; but what is compared begins when
        // the eight processes are there, and each tenant had one.
        let load = Load { rounds: 1, measured: bed.measured * 5, ..tenants(bed, *work, WORKERS + 1) };
        let start = std::time::Instant::now();
        let reached = load::run(&running, load, 1)?;
        // Of those of the whole run as many as fall into what is measured.
        let measured = load.measured.as_secs_f64() / start.elapsed().as_secs_f64();
        let switches = (switches(&running)? - before) as f64 * measured;
        let title = format!("{name}, 9 tenants on 8 workers, tenant-switch={switch}");
        shown(report, &title, &reached);
        report.at_least(target, format!("{title}, / 8 tenants"), reached.all.per_second / eight, Unit::Ratio);
        report.info(format!("{title}, switches"), switches, Unit::Count);
        // What is missing to the rate of eight, in time, for each switch.
        let missing = (1.0 - reached.all.per_second / eight).max(0.0) * load.measured.as_secs_f64();
        if switches > 0.0 {
            report.info(
                format!("{title}, device time lost by a switch"),
                missing * 1e9 / switches,
                Unit::Nanoseconds,
            );
        }
    }
    Ok(())
}

fn works(bed: &Bed) -> [(Work, &'static str); 2] {
    [(bed.inference(), "inference ×500"), (Work::Matmul, "matmul 128²")]
}

fn shown(report: &mut Report, title: &str, reached: &Reached) {
    report.info(title, reached.all.per_second, Unit::PerSecond);
    report.info(format!("{title}, p99"), reached.all.p99_ns, Unit::Nanoseconds);
    report.info(format!("{title}, Jain's index of calls"), jain(&reached.tenants), Unit::Ratio);
}

fn settings(turns: &str) -> String {
    format!("workers={WORKERS},lanes=8,memory=64GiB,{turns}")
}

/// Every tenant registers its own functions.
fn register(bed: &Bed, running: &Running, tenants: std::ops::Range<usize>) -> Result<()> {
    for tenant in tenants {
        bed.register(&mut load::connect(running, tenant)?, &["inference", "matmul"])?;
    }
    Ok(())
}

fn one_tenant(bed: &Bed, work: Work) -> Load {
    Load { work, tenants: 1, connections: 4, in_flight: 4, rounds: USUAL_ROUNDS, measured: bed.measured }
}

/// As many calls in flight of each, on as many connections, as one tenant alone has.
fn tenants(bed: &Bed, work: Work, tenants: usize) -> Load {
    Load { tenants, ..one_tenant(bed, work) }
}

fn switches(running: &Running) -> Result<u64> {
    let status = running.admin()?.status()?;
    let workers = status.devices.iter().flat_map(|device| &device.workers);
    Ok(workers.map(|worker| worker.restarts + worker.scrubs).sum())
}
