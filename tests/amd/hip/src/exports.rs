//! The functions as C sees them, in the order of their headers: `hip_runtime_api.h`, `hsa_ext_amd.h`. Each asks first
//! whether an earlier error sticks.

#![allow(non_snake_case, reason = "names of the C headers")]

use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{
    self, Code, Handler, INVALID_DEVICE, INVALID_VALUE, NO_DEVICE, NOT_FOUND, NOT_INITIALIZED, NOT_SUPPORTED,
    SUCCESS,
};
use crate::ledger;
use crate::memory::{self, ALLOCATIONS, GRANULARITY};
use crate::module::{self, FUNCTIONS, Launch, MODULES};
use crate::ranges;
use crate::settings::{self, SETTINGS};
use crate::stream::{self, EVENTS, EXECUTABLES, Event, GRAPHS, Graph, STREAMS, Stream, Work};

/// A handle: a number.
type Handle = *mut c_void;

/// Nothing runs before `hipInit`, or with no device.
static VISIBLE: std::sync::OnceLock<Vec<usize>> = std::sync::OnceLock::new();
/// The position of the chosen device among those that are visible.
static CHOSEN: AtomicUsize = AtomicUsize::new(0);

fn code(result: Result<(), Code>) -> Code {
    result.err().unwrap_or(SUCCESS)
}

/// What all calls begin with.
fn ready() -> Result<(), Code> {
    error::stuck()?;
    if VISIBLE.get().is_some() { Ok(()) } else { Err(NOT_INITIALIZED) }
}

/// A call's body, once the library is ready.
fn call(f: impl FnOnce() -> Result<(), Code>) -> Code {
    code(ready().and_then(|()| f()))
}

/// The number among all of the device in this position.
fn device(position: c_int) -> Result<usize, Code> {
    let visible = VISIBLE.get().ok_or(NOT_INITIALIZED)?;
    let position = usize::try_from(position).map_err(|_| INVALID_DEVICE)?;
    visible.get(position).copied().ok_or(INVALID_DEVICE)
}

fn chosen() -> Result<usize, Code> {
    device(CHOSEN.load(Ordering::Relaxed) as c_int)
}

/// Writes a result where a pointer says.
///
/// # Safety
/// `to` is null or may be written.
unsafe fn put<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: as the caller promises.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// Writes a string with a zero byte into a buffer.
///
/// # Safety
/// `to` has `length` bytes.
unsafe fn put_text(to: *mut c_char, length: usize, text: &str) -> Result<(), Code> {
    if to.is_null() || length <= text.len() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: as the caller promises.
    unsafe {
        to.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len());
        to.cast::<u8>().add(text.len()).write(0);
    }
    Ok(())
}

/// The name that a pointer names.
///
/// # Safety
/// `name` is null or a string with a zero byte.
unsafe fn name<'a>(name: *const c_char) -> Result<&'a str, Code> {
    if name.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| NOT_FOUND)
}

fn handle(number: usize) -> Handle {
    std::ptr::without_provenance_mut(number)
}

fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// Declares functions for C. All exports have one contract: pointers are as HIP's headers ask.
macro_rules! exports {
    ($($name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        /// # Safety
        /// Pointers are what HIP's headers ask for.
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe, reason = "some use no pointer")]
        unsafe extern "C" fn $name($($argument: $type),*) -> Code {
            // SAFETY: as the caller promises.
            unsafe { $body }
        }
    )*};
}

