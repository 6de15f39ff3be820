//! How much memory of the devices all processes have: a file of counters that they map. Each process has a line of its
//! own, held by a lock on it for the life of the process; a line that is not locked any more is another's from the next
//! start on. A process that cannot open the file counts for itself.

use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::settings::SETTINGS;

/// The most processes, and devices.
const LINES: usize = 256;
const DEVICES: usize = 8;

type Counters = [[AtomicU64; DEVICES]; LINES];

struct Ledger {
    counters: &'static Counters,
    line: usize,
}

static LEDGER: OnceLock<Ledger> = OnceLock::new();

fn open() -> Option<Ledger> {
    let path = SETTINGS.folder.as_ref()?.join("lookalike.memory");
    let file =
        std::fs::File::options().read(true).write(true).create(true).truncate(false).open(path).ok()?;
    file.set_len(size_of::<Counters>() as u64).ok()?;
    let line = (0..LINES).find(|line| lock(&file, *line))?;
    // SAFETY: a new mapping of the whole file, which is never unmapped.
    let mapped = unsafe {
        let (bytes, access) = (size_of::<Counters>(), libc::PROT_READ | libc::PROT_WRITE);
        libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    if mapped == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: as long as the counters, and they are atomic, as other processes' are.
    let counters: &Counters = unsafe { &*mapped.cast() };
    counters[line].iter().for_each(|counter| counter.store(0, Ordering::Relaxed));
    // The lock is this process's until it ends.
    std::mem::forget(file);
    Some(Ledger { counters, line })
}

/// Locks a line of the file for this process; false if another process has it.
fn lock(file: &std::fs::File, line: usize) -> bool {
    let lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: line as libc::off_t,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: reads one struct.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) == 0 }
}

fn ledger() -> &'static Ledger {
    static OWN: Counters = [const { [const { AtomicU64::new(0) }; DEVICES] }; LINES];
    LEDGER.get_or_init(|| open().unwrap_or(Ledger { counters: &OWN, line: 0 }))
}

/// Opens the file.
pub(crate) fn start() {
    ledger();
}

/// Bytes of a device that no process has.
pub(crate) fn free_bytes(device: usize) -> u64 {
    let used: u64 = ledger().counters.iter().map(|line| line[device % DEVICES].load(Ordering::Relaxed)).sum();
    SETTINGS.memory_bytes.saturating_sub(used)
}

/// Takes bytes of a device; false if there are not enough.
pub(crate) fn take(device: usize, bytes: u64) -> bool {
    let ledger = ledger();
    let own = &ledger.counters[ledger.line][device % DEVICES];
    own.fetch_add(bytes, Ordering::Relaxed);
    let used: u64 = ledger.counters.iter().map(|line| line[device % DEVICES].load(Ordering::Relaxed)).sum();
    if used > SETTINGS.memory_bytes {
        own.fetch_sub(bytes, Ordering::Relaxed);
        return false;
    }
    true
}

/// Gives bytes back.
pub(crate) fn give_back(device: usize, bytes: u64) {
    let ledger = ledger();
    ledger.counters[ledger.line][device % DEVICES].fetch_sub(bytes, Ordering::Relaxed);
}
