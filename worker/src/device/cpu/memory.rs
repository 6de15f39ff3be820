//! The linear memory of one module: the only `unsafe` of the CPU device besides mapping machine code.
//!
//! Kernels and this file write to it in turns, on one thread: wasmtime holds no reference into a memory
//! while no kernel runs, and the parts written here are mapped for as long as the value lives.

#![allow(unsafe_code)]

use std::os::fd::AsFd;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use pappus_shmem::{Mapping, Protection, Reservation, ValidatedMemfd, memfd};

use super::bounds::{ENTRIES_AT, STRAY_AT, STRAY_BYTES};
use super::layout::*;

/// The largest low part that is cleared by writing zeros, which takes microseconds; a larger one is
/// mapped anew.
const ZEROED_IN_PLACE: usize = 256 << 10;

/// The worker's pool: shared memory, so that every module sees the same bytes at the same place.
#[derive(Debug)]
pub(super) struct Pool {
    memfd: ValidatedMemfd,
    /// The host's view; what is copied in and out goes through it.
    pub(super) mapping: Mapping,
    /// Usable bytes.
    pub(super) bytes: u64,
}

impl Pool {
    pub(super) fn new(bytes: u64) -> std::io::Result<Self> {
        let pages = bytes.max(1).next_multiple_of(HOST_PAGE);
        let memfd = memfd::arena("pappus-pool", pages).map_err(std::io::Error::other)?;
        let mapping = Mapping::writable(&memfd)?;
        Ok(Self { memfd, mapping, bytes })
    }

    /// Gives its memory back, although functions may still have it mapped until their next call.
    pub(super) fn release(&self) -> std::io::Result<()> {
        memfd::punch_hole(&self.memfd, 0, self.memfd.bytes())
    }
}

/// Hands a prepared memory to the next instance: wasmtime asks its memory creator in the middle of an
/// instantiation, and tells it nothing about the module.
#[derive(Debug, Default)]
pub(super) struct Handover {
    next: Mutex<Option<Arc<Reservation>>>,
}

impl Handover {
    /// Drops a memory that no instance took.
    pub(super) fn take_back(&self) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

// SAFETY: every reservation is as large as the engine's settings demand, unmapped where not prepared,
// and handed out once.
unsafe impl wasmtime::MemoryCreator for Handover {
    fn new_memory(
        &self,
        _: wasmtime::MemoryType,
        minimum: usize,
        _: Option<usize>,
        reserved: Option<usize>,
        guard: usize,
    ) -> Result<Box<dyn wasmtime::LinearMemory>, String> {
        let range = self.next.lock().unwrap_or_else(PoisonError::into_inner).take();
        let range = range.ok_or("the module defines a memory that was not prepared")?;
        let expected = (MEMORY_BYTES as usize, GUARD_BYTES as usize);
        if minimum != expected.0 || reserved != Some(expected.0) || guard != expected.1 {
            return Err("the machine code is for another memory layout".into());
        }
        Ok(Box::new(Handed(range)))
    }
}

struct Handed(Arc<Reservation>);

// SAFETY: the whole reservation lives as long as this value and never moves.
unsafe impl wasmtime::LinearMemory for Handed {
    fn byte_size(&self) -> usize {
        MEMORY_BYTES as usize
    }

    fn byte_capacity(&self) -> usize {
        MEMORY_BYTES as usize
    }

    fn grow_to(&mut self, _: usize) -> wasmtime::Result<()> {
        Err(wasmtime::Error::msg("memories do not grow"))
    }

    fn as_ptr(&self) -> *mut u8 {
        self.0.base()
    }
}

/// The linear memory of one module.
#[derive(Debug)]
pub(super) struct LinearMemory {
    range: Arc<Reservation>,
    low_bytes: usize,
    /// Bytes of the launch, its parameters and, if there is one, the page of polls.
    call_bytes: usize,
    /// What the low part holds when a call starts: `data` at `data_at`, zeros around it.
    data: Box<[u8]>,
    data_at: usize,
    /// Mapped bytes of shared memory.
    scratch_bytes: usize,
    /// Mapped and reachable bytes of the pool.
    pool_mapped: usize,
    pool_reachable: usize,
    /// Mapped bytes of weights, at the end of what kernels can address.
    weights_mapped: usize,
    /// Mapped bytes of what checked kernels may reach.
    checks_mapped: usize,
}

impl LinearMemory {
    /// A memory with its low part and the call's pages, one more of them for code that is `interruptible`.
    pub(super) fn new(low: &LowPart, interruptible: bool) -> std::io::Result<Self> {
        let range = Reservation::new((MEMORY_BYTES + GUARD_BYTES) as usize)?;
        let low_bytes = low.bytes.min(MAX_LOW_BYTES) as usize;
        if low_bytes > 0 {
            range.map_private(0, low_bytes)?;
        }
        let call_bytes = CALL_BYTES as usize + if interruptible { HOST_PAGE as usize } else { 0 };
        range.map_private(LAUNCH_AT as usize, call_bytes)?;
        Ok(Self {
            range: Arc::new(range),
            low_bytes,
            call_bytes,
            data: Box::default(),
            data_at: 0,
            scratch_bytes: 0,
            pool_mapped: 0,
            pool_reachable: 0,
            weights_mapped: 0,
            checks_mapped: 0,
        })
    }

