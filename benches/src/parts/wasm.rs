//! Kernels as wasm, as the CPU device runs them, against the same C compiled natively: one thread each.

use crate::Result;
use crate::harness::sampling::Samples;
use crate::kernels::{cases, native, wasm};
use crate::report::{Report, Unit};

/// About this much time goes into a side of a round.
const ROUND_NS: f64 = 20e6;
const TARGET: f64 = 2.2;

pub(super) fn measure(rounds: u32, report: &mut Report) -> Result<()> {
    let library = match native::Library::build()? {
        native::Built::Ready(library) => library,
        native::Built::Missing(what) => {
            report.skip(what);
            return Ok(());
        }
    };
    let engine = wasm::engine()?;
    for case in cases::all() {
        let mut wasm = wasm::Kernel::load(&engine, &case, false)?;
        let mut native = library.kernel(&case)?;
        wasm.run()?;
        native.run();
        if wasm.buffer(case.result)? != native.buffer(case.result) {
            return Err(format!("{}: wasm and native code differ in their results", case.title).into());
        }
        let mut trial = Samples::new()?;
        trial.round(5, || wasm.run())?;
        let times = (ROUND_NS / trial.p50()).clamp(5.0, 2000.0) as u32;
        let (mut bare, mut own) = (Samples::new()?, Samples::new()?);
        for _ in 0..rounds {
            bare.round(times, || {
                native.run();
                Ok(())
            })?;
            own.round(times, || wasm.run())?;
        }
        let (title, ratio) = (&case.title, own.ratio_to(&bare));
        report.info(format!("{title}, native, p50"), bare.p50(), Unit::Nanoseconds);
        report.info(format!("{title}, wasm, p50"), own.p50(), Unit::Nanoseconds);
        let against = format!("{title}, wasm against native");
        match case.promised {
            true => report.at_most(TARGET, against, ratio, Unit::Ratio),
            false => report.info(against, ratio, Unit::Ratio),
        }
    }
    Ok(())
}
