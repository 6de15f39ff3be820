//! Faults under MPS, where one fault hits the calls of all tenants: how long until the next good answer, and what a
//! neighbour that calls all the time sees of it. `scripts/gpu-check mps` starts the daemon.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use pappus_client::{Code, Invocation};

use super::bed::Bed;
use super::fault::{self, FIRST_TENANT, OTHER_TENANT, ROUNDS, Tenant};
use super::load::{self, Load, USUAL_ROUNDS};
use crate::Result;
use crate::bare::work::Work;
use crate::harness::functions::Handed;
use crate::report::{Report, Unit};

const TARGET_NS: f64 = 250e6;
/// A kernel that never ends.
pub(super) const ENDLESS_PTX: &str = "
.version 6.3
.target sm_70
.address_size 64
.visible .entry endless(.param .u64 flag)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<3>;
    .reg .pred %p;
    ld.param.u64 %rd1, [flag];
    cvta.to.global.u64 %rd2, %rd1;
again:
    ld.volatile.global.u32 %r1, [%rd2];
    setp.eq.u32 %p, %r1, 0;
    @%p bra again;
    ret;
}
";
pub(super) const ENDLESS_CONFIG: &str = r#"{
  "module_path": "endless.ptx", "kernels": ["endless"],
  "blueprint": {"inputs": [], "buffers": {"flag": {"Absolute": 8}}, "outputs": [], "control_flow": [
    {"ExecKernel": ["endless", [{"Ptr": "flag"}], {
      "grid_dim_x": {"Absolute": 1}, "grid_dim_y": {"Absolute": 1}, "grid_dim_z": {"Absolute": 1},
      "block_dim_x": {"Absolute": 1}, "block_dim_y": {"Absolute": 1}, "block_dim_z": {"Absolute": 1},
      "shared_mem_bytes": {"Absolute": 0}}]}]}
}"#;
const DEADLINE: Duration = Duration::from_millis(100);
/// Of two tenants: they have the device at the same time, and as many lanes as their weights say.
const WEIGHTS: [u32; 2] = [1, 4];
/// The heavier one does at least so many times as much.
const WEIGHED: f64 = 2.0;

pub(super) fn measure(bed: &Bed, report: &mut Report) -> Result<()> {
    if bed.rehearses() || std::env::var_os("CUDA_MPS_PIPE_DIRECTORY").is_none() {
        report.skip("needs a GPU and an MPS daemon: run scripts/gpu-check mps");
        return Ok(());
    }
    let running = bed.start("workers=3,lanes=8,standbys=2,memory=32GiB")?;
    let neighbour = Tenant::new(bed, &running, OTHER_TENANT)?;
    let (mut faults, mut overdue) = (Histogram::<u64>::new(3)?, Histogram::<u64>::new(3)?);
    let quiet = during(neighbour, |_| {
        fault::recover();
        Ok(())
    })?;
    let hit = during(quiet.tenant, |_| {
        for round in 0..ROUNDS {
            let mut tenant = Tenant::new(bed, &running, FIRST_TENANT + round)?;
            tenant.add_bad()?;
            faults.record(tenant.fault(None)?)?;
            fault::recover();
        }
        Ok(())
    })?;
    let ended = during(hit.tenant, |_| {
        for round in 0..ROUNDS {
            let mut tenant = Tenant::new(bed, &running, FIRST_TENANT + ROUNDS + round)?;
            let handed = Handed::put_own(&mut tenant.client, ENDLESS_CONFIG, "ptx", ENDLESS_PTX.as_bytes())?;
            tenant.client.add_function(handed.named("endless"))?;
            let call = Invocation::new("endless").deadline(DEADLINE);
            overdue.record(tenant.failing(&call, Code::DeadlineExceeded, None)?)?;
            fault::recover();
        }
        Ok(())
    })?;
    let at = |latencies: &Histogram<u64>, quantile| latencies.value_at_quantile(quantile) as f64;
    let next = "→ next good answer of the same tenant";
    report.tail(TARGET_NS, &format!("under MPS, fault returned {next}"), &faults);
    report.tail(TARGET_NS, &format!("under MPS, overdue call ended {next}"), &overdue);
    for (when, seen) in [
        ("undisturbed", &quiet.seen),
        ("while another faults", &hit.seen),
        ("while another is overdue", &ended.seen),
    ] {
        for (name, value) in [("p50", at(seen, 0.5)), ("p99", at(seen, 0.99)), ("max", seen.max() as f64)] {
            report.info(format!("neighbour under MPS {when}, {name}"), value, Unit::Nanoseconds);
        }
        report.info(format!("neighbour under MPS {when}, calls, all right"), seen.len() as f64, Unit::Count);
    }
    drop(running);
    weighted(bed, report)
}

/// What a neighbour saw.
struct Seen {
    tenant: Tenant,
    seen: Histogram<u64>,
}

/// A neighbour calls all the time while something happens; each of its answers is right.
fn during(mut tenant: Tenant, happens: impl FnOnce(&AtomicBool) -> Result<()>) -> Result<Seen> {
    let over = AtomicBool::new(false);
    let mut seen = Histogram::<u64>::new(3)?;
    std::thread::scope(|scope| {
        let neighbour = scope.spawn(|| -> std::result::Result<(), String> {
            while !over.load(Ordering::Relaxed) {
                let took =
                    load::call(&mut tenant.client, &tenant.calls.calls[0]).map_err(|e| e.to_string())?;
                tenant.calls.check().map_err(|e| e.to_string())?;
                seen.record(took).map_err(|e| e.to_string())?;
            }
            Ok(())
        });
        let happened = happens(&over);
        over.store(true, Ordering::Relaxed);
        neighbour.join().map_err(|_| "the neighbour panicked")??;
        happened
    })?;
    Ok(Seen { tenant, seen })
}

/// What tenants with weights have of a device that both use at the same time.
fn weighted(bed: &Bed, report: &mut Report) -> Result<()> {
    let running = bed.start_configured("workers=3,lanes=8,memory=32GiB", &load::weighted(&WEIGHTS))?;
    for tenant in 1..=WEIGHTS.len() {
        bed.register(&mut load::connect(&running, tenant)?, &["inference", "matmul"])?;
    }
    for (work, name) in [(bed.inference(), "inference ×500"), (Work::Matmul, "matmul 128²")] {
        let (connections, in_flight, rounds) = (1, 16, USUAL_ROUNDS);
        let load =
            Load { work, tenants: WEIGHTS.len(), connections, in_flight, rounds, measured: bed.measured };
        let reached = load::run(&running, load, 1)?.tenants;
        let title = format!("{name}, weights 1:4");
        report.info(format!("{title}, the lighter one"), reached[0], Unit::PerSecond);
        report.info(format!("{title}, the heavier one"), reached[1], Unit::PerSecond);
        let (what, ratio) = (format!("{title}, one / the other"), reached[1] / reached[0].max(1.0));
        match work {
            // Calls that are as short keep neither the lanes nor the chip full: there is nothing to share.
            Work::Matmul => report.info(what, ratio, Unit::Ratio),
            _ => report.at_least(WEIGHED, what, ratio, Unit::Ratio),
        }
    }
    Ok(())
}