    /// Maps weights without write permission, in place of those before; none: what was there is unmapped.
    pub(super) fn map_weights(&mut self, weights: Option<&ValidatedMemfd>) -> std::io::Result<()> {
        let before = std::mem::take(&mut self.weights_mapped);
        if before > 0 {
            self.range.unmap(weights_at(before as u64) as usize, before)?;
        }
        if let Some(weights) = weights {
            let (at, bytes) = (weights_at(weights.bytes()) as usize, weights.bytes() as usize);
            self.range.map_shared(at, bytes, weights.as_fd(), Protection::ReadOnly)?;
            self.weights_mapped = bytes;
        }
        Ok(())
    }

    /// The page that interruptible code writes to.
    pub(super) fn poll_page(&self) -> PollPage {
        PollPage(self.range.clone())
    }

    /// Makes it the memory of the next instance.
    pub(super) fn offer(&self, handover: &Handover) {
        *handover.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.range.clone());
    }

    /// Remembers the data that instantiation wrote, as what every call starts from.
    pub(super) fn remember(&mut self, low: &LowPart) {
        let end = (low.data.end as usize).min(self.low_bytes);
        self.data_at = (low.data.start as usize).min(end);
        let mut data = vec![0; end - self.data_at];
        // SAFETY: `low_bytes` are mapped at the base, and the range was cut to them; `data` is as long.
        unsafe {
            ptr::copy_nonoverlapping(self.range.base().add(self.data_at), data.as_mut_ptr(), data.len());
        }
        self.data = data.into();
    }

    /// Maps another pool in place of the one before, up to `room` bytes of it; nothing of it is reachable yet.
    pub(super) fn map_pool(&mut self, pool: &Pool, room: u64) -> std::io::Result<()> {
        if self.pool_mapped > 0 {
            self.range.unmap(POOL_AT as usize, self.pool_mapped)?;
            (self.pool_mapped, self.pool_reachable) = (0, 0);
        }
        let bytes = pool.mapping.bytes().min(room) as usize;
        self.range.map_shared(POOL_AT as usize, bytes, pool.memfd.as_fd(), Protection::ReadWrite)?;
        self.range.protect(POOL_AT as usize, bytes, None)?;
        self.pool_mapped = bytes;
        Ok(())
    }

    /// Makes the pool's first `bytes` reachable and no more: a call cannot leave data in memory that it does not own.
    /// Costs a system call when the size changes.
    pub(super) fn expose_pool(&mut self, bytes: u64) -> std::io::Result<()> {
        let (now, next) = (self.pool_reachable, bytes.next_multiple_of(HOST_PAGE) as usize);
        let at = |offset: usize| POOL_AT as usize + offset;
        if next > now {
            let allowed = Some(Protection::ReadWrite);
            self.range.protect(at(now), next - now, allowed)?;
        } else if next < now {
            self.range.protect(at(next), now - next, None)?;
        }
        self.pool_reachable = next;
        Ok(())
    }

    /// Writes a launch and its parameters where the kernel looks for them.
    pub(super) fn write_call(&mut self, launch: &LaunchRecord, slots: &[u64]) {
        let launch = launch.to_bytes();
        let bytes = (slots.len() * 8).min((CALL_BYTES - u64::from(ARGS_AT - LAUNCH_AT)) as usize);
        // SAFETY: the call's pages are mapped, `bytes` was cut to what is left of them behind the launch,
        // and `slots` holds at least as many. The parts do not overlap: the launch ends before ARGS_AT.
        unsafe {
            let base = self.range.base();
            ptr::copy_nonoverlapping(launch.as_ptr(), base.add(LAUNCH_AT as usize), launch.len());
            ptr::copy_nonoverlapping(slots.as_ptr().cast(), base.add(ARGS_AT as usize), bytes);
        }
    }

    /// Writes what the next launch may reach, where its checks look for it.
    pub(super) fn write_bounds(&mut self, count: [u8; 4], entries: &[u8]) -> std::io::Result<()> {
        let header = (ENTRIES_AT - u64::from(CHECKS_AT)) as usize;
        let needed = (header + entries.len()).next_multiple_of(HOST_PAGE as usize);
        if needed > (POOL_AT - u64::from(CHECKS_AT)) as usize {
            return Err(std::io::ErrorKind::OutOfMemory.into());
        }
        if needed > self.checks_mapped {
            self.range.map_private(CHECKS_AT as usize, needed)?;
            self.checks_mapped = needed;
        }
        // SAFETY: `checks_mapped` bytes are mapped there, no fewer than the header and the entries have.
        unsafe {
            let checks = self.range.base().add(CHECKS_AT as usize);
            ptr::write_bytes(checks, 0, header);
            ptr::copy_nonoverlapping(count.as_ptr(), checks, count.len());
            ptr::copy_nonoverlapping(entries.as_ptr(), checks.add(header), entries.len());
        }
        Ok(())
    }

