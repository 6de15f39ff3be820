//! Device memory and host memory.
//!
//! ```text
//!  create ──► allocation (memfd) ──map──► mapped, no access ──set access──► read, or read and write
//!    export: another descriptor of the memfd; import: an allocation of one
//!  reserve ──► addresses without memory, mapped and unmapped piece by piece
//! ```

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{ALREADY_REGISTERED, Code, INVALID_HANDLE, INVALID_VALUE, NOT_REGISTERED, OUT_OF_MEMORY};
use crate::ranges::{self, Range};
use crate::{ledger, stream};

/// The unit of allocations.
pub(crate) const GRANULARITY: u64 = 2 << 20;
const PAGE: u64 = 4096;
/// The byte of fresh memory: code that relies on zeroes shows.
const LEFTOVER: u8 = 0xd6;
/// Seals of every memfd of this library.
const SEALS: i32 = libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;

type Objects<T> = HashMap<usize, Arc<T>>;

/// Objects by handle, with the last handle. Handles are numbers, so that an invalid one is noticed.
pub(crate) struct Registry<T> {
    objects: Mutex<Option<(usize, Objects<T>)>>,
}

impl<T> Registry<T> {
    pub(crate) const fn new() -> Self {
        Self { objects: Mutex::new(None) }
    }

    fn with<R>(&self, f: impl FnOnce(&mut usize, &mut Objects<T>) -> R) -> R {
        let mut objects = locked(&self.objects);
        let (next, all) = objects.get_or_insert_with(|| (0x1000, HashMap::new()));
        f(next, all)
    }

    pub(crate) fn add(&self, object: T) -> usize {
        self.with(|next, all| {
            *next += 0x10;
            all.insert(*next, Arc::new(object));
            *next
        })
    }

    pub(crate) fn get(&self, handle: usize) -> Result<Arc<T>, Code> {
        self.with(|_, all| all.get(&handle).cloned()).ok_or(INVALID_HANDLE)
    }

    pub(crate) fn remove(&self, handle: usize) -> Result<Arc<T>, Code> {
        self.with(|_, all| all.remove(&handle)).ok_or(INVALID_HANDLE)
    }

    pub(crate) fn remove_where(&self, which: impl Fn(&T) -> bool) {
        self.with(|_, all| all.retain(|_, object| !which(object)));
    }

    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.with(|_, all| all.values().cloned().collect())
    }
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory without an address.
#[derive(Debug)]
pub(crate) struct Allocation {
    memfd: OwnedFd,
    bytes: u64,
    /// The device of the memory; none if another process made it.
    device: Option<usize>,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if let Some(device) = self.device {
            ledger::give_back(device, self.bytes);
        }
    }
}

pub(crate) static ALLOCATIONS: Registry<Allocation> = Registry::new();
/// Reserved addresses: base and bytes.
static RESERVED: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());
/// What is mapped where.
static MAPPED: Mutex<BTreeMap<u64, Arc<Allocation>>> = Mutex::new(BTreeMap::new());

/// Maps anonymous memory or a descriptor.
fn map(at: Option<u64>, bytes: u64, access: i32, memfd: Option<RawFd>) -> Result<u64, Code> {
    let fixed = if at.is_some() { libc::MAP_FIXED } else { 0 };
    let kind = if memfd.is_some() { libc::MAP_SHARED } else { libc::MAP_PRIVATE | libc::MAP_ANONYMOUS };
    let hint = std::ptr::with_exposed_provenance_mut(at.unwrap_or(0) as usize);
    let flags = fixed | kind | libc::MAP_NORESERVE;
    // SAFETY: either a place of the kernel's choice, or one inside a range that this library reserved.
    let mapped = unsafe { libc::mmap(hint, bytes as usize, access, flags, memfd.unwrap_or(-1), 0) };
    if mapped == libc::MAP_FAILED { Err(OUT_OF_MEMORY) } else { Ok(mapped.expose_provenance() as u64) }
}

fn unmap(base: u64, bytes: u64) {
    // SAFETY: a mapping of this library that nothing uses any more.
    unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(base as usize), bytes as usize) };
}

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Device memory with an address, for `hipMalloc` and modules.
pub(crate) fn allocate(device: usize, bytes: u64, writable: bool) -> Result<u64, Code> {
    let bytes = bytes.max(1).next_multiple_of(PAGE);
    if !ledger::take(device, bytes) {
        return Err(OUT_OF_MEMORY);
    }
    let base = map(None, bytes, READ_WRITE, None).inspect_err(|_| ledger::give_back(device, bytes))?;
    // SAFETY: mapped just now, this long.
    unsafe {
        std::ptr::with_exposed_provenance_mut::<u8>(base as usize).write_bytes(LEFTOVER, bytes as usize)
    };
    ranges::add(Range { base, bytes, writable, host: false });
    Ok(base)
}

