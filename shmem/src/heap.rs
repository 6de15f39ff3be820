//! What the allocator keeps of memory that was freed. glibc keeps much of it for each thread, so that what one tenant
//! held for a moment would stay with the process.
//!
//! Measured: half a minute of `scripts/abuse` leaves 78 MiB beyond what quotas show with glibc's defaults, 28 to 45 MiB
//! with these settings, 488 MiB with mimalloc.

/// Large blocks are given back when they are freed, and few arenas keep small ones. To be called once, at the start of a
/// program.
pub fn keep_little() {
    #[cfg(target_env = "gnu")]
    for (setting, value) in
        [(libc::M_MMAP_THRESHOLD, 128 << 10), (libc::M_TRIM_THRESHOLD, 128 << 10), (libc::M_ARENA_MAX, 2)]
    {
        // SAFETY: mallopt takes two integers and changes only how later calls of the allocator behave.
        unsafe { libc::mallopt(setting, value) };
    }
}

/// Gives back pages that freed blocks left behind. Takes the allocator's locks for up to some milliseconds.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes an integer and touches freed memory only.
    unsafe {
        libc::malloc_trim(0)
    };
}

#[cfg(test)]
mod tests {
    fn resident_pages() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse().unwrap()
    }

    #[test]
    fn freed_memory_goes_back() {
        super::keep_little();
        let blocks: Vec<Vec<u8>> = (0..50_000).map(|_| vec![1; 1000]).collect();
        let held = resident_pages();
        drop(blocks);
        super::trim();
        assert!(resident_pages() + 5_000 < held, "{held}, then {}", resident_pages());
    }
}
