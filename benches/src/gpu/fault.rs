//! From a fault returned, or a worker's exit seen, to the next good answer: of the same tenant and of another.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use pappus_client::v1::response;
use pappus_client::{Client, Code, Invocation};

use super::bed::{Bed, Running};
use super::load::{self, Calls};
use crate::Result;
use crate::bare::work::Work;
use crate::harness::functions::Handed;
use crate::harness::pace;
use crate::harness::sampling::nanoseconds;
use crate::harness::supervisor;
use crate::report::Report;

pub(super) const ROUNDS: usize = 10;
/// Tenants here count from this, apart from those of other parts; each faults twice, so that no budget is spent.
pub(super) const FIRST_TENANT: usize = 100;
pub(super) const OTHER_TENANT: usize = 99;
const HOT: usize = 20;
const TARGET_NS: f64 = 50e6;
const PATIENCE: Duration = Duration::from_secs(30);
/// Enough for a standby to be ready again: a context takes a third of a second.
const RECOVERY: Duration = Duration::from_millis(1500);

/// A kernel that writes where nothing is.
pub(super) const BAD_PTX: &str = "
.version 6.3
.target sm_70
.address_size 64
.visible .entry write_nowhere()
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    mov.u64 %rd1, 16;
    mov.u32 %r1, 1;
    st.global.u32 [%rd1], %r1;
    ret;
}
";
pub(super) const BAD_CONFIG: &str = r#"{
  "module_path": "bad.ptx", "kernels": ["write_nowhere"],
  "blueprint": {"inputs": [], "buffers": {}, "outputs": [], "control_flow": [
    {"ExecKernel": ["write_nowhere", [], {
      "grid_dim_x": {"Absolute": 1}, "grid_dim_y": {"Absolute": 1}, "grid_dim_z": {"Absolute": 1},
      "block_dim_x": {"Absolute": 1}, "block_dim_y": {"Absolute": 1}, "block_dim_z": {"Absolute": 1},
      "shared_mem_bytes": {"Absolute": 0}}]}]}
}"#;

pub(super) fn measure(bed: &Bed, report: &mut Report) -> Result<()> {
    let running = bed.start("workers=2,lanes=8,standbys=2,memory=32GiB")?;
    let mut other = Tenant::new(bed, &running, OTHER_TENANT)?;
    if bed.rehearses() {
        report.skip("kernels that fault are written in PTX: they need an NVIDIA GPU");
    } else {
        let (mut own, mut others) = (Histogram::<u64>::new(3)?, Histogram::<u64>::new(3)?);
        for round in 0..ROUNDS {
            let mut tenant = Tenant::new(bed, &running, FIRST_TENANT + round)?;
            tenant.add_bad()?;
            own.record(tenant.fault(None)?)?;
            recover();
            tenant.warm()?;
            other.warm()?;
            others.record(tenant.fault(Some(&mut other))?)?;
            recover();
        }
        report.tail(TARGET_NS, "fault returned → next good answer of the same tenant", &own);
        report.tail(TARGET_NS, "fault returned → next good answer of another tenant", &others);
    }

    let running = bed.start("workers=1,lanes=8,standbys=1,memory=16GiB")?;
    // One caller, many times.
    running.admin()?.settings([("fault-budget".to_owned(), "0".to_owned())].into())?;
    let mut tenant = Tenant::new(bed, &running, OTHER_TENANT)?;
    let mut killed = Histogram::<u64>::new(3)?;
    for _ in 0..ROUNDS {
        tenant.warm()?;
        kill_worker(&running)?;
        killed.record(load::call(&mut tenant.client, &tenant.calls.calls[0])?)?;
        recover();
    }
    report.tail(TARGET_NS, "exit of a killed worker seen → next good answer", &killed);
    Ok(())
}

pub(super) fn recover() {
    pace::until(Instant::now() + RECOVERY);
}

/// A tenant with a good function.
pub(super) struct Tenant {
    pub(super) client: Client,
    pub(super) calls: Calls,
}

impl Tenant {
    pub(super) fn new(bed: &Bed, running: &Running, tenant: usize) -> Result<Self> {
        let mut client = load::connect(running, tenant)?;
        bed.register(&mut client, &["matmul"])?;
        let calls = Calls::new(&mut client, "matmul", Work::Matmul, 1)?;
        let mut tenant = Self { client, calls };
        tenant.warm()?;
        Ok(tenant)
    }

    fn warm(&mut self) -> Result<()> {
        for _ in 0..HOT {
            load::call(&mut self.client, &self.calls.calls[0])?;
        }
        Ok(())
    }

    /// Registers what [`Tenant::fault`] calls.
    pub(super) fn add_bad(&mut self) -> Result<()> {
        let handed = Handed::put_own(&mut self.client, BAD_CONFIG, "ptx", BAD_PTX.as_bytes())?;
        self.client.add_function(handed.named("bad"))?;
        Ok(())
    }

    /// A fault, then the nanoseconds until the next good answer to it or to another tenant.
    pub(super) fn fault(&mut self, other: Option<&mut Self>) -> Result<u64> {
        self.failing(&Invocation::new("bad"), Code::KernelFault, other)
    }

    /// The same for any call that fails in that way.
    pub(super) fn failing(&mut self, call: &Invocation, code: Code, other: Option<&mut Self>) -> Result<u64> {
        let id = self.client.send_invocation(call)?;
        let answer = self.client.recv_within(PATIENCE)?.ok_or("a fault was not answered for 30 s")?;
        match answer.body {
            Some(response::Body::Error(error)) if answer.id == id && error.code() == code => {}
            other => return Err(format!("a call that must fail ended with {other:?}").into()),
        }
        let start = Instant::now();
        let who = other.unwrap_or(self);
        load::call(&mut who.client, &who.calls.calls[0])?;
        who.calls.check()?;
        Ok(nanoseconds(start))
    }
}

/// Kills the worker that has done the most, and returns when it is gone.
pub(super) fn kill_worker(running: &Running) -> Result<()> {
    supervisor::kill_worker(&mut running.admin()?)
}
