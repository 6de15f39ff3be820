//! A small useful call end to end against its kernel alone: what isolation costs where there is work.

use super::ONE_WORKER;
use crate::Result;
use crate::harness::functions::{Matmul, register};
use crate::harness::sampling::Samples;
use crate::harness::supervisor::Home;
use crate::kernels::{cases, wasm};
use crate::report::{Report, Unit};

const CALLS: u32 = 100;
const TARGET: f64 = 1.5;

pub(super) fn measure(rounds: u32, report: &mut Report) -> Result<()> {
    let home = Home::new()?;
    let supervisor = home.start(ONE_WORKER)?;
    let mut client = supervisor.connect()?;
    register(&mut client, &["matmul_tiled"])?;
    let matmul = Matmul::tiled(&mut client)?;
    let case = cases::matmul_tiled();
    let mut kernel = wasm::Kernel::load(&wasm::engine()?, &case, false)?;

    client.invoke(&matmul.call)?;
    kernel.run()?;
    if matmul.arena.load(matmul.output)? != kernel.buffer(case.result)? {
        return Err("the call and the kernel alone differ in their results".into());
    }
    let (mut bare, mut whole) = (Samples::new()?, Samples::new()?);
    let mut inside = Vec::new();
    for _ in 0..rounds {
        bare.round(CALLS, || kernel.run())?;
        whole.round(CALLS, || {
            let answer = client.invoke(&matmul.call)?;
            inside.push(answer.timings.unwrap_or_default());
            Ok(())
        })?;
    }
    let median_of = |stage: fn(&pappus_client::v1::Timings) -> u64| {
        let values: Vec<f64> = inside.iter().map(|timings| stage(timings) as f64).collect();
        crate::harness::sampling::median(&values)
    };
    report.info("128×128 i64, the kernel in process, p50", bare.p50(), Unit::Nanoseconds);
    report.info("128×128 i64, a call through an arena, p50", whole.p50(), Unit::Nanoseconds);
    report.info("128×128 i64, a call through an arena, p99", whole.p99(), Unit::Nanoseconds);
    report.info("… of it executing", median_of(|t| t.execute_ns), Unit::Nanoseconds);
    report.info("… of it copying", median_of(|t| t.copy_in_ns + t.copy_out_ns), Unit::Nanoseconds);
    report.info(
        "… arrival to answer, as the supervisor saw it",
        median_of(|t| t.total_ns),
        Unit::Nanoseconds,
    );
    report.info("clearing behind the answer", median_of(|t| t.clear_ns), Unit::Nanoseconds);
    let what = "128×128 i64, the call against the kernel alone";
    report.at_most(TARGET, what, whole.ratio_to(&bare), Unit::Ratio);
    Ok(())
}
