//! What clearing costs of saturated throughput: bare programs with and without the fills that Pappus makes,
//! Pappus itself where it can be told not to clear, and `scrub=call`.

use super::bed::Bed;
use super::inference::{REPETITIONS, ROUNDS, saturating};
use super::load;
use crate::Result;
use crate::bare::work::Work;
use crate::harness::sampling::median;
use crate::report::{Report, Unit};

/// A work, its name, the bare program's flag, and the lanes at which it is fastest.
const WORKS: [(Work, &str, &str, usize); 2] = [
    (Work::Inference(REPETITIONS), "inference ×500", "--work=inference", 16),
    (Work::Matmul, "matmul 128²", "--work=matmul", 16),
];
const TARGET: f64 = 0.95;

pub(super) fn measure(bed: &Bed, report: &mut Report) -> Result<()> {
    for (_, name, flag, lanes) in WORKS {
        let mut ratios = Vec::new();
        for _ in 0..ROUNDS {
            let plain = bed.bare(&[flag, "--graph"], &[1], &[lanes])?;
            let cleared = bed.bare(&[flag, "--graph", "--clearing"], &[1], &[lanes])?;
            ratios.push(cleared[0].per_second / plain[0].per_second);
        }
        report.at_least(TARGET, format!("{name}, bare, with fills / without"), median(&ratios), Unit::Ratio);
    }
    for (work, name, _, lanes) in WORKS {
        let settings = format!("workers=1,lanes={lanes},memory=16GiB");
        let usual = rate(bed, work, &settings)?;
        report.info(format!("{name}, Pappus, cleared"), usual, Unit::PerSecond);
        // Only builds made for measuring understand this.
        match rate(bed, work, &format!("{settings},clear=off")) {
            Ok(uncleared) => {
                report.info(format!("{name}, Pappus, not cleared"), uncleared, Unit::PerSecond);
                let what = format!("{name}, Pappus, cleared / not cleared");
                report.at_least(TARGET, what, usual / uncleared, Unit::Ratio);
            }
            Err(_) => report.skip(format!("{name}: this build of Pappus cannot be told not to clear")),
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

fn rate(bed: &Bed, work: Work, settings: &str) -> Result<f64> {
    let running = bed.start(settings)?;
    bed.register(&mut running.connect()?, &[work.function()])?;
    let lanes = 16;
    Ok(load::run(&running, saturating(bed, work, lanes), 0)?.all.per_second)
}