    /// What a check wrote down before it trapped, if checks have a place for it.
    pub(super) fn stray(&self) -> Option<[u8; STRAY_BYTES]> {
        let mut written = [0; STRAY_BYTES];
        if self.checks_mapped == 0 {
            return None;
        }
        // SAFETY: the first page there is mapped, and holds what strayed.
        unsafe {
            let from = self.range.base().add(STRAY_AT as usize);
            ptr::copy_nonoverlapping(from, written.as_mut_ptr(), written.len());
        }
        Some(written)
    }

    /// Provides `bytes` of zeroed shared memory.
    pub(super) fn provide_scratch(&mut self, bytes: u32) -> std::io::Result<()> {
        let needed = u64::from(bytes).min(MAX_SCRATCH_BYTES).next_multiple_of(HOST_PAGE) as usize;
        if needed > self.scratch_bytes {
            self.range.map_private(SCRATCH_AT as usize, needed)?;
            self.scratch_bytes = needed;
        } else {
            self.zero_scratch(needed);
        }
        Ok(())
    }

    fn zero_scratch(&mut self, bytes: usize) {
        // SAFETY: `scratch_bytes` are mapped there.
        unsafe {
            let scratch = self.range.base().add(SCRATCH_AT as usize);
            ptr::write_bytes(scratch, 0, bytes.min(self.scratch_bytes));
        }
    }

    /// The reason that a kernel left before it trapped, if it did: what can be printed of it. The low part is this module's
    /// alone and was restored before the call, so nothing of another call's is in it.
    pub(super) fn reason(&self) -> Option<String> {
        let mut left = [0; REASON_MARK.len() + REASON_BYTES];
        if self.low_bytes < REASON_AT + left.len() {
            return None;
        }
        // SAFETY: `low_bytes` are mapped at the base, and as many as `left` has lie below that behind REASON_AT.
        unsafe { ptr::copy_nonoverlapping(self.range.base().add(REASON_AT), left.as_mut_ptr(), left.len()) };
        let text = left.strip_prefix(REASON_MARK)?;
        let text = text.iter().take_while(|byte| **byte != 0);
        let printable = |byte: &u8| if byte.is_ascii_graphic() { char::from(*byte) } else { ' ' };
        let text: String = text.map(printable).collect();
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// Restores everything that is private to the module to what it was before its first call.
    pub(super) fn restore(&mut self) -> std::io::Result<()> {
        if self.low_bytes > ZEROED_IN_PLACE {
            // Fresh pages: writing zeros would make all of a large, mostly untouched part real memory.
            self.range.map_private(0, self.low_bytes)?;
        } else {
            let data_end = self.data_at + self.data.len();
            // SAFETY: `low_bytes` are mapped at the base, and `data` was cut out of as many at `data_at`.
            unsafe {
                let base = self.range.base();
                ptr::write_bytes(base, 0, self.data_at);
                ptr::write_bytes(base.add(data_end), 0, self.low_bytes - data_end);
            }
        }
        // SAFETY: `data` was cut out of the `low_bytes` mapped at the base, and `data_at` is its offset there.
        unsafe {
            let data = self.range.base().add(self.data_at);
            ptr::copy_nonoverlapping(self.data.as_ptr(), data, self.data.len());
        }
        // SAFETY: the call's pages are mapped there.
        unsafe { ptr::write_bytes(self.range.base().add(LAUNCH_AT as usize), 0, self.call_bytes) };
        self.zero_scratch(self.scratch_bytes);
        Ok(())
    }
}

/// The page of a memory that interruptible code writes to.
#[derive(Debug)]
pub(super) struct PollPage(Arc<Reservation>);

impl PollPage {
    /// The next write to it traps.
    pub(super) fn take_away(&self) -> std::io::Result<()> {
        self.0.protect(POLL_AT as usize, HOST_PAGE as usize, None)
    }

    /// Writes to it are of no effect again.
    pub(super) fn bring_back(&self) -> std::io::Result<()> {
        self.0.protect(POLL_AT as usize, HOST_PAGE as usize, Some(Protection::ReadWrite))
    }
}

/// Where weights of that length start.
pub(super) fn weights_at(bytes: u64) -> u64 {
    WEIGHTS_END - bytes.next_multiple_of(WASM_PAGE).min(WEIGHTS_END)
}
