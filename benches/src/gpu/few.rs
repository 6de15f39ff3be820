//! Eight tenants with few calls in flight each: bare programs that pass turns on, turns on, turns off; matmul 128². What a
//! change of process costs shows here: with one call in flight each, nearly every call brings one.

use super::bed::Bed;
use super::load::{self, Load, USUAL_ROUNDS, jain};
use crate::Result;
use crate::bare::work::Work;
use crate::report::{Report, Unit};

const TENANTS: usize = 8;
const IN_FLIGHT: [usize; 5] = [1, 2, 4, 8, 16];

/// What turns reach of the bare programs that pass them on: with one call in flight, and with more.
const OF_BARE: [f64; 2] = [0.9, 0.8];

pub(super) fn measure(bed: &Bed, report: &mut Report) -> Result<()> {
    let bare = bed.by_turns(&["--work=matmul", "--graph"], TENANTS, &IN_FLIGHT)?;
    let off = rates(bed, report, "off")?;
    let on = rates(bed, report, "on")?;
    for (at, in_flight) in IN_FLIGHT.into_iter().enumerate() {
        let title = format!("matmul 128², 8 tenants, {in_flight} in flight each");
        report.info(format!("{title}, bare programs by turns"), bare[at], Unit::PerSecond);
        let target = OF_BARE[usize::from(in_flight > 1)];
        report.at_least(target, format!("{title}, turns=on / bare programs"), on[at] / bare[at], Unit::Ratio);
        report.at_least(1.0, format!("{title}, turns=on / turns=off"), on[at] / off[at], Unit::Ratio);
    }
    for (rates, in_flight) in on.windows(2).zip(IN_FLIGHT.windows(2)) {
        let what = format!("matmul 128², 8 tenants, {} in flight / {}", in_flight[1], in_flight[0]);
        report.at_least(1.0, what, rates[1] / rates[0], Unit::Ratio);
    }
    Ok(())
}

/// Calls a second for each number in flight.
fn rates(bed: &Bed, report: &mut Report, turns: &str) -> Result<Vec<f64>> {
    let running = bed.start(&format!("workers={TENANTS},lanes=8,memory=64GiB,turns={turns}"))?;
    for tenant in 1..=TENANTS {
        bed.register(&mut load::connect(&running, tenant)?, &["matmul"])?;
    }
    let mut rates = Vec::new();
    for in_flight in IN_FLIGHT {
        let load = Load {
            work: Work::Matmul,
            tenants: TENANTS,
            connections: 1,
            in_flight,
            rounds: USUAL_ROUNDS,
            measured: bed.measured,
        };
        let reached = load::run(&running, load, 1)?;
        let title = format!("matmul 128², 8 tenants, {in_flight} in flight each, turns={turns}");
        report.info(&title, reached.all.per_second, Unit::PerSecond);
        report.info(format!("{title}, p99"), reached.all.p99_ns, Unit::Nanoseconds);
        report.info(format!("{title}, Jain's index of calls"), jain(&reached.tenants), Unit::Ratio);
        rates.push(reached.all.per_second);
    }
    Ok(rates)
}
