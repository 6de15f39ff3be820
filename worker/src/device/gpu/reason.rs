//! Why a kernel trapped, as it said itself: `REQUIRE` of `kernels/c/pappus_gpu.h` writes its text to one page of host memory
//! before the trap, which loses the context, but not the host's memory.
//!
//! The page has one address, in every worker and for the device and the host alike, so that kernels need neither an argument nor
//! a variable to find it. Kernels of this process's domain alone write there, and it is cleared behind every call; what it
//! holds is a stranger's bytes.

use std::ptr;
use std::sync::OnceLock;

use super::driver::Driver;
use crate::device::cpu::layout::{REASON_BYTES, REASON_MARK};

/// Where the page is; `pappus_gpu.h` has the same number. Far from what the system and drivers choose by themselves.
const AT: usize = 0x3000_0000_0000;
const BYTES: usize = 4096;

/// The page, for one device.
#[derive(Debug)]
pub(super) struct Reason<D: Driver> {
    page: *mut u8,
    _pinned: D::Pinned,
}

/// Maps the page, once in a process and for as long as that lives; none where something else is in its place.
fn page() -> Option<*mut u8> {
    static PAGE: OnceLock<bool> = OnceLock::new();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let is_there = PAGE.get_or_init(|| {
        // SAFETY: a mapping of its own, which replaces no other one.
        let found = unsafe { libc::mmap(ptr::without_provenance_mut(AT), BYTES, access, flags, -1, 0) };
        // Kernels of the system that do not know the flag may map it elsewhere.
        found.addr() == AT
    });
    is_there.then(|| ptr::with_exposed_provenance_mut(AT))
}

impl<D: Driver> Reason<D> {
    /// The page, where the device uses the host's addresses. Without it a trap has no text, and all else is the same.
    pub(super) fn prepare(driver: &D) -> Option<Self> {
        // SAFETY: mapped with this length, and nothing unmaps it.
        unsafe { Self::on(driver, driver.properties().host_addresses.then(page)??) }
    }

    /// # Safety
    /// `page` has its length for as long as the process lives, and nothing in this process refers into it.
    unsafe fn on(driver: &D, page: *mut u8) -> Option<Self> {
        // SAFETY: as the caller promises.
        let pinned = unsafe { driver.pin(page, BYTES as u64, false) }.ok()?;
        let reason = Self { page, _pinned: pinned };
        reason.clear();
        Some(reason)
    }

    /// Forgets whatever a call left.
    pub(super) fn clear(&self) {
        // SAFETY: mapped with this length; nothing in this process has a reference into it.
        unsafe { ptr::write_bytes(self.page, 0, BYTES) };
    }

    /// The text that the trapped kernel left, if any.
    pub(super) fn text(&self) -> Option<String> {
        let mut left = [0; REASON_MARK.len() + REASON_BYTES];
        // SAFETY: mapped and longer than that; a kernel that still runs can garble the text, which is its own.
        unsafe { ptr::copy_nonoverlapping(self.page.cast_const(), left.as_mut_ptr(), left.len()) };
        printable(&left)
    }
}

/// What can be printed of what a kernel left: its mark, and a text up to a zero.
fn printable(left: &[u8]) -> Option<String> {
    let text = left.strip_prefix(REASON_MARK)?.iter().take_while(|byte| **byte != 0);
    let printable = |byte: &u8| if byte.is_ascii_graphic() { char::from(*byte) } else { ' ' };
    let text: String = text.map(printable).collect();
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::device::gpu::fake::Fake;

    /// On a page of its own: tests run beside each other.
    pub(in crate::device::gpu) fn apart() -> Reason<Fake> {
        let page = Box::leak(Box::new([0xee; BYTES])).as_mut_ptr();
        // SAFETY: leaked, this long.
        unsafe { Reason::on(&Fake::new(), page) }.unwrap()
    }

    /// As a kernel does.
    pub(in crate::device::gpu) fn leave(reason: &Reason<Fake>, bytes: &[u8]) {
        assert!(bytes.len() <= BYTES);
        // SAFETY: the page is as long.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), reason.page, bytes.len()) };
    }

    #[test]
    fn kernels_find_the_page_where_the_device_has_the_hosts_addresses() {
        let mut driver = Fake::new();
        assert!(Reason::prepare(&driver).is_none());
        driver.properties.host_addresses = true;
        for _ in 0..2 {
            assert_eq!(Reason::prepare(&driver).unwrap().page.addr(), AT);
        }
        let header = include_str!("../../../../kernels/c/pappus_gpu.h");
        assert!(header.contains(&format!("{AT:#x}u)")), "pappus_gpu.h has another address");
    }

    #[test]
    fn what_a_kernel_left_is_told_as_far_as_it_can_be_printed() {
        let reason = apart();
        assert_eq!(reason.text(), None, "nothing of what was there before");
        leave(&reason, b"REQUIRE:a.c:3: requires n > \x1b[31m\n0\0 behind");
        assert_eq!(reason.text().as_deref(), Some("a.c:3: requires n >  [31m 0"));
        // One that does not end is cut.
        leave(&reason, &[REASON_MARK.as_slice(), &[b'x'; 1000]].concat());
        assert_eq!(reason.text().map(|text| text.len()), Some(REASON_BYTES));
        leave(&reason, b"require:");
        assert_eq!(reason.text(), None);
        reason.clear();
        leave(&reason, REASON_MARK);
        assert_eq!(reason.text(), None, "nothing of the call before");
    }
}
