//! What `status` answers.

use pappus_proto::v1;
use pappus_protocol::Kind;

use super::connection::Connection;
use crate::config::DeviceConfig;
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
    v1::DeviceStatus {
        description: config.description.clone(),
        arch: config.arch.clone(),
        driver: config.driver.clone(),
        lanes: config.lanes,
        standbys: config.standbys as u32,
        turns: config.turns,
        quantum_us: config.quantum.as_micros() as u64,
        scrub_calls: config.scrub_calls,
        memory: Some(memory(config)),
        ..device.status()
    }
}

/// How the memory is divided.
fn memory(config: &DeviceConfig) -> v1::DeviceMemory {
    let workers = config.workers as u64;
    let lease_bytes = config.lease_bytes() * workers;
    let (context_bytes, stack_bytes) = match config.kind {
        Kind::Cpu => (0, 0),
        Kind::Cuda => (config.context_bytes(), config.stack_bytes * workers),
    };
    let taken = lease_bytes + context_bytes + stack_bytes;
    v1::DeviceMemory {
        total_bytes: config.memory_bytes,
        context_bytes,
        stack_bytes,
        lease_bytes,
        weight_bytes: 0,
        free_bytes: config.memory_bytes.saturating_sub(taken),
    }
}
