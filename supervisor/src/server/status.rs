//! What `status` answers.

use pappus_proto::v1;

use super::connection::Connection;
use crate::device::Device;

/// The supervisor, as far as it is this client's business.
pub fn status(connection: &Connection) -> v1::Status {
    let server = &connection.server;
    let (functions, modules) = server.registry.counts();
    let mut devices: Vec<_> = server.devices.iter().map(|device| of_device(device)).collect();
    // Who else runs what is for the operator: the admin socket, or the supervisor's own user.
    let operator = connection.admin || connection.tenant == rustix::process::geteuid().as_raw();
    if !operator {
        devices.iter_mut().for_each(hide);
    }
    let own = server.registry.counts_of(connection.tenant);
    v1::Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        uptime_ms: server.started.elapsed().as_millis() as u64,
        draining: server.is_draining(),
        devices,
        functions: if operator { functions } else { own.0 },
        modules: if operator { modules } else { own.1 },
        connections: if operator { server.connections() as u64 } else { 0 },
    }
}

/// What others do with a device.
fn hide(device: &mut v1::DeviceStatus) {
    device.workers.clear();
    device.memory = None;
    (device.queued, device.running, device.completed, device.failed) = (0, 0, 0, 0);
    device.standbys_ready = 0;
}

/// What the device says, completed by how it was set up.
fn of_device(device: &Device) -> v1::DeviceStatus {
    let config = &device.config;
    let memory = device.memory();
    let memory = v1::DeviceMemory {
        total_bytes: memory.total_bytes,
        context_bytes: memory.context_bytes,
        stack_bytes: memory.stack_bytes,
        lease_bytes: memory.lease_bytes,
        weight_bytes: memory.weight_bytes,
        free_bytes: memory.free_bytes,
    };
    v1::DeviceStatus {
        description: config.description.clone(),
        arch: config.arch.clone(),
        driver: config.driver.clone(),
        lanes: config.lanes,
        standbys: config.standbys as u32,
        turns: config.turns,
        quantum_us: config.quantum.as_micros() as u64,
        scrub_calls: config.scrub_calls,
        standbys_ready: device.standbys_ready() as u32,
        memory: Some(memory),
        ..device.status()
    }
}
