//! Tenants on shared workers with few calls in flight each, beside one tenant with as many.

use super::super::bed::Bed;
use super::super::load::{self, Load, USUAL_ROUNDS, jain};
use super::{SETTINGS, register};
use crate::Result;
use crate::bare::work::Work;
use crate::report::{Report, Unit};

/// Tenants and their calls in flight, and what the sum reaches of one tenant with as many.
const CROWDS: [(usize, usize, f64); 3] = [(8, 1, 0.85), (64, 1, 0.85), (8, 16, 0.95)];

pub(crate) fn measure(bed: &Bed, report: &mut Report) -> Result<()> {
    for work in [bed.inference(), Work::Matmul] {
        // What one kind of work cannot show, the other can.
        if let Err(error) = beside_one(bed, report, work) {
            report.fail(format!("{error}{}", bed.last_words()));
        }
    }
    Ok(())
}

/// Many tenants beside one with as many calls in flight.
fn beside_one(bed: &Bed, report: &mut Report, work: Work) -> Result<()> {
    let running = bed.start(SETTINGS)?;
    let most = CROWDS.iter().map(|(tenants, ..)| *tenants).max().unwrap_or(1);
    register(bed, &running, most, &[work.function()])?;
    for (tenants, in_flight, target) in CROWDS {
        // One tenant has as many connections, so that clients take as much of the processors.
        let reach = |tenants, connections| {
            let load =
                Load { work, tenants, connections, in_flight, rounds: USUAL_ROUNDS, measured: bed.measured };
            load::run(&running, load, 1)
        };
        let one = reach(1, tenants)?;
        let many = reach(tenants, 1)?;
        let title =
            format!("{}, {tenants} tenants, {in_flight} in flight each, isolation=auto", work.function());
        report.info(&title, many.all.per_second, Unit::PerSecond);
        report.info(format!("{title}, p99"), many.all.p99_ns, Unit::Nanoseconds);
        report.info(format!("{title}, Jain's index of calls"), jain(&many.tenants), Unit::Ratio);
        let ratio = many.all.per_second / one.all.per_second;
        report.at_least(target, format!("{title}, / one tenant with as many"), ratio, Unit::Ratio);
        let apart = running.admin()?.status()?.devices.into_iter().flat_map(|device| device.kept_apart);
        report.at_most(0.0, format!("{title}, functions kept apart"), apart.count() as f64, Unit::Count);
    }
    Ok(())
}
