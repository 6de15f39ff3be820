//! The supervisor's memory and time with many functions registered: a platform has far more functions
//! than it runs at once.

use std::time::Instant;

use pappus_client::Client;
use pappus_client::v1::{request, response};

use super::ONE_WORKER;
use crate::Result;
use crate::harness::functions::Handed;
use crate::harness::sampling::nanoseconds;
use crate::harness::supervisor::{Home, Resident};
use crate::report::{Report, Unit};

const FUNCTIONS: usize = 10_000;
/// Requests on their way at once.
const WINDOW: usize = 64;
const IDLE_TARGET: f64 = (20 << 20) as f64;
const GROWTH_TARGET: f64 = (20 << 20) as f64;

pub(super) fn measure(report: &mut Report) -> Result<()> {
    let home = Home::new()?;
    let supervisor = home.start(ONE_WORKER)?;
    let idle = supervisor.resident()?;
    let empty_start = supervisor.start_ns as f64;

    let mut client = supervisor.connect()?;
    let handed = Handed::put(&mut client, "matmul_tiled")?;
    // The first one compiles the module.
    client.add_function(handed.named("first"))?;
    let start = Instant::now();
    register_many(&mut client, &handed)?;
    let registering = nanoseconds(start) as f64 / FUNCTIONS as f64;
    let full = supervisor.resident()?;
    drop(client);
    supervisor.stop()?;

    let supervisor = home.start(ONE_WORKER)?;
    let again = supervisor.resident()?;
    let listed = supervisor.connect()?.status()?.functions;
    if listed != FUNCTIONS as u64 + 1 {
        return Err(format!("{listed} of {} functions survived the restart", FUNCTIONS + 1).into());
    }

    let mib = Unit::Bytes;
    report.at_most(IDLE_TARGET, "resident, idle", idle.all, mib);
    report.info("… without its program's file", idle.anonymous, mib);
    let growth = |after: Resident| (after.all - idle.all).max(0.0);
    report.at_most(GROWTH_TARGET, "growth by 10 000 functions", growth(full), mib);
    report.at_most(GROWTH_TARGET, "… after starting again with them", growth(again), mib);
    report.info("registering a function, one connection", registering, Unit::Nanoseconds);
    report.info("start to first answer, no functions", empty_start, Unit::Nanoseconds);
    report.info("start to first answer, 10 000 functions", supervisor.start_ns as f64, Unit::Nanoseconds);
    Ok(())
}

/// Registers the same parts under many names, a window of requests at a time.
fn register_many(client: &mut Client, handed: &Handed) -> Result<()> {
    let mut sent = 0;
    let mut answered = 0;
    while answered < FUNCTIONS {
        while sent < FUNCTIONS && client.in_flight() < WINDOW {
            let add = handed.named(&format!("function-{sent}"));
            client.send(request::Body::AddFunction(add), &[])?;
            sent += 1;
        }
        match client.recv()?.body {
            Some(response::Body::Function(_)) => answered += 1,
            other => return Err(format!("registering ended with {other:?}").into()),
        }
    }
    Ok(())
}
