//! What the GPU says about kernels that did something illegal.
//!
//! The library below HIP ends the process at a page fault, unless a handler is there that says otherwise: this one,
//! which remembers the fault. It runs on a thread of that library. From then on every call that does not succeed fails
//! with the fault, and so does asking for work that will never be over.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::device::hip::sys;

/// Nothing, or a kind of event in the high half and the reasons of a page fault in the low half.
static SEEN: AtomicU64 = AtomicU64::new(0);
const PAGE_FAULT: u64 = 1 << 32;
const RESET: u64 = 2 << 32;
const BROKEN_MEMORY: u64 = 3 << 32;

/// What happened on the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GpuEvent {
    /// A kernel used an address that it may not use so; why, as bits of `HSA_AMD_MEMORY_FAULT_…`.
    PageFault(u32),
    /// The GPU hung and was reset, for all processes.
    Reset,
    /// Memory of the GPU does not hold what was written to it.
    BrokenMemory,
}

/// What was seen first.
pub(super) fn seen() -> Option<GpuEvent> {
    decode(SEEN.load(Ordering::Acquire))
}

fn decode(word: u64) -> Option<GpuEvent> {
    match word & !u64::from(u32::MAX) {
        0 => None,
        PAGE_FAULT => Some(GpuEvent::PageFault(word as u32)),
        BROKEN_MEMORY => Some(GpuEvent::BrokenMemory),
        _ => Some(GpuEvent::Reset),
    }
}

fn encode(event_type: sys::hsa_amd_event_type_t, reasons: u32) -> u64 {
    const BROKEN: u32 = sys::HSA_AMD_MEMORY_FAULT_DRAMECC | sys::HSA_AMD_MEMORY_FAULT_SRAMECC;
    match event_type {
        sys::HSA_AMD_GPU_MEMORY_FAULT_EVENT if reasons & sys::HSA_AMD_MEMORY_FAULT_HANG != 0 => RESET,
        sys::HSA_AMD_GPU_MEMORY_FAULT_EVENT if reasons & BROKEN != 0 => BROKEN_MEMORY,
        sys::HSA_AMD_GPU_MEMORY_FAULT_EVENT => PAGE_FAULT | u64::from(reasons),
        sys::HSA_AMD_GPU_MEMORY_ERROR_EVENT => BROKEN_MEMORY,
        _ => RESET,
    }
}

/// Remembers the first event; the process lives on.
pub(super) unsafe extern "C" fn handler(
    event: *const sys::hsa_amd_event_t,
    _: *mut c_void,
) -> sys::hsa_status_t {
    if event.is_null() {
        return sys::HSA_STATUS_SUCCESS;
    }
    // SAFETY: the library passes an event that lives during the call; its type is its first field, and only a memory
    // fault has the fields that are read then.
    let word = unsafe {
        let event_type = (&raw const (*event).event_type).read();
        let reasons = match event_type {
            sys::HSA_AMD_GPU_MEMORY_FAULT_EVENT => {
                (&raw const (*event).memory_fault.fault_reason_mask).read()
            }
            _ => 0,
        };
        encode(event_type, reasons)
    };
    let _ = SEEN.compare_exchange(0, word, Ordering::AcqRel, Ordering::Relaxed);
    sys::HSA_STATUS_SUCCESS
}

impl GpuEvent {
    /// What the kernel did, if it is the kernel's doing.
    pub(super) fn kernel_cause(self) -> Option<&'static str> {
        match self {
            Self::PageFault(reasons) if reasons & sys::HSA_AMD_MEMORY_FAULT_READ_ONLY != 0 => {
                Some("it wrote to memory that it may only read")
            }
            Self::PageFault(reasons) if reasons & sys::HSA_AMD_MEMORY_FAULT_NX != 0 => {
                Some("it jumped outside of its code")
            }
            Self::PageFault(_) => Some("it accessed an address that is not its own"),
            Self::Reset | Self::BrokenMemory => None,
        }
    }

    /// In words.
    pub(super) fn in_words(self) -> &'static str {
        match self {
            Self::PageFault(_) => "page fault",
            Self::Reset => "the GPU hung and was reset",
            Self::BrokenMemory => "the GPU's memory has an error that cannot be corrected",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_read_as_they_were_seen_and_blame_who_did_it() {
        use sys::*;
        for (event_type, reasons, event, blames) in [
            (
                HSA_AMD_GPU_MEMORY_FAULT_EVENT,
                HSA_AMD_MEMORY_FAULT_PAGE_NOT_PRESENT,
                GpuEvent::PageFault(1),
                "address",
            ),
            (HSA_AMD_GPU_MEMORY_FAULT_EVENT, 3, GpuEvent::PageFault(3), "only read"),
            (HSA_AMD_GPU_MEMORY_FAULT_EVENT, HSA_AMD_MEMORY_FAULT_NX, GpuEvent::PageFault(4), "jumped"),
            (HSA_AMD_GPU_MEMORY_FAULT_EVENT, 0, GpuEvent::PageFault(0), "address"),
            (HSA_AMD_GPU_MEMORY_FAULT_EVENT, HSA_AMD_MEMORY_FAULT_HANG, GpuEvent::Reset, ""),
            (HSA_AMD_GPU_MEMORY_FAULT_EVENT, HSA_AMD_MEMORY_FAULT_SRAMECC, GpuEvent::BrokenMemory, ""),
            (HSA_AMD_GPU_HW_EXCEPTION_EVENT, 0, GpuEvent::Reset, ""),
            (HSA_AMD_GPU_MEMORY_ERROR_EVENT, 0, GpuEvent::BrokenMemory, ""),
        ] {
            let seen = decode(encode(event_type, reasons));
            assert_eq!(seen, Some(event), "{event_type} {reasons:#x}");
            assert!(event.kernel_cause().unwrap_or("").contains(blames));
            assert_eq!(event.kernel_cause().is_some(), !blames.is_empty());
        }
        assert_eq!(decode(0), None);
    }
}
