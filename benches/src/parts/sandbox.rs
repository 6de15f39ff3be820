//! What the sandbox costs when a worker starts: a process that does nothing but go into it and say so, against one
//! of the same program that only complains about its arguments.

use std::process::{Command, Stdio};
use std::time::Instant;

use pappus_protocol::Kind;
use pappus_supervisor::device::survey;

use crate::Result;
use crate::harness::sampling::median;
use crate::report::{Report, Unit};

const STARTS: usize = 200;
const TARGET_NS: f64 = 2e6;

pub(super) fn measure(report: &mut Report) -> Result<()> {
    let program = std::env::current_exe()?.with_file_name("pappus-worker");
    let (mut bare, mut inside) = (Vec::new(), Vec::new());
    let mut layers = String::new();
    for _ in 0..STARTS {
        let start = Instant::now();
        let mut complaining = Command::new(&program);
        complaining.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).env_clear().status()?;
        bare.push(start.elapsed().as_nanos() as f64);
        let start = Instant::now();
        let found = survey::look(&program, Kind::Cpu, "")?;
        inside.push(start.elapsed().as_nanos() as f64);
        layers = found.layers.to_string();
    }
    let (bare, inside) = (median(&bare), median(&inside));
    report.info("a worker's program started and ended, p50", bare, Unit::Nanoseconds);
    report.info(format!("… and in its sandbox ({layers})"), inside, Unit::Nanoseconds);
    report.at_most(TARGET_NS, "added by the sandbox", inside - bare, Unit::Nanoseconds);
    Ok(())
}
