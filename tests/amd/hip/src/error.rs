//! Results; the error that sticks once a kernel has failed, for every later call of every thread; and how faults are
//! reported: page faults through the handler that is registered with the library below HIP, and without one by abort.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use gfx9::memory::{Fault, Reason};

/// `hipError_t`.
pub(crate) type Code = u32;

pub(crate) const SUCCESS: Code = 0;
pub(crate) const INVALID_VALUE: Code = 1;
pub(crate) const OUT_OF_MEMORY: Code = 2;
pub(crate) const NOT_INITIALIZED: Code = 3;
pub(crate) const INVALID_CONFIGURATION: Code = 9;
pub(crate) const NO_DEVICE: Code = 100;
pub(crate) const INVALID_DEVICE: Code = 101;
pub(crate) const INVALID_IMAGE: Code = 200;
pub(crate) const NO_BINARY: Code = 209;
pub(crate) const INVALID_HANDLE: Code = 400;
pub(crate) const NOT_FOUND: Code = 500;
pub(crate) const NOT_READY: Code = 600;
pub(crate) const ILLEGAL_ADDRESS: Code = 700;
pub(crate) const ALREADY_REGISTERED: Code = 712;
pub(crate) const NOT_REGISTERED: Code = 713;
pub(crate) const LAUNCH_FAILURE: Code = 719;
pub(crate) const NOT_SUPPORTED: Code = 801;
pub(crate) const CAPTURE_UNSUPPORTED: Code = 900;
pub(crate) const CAPTURE_INVALIDATED: Code = 901;

/// Names and texts of `hipGetErrorName` and `hipGetErrorString`.
const TEXTS: [(Code, &CStr, &CStr); 20] = [
    (SUCCESS, c"hipSuccess", c"no error"),
    (INVALID_VALUE, c"hipErrorInvalidValue", c"invalid argument"),
    (OUT_OF_MEMORY, c"hipErrorOutOfMemory", c"out of memory"),
    (NOT_INITIALIZED, c"hipErrorNotInitialized", c"initialization error"),
    (INVALID_CONFIGURATION, c"hipErrorInvalidConfiguration", c"invalid configuration argument"),
    (NO_DEVICE, c"hipErrorNoDevice", c"no ROCm-capable device is detected"),
    (INVALID_DEVICE, c"hipErrorInvalidDevice", c"invalid device ordinal"),
    (INVALID_IMAGE, c"hipErrorInvalidImage", c"device kernel image is invalid"),
    (NO_BINARY, c"hipErrorNoBinaryForGpu", c"no kernel image is available for execution on the device"),
    (INVALID_HANDLE, c"hipErrorInvalidHandle", c"invalid resource handle"),
    (NOT_FOUND, c"hipErrorNotFound", c"named symbol not found"),
    (NOT_READY, c"hipErrorNotReady", c"device not ready"),
    (ILLEGAL_ADDRESS, c"hipErrorIllegalAddress", c"an illegal memory access was encountered"),
    (
        ALREADY_REGISTERED,
        c"hipErrorHostMemoryAlreadyRegistered",
        c"part or all of the requested memory range is already mapped",
    ),
    (
        NOT_REGISTERED,
        c"hipErrorHostMemoryNotRegistered",
        c"pointer does not correspond to a registered memory region",
    ),
    (LAUNCH_FAILURE, c"hipErrorLaunchFailure", c"unspecified launch failure"),
    (NOT_SUPPORTED, c"hipErrorNotSupported", c"operation not supported"),
    (
        CAPTURE_UNSUPPORTED,
        c"hipErrorStreamCaptureUnsupported",
        c"operation not permitted when stream is capturing",
    ),
    (
        CAPTURE_INVALIDATED,
        c"hipErrorStreamCaptureInvalidated",
        c"operation failed due to a previous error during capture",
    ),
    (u32::MAX, c"hipErrorUnknown", c"unknown error"),
];

/// The name and the text of a result.
pub(crate) fn texts(code: Code) -> (&'static CStr, &'static CStr) {
    let found = TEXTS.iter().find(|(own, _, _)| *own == code).unwrap_or(&TEXTS[TEXTS.len() - 1]);
    (found.1, found.2)
}

/// The error that sticks.
static STUCK: AtomicU32 = AtomicU32::new(SUCCESS);

/// The error that sticks, if any.
pub(crate) fn stuck() -> Result<(), Code> {
    match STUCK.load(Ordering::Acquire) {
        SUCCESS => Ok(()),
        code => Err(code),
    }
}

/// `hsa_amd_event_t` of a memory fault.
#[repr(C)]
#[derive(Debug)]
#[allow(dead_code, reason = "the handler reads it")]
pub(crate) struct Event {
    event_type: u32,
    agent: u64,
    address: u64,
    reasons: u32,
    room: [u64; 4],
}

/// A handler of system events.
pub(crate) type Handler = unsafe extern "C" fn(event: *const Event, data: *mut c_void) -> u32;

/// The handler and its data.
static HANDLER: Mutex<Option<(Handler, usize)>> = Mutex::new(None);

/// Registers the handler; false for a second one, which the real library refuses, too.
pub(crate) fn register(handler: Handler, data: *mut c_void) -> bool {
    let mut registered = HANDLER.lock().unwrap_or_else(PoisonError::into_inner);
    let first = registered.is_none();
    registered.get_or_insert((handler, data.addr()));
    first
}

/// Ends the process, as the libraries do where nobody prevents it.
fn abort(why: &str) -> ! {
    eprintln!("{why}");
    std::process::abort()
}

/// True if the process would leave a core file when it initialised HIP, in which case HIP aborts at traps whatever else
/// is set. (The real library looks when it aborts; a sandbox may not let this one ask then.)
static LEAVES_CORE: AtomicBool = AtomicBool::new(false);

/// Looks at the core limit.
pub(crate) fn start() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes one struct.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_CORE, &mut limit) == 0 };
    LEAVES_CORE.store(known && limit.rlim_cur != 0, Ordering::Relaxed);
}

/// A kernel has failed: the error sticks, and nothing runs any more.
pub(crate) fn failed(kernel: &str, fault: &Fault) {
    eprintln!("look-alike of HIP: kernel {kernel}: {fault}");
    let code = match fault {
        Fault::Memory { address, reason, .. } => {
            let reasons = if *reason == Reason::NotPresent { 1 } else { 2 };
            let event = Event { event_type: 0, agent: 1, address: *address, reasons, room: [0; 4] };
            let handler = *HANDLER.lock().unwrap_or_else(PoisonError::into_inner);
            let Some((handler, data)) = handler else { abort("Memory access fault by GPU node-1") };
            // SAFETY: the handler takes an event that lives during the call, and its data; it was registered for this.
            if unsafe { handler(&event, std::ptr::without_provenance_mut(data)) } != 0 {
                abort("Memory access fault by GPU node-1: not handled");
            }
            ILLEGAL_ADDRESS
        }
        _ if LEAVES_CORE.load(Ordering::Relaxed) => {
            abort("HSA_STATUS_ERROR_EXCEPTION: the core limit is not 0")
        }
        _ => LAUNCH_FAILURE,
    };
    STUCK.store(code, Ordering::Release);
}
