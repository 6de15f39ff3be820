//! Judging AMD's code objects, which happens at registration and at every installation: one that is large for its code,
//! one that is large for its kernels, and one that is refused only at its end.

use pappus_blueprint::hsaco;
use pappus_kernels::synthetic::{CodeObject, Kernel};

use crate::Result;
use crate::harness::sampling::Samples;
use crate::report::{Report, Unit};

const MIB: usize = 1 << 20;
const TARGET_NS: f64 = 20e6;

pub(super) fn measure(rounds: u32, report: &mut Report) -> Result<()> {
    let arguments: Vec<_> = (0..8).map(|at| (8 * at, 8, "global_buffer")).collect();
    let kernels = |count: usize| -> Vec<Kernel> {
        (0..count).map(|at| Kernel::new(&format!("kernel_{at}"), &arguments)).collect()
    };
    let code = CodeObject { code_bytes: MIB, ..CodeObject::new(kernels(16)) }.bytes();
    let many = CodeObject::new(kernels(hsaco::MAX_KERNELS)).bytes();
    for (what, file) in [("1 MiB of code", &code), ("1024 kernels of 8 arguments", &many)] {
        let mut samples = Samples::new()?;
        for _ in 0..rounds {
            samples.round(20, || match hsaco::read(file) {
                Ok(_) => Ok(()),
                Err(why) => Err(why.to_string().into()),
            })?;
        }
        report.info(format!("{what}, bytes"), file.len() as f64, Unit::Bytes);
        report.at_most(TARGET_NS, format!("{what}, judged, p50"), samples.p50(), Unit::Nanoseconds);
    }
    Ok(())
}
