//! The look-alike as a program uses it: opened at run time, called as C calls it. What leaves an error that sticks runs
//! in a process of its own.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod library;
mod several;
#[path = "../../../../../worker/src/device/hip/sys.rs"]
#[allow(dead_code, unreachable_pub, reason = "it is the worker's, and most of it is compared only")]
mod sys;

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use library::{Hip, at, child, opened};

const PINNED: [c_int; 8] = [1, 1, 1, 0, 0, 0, 0, 0];
const UNIT: usize = 2 << 20;

/// The bytes of a committed module.
fn code(name: &str) -> &'static [u8] {
    pappus_kernels::artefact(name).unwrap()
}

fn launch(
    hip: &Hip,
    function: usize,
    grid: [u32; 3],
    block: [u32; 3],
    stream: usize,
    arguments: &[u8],
) -> u32 {
    let mut length = arguments.len();
    let mut extra: [*mut c_void; 5] =
        [at(1), arguments.as_ptr().cast_mut().cast(), at(2), (&raw mut length).cast(), at(3)];
    let launch: unsafe extern "C" fn(
        usize,
        u32,
        u32,
        u32,
        u32,
        u32,
        u32,
        u32,
        usize,
        *mut c_void,
        *mut *mut c_void,
    ) -> u32 = hip.get("hipModuleLaunchKernel");
    let ([x, y, z], [bx, by, bz]) = (grid, block);
    // SAFETY: a list as the function wants it, which lives during the call.
    unsafe { launch(function, x, y, z, bx, by, bz, 0, stream, null_mut(), extra.as_mut_ptr()) }
}

/// Device memory of one unit, mapped and writable.
fn mapped(hip: &Hip, flags: u32) -> (usize, usize) {
    let (mut base, mut memory) = (0usize, 0usize);
    hip.ok("hipMemAddressReserve", [(&raw mut base).addr(), UNIT, 0, 0, 0]);
    hip.ok("hipMemCreate", [(&raw mut memory).addr(), UNIT, PINNED.as_ptr().addr(), 0]);
    hip.ok("hipMemMap", [base, UNIT, 0, memory, 0]);
    let access = [1u32, 0, flags];
    hip.ok("hipMemSetAccess", [base, UNIT, access.as_ptr().addr(), 1]);
    (base, memory)
}

fn stream(hip: &Hip) -> usize {
    let mut stream = 0usize;
    hip.ok("hipStreamCreateWithFlags", [(&raw mut stream).addr(), 1]);
    stream
}

fn function(hip: &Hip, module: &str, kernel: &std::ffi::CStr) -> usize {
    let (mut loaded, mut function) = (0usize, 0usize);
    hip.ok("hipModuleLoadData", [(&raw mut loaded).addr(), code(module).as_ptr().addr()]);
    hip.ok("hipModuleGetFunction", [(&raw mut function).addr(), loaded, kernel.as_ptr().addr()]);
    function
}

/// Copies to the device, adds, copies back; on a stream or as a graph.
fn add_vectors(hip: &Hip, as_graph: bool) {
    let (base, _) = mapped(hip, 3);
    let stream = stream(hip);
    let add = function(hip, "linalg.hsaco", c"vec_add_f");
    let a: Vec<f32> = (0..1000).map(|i| i as f32).collect();
    let mut c = vec![0f32; 1000];
    hip.ok("hipHostRegister", [a.as_ptr().addr(), 4000, 0]);
    let mut event = 0usize;
    hip.ok("hipEventCreateWithFlags", [(&raw mut event).addr(), 0]);
    if as_graph {
        hip.ok("hipStreamBeginCapture", [stream, 1]);
    }
    hip.ok("hipMemcpyHtoDAsync", [base, a.as_ptr().addr(), 4000, stream]);
    hip.ok("hipMemcpyDtoDAsync", [base + 4096, base, 4000, stream]);
    let arguments: Vec<u8> =
        [base, base + 4096, base + 8192, 1000].iter().flat_map(|word| (*word as u64).to_le_bytes()).collect();
    assert_eq!(launch(hip, add, [4, 1, 1], [256, 1, 1], stream, &arguments), 0);
    hip.ok("hipEventRecordWithFlags", [event, stream, usize::from(as_graph)]);
    if as_graph {
        let (mut graph, mut executable) = (0usize, 0usize);
        hip.ok("hipStreamEndCapture", [stream, (&raw mut graph).addr()]);
        hip.ok("hipGraphInstantiateWithFlags", [(&raw mut executable).addr(), graph, 0]);
        hip.ok("hipGraphDestroy", [graph]);
        // Nothing ran yet.
        hip.ok("hipMemsetD8Async", [base + 8192, 0xff, 4000, stream]);
        hip.ok("hipMemcpyDtoHAsync", [c.as_mut_ptr().addr(), base + 8192, 4000, stream]);
        assert!(c.iter().all(|x| x.to_bits() == u32::MAX));
        for _ in 0..3 {
            hip.ok("hipGraphLaunch", [executable, stream]);
        }
        hip.ok("hipGraphExecDestroy", [executable]);
    }
    hip.ok("hipMemcpyDtoHAsync", [c.as_mut_ptr().addr(), base + 8192, 4000, stream]);
    hip.ok("hipEventQuery", [event]);
    hip.ok("hipStreamQuery", [stream]);
    assert!(c.iter().zip(&a).all(|(c, a)| *c == a + a));
    hip.ok("hipHostUnregister", [a.as_ptr().addr()]);
    hip.ok("hipStreamDestroy", [stream]);
    hip.ok("hipMemUnmap", [base, UNIT]);
}

