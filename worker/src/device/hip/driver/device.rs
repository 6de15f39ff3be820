//! The device, and what it says about itself.

use std::ffi::{CStr, c_char};
use std::path::PathBuf;

use super::error::HipError;
use super::{Library, call};
use crate::device::hip::sys::{self, hipDeviceAttribute_t};

/// What a device says about itself.
#[derive(Debug, Clone)]
pub(crate) struct DeviceInfo {
    pub(crate) ordinal: i32,
    pub(crate) name: String,
    /// Such as `GPU-4f1c0a7be2d39586`; `GPU-XX` where the device has none.
    pub(crate) uuid: String,
    /// With its settings, such as `gfx90a:sramecc+:xnack-`.
    pub(crate) arch: String,
    pub(crate) memory_bytes: u64,
    /// Such as `0000:1b:00.0`.
    pub(crate) bus_id: String,
    pub(crate) multiprocessors: u32,
    /// Threads that can be resident on one compute unit.
    pub(crate) threads: u32,
    /// Shared memory that one block can have.
    pub(crate) shared_bytes: u32,
    /// Kernels reach pinned host memory at its own addresses.
    pub(crate) host_addresses: bool,
    /// Memory can be mapped piece by piece.
    pub(crate) maps_memory: bool,
}

impl DeviceInfo {
    /// Asks the device in the `ordinal`-th position that this process sees.
    pub(crate) fn read(_: &Library, ordinal: i32) -> Result<Self, HipError> {
        let attribute = |which: hipDeviceAttribute_t| {
            let mut value = 0;
            // SAFETY: writes one integer.
            unsafe { call!(hipDeviceGetAttribute(&mut value, which, ordinal)) }.map(|()| value.max(0) as u32)
        };
        // Larger than the library's own, which may grow.
        // SAFETY: it consists of numbers, for which zeros are a value.
        let mut properties: Box<sys::hipDeviceProp_tR0600> = Box::new(unsafe { std::mem::zeroed() });
        let mut bus_id = [0; 64];
        let mut uuid = sys::hipUUID { bytes: [0; 16] };
        let mut memory_bytes = 0;
        // SAFETY: the buffers are as long as said or as the headers say; the strings written end with a zero byte.
        unsafe {
            call!(hipGetDevicePropertiesR0600(&mut *properties, ordinal))?;
            call!(hipDeviceGetPCIBusId(bus_id.as_mut_ptr(), bus_id.len() as i32, ordinal))?;
            call!(hipDeviceGetUuid(&mut uuid, ordinal))?;
            call!(hipDeviceTotalMem(&mut memory_bytes, ordinal))?;
        }
        Ok(Self {
            ordinal,
            name: text(&properties.name),
            uuid: uuid_text(&uuid.bytes),
            arch: text(&properties.gcnArchName),
            memory_bytes: memory_bytes as u64,
            bus_id: text(&bus_id).to_lowercase(),
            multiprocessors: attribute(sys::hipDeviceAttributeMultiprocessorCount)?,
            threads: attribute(sys::hipDeviceAttributeMaxThreadsPerMultiProcessor)?,
            shared_bytes: attribute(sys::hipDeviceAttributeMaxSharedMemoryPerBlock)?,
            host_addresses: attribute(sys::hipDeviceAttributeCanUseHostPointerForRegisteredMem).unwrap_or(0)
                != 0,
            maps_memory: attribute(sys::hipDeviceAttributeVirtualMemoryManagementSupported).unwrap_or(0) != 0,
        })
    }

    /// A file of the host about it.
    fn about(&self, file: &str) -> Option<String> {
        let path: PathBuf = ["/sys/bus/pci/devices", &self.bus_id, file].iter().collect();
        std::fs::read_to_string(path).ok()
    }

    /// The host's memory node that the device is attached to, if the host says so.
    pub(crate) fn numa_node(&self) -> Option<u32> {
        self.about("numa_node")?.trim().parse().ok()
    }

    /// How much of the card's memory all processes use. Partitions of a card have it in common.
    pub(crate) fn used_bytes(&self) -> Option<u64> {
        self.about("mem_info_vram_used")?.trim().parse().ok()
    }

    /// True if the kernel's driver has firmware clear the compute units between processes, in all partitions of the card.
    pub(crate) fn is_cleaned_between_processes(&self) -> bool {
        self.about("enforce_isolation").is_some_and(|partitions| all_on(&partitions))
    }

    /// How much of the card's memory is free.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        let all: u64 = self.about("mem_info_vram_total")?.trim().parse().ok()?;
        Some(all.saturating_sub(self.used_bytes()?).min(self.memory_bytes))
    }
}

/// True if every number of the text is not 0: there is one for each partition, 0 for off.
fn all_on(partitions: &str) -> bool {
    let mut partitions = partitions.split_whitespace().map(str::parse::<u32>).peekable();
    partitions.peek().is_some() && partitions.all(|partition| partition.is_ok_and(|mode| mode > 0))
}

fn text(bytes: &[c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().map(|&byte| byte as u8).collect();
    CStr::from_bytes_until_nul(&bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The sixteen characters that HIP gives, with what the layer below HIP and AMD's tools write in front of them.
fn uuid_text(bytes: &[c_char; 16]) -> String {
    let digits: String = bytes.iter().map(|&byte| byte as u8 as char).collect();
    match digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        true => format!("GPU-{digits}"),
        false => "GPU-XX".to_owned(),
    }
}

/// Makes the device the process's own, and waits until that is done.
pub(crate) fn select(ordinal: i32) -> Result<(), HipError> {
    // SAFETY: numbers only.
    unsafe {
        call!(hipSetDevice(ordinal))?;
        call!(hipDeviceSynchronize())
    }
}

/// Free and all bytes of device memory, of all processes.
pub(crate) fn memory() -> Result<(u64, u64), HipError> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: writes two integers.
    unsafe { call!(hipMemGetInfo(&mut free, &mut total)) }?;
    Ok((free as u64, total as u64))
}

/// Waits until everything that was submitted is over.
pub(crate) fn synchronize() -> Result<(), HipError> {
    // SAFETY: no arguments.
    unsafe { call!(hipDeviceSynchronize()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn isolation_counts_only_where_all_partitions_have_it() {
        for (text, on) in
            [("1\n", true), ("1 1 1 1\n", true), ("1 0\n", false), ("0\n", false), ("", false), ("on", false)]
        {
            assert_eq!(all_on(text), on, "{text:?}");
        }
    }

    #[test]
    fn uuids_read_as_the_layer_below_writes_them() {
        let bytes = |text: &[u8; 16]| text.map(|byte| byte as c_char);
        assert_eq!(uuid_text(&bytes(b"4f1c0a7be2d39586")), "GPU-4f1c0a7be2d39586");
        assert_eq!(uuid_text(&bytes(b"XX\0\0\0\0\0\0\0\0\0\0\0\0\0\0")), "GPU-XX");
    }
}