exports! {
    hipInit(flags: c_uint) {
        if flags != 0 {
            return INVALID_VALUE;
        }
        let visible = VISIBLE.get_or_init(|| {
            ledger::start();
            error::start();
            settings::visible()
        });
        code(error::stuck().and(if visible.is_empty() { Err(NO_DEVICE) } else { Ok(()) }))
    }

    hipRuntimeGetVersion(version: *mut c_int) {
        code(put(version, SETTINGS.version))
    }

    hipDriverGetVersion(version: *mut c_int) {
        code(put(version, SETTINGS.version))
    }

    hipGetDeviceCount(count: *mut c_int) {
        call(|| put(count, VISIBLE.get().map_or(0, Vec::len) as c_int))
    }

    hipDeviceGetUuid(uuid: *mut [u8; 16], position: c_int) {
        call(|| {
            let text = settings::uuid_of(device(position)?);
            put(uuid, *text.as_bytes().first_chunk().ok_or(NOT_SUPPORTED)?)
        })
    }

    hipDeviceGetPCIBusId(id: *mut c_char, length: c_int, position: c_int) {
        call(|| put_text(id, length.max(0) as usize, &settings::bus_id_of(device(position)?)))
    }

    hipDeviceTotalMem(bytes: *mut usize, position: c_int) {
        call(|| device(position).and_then(|_| put(bytes, SETTINGS.memory_bytes as usize)))
    }

    hipDeviceGetAttribute(value: *mut c_int, attribute: c_uint, position: c_int) {
        call(|| {
            device(position)?;
            let found = match attribute {
                4 | 89 => 1,
                57 => 2048,
                63 => SETTINGS.units as c_int,
                74 => gfx9::chip::LDS_BYTES as c_int,
                87 => 64,
                _ => return Err(INVALID_VALUE),
            };
            put(value, found)
        })
    }

    hipGetDevicePropertiesR0600(properties: *mut u8, position: c_int) {
        call(|| {
            let device = device(position)?;
            if properties.is_null() {
                return Err(INVALID_VALUE);
            }
            // Offsets of `hipDeviceProp_tR0600`: name, uuid, totalGlobalMem, sharedMemPerBlock, warpSize, gcnArchName.
            properties.write_bytes(0, 1472);
            put_text(properties.cast(), 256, &format!("Look-alike {}", SETTINGS.arch))?;
            let uuid = settings::uuid_of(device);
            properties.add(256).copy_from_nonoverlapping(uuid.as_ptr(), 16);
            put(properties.add(288).cast(), SETTINGS.memory_bytes)?;
            put(properties.add(296).cast(), u64::from(gfx9::chip::LDS_BYTES))?;
            put(properties.add(308).cast(), 64u32)?;
            put_text(properties.add(1160).cast(), 256, &module::target())
        })
    }

    hipSetDevice(position: c_int) {
        call(|| device(position).map(|_| CHOSEN.store(position as usize, Ordering::Relaxed)))
    }

    hipDeviceSynchronize() {
        call(|| {
            if STREAMS.all().iter().any(|stream| stream.captures()) {
                return Err(error::CAPTURE_UNSUPPORTED);
            }
            stream::drain_all();
            error::stuck()
        })
    }

    hipMemGetInfo(free: *mut usize, total: *mut usize) {
        call(|| {
            put(free, ledger::free_bytes(chosen()?) as usize)?;
            put(total, SETTINGS.memory_bytes as usize)
        })
    }

    hipMemGetAllocationGranularity(granularity: *mut usize, properties: *const c_void, option: c_uint) {
        call(|| if properties.is_null() || option > 1 { Err(INVALID_VALUE) } else { put(granularity, GRANULARITY as usize) })
    }

    hipMemCreate(made: *mut Handle, size: usize, properties: *const [c_int; 4], flags: c_ulonglong) {
        call(|| {
            if properties.is_null() || flags != 0 {
                return Err(INVALID_VALUE);
            }
            // Pinned, on the device, a descriptor or nothing as its handle.
            let [kind, handle_type, location, position] = properties.read_unaligned();
            if kind != 1 || location != 1 || !(handle_type == 0 || handle_type == 1) {
                return Err(INVALID_VALUE);
            }
            put(made, handle(memory::create(device(position)?, size as u64)?))
        })
    }

    hipMemRelease(allocation: Handle) {
        call(|| ALLOCATIONS.remove(allocation.addr()).map(drop))
    }

    hipMemAddressReserve(at: *mut *mut c_void, size: usize, alignment: usize, wanted: *mut c_void, flags: c_ulonglong) {
        call(|| {
            // A wish for an address is a wish only.
            let _ = wanted;
            if flags != 0 {
                return Err(INVALID_VALUE);
            }
            put(at, pointer(memory::reserve(size as u64, alignment as u64)?))
        })
    }

    hipMemAddressFree(at: *mut c_void, size: usize) {
        call(|| memory::free_addresses(at.addr() as u64, size as u64))
    }

    hipMemMap(at: *mut c_void, size: usize, offset: usize, allocation: Handle, flags: c_ulonglong) {
        call(|| match flags {
            0 => memory::map_allocation(at.addr() as u64, size as u64, offset as u64, allocation.addr()),
            _ => Err(INVALID_VALUE),
        })
    }

    hipMemUnmap(at: *mut c_void, size: usize) {
        call(|| memory::unmap_allocation(at.addr() as u64, size as u64))
    }

    hipMemSetAccess(at: *mut c_void, size: usize, description: *const [u32; 3], count: usize) {
        call(|| {
            if description.is_null() || count != 1 {
                return Err(INVALID_VALUE);
            }
            let [location, position, flags] = description.read_unaligned();
            if location != 1 {
                return Err(INVALID_VALUE);
            }
            device(position as c_int)?;
            memory::set_access(at.addr() as u64, size as u64, flags)
        })
    }

    hipMemExportToShareableHandle(exported: *mut c_int, allocation: Handle, kind: c_uint, flags: c_ulonglong) {
        call(|| if kind != 1 || flags != 0 { Err(INVALID_VALUE) } else { put(exported, memory::export(allocation.addr())?) })
    }

    hipMemImportFromShareableHandle(made: *mut Handle, descriptor: *mut c_void, kind: c_uint) {
        call(|| match c_int::try_from(descriptor.addr()) {
            Ok(descriptor) if kind == 1 => put(made, handle(memory::import(descriptor)?)),
            _ => Err(INVALID_VALUE),
        })
    }

    hipHostRegister(at: *mut c_void, size: usize, flags: c_uint) {
        call(|| match flags {
            0..=3 => memory::register(at.expose_provenance() as u64, size as u64),
            _ => Err(NOT_SUPPORTED),
        })
    }

    hipHostUnregister(at: *mut c_void) {
        call(|| memory::unregister(at.addr() as u64))
    }

    hipHostGetDevicePointer(found: *mut *mut c_void, at: *mut c_void, flags: c_uint) {
        call(|| if flags != 0 { Err(INVALID_VALUE) } else { put(found, pointer(memory::device_pointer(at.addr() as u64)?)) })
    }

    hipHostMalloc(at: *mut *mut c_void, size: usize, flags: c_uint) {
        let _ = flags;
        call(|| put(at, pointer(memory::allocate_host(size as u64)?)))
    }

    hipHostFree(at: *mut c_void) {
        call(|| if at.is_null() { Ok(()) } else { memory::free_host(at.addr() as u64) })
    }

    hipMalloc(at: *mut *mut c_void, size: usize) {
        call(|| put(at, pointer(memory::allocate(chosen()?, size as u64, true)?)))
    }

    hipFree(at: *mut c_void) {
        call(|| if at.is_null() { Ok(()) } else { memory::free(chosen()?, at.addr() as u64) })
    }

    hipModuleLoadData(made: *mut Handle, image: *const c_void) {
        call(|| {
            if image.is_null() {
                return Err(INVALID_VALUE);
            }
            put(made, handle(module::load(chosen()?, image.cast())?))
        })
    }

    hipModuleUnload(module: Handle) {
        call(|| {
            stream::drain_all();
            let unloaded = MODULES.remove(module.addr())?;
            FUNCTIONS.remove_where(|function| function.is_of(&unloaded));
            Ok(())
        })
    }

    hipModuleGetFunction(found: *mut Handle, module: Handle, wanted: *const c_char) {
        call(|| put(found, handle(module::function(module.addr(), name(wanted)?)?)))
    }

    hipModuleGetGlobal(at: *mut *mut c_void, size: *mut usize, module: Handle, wanted: *const c_char) {
        call(|| {
            let (address, bytes) = module::global(module.addr(), name(wanted)?)?;
            if !size.is_null() {
                put(size, bytes as usize)?;
            }
            put(at, pointer(address))
        })
    }

    hipStreamCreateWithFlags(made: *mut Handle, flags: c_uint) {
        call(|| if flags > 1 { Err(INVALID_VALUE) } else { put(made, handle(STREAMS.add(Stream::start()?))) })
    }

    hipStreamDestroy(stream: Handle) {
        // What was submitted is still done.
        call(|| STREAMS.remove(stream.addr()).map(drop))
    }

    hipStreamQuery(stream: Handle) {
        call(|| stream::find(stream.addr())?.query())
    }

    hipStreamSynchronize(stream: Handle) {
        call(|| stream::find(stream.addr())?.synchronize())
    }

    hipMemcpyHtoDAsync(to: *mut c_void, from: *const c_void, size: usize, stream: Handle) {
        call(|| {
            let stream = stream::find(stream.addr())?;
            let (to, source, bytes) = (to.addr() as u64, from.expose_provenance() as u64, size as u64);
            if !stream::is_device(to, bytes, true) {
                return Err(INVALID_VALUE);
            }
            let pinned = ranges::current().around(source, bytes).is_some_and(|range| range.host);
            if pinned || stream.captures() {
                return stream.submit(Work::Copy { to, from: source, bytes });
            }
            let bytes = Arc::from(std::slice::from_raw_parts(from.cast::<u8>(), size));
            stream.submit(Work::Bring { to, bytes })
        })
    }

    hipMemcpyDtoHAsync(to: *mut c_void, from: *mut c_void, size: usize, stream: Handle) {
        call(|| {
            let stream = stream::find(stream.addr())?;
            let (target, from, bytes) = (to.expose_provenance() as u64, from.addr() as u64, size as u64);
            if !stream::is_device(from, bytes, false) {
                return Err(INVALID_VALUE);
            }
            let pinned = ranges::current().around(target, bytes).is_some_and(|range| range.host);
            stream.submit(Work::Copy { to: target, from, bytes })?;
            if pinned || stream.captures() { Ok(()) } else { stream.synchronize() }
        })
    }

    hipMemcpyDtoDAsync(to: *mut c_void, from: *mut c_void, size: usize, stream: Handle) {
        call(|| {
            let (to, from, bytes) = (to.addr() as u64, from.addr() as u64, size as u64);
            if !stream::is_device(to, bytes, true) || !stream::is_device(from, bytes, false) {
                return Err(INVALID_VALUE);
            }
            stream::find(stream.addr())?.submit(Work::Copy { to, from, bytes })
        })
    }

    hipMemsetD8Async(to: *mut c_void, byte: c_uchar, size: usize, stream: Handle) {
        call(|| {
            let (to, bytes) = (to.addr() as u64, size as u64);
            if !stream::is_device(to, bytes, true) {
                return Err(INVALID_VALUE);
            }
            stream::find(stream.addr())?.submit(Work::Fill { to, byte, bytes })
        })
    }

    hipModuleLaunchKernel(
        function: Handle,
        grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint,
        lds_bytes: c_uint,
        stream: Handle,
        parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) {
        call(|| {
            let function = FUNCTIONS.get(function.addr())?;
            let stream = stream::find(stream.addr())?;
            let arguments = match (parameters.is_null(), extra.is_null()) {
                (true, false) => module::from_extra(&function, extra)?,
                (false, true) => module::from_parameters(&function, parameters),
                (true, true) if function.arguments_bytes() == 0 => Vec::new(),
                _ => return Err(INVALID_VALUE),
            };
            let [grid, block] = [[grid_x, grid_y, grid_z], [block_x, block_y, block_z]];
            let launch = Launch::new(function, grid, block, lds_bytes, arguments)?;
            stream.submit(Work::Launch(Arc::new(launch)))
        })
    }

    hipEventCreateWithFlags(made: *mut Handle, flags: c_uint) {
        call(|| put(made, handle(EVENTS.add(Event::new(flags & 2 == 0)))))
    }

    hipEventDestroy(event: Handle) {
        call(|| EVENTS.remove(event.addr()).map(drop))
    }

    hipEventQuery(event: Handle) {
        call(|| EVENTS.get(event.addr())?.query())
    }

    hipEventRecord(event: Handle, stream: Handle) {
        call(|| {
            let (event, stream) = (EVENTS.get(event.addr())?, stream::find(stream.addr())?);
            // In a capture it only says what depends on what, which order already does here.
            if stream.captures() { Ok(()) } else { stream.submit(Work::Record(event)) }
        })
    }

    hipEventRecordWithFlags(event: Handle, stream: Handle, flags: c_uint) {
        call(|| {
            let (event, stream) = (EVENTS.get(event.addr())?, stream::find(stream.addr())?);
            match flags {
                0 if stream.captures() => Ok(()),
                0 | 1 => stream.submit(Work::Record(event)),
                _ => Err(INVALID_VALUE),
            }
        })
    }

    hipEventElapsedTime(ms: *mut f32, start: Handle, stop: Handle) {
        call(|| {
            let (start, stop) = (EVENTS.get(start.addr())?, EVENTS.get(stop.addr())?);
            put(ms, stop.ms_since(&start)?)
        })
    }

    hipStreamBeginCapture(stream: Handle, mode: c_uint) {
        call(|| match (stream.is_null(), mode) {
            (false, 0..=2) => STREAMS.get(stream.addr())?.begin_capture(),
            (true, _) => Err(error::CAPTURE_UNSUPPORTED),
            _ => Err(INVALID_VALUE),
        })
    }

    hipStreamEndCapture(stream: Handle, graph: *mut Handle) {
        call(|| put(graph, handle(STREAMS.get(stream.addr())?.end_capture()?)))
    }

    hipGraphInstantiateWithFlags(made: *mut Handle, graph: Handle, flags: c_ulonglong) {
        call(|| {
            let _ = flags;
            let work = GRAPHS.get(graph.addr())?.0.clone();
            put(made, handle(EXECUTABLES.add(Graph(work))))
        })
    }

    hipGraphLaunch(graph: Handle, stream: Handle) {
        call(|| {
            let graph = EXECUTABLES.get(graph.addr())?;
            stream::find(stream.addr())?.submit(Work::Graph(graph.0.clone()))
        })
    }

    hipGraphDestroy(graph: Handle) {
        call(|| GRAPHS.remove(graph.addr()).map(drop))
    }

    hipGraphExecDestroy(graph: Handle) {
        call(|| EXECUTABLES.remove(graph.addr()).map(drop))
    }

    hsa_amd_register_system_event_handler(handler: Option<Handler>, data: *mut c_void) {
        // HSA_STATUS_ERROR where there is one already, HSA_STATUS_ERROR_INVALID_ARGUMENT without one.
        match handler {
            Some(handler) if error::register(handler, data) => 0,
            Some(_) => 0x1000,
            None => 0x1001,
        }
    }
}

/// The name of an error.
#[unsafe(no_mangle)]
extern "C" fn hipGetErrorName(error: Code) -> *const c_char {
    error::texts(error).0.as_ptr()
}

/// What an error means.
#[unsafe(no_mangle)]
extern "C" fn hipGetErrorString(error: Code) -> *const c_char {
    error::texts(error).1.as_ptr()
}
