//! Lists the AMD GPUs, without keeping them busy.

use std::collections::HashMap;

use pappus_protocol::Fault;
use pappus_protocol::from_worker::{FoundDevice, Survey};

use super::driver::{DeviceInfo, HipError, Library};
use crate::device::gpu::driver::DriverError;

/// Asks the driver; an error says what is missing. Partitions of a GPU are devices like any other.
pub(super) fn survey() -> Result<Survey, Fault> {
    let library = Library::open()?;
    let failed = |e: HipError| e.fault("asking for the GPUs");
    let mut devices = Vec::new();
    for ordinal in 0..library.devices().map_err(failed)? {
        let info = DeviceInfo::read(&library, ordinal).map_err(failed)?;
        devices.push(FoundDevice {
            index: ordinal as u32,
            free_bytes: info.free_bytes().unwrap_or(info.memory_bytes),
            numa_node: info.numa_node(),
            name: info.name,
            uuid: info.uuid,
            arch: info.arch,
            memory_bytes: info.memory_bytes,
        });
    }
    name_apart(&mut devices);
    Ok(Survey { driver: format!("HIP {}", library.release()), devices, ..Survey::default() })
}

/// Some cards have no UUID, and partitions may have that of their card: those are named by their positions,
/// behind a `#`, by which the supervisor shows them to workers, too.
fn name_apart(devices: &mut [FoundDevice]) {
    let mut bearers: HashMap<String, usize> = HashMap::new();
    for device in devices.iter() {
        *bearers.entry(device.uuid.clone()).or_default() += 1;
    }
    for device in devices {
        if device.uuid == "GPU-XX" || bearers[&device.uuid] > 1 {
            device.uuid = format!("{}#{}", device.uuid, device.index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_devices_have_one_name() {
        let found = |index, uuid: &str| FoundDevice { index, uuid: uuid.into(), ..FoundDevice::default() };
        let mut devices = [
            found(0, "GPU-aa"),
            found(1, "GPU-XX"),
            found(2, "GPU-bb"),
            found(3, "GPU-bb"),
            found(4, "GPU-XX"),
        ];
        name_apart(&mut devices);
        let uuids: Vec<_> = devices.iter().map(|device| device.uuid.as_str()).collect();
        assert_eq!(uuids, ["GPU-aa", "GPU-XX#1", "GPU-bb#2", "GPU-bb#3", "GPU-XX#4"]);
    }
}