#[test]
fn kernels_run_on_streams_and_in_graphs() {
    let hip = opened();
    add_vectors(hip, false);
    add_vectors(hip, true);
}

/// The worker's own table of functions, filled from the look-alike, and some calls through it.
#[test]
fn everything_that_the_worker_calls_is_here() {
    let hip = opened();
    // SAFETY: the functions of these names have the signatures of the headers, as the table has.
    let table = unsafe { sys::Hip::load(|name| hip.find(name)) };
    let table = table.unwrap_or_else(|name| panic!("{name:?} is missing"));
    let (mut count, mut version, mut properties) = (0, 0, Box::new(sys::hipDeviceProp_tR0600::EMPTY));
    // SAFETY: they write one integer each, and properties.
    unsafe {
        assert_eq!((table.hipRuntimeGetVersion)(&mut version), sys::hipSuccess);
        assert_eq!((table.hipGetDeviceCount)(&mut count), sys::hipSuccess);
        assert_eq!((table.hipGetDevicePropertiesR0600)(&mut *properties, 0), sys::hipSuccess);
    }
    assert!(version >= sys::OLDEST && count == 1);
    let name: Vec<u8> =
        properties.name.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect();
    assert_eq!(name, b"Look-alike gfx90a");
}

#[test]
fn what_the_device_says_of_itself() {
    let hip = opened();
    let (mut version, mut count) = (0 as c_int, 0 as c_int);
    hip.ok("hipRuntimeGetVersion", [(&raw mut version).addr()]);
    hip.ok("hipGetDeviceCount", [(&raw mut count).addr()]);
    assert_eq!((version, count), (70_152_802, 1));
    let mut properties = vec![0xffu8; 4096];
    hip.ok("hipGetDevicePropertiesR0600", [properties.as_mut_ptr().addr(), 0]);
    assert!(properties[1160..].starts_with(b"gfx90a:sramecc+:xnack-\0"));
    assert!(properties[1472..].iter().all(|byte| *byte == 0xff), "no more than its size");
    assert_eq!(hip.call("hipSetDevice", [1]), 101);
    assert_eq!(hip.call("hipDeviceGetAttribute", [(&raw mut count).addr(), 12345, 0]), 1);
}

#[test]
fn mappings_are_checked() {
    let hip = opened();
    let (base, memory) = mapped(hip, 3);
    let access = [1u32, 0, 3];
    // Twice, with an offset, of another size, where nothing is reserved.
    assert_eq!(hip.call("hipMemMap", [base, UNIT, 0, memory, 0]), 1);
    assert_eq!(hip.call("hipMemMap", [base + UNIT, UNIT, 0, memory, 0]), 1);
    assert_eq!(hip.call("hipMemUnmap", [base, UNIT / 2]), 1);
    assert_eq!(hip.call("hipMemSetAccess", [base, UNIT / 2, access.as_ptr().addr(), 1]), 1);
    assert_eq!(hip.call("hipMemAddressFree", [base, UNIT]), 1, "it is in use");
    hip.ok("hipMemRelease", [memory]);
    assert_eq!(hip.call("hipMemRelease", [memory]), 400);
    // It lives on while it is mapped.
    hip.ok("hipMemsetD8Async", [base, 7, UNIT, 0]);
    hip.ok("hipMemUnmap", [base, UNIT]);
    assert_eq!(hip.call("hipMemsetD8Async", [base, 7, UNIT, 0]), 1);
    hip.ok("hipMemAddressFree", [base, UNIT]);
    let mut made = 0usize;
    assert_eq!(hip.call("hipMemCreate", [(&raw mut made).addr(), UNIT + 1, PINNED.as_ptr().addr(), 0]), 1);
    assert_eq!(hip.call("hipMemCreate", [(&raw mut made).addr(), 1 << 40, PINNED.as_ptr().addr(), 0]), 2);
}

