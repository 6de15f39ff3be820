//! What fenced code costs: execution in a shared worker beside execution in a worker of the tenant, one call at a time.

use hdrhistogram::Histogram;

use super::super::bed::Bed;
use super::super::load::{self, Calls};
use super::SETTINGS;
use crate::Result;
use crate::bare::work::Work;
use crate::report::{Report, Unit};

/// Calls that are not counted, and those that are.
const WARM: usize = 300;
const COUNTED: usize = 1000;
/// In alternation: what clocks do meanwhile is the same for both.
const ROUNDS: usize = 3;
const EACH: f64 = 1.10;
const MEAN: f64 = 1.03;

pub(super) fn measure(bed: &Bed, report: &mut Report) -> Result<()> {
    let works = [Work::Matmul, Work::Inference(10), bed.inference()];
    // Of each work, by plain and by fenced code.
    let mut took = Vec::new();
    for _ in works {
        took.push([Histogram::<u64>::new(3)?, Histogram::new(3)?]);
    }
    for fenced in [false, true].repeat(ROUNDS) {
        let running = bed.start(if fenced { SETTINGS } else { "isolation=process" })?;
        let mut client = load::connect(&running, 1)?;
        bed.register(&mut client, &["matmul", "inference"])?;
        for (times, work) in took.iter_mut().zip(works) {
            let calls = Calls::new(&mut client, work.function(), work, 1)?;
            let times = &mut times[usize::from(fenced)];
            for call in 0..WARM + COUNTED {
                let answer = client.invoke(&calls.calls[0])?;
                if call >= WARM {
                    times.record(answer.timings.unwrap_or_default().execute_ns)?;
                }
            }
            calls.check()?;
        }
    }
    let mut product = 1.0;
    for (times, work) in took.iter().zip(works) {
        let [plain, fenced] = times.each_ref().map(|times| times.value_at_quantile(0.5) as f64);
        let ratio = fenced / plain;
        product *= ratio;
        let title = format!("{work:?}, one call at a time, execution");
        report.info(format!("{title}, plain code, p50"), plain, Unit::Nanoseconds);
        report.at_most(EACH, format!("{title}, fenced / plain"), ratio, Unit::Ratio);
    }
    let mean = f64::powf(product, 1.0 / works.len() as f64);
    report.at_most(MEAN, "execution, fenced / plain, geometric mean", mean, Unit::Ratio);
    Ok(())
}
