//! Lists the NVIDIA GPUs, without keeping them busy.

use pappus_protocol::Fault;
use pappus_protocol::from_worker::{FoundDevice, Survey};

use super::driver::{DeviceInfo, Library};
use super::nvml;
use crate::device::gpu::driver::DriverError;

/// Asks the driver; an error says what is missing.
pub(super) fn survey() -> Result<Survey, Fault> {
    let library = Library::open()?;
    let failed = |e: super::driver::CudaError| e.fault("asking for the GPUs");
    let (major, minor) = (library.version / 1000, library.version % 1000 / 10);
    let release = Library::release().map_or_else(String::new, |release| format!("{release}, "));
    let mut survey = Survey { driver: format!("{release}CUDA {major}.{minor}"), ..Default::default() };
    for ordinal in 0..library.devices().map_err(failed)? {
        let info = DeviceInfo::read(&library, ordinal).map_err(failed)?;
        survey.shared |= info.shared;
        survey.devices.push(FoundDevice {
            index: ordinal as u32,
            free_bytes: nvml::free_bytes(&info.uuid).unwrap_or(info.memory_bytes),
            numa_node: info.numa_node(),
            name: info.name,
            uuid: info.uuid,
            arch: info.arch,
            memory_bytes: info.memory_bytes,
        });
    }
    Ok(survey)
}