/// Frees what [`allocate`] gave; waits for what runs.
pub(crate) fn free(device: usize, base: u64) -> Result<(), Code> {
    stream::drain_all();
    let is_own = ranges::current().starting(base).is_some_and(|range| !range.host);
    if !is_own || locked(&MAPPED).contains_key(&base) {
        return Err(INVALID_VALUE);
    }
    free_when_quiet(device, base)
}

/// Memory without an address.
pub(crate) fn create(device: usize, bytes: u64) -> Result<usize, Code> {
    if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
        return Err(INVALID_VALUE);
    }
    if !ledger::take(device, bytes) {
        return Err(OUT_OF_MEMORY);
    }
    let give_back = |_: &Code| ledger::give_back(device, bytes);
    let memfd = memfd(bytes).inspect_err(give_back)?;
    Ok(ALLOCATIONS.add(Allocation { memfd, bytes, device: Some(device) }))
}

fn memfd(bytes: u64) -> Result<OwnedFd, Code> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a name that ends with a zero byte; the descriptor is new.
    let memfd = unsafe {
        let fd = libc::memfd_create(c"look-alike of device memory".as_ptr(), flags);
        if fd < 0 {
            return Err(OUT_OF_MEMORY);
        }
        OwnedFd::from_raw_fd(fd)
    };
    // SAFETY: calls about an open descriptor.
    let failed = unsafe {
        libc::ftruncate(memfd.as_raw_fd(), bytes as libc::off_t) != 0
            || libc::fcntl(memfd.as_raw_fd(), libc::F_ADD_SEALS, SEALS) != 0
    };
    if failed { Err(OUT_OF_MEMORY) } else { Ok(memfd) }
}

/// A descriptor of an allocation; the caller's.
pub(crate) fn export(handle: usize) -> Result<RawFd, Code> {
    let allocation = ALLOCATIONS.get(handle)?;
    allocation.memfd.try_clone().map(IntoRawFd::into_raw_fd).map_err(|_| INVALID_VALUE)
}

/// An allocation of a descriptor that [`export`] gave to any process. The descriptor stays the caller's. As in HIP 7.1,
/// the number itself is passed, and 0, a null pointer, is refused.
pub(crate) fn import(fd: RawFd) -> Result<usize, Code> {
    if fd <= 0 {
        return Err(INVALID_VALUE);
    }
    // SAFETY: a struct of integers, for which zero is a value.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: calls about a descriptor, which fail if it is none; writes one struct.
    let (is_there, seals) = unsafe { (libc::fstat(fd, &mut about) == 0, libc::fcntl(fd, libc::F_GET_SEALS)) };
    let bytes = about.st_size as u64;
    if !is_there || seals < 0 || seals & SEALS != SEALS || bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
        return Err(INVALID_VALUE);
    }
    // SAFETY: it is open, as was seen just now, and the caller keeps it so during the call.
    let memfd = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().map_err(|_| INVALID_VALUE)?;
    Ok(ALLOCATIONS.add(Allocation { memfd, bytes, device: None }))
}

/// Reserves addresses.
pub(crate) fn reserve(bytes: u64, alignment: u64) -> Result<u64, Code> {
    if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) || alignment > GRANULARITY {
        return Err(INVALID_VALUE);
    }
    // More, to have it at a multiple of the granularity.
    let more = bytes.checked_add(GRANULARITY).ok_or(OUT_OF_MEMORY)?;
    let from = map(None, more, libc::PROT_NONE, None)?;
    let base = from.next_multiple_of(GRANULARITY);
    for (at, length) in [(from, base - from), (base + bytes, from + more - base - bytes)] {
        if length > 0 {
            unmap(at, length);
        }
    }
    locked(&RESERVED).insert(base, bytes);
    Ok(base)
}

/// Gives back addresses, in which nothing is mapped any more.
pub(crate) fn free_addresses(base: u64, bytes: u64) -> Result<(), Code> {
    let is_used = locked(&MAPPED).range(base..base.saturating_add(bytes)).next().is_some();
    let mut reserved = locked(&RESERVED);
    if is_used || reserved.get(&base) != Some(&bytes) {
        return Err(INVALID_VALUE);
    }
    reserved.remove(&base);
    unmap(base, bytes);
    Ok(())
}

/// Maps an allocation, all of it, at reserved addresses; nobody may use it yet.
pub(crate) fn map_allocation(base: u64, bytes: u64, offset: u64, handle: usize) -> Result<(), Code> {
    let allocation = ALLOCATIONS.get(handle)?;
    let is_reserved = {
        let reserved = locked(&RESERVED);
        let around = reserved.range(..=base).next_back();
        around.is_some_and(|(from, length)| base.saturating_add(bytes) <= from + length)
    };
    let mut mapped = locked(&MAPPED);
    let before = mapped.range(..base.saturating_add(bytes)).next_back();
    let is_free = before.is_none_or(|(from, other)| from + other.bytes <= base);
    if !is_reserved
        || !is_free
        || offset != 0
        || bytes != allocation.bytes
        || !base.is_multiple_of(GRANULARITY)
    {
        return Err(INVALID_VALUE);
    }
    map(Some(base), bytes, libc::PROT_NONE, Some(allocation.memfd.as_raw_fd()))?;
    mapped.insert(base, allocation);
    Ok(())
}

