//! `pappus status`: what the supervisor, its devices and their workers are doing.

use std::io::Write;
use std::time::Duration;

use pappus_client::{Client, v1};

use crate::arguments;
use crate::failure::Result;
use crate::json;
use crate::table::{Align, Table};
use crate::units::rough_bytes;

/// Asks once and prints.
pub(crate) fn run(client: &mut Client, json: arguments::Json, out: &mut dyn Write) -> Result<()> {
    let status = client.status()?;
    if json.json {
        return Ok(writeln!(out, "{}", json::status(&status))?);
    }
    print(&status, out)
}

fn print(status: &v1::Status, out: &mut dyn Write) -> Result<()> {
    let up = humantime::format_duration(Duration::from_secs(status.uptime_ms / 1000));
    let draining = if status.draining { ", draining" } else { "" };
    writeln!(out, "pappus {}, up {up}{draining}", status.version)?;
    let (functions, modules, connections) = (status.functions, status.modules, status.connections);
    writeln!(out, "functions: {functions}, modules: {modules}, connections: {connections}\n")?;

    let mut devices = Table::new(&[
        ("DEVICE", Align::Left),
        ("KIND", Align::Left),
        ("MEMORY", Align::Right),
        ("LEASE", Align::Right),
        ("QUEUED", Align::Right),
        ("RUNNING", Align::Right),
        ("COMPLETED", Align::Right),
        ("FAILED", Align::Right),
    ]);
    let mut workers = Table::new(&[
        ("WORKER", Align::Right),
        ("DEVICE", Align::Left),
        ("STATE", Align::Left),
        ("COMPLETED", Align::Right),
        ("RESTARTS", Align::Right),
    ]);
    for device in &status.devices {
        devices.row([
            device.name.clone(),
            device.kind.clone(),
            rough_bytes(device.memory_bytes),
            rough_bytes(device.lease_bytes),
            device.queued.to_string(),
            device.running.to_string(),
            device.completed.to_string(),
            device.failed.to_string(),
        ]);
        for worker in &device.workers {
            workers.row([
                worker.pid.to_string(),
                device.name.clone(),
                worker.state.clone(),
                worker.completed.to_string(),
                worker.restarts.to_string(),
            ]);
        }
    }
    devices.print(out)?;
    writeln!(out)?;
    Ok(workers.print(out)?)
}