#[test]
fn host_memory_is_pinned_once_and_only_if_it_can_be_written() {
    let hip = opened();
    let bytes = vec![0u8; 64 << 10];
    hip.ok("hipHostRegister", [bytes.as_ptr().addr(), bytes.len(), 0]);
    assert_eq!(hip.call("hipHostRegister", [bytes.as_ptr().addr() + 4096, 4096, 0]), 712);
    hip.ok("hipHostUnregister", [bytes.as_ptr().addr()]);
    assert_eq!(hip.call("hipHostUnregister", [bytes.as_ptr().addr()]), 713);
    // SAFETY: a new mapping that cannot be written.
    let read_only = unsafe {
        libc::mmap(null_mut(), 4096, libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    };
    assert_eq!(hip.call("hipHostRegister", [read_only.addr(), 4096, 0]), 1);
}

#[test]
fn launches_are_checked() {
    let hip = opened();
    let add = function(hip, "linalg.hsaco", c"vec_add_f");
    let stream = stream(hip);
    let arguments = [0; 32];
    for (grid, block, code) in [
        ([0, 1, 1], [1, 1, 1], 1),
        ([1, 1, 1], [1, 0, 1], 1),
        ([1, 1, 1], [1025, 1, 1], 9),
        ([1 << 31, 1, 1], [64, 1, 1], 9),
    ] {
        assert_eq!(launch(hip, add, grid, block, stream, &arguments), code, "{grid:?} {block:?}");
    }
    assert_eq!(launch(hip, add, [1, 1, 1], [1, 1, 1], stream, &arguments[..31]), 1, "too few arguments");
    assert_eq!(launch(hip, add, [1, 1, 1], [1, 1, 1], 12345, &arguments), 400);
    let mut module = 0usize;
    let load = |image: &[u8], module: &mut usize| {
        hip.call("hipModuleLoadData", [std::ptr::from_mut(module).addr(), image.as_ptr().addr()])
    };
    assert_eq!(load(code("linalg.gfx942.hsaco"), &mut module), 209);
    assert_eq!(load(&[0; 64], &mut module), 200);
}

#[test]
fn a_capture_that_is_disturbed_fails() {
    let hip = opened();
    let stream = stream(hip);
    hip.ok("hipStreamBeginCapture", [stream, 1]);
    assert_eq!(hip.call("hipStreamSynchronize", [stream]), 900);
    let mut graph = 0usize;
    assert_eq!(hip.call("hipStreamEndCapture", [stream, (&raw mut graph).addr()]), 901);
    hip.ok("hipStreamSynchronize", [stream]);
}

/// In a process of its own: a store by a kernel to memory that it may only read.
#[test]
fn faults_stick_and_are_told_to_the_handler() {
    for (kernel, flags, code, reasons) in
        [("read-only", 1, 700, 2), ("unmapped", 3, 700, 1), ("trap", 3, 719, 0)]
    {
        let Some(()) = child("faults_stick_and_are_told_to_the_handler", kernel, |_| ()) else { continue };
        let hip = opened();
        SEEN.store(0, std::sync::atomic::Ordering::Relaxed);
        hip.ok("hsa_amd_register_system_event_handler", [remember as *const () as usize, 0]);
        assert_eq!(
            hip.call("hsa_amd_register_system_event_handler", [remember as *const () as usize, 0]),
            0x1000
        );
        let (base, _) = mapped(hip, flags);
        let stream = stream(hip);
        let target = if kernel == "unmapped" { base + 4 * UNIT } else { base };
        let arguments: Vec<u8> =
            [base, base, target, 64].iter().flat_map(|word| (*word as u64).to_le_bytes()).collect();
        if kernel == "trap" {
            let tiled = function(hip, "linalg.hsaco", c"matmul_tiled_i64");
            assert_eq!(launch(hip, tiled, [1, 1, 1], [64, 1, 1], stream, &[0; 48]), 0);
        } else {
            let add = function(hip, "linalg.hsaco", c"vec_add_f");
            assert_eq!(launch(hip, add, [1, 1, 1], [64, 1, 1], stream, &arguments), 0);
        }
        assert_eq!(hip.call("hipStreamSynchronize", [stream]), code);
        for name in ["hipDeviceSynchronize", "hipStreamQuery"] {
            assert_eq!(hip.call(name, [stream]), code, "{name}");
        }
        let mut count = 0;
        assert_eq!(hip.call("hipGetDeviceCount", [(&raw mut count as *mut c_int).addr()]), code);
        let wanted = if reasons == 0 { 0 } else { (target as u64) << 8 | reasons };
        assert_eq!(SEEN.load(std::sync::atomic::Ordering::Relaxed), wanted);
    }
}

static SEEN: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// Remembers the address and the reasons of a memory fault.
unsafe extern "C" fn remember(event: *const u64, _: *mut c_void) -> u32 {
    // SAFETY: type, agent, address, reasons.
    let (address, reasons) = unsafe { (event.add(2).read(), event.add(3).cast::<u32>().read()) };
    SEEN.store(address << 8 | u64::from(reasons), std::sync::atomic::Ordering::Relaxed);
    0
}