/// Unmaps what was mapped at an address with this size; waits for what runs.
pub(crate) fn unmap_allocation(base: u64, bytes: u64) -> Result<(), Code> {
    if locked(&MAPPED).get(&base).map(|allocation| allocation.bytes) != Some(bytes) {
        return Err(INVALID_VALUE);
    }
    stream::drain_all();
    stream::while_nothing_runs(|| {
        ranges::remove(base);
        map(Some(base), bytes, libc::PROT_NONE, None)
    })?;
    locked(&MAPPED).remove(&base);
    Ok(())
}

/// True if these addresses are a part of one mapping, and not all of it.
pub(crate) fn is_part(base: u64, bytes: u64) -> bool {
    let mapped = locked(&MAPPED);
    mapped.range(..=base).next_back().is_some_and(|(from, allocation)| {
        base < from + allocation.bytes && (base > *from || bytes < allocation.bytes)
    })
}

/// Lets kernels use a mapping: not at all (0), read it (1), or read and write it (3). Of a whole mapping only, which is
/// stricter than what is documented.
pub(crate) fn set_access(base: u64, bytes: u64, flags: u32) -> Result<(), Code> {
    if locked(&MAPPED).get(&base).map(|allocation| allocation.bytes) != Some(bytes) {
        return Err(INVALID_VALUE);
    }
    let access = match flags {
        0 => libc::PROT_NONE,
        1 => libc::PROT_READ,
        3 => READ_WRITE,
        _ => return Err(INVALID_VALUE),
    };
    stream::while_nothing_runs(|| ranges::remove(base));
    let at = std::ptr::with_exposed_provenance_mut::<c_void>(base as usize);
    // SAFETY: a mapping of this library's own.
    if unsafe { libc::mprotect(at, bytes as usize, access) } != 0 {
        return Err(OUT_OF_MEMORY);
    }
    if flags != 0 {
        ranges::add(Range { base, bytes, writable: flags == 3, host: false });
    }
    Ok(())
}

/// Pins host memory. Memory that may not be written cannot be pinned.
pub(crate) fn register(base: u64, bytes: u64) -> Result<(), Code> {
    let end = base.checked_add(bytes).ok_or(INVALID_VALUE)?;
    if base == 0 || bytes == 0 {
        return Err(INVALID_VALUE);
    }
    if ranges::current().overlaps(base, bytes) {
        return Err(ALREADY_REGISTERED);
    }
    let from = base & !(PAGE - 1);
    let at = std::ptr::with_exposed_provenance_mut(from as usize);
    // SAFETY: changes no content: pages are brought into memory as for writing, or it is an error.
    if unsafe { libc::madvise(at, (end - from) as usize, libc::MADV_POPULATE_WRITE) } != 0 {
        return Err(INVALID_VALUE);
    }
    ranges::add(Range { base, bytes, writable: true, host: true });
    Ok(())
}

/// Unpins host memory; waits for what runs.
pub(crate) fn unregister(base: u64) -> Result<(), Code> {
    if !ranges::current().starting(base).is_some_and(|range| range.host) {
        return Err(NOT_REGISTERED);
    }
    stream::drain_all();
    stream::while_nothing_runs(|| ranges::remove(base));
    Ok(())
}

/// The device's address of pinned memory: the host's.
pub(crate) fn device_pointer(base: u64) -> Result<u64, Code> {
    let pinned = ranges::current().around(base, 1).is_some_and(|range| range.host);
    if pinned { Ok(base) } else { Err(INVALID_VALUE) }
}

/// Pinned host memory of the library's own.
pub(crate) fn allocate_host(bytes: u64) -> Result<u64, Code> {
    let bytes = bytes.max(1).next_multiple_of(PAGE);
    let base = map(None, bytes, READ_WRITE, None)?;
    ranges::add(Range { base, bytes, writable: true, host: true });
    Ok(base)
}

/// Frees it; waits for what runs.
pub(crate) fn free_host(base: u64) -> Result<(), Code> {
    let range = ranges::current().starting(base).filter(|range| range.host).ok_or(INVALID_VALUE)?;
    unregister(base)?;
    unmap(range.base, range.bytes);
    Ok(())
}

/// Frees what [`allocate`] gave, where the caller knows that nothing uses it.
pub(crate) fn free_when_quiet(device: usize, base: u64) -> Result<(), Code> {
    let range = stream::while_nothing_runs(|| ranges::remove(base)).ok_or(INVALID_VALUE)?;
    unmap(range.base, range.bytes);
    ledger::give_back(device, range.bytes);
    Ok(())
}
