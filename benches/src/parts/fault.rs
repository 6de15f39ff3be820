//! From a fault returned, a deadline or a worker's exit seen to the next good answer, with a standby ready; and
//! how long after its deadline an endless kernel ends.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use pappus_client::{Client, Code, Error, Invocation};

use crate::Result;
use crate::harness::functions::Handed;
use crate::harness::pace;
use crate::harness::sampling::nanoseconds;
use crate::harness::supervisor::{Home, Supervisor, kill_worker};
use crate::report::Report;

const DEVICE: &str = "cpu:workers=1,memory=64MiB,standbys=1";
const TIMES: usize = 300;
/// Calls that wait for each other in between.
const HOT: usize = 5;
const TARGET_NS: f64 = 5e6;
const OVERDUE_NS: f64 = 100e6;
/// Longer than any of the calls that end by themselves.
const DEADLINE: Duration = Duration::from_millis(5);
const LOOK_EVERY: Duration = Duration::from_millis(1);
const PATIENCE: Duration = Duration::from_secs(30);

/// Three kernels: a short one, an endless one, one with a fault.
const MODULE: &str = r#"(module
  (import "env" "memory" (memory 2))
  (global $__stack_pointer (mut i32) (i32.const 65536))
  (export "__stack_pointer" (global $__stack_pointer))
  (func (export "good") (param i32 i32 i64 i64))
  (func (export "endless") (param i32 i32 i64 i64) (loop $again (br $again)))
  (func (export "bad") (param i32 i32 i64 i64) unreachable))"#;

pub(super) fn measure(report: &mut Report) -> Result<()> {
    let home = Home::new()?;
    let supervisor = home.start(DEVICE)?;
    // What is measured are many faults of one caller.
    supervisor.set("fault-budget", 0)?;
    supervisor.set("quarantine-after", 0)?;
    let mut client = supervisor.connect()?;
    let module = wat::parse_str(MODULE)?;
    for kernel in ["good", "endless", "bad"] {
        let handed = Handed::put_own(&mut client, &config(kernel), "wasm", &module)?;
        client.add_function(handed.named(kernel))?;
    }
    let mut bed = Bed { supervisor, client };

    let (mut after_fault, mut after_exit) = (Histogram::<u64>::new(3)?, Histogram::<u64>::new(3)?);
    let (mut overdue, mut after_overdue) = (Histogram::<u64>::new(3)?, Histogram::<u64>::new(3)?);
    for _ in 0..TIMES {
        bed.settle()?;
        bed.fails(&Invocation::new("bad"), Code::KernelFault)?;
        after_fault.record(bed.good()?)?;

        bed.settle()?;
        kill_worker(&mut bed.supervisor.admin()?)?;
        after_exit.record(bed.good()?)?;

        bed.settle()?;
        let start = Instant::now();
        bed.fails(&Invocation::new("endless").deadline(DEADLINE), Code::DeadlineExceeded)?;
        overdue.record(nanoseconds(start).saturating_sub(DEADLINE.as_nanos() as u64))?;
        after_overdue.record(bed.good()?)?;
    }
    report.tail(TARGET_NS, "fault returned → next good answer", &after_fault);
    report.tail(TARGET_NS, "exit of a killed worker seen → next good answer", &after_exit);
    report.tail(TARGET_NS, "endless kernel answered → next good answer", &after_overdue);
    report.tail(OVERDUE_NS, "deadline of an endless kernel → its answer", &overdue);
    Ok(())
}

fn config(kernel: &str) -> String {
    let one = r#"{"Absolute": 1}"#;
    format!(
        r#"{{"module_path": "fault.wasm", "kernels": ["{kernel}"],
            "blueprint": {{"inputs": [], "buffers": {{}}, "outputs": [], "control_flow": [
              {{"ExecKernel": ["{kernel}", [], {{
                "grid_dim_x": {one}, "grid_dim_y": {one}, "grid_dim_z": {one},
                "block_dim_x": {one}, "block_dim_y": {one}, "block_dim_z": {one},
                "shared_mem_bytes": {{"Absolute": 0}}}}]}}]}}}}"#
    )
}

/// A supervisor with one client.
struct Bed {
    supervisor: Supervisor,
    client: Client,
}

impl Bed {
    /// A standby is ready, and calls are hot.
    fn settle(&mut self) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        let mut admin = self.supervisor.admin()?;
        while admin.status()?.devices.iter().any(|device| device.standbys_ready == 0) {
            if Instant::now() > end {
                return Err("no standby was ready after 30 s".into());
            }
            pace::until(Instant::now() + LOOK_EVERY);
        }
        for _ in 0..HOT {
            self.good()?;
        }
        Ok(())
    }

    /// Nanoseconds of a call that ends well.
    fn good(&mut self) -> Result<u64> {
        let start = Instant::now();
        self.client.invoke(&Invocation::new("good"))?;
        Ok(nanoseconds(start))
    }

    fn fails(&mut self, call: &Invocation, code: Code) -> Result<()> {
        match self.client.invoke(call) {
            Err(Error::Refused(error)) if error.code() == code => Ok(()),
            other => Err(format!("expected {code:?}, got {other:?}").into()),
        }
    }
}
