//! What fenced code costs: execution in a shared worker beside execution in a worker of the tenant, one call at a time.

use std::collections::HashMap;

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
    let mut took = HashMap::<(usize, bool), Histogram<u64>>::new();
    for fenced in [false, true].repeat(ROUNDS) {
        let running = bed.start(if fenced { SETTINGS } else { "isolation=process" })?;
        let mut client = load::connect(&running, 1)?;
        bed.register(&mut client, &["matmul", "inference"])?;
        for (nth, work) in works.into_iter().enumerate() {
            let calls = Calls::new(&mut client, work.function(), work, 1)?;
            let times = match took.entry((nth, fenced)) {
                std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
                std::collections::hash_map::Entry::Vacant(new) => new.insert(Histogram::new(3)?),
            };
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
    for (nth, work) in works.into_iter().enumerate() {
        let at = |fenced| took.get(&(nth, fenced)).map_or(0.0, |times| times.value_at_quantile(0.5) as f64);
        let ratio = at(true) / at(false);
        product *= ratio;
        let title = format!("{work:?}, one call at a time, execution");
        report.info(format!("{title}, plain code, p50"), at(false), Unit::Nanoseconds);
        report.at_most(EACH, format!("{title}, fenced / plain"), ratio, Unit::Ratio);
    }
    let mean = f64::powf(product, 1.0 / works.len() as f64);
    report.at_most(MEAN, "execution, fenced / plain, geometric mean", mean, Unit::Ratio);
    Ok(())
}
