//! What clearing costs of saturated throughput: bare programs with and without the fills that Pappus makes,
//! Pappus itself where it can be told not to clear, and `scrub=call`.

use super::bed::{Bed, Running};
use super::inference::{ROUNDS, saturating};
use super::load;
use crate::Result;
use crate::bare::work::Work;
use crate::harness::sampling::median;
use crate::report::{Report, Unit};

/// The lanes at which both are about as fast as they get.
const LANES: usize = 16;
const TARGET: f64 = 0.95;

pub(super) fn measure(bed: &Bed, report: &mut Report) -> Result<()> {
    for (_, name, flag) in works(bed) {
        let mut ratios = Vec::new();
        for _ in 0..ROUNDS {
            let plain = bed.bare(&[flag, "--graph"], &[1], &[LANES])?;
            let cleared = bed.bare(&[flag, "--graph", "--clearing"], &[1], &[LANES])?;
            ratios.push(cleared[0].per_second / plain[0].per_second);
        }
        // The usual way to clear, not Pappus': nothing is promised about it.
        report.info(format!("{name}, bare, with fills / without"), median(&ratios), Unit::Ratio);
    }
    for (work, name, _) in works(bed) {
        let settings = format!("workers=1,lanes={LANES},memory=16GiB");
        let usual = rate(bed, work, &settings)?;
        report.info(format!("{name}, Pappus, cleared"), usual, Unit::PerSecond);
        // The workers of the tests only, which lie beside where `scripts/gpu-check build` puts them.
        match bed.start_uncleared(&settings).and_then(|running| rate_of(bed, &running, work)) {
            Ok(uncleared) => {
                report.info(format!("{name}, Pappus, not cleared"), uncleared, Unit::PerSecond);
                let what = format!("{name}, Pappus, cleared / not cleared");
                report.at_least(TARGET, what, usual / uncleared, Unit::Ratio);
            }
            Err(error) => report.skip(format!("{name}: no workers that can be told not to clear: {error}")),
        }
        match rate(bed, work, &format!("{settings},scrub=call")) {
            Ok(scrubbed) => {
                report.info(format!("{name}, Pappus, scrub=call"), scrubbed, Unit::PerSecond);
                report.info(format!("{name}, … / cleared"), scrubbed / usual, Unit::Ratio);
            }
            Err(error) => report.fail(format!("{name}, scrub=call: {error}{}", bed.last_words())),
        }
    }
    Ok(())
}

/// What is run, its name, and the bare program's flag.
fn works(bed: &Bed) -> [(Work, &'static str, &'static str); 2] {
    [(bed.inference(), "inference ×500", "--work=inference"), (Work::Matmul, "matmul 128²", "--work=matmul")]
}

fn rate(bed: &Bed, work: Work, settings: &str) -> Result<f64> {
    rate_of(bed, &bed.start(settings)?, work)
}

fn rate_of(bed: &Bed, running: &Running, work: Work) -> Result<f64> {
    bed.register(&mut running.connect()?, &[work.function()])?;
    Ok(load::run(running, saturating(bed, work, LANES), 0)?.all.per_second)
}
