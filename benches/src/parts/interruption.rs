//! Kernels of the library whose code looks in each loop whether its call's time is over, against the same that run to their end: one
//! thread each.

use crate::Result;
use crate::harness::sampling::Samples;
use crate::kernels::{cases, wasm};
use crate::report::{Report, Unit};

/// About this much time goes into a side of a round.
const ROUND_NS: f64 = 20e6;
const MEAN_TARGET: f64 = 1.1;

pub(super) fn measure(rounds: u32, report: &mut Report) -> Result<()> {
    let engine = wasm::engine()?;
    let mut logarithms = Vec::new();
    for case in cases::all() {
        let mut bare = wasm::Kernel::load(&engine, &case, false)?;
        let mut own = wasm::Kernel::load(&engine, &case, true)?;
        bare.run()?;
        own.run()?;
        if own.buffer(case.result)? != bare.buffer(case.result)? {
            return Err(format!("{}: interruptible code differs in its result", case.title).into());
        }
        let mut trial = Samples::new()?;
        trial.round(5, || bare.run())?;
        let times = (ROUND_NS / trial.p50()).clamp(5.0, 2000.0) as u32;
        let (mut floor, mut took) = (Samples::new()?, Samples::new()?);
        for _ in 0..rounds {
            floor.round(times, || bare.run())?;
            took.round(times, || own.run())?;
        }
        let ratio = took.ratio_to(&floor);
        logarithms.push(ratio.ln());
        report.info(format!("{}, interruptible against plain", case.title), ratio, Unit::Ratio);
    }
    let mean = (logarithms.iter().sum::<f64>() / logarithms.len() as f64).exp();
    let line = "all kernels, interruptible against plain, geometric mean";
    report.at_most(MEAN_TARGET, line.to_owned(), mean, Unit::Ratio);
    Ok(())
}
