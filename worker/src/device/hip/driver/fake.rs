//! A library without a GPU, for tests: it records what it is told, in order, and fails where it is told to.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::os::fd::IntoRawFd;

use super::TABLE;
use crate::device::hip::sys::{self, Hip, hipError_t};

thread_local! {
    static STATE: RefCell<State> = RefCell::default();
}

#[derive(Default)]
struct State {
    log: Vec<String>,
    fails: Option<(&'static str, hipError_t)>,
    /// What the next questions about a stream are answered with; then it is over.
    queries: Vec<hipError_t>,
    reserved: usize,
    /// Where kernels find pinned memory, if not at its own address.
    elsewhere: bool,
}

/// From here on, the library's functions are these.
pub(super) fn install() {
    // SAFETY: every function below has the signature of its name; the others are called by no test, and have none.
    TABLE.get_or_init(|| match unsafe { Hip::load(|name| Some(function(name))) } {
        Ok(table) => table,
        Err(name) => panic!("no {name:?}"),
    });
    STATE.with_borrow_mut(|state| *state = State::default());
}

/// What was recorded since the last time.
pub(super) fn log() -> Vec<String> {
    STATE.with_borrow_mut(|state| std::mem::take(&mut state.log))
}

/// The next call of this function fails.
pub(super) fn fail(name: &'static str, with: hipError_t) {
    STATE.with_borrow_mut(|state| state.fails = Some((name, with)));
}

pub(super) fn queries(answers: &[hipError_t]) {
    STATE.with_borrow_mut(|state| state.queries = answers.iter().rev().copied().collect());
}

pub(super) fn pinned_memory_is_elsewhere() {
    STATE.with_borrow_mut(|state| state.elsewhere = true);
}

fn told(name: &'static str, what: String) -> hipError_t {
    STATE.with_borrow_mut(|state| {
        state.log.push(format!("{name} {what}").trim_end().to_owned());
        match state.fails.take_if(|(fails, _)| *fails == name) {
            Some((_, error)) => error,
            None => sys::hipSuccess,
        }
    })
}

fn function(name: &CStr) -> *const c_void {
    match name.to_bytes() {
        b"hipGetErrorName" | b"hipGetErrorString" => words as *const c_void,
        b"hipMemCreate" => create as *const c_void,
        b"hipMemRelease" => release as *const c_void,
        b"hipMemAddressReserve" => reserve as *const c_void,
        b"hipMemMap" => map as *const c_void,
        b"hipMemUnmap" => unmap as *const c_void,
        b"hipMemSetAccess" => set_access as *const c_void,
        b"hipMemExportToShareableHandle" => export as *const c_void,
        b"hipMemImportFromShareableHandle" => import as *const c_void,
        b"hipHostRegister" => register as *const c_void,
        b"hipHostUnregister" => unregister as *const c_void,
        b"hipHostGetDevicePointer" => device_pointer as *const c_void,
        b"hipModuleLaunchKernel" => launch as *const c_void,
        b"hipStreamCreateWithFlags" | b"hipEventCreateWithFlags" => create_with_flags as *const c_void,
        b"hipStreamDestroy" | b"hipEventDestroy" => destroy as *const c_void,
        b"hipStreamQuery" => query as *const c_void,
        _ => none as *const c_void,
    }
}

extern "C" fn none() -> hipError_t {
    sys::hipErrorNotSupported
}

extern "C" fn words(_: hipError_t) -> *const c_char {
    c"words".as_ptr()
}

unsafe extern "C" fn create(
    handle: *mut *mut c_void,
    size: usize,
    prop: *const sys::hipMemAllocationProp,
    flags: c_ulonglong,
) -> hipError_t {
    // SAFETY: as the real function's callers promise.
    let prop = unsafe {
        handle.write(std::ptr::without_provenance_mut(7));
        *prop
    };
    let (kind, export, location) = (prop.type_, prop.requestedHandleTypes, prop.location);
    told("create", format!("{size} {kind} {export} {} {} {flags}", location.type_, location.id))
}

unsafe extern "C" fn release(handle: *mut c_void) -> hipError_t {
    told("release", handle.addr().to_string())
}

unsafe extern "C" fn reserve(
    at: *mut *mut c_void,
    size: usize,
    alignment: usize,
    hint: *mut c_void,
    flags: c_ulonglong,
) -> hipError_t {
    let nth = STATE.with_borrow_mut(|state| {
        state.reserved += 1;
        state.reserved
    });
    // SAFETY: as the real function's callers promise.
    unsafe { at.write(std::ptr::without_provenance_mut(nth << 44)) };
    told("reserve", format!("{size} {alignment} {} {flags}", hint.addr()))
}

unsafe extern "C" fn map(
    at: *mut c_void,
    size: usize,
    offset: usize,
    handle: *mut c_void,
    flags: c_ulonglong,
) -> hipError_t {
    told("map", format!("{:#x} {size} {offset} {} {flags}", at.addr(), handle.addr()))
}

unsafe extern "C" fn unmap(at: *mut c_void, size: usize) -> hipError_t {
    told("unmap", format!("{:#x} {size}", at.addr()))
}

unsafe extern "C" fn set_access(
    at: *mut c_void,
    size: usize,
    access: *const sys::hipMemAccessDesc,
    count: usize,
) -> hipError_t {
    // SAFETY: as the real function's callers promise.
    let access = unsafe { *access };
    told("access", format!("{:#x} {size} {} {} {count}", at.addr(), access.location.id, access.flags))
}

unsafe extern "C" fn export(
    to: *mut c_void,
    handle: *mut c_void,
    kind: c_uint,
    flags: c_ulonglong,
) -> hipError_t {
    let fd: c_int = std::fs::File::open("/dev/null").map_or(-1, IntoRawFd::into_raw_fd);
    // SAFETY: for this kind of handle the callers give room for one int.
    unsafe { to.cast::<c_int>().write(fd) };
    told("export", format!("{} {kind} {flags}", handle.addr()))
}

unsafe extern "C" fn import(handle: *mut *mut c_void, from: *mut c_void, kind: c_uint) -> hipError_t {
    // SAFETY: as the real function's callers promise.
    unsafe { handle.write(std::ptr::without_provenance_mut(9)) };
    told("import", format!("{} {kind}", from.addr()))
}

unsafe extern "C" fn register(_: *mut c_void, size: usize, flags: c_uint) -> hipError_t {
    told("register", format!("{size} {flags}"))
}

unsafe extern "C" fn unregister(_: *mut c_void) -> hipError_t {
    told("unregister", String::new())
}

unsafe extern "C" fn device_pointer(to: *mut *mut c_void, host: *mut c_void, flags: c_uint) -> hipError_t {
    let elsewhere = STATE.with_borrow(|state| state.elsewhere);
    // SAFETY: as the real function's callers promise.
    unsafe { to.write(if elsewhere { std::ptr::without_provenance_mut(64) } else { host }) };
    told("pointer", flags.to_string())
}

#[allow(clippy::too_many_arguments, reason = "as the real function")]
unsafe extern "C" fn launch(
    kernel: *mut c_void,
    gx: c_uint,
    gy: c_uint,
    gz: c_uint,
    bx: c_uint,
    by: c_uint,
    bz: c_uint,
    shared: c_uint,
    _: *mut c_void,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> hipError_t {
    // SAFETY: the callers give five values, of which the fourth points to a length and the second to as many bytes.
    let (marks, bytes) = unsafe {
        let extra = std::slice::from_raw_parts(extra, 5);
        let length = extra[3].cast::<usize>().read();
        ([extra[0], extra[2], extra[4]], std::slice::from_raw_parts(extra[1].cast::<u8>(), length))
    };
    let marks = marks.map(|mark| mark.addr());
    let kernel = kernel.addr();
    let shape = format!("{gx} {gy} {gz} / {bx} {by} {bz} / {shared}");
    told("launch", format!("{kernel} {shape} {} {marks:?} {bytes:?}", params.is_null()))
}

unsafe extern "C" fn create_with_flags(handle: *mut *mut c_void, flags: c_uint) -> hipError_t {
    // SAFETY: as the real function's callers promise.
    unsafe { handle.write(std::ptr::without_provenance_mut(5)) };
    told("with flags", format!("{flags:#x}"))
}

unsafe extern "C" fn destroy(_: *mut c_void) -> hipError_t {
    sys::hipSuccess
}

unsafe extern "C" fn query(_: *mut c_void) -> hipError_t {
    STATE.with_borrow_mut(|state| state.queries.pop()).unwrap_or(sys::hipSuccess)
}
