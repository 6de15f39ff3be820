//! What drivers of GPUs have in common: they command their devices through files, and start threads.

use std::path::PathBuf;

use seccompiler::SeccompCmpOp;

use crate::sandbox::policy::{Files, Limits, Rule, allow, allow_only, library_path};

/// Where libraries lie, and what the loader finds them by.
const LIBRARIES: [&str; 8] = [
    "/usr/lib",
    "/usr/lib64",
    "/usr/local",
    "/lib",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
];
/// What drivers read about the host.
const ABOUT: [&str; 3] = ["/sys", "/dev/urandom", "/dev/zero"];

/// What every driver reaches.
pub(in crate::device) fn files() -> Files {
    let mut files = Files { proc: true, ..Files::default() };
    files.read.extend(LIBRARIES.iter().chain(&ABOUT).map(PathBuf::from));
    files.read.extend(library_path());
    // What a driver prints goes there.
    files.write.push("/dev/null".into());
    // Drivers name their threads, each in a file of its own.
    files.write.push("/proc/self/task".into());
    files
}

/// Commands that push input into a terminal or change what it does begin like this. The log may be a terminal.
const TERMINAL: std::ops::Range<u64> = 0x5400..0x5500;

pub(in crate::device) fn rules() -> Vec<Rule> {
    let below = vec![(1, SeccompCmpOp::Lt, TERMINAL.start)];
    let above = vec![(1, SeccompCmpOp::Ge, TERMINAL.end)];
    // How the C library finds out whether it prints to one.
    let asks = vec![(1, SeccompCmpOp::Eq, libc::TCGETS)];
    vec![
        allow_only(
            "ioctl",
            libc::SYS_ioctl,
            vec![below, above, asks],
            "commands to the device; never to a terminal",
        ),
        allow("mmap", libc::SYS_mmap, "memory of the device and of the driver"),
        allow("mprotect", libc::SYS_mprotect, "memory of the driver"),
        allow(
            "openat",
            libc::SYS_openat,
            "device files for exported memory and new contexts; Landlock says which",
        ),
        allow("eventfd2", libc::SYS_eventfd2, "the driver's events"),
        allow("pipe2", libc::SYS_pipe2, "the driver's events"),
        allow("dup", libc::SYS_dup, "descriptors of device memory"),
        allow("sched_getaffinity", libc::SYS_sched_getaffinity, "the driver counts processors"),
        allow("sched_get_priority_max", libc::SYS_sched_get_priority_max, "threads of the driver's compiler"),
        allow("sched_get_priority_min", libc::SYS_sched_get_priority_min, "threads of the driver's compiler"),
        allow("sysinfo", libc::SYS_sysinfo, "the driver asks how much memory there is"),
        allow("uname", libc::SYS_uname, "the driver asks which kernel this is"),
        allow("geteuid", libc::SYS_geteuid, "the driver asks whose process this is"),
        allow("getuid", libc::SYS_getuid, "the driver asks whose process this is"),
        // Other architectures have the later forms only.
        #[cfg(target_arch = "x86_64")]
        allow("readlink", libc::SYS_readlink, "the driver looks for its devices in /sys"),
        #[cfg(target_arch = "x86_64")]
        allow("access", libc::SYS_access, "the driver looks for its files"),
        #[cfg(not(target_arch = "x86_64"))]
        allow("readlinkat", libc::SYS_readlinkat, "the driver looks for its devices in /sys"),
        #[cfg(not(target_arch = "x86_64"))]
        allow("faccessat", libc::SYS_faccessat, "the driver looks for its files"),
        allow("getdents64", libc::SYS_getdents64, "the driver looks for its devices in /sys"),
        allow("set_robust_list", libc::SYS_set_robust_list, "starting threads"),
        allow("rseq", libc::SYS_rseq, "starting threads"),
        allow(
            "clone3",
            libc::SYS_clone3,
            "starting threads: fails as if it were not there, so that the next one is used",
        ),
        allow_only(
            "clone",
            libc::SYS_clone,
            vec![vec![(0, SeccompCmpOp::MaskedEq(libc::CLONE_THREAD as u64), libc::CLONE_THREAD as u64)]],
            "starting threads; never processes",
        ),
    ]
}

/// Its flags lie in memory, where no filter can look: without it, threads are started with `clone`.
pub(in crate::device) const ABSENT: &[i64] = &[libc::SYS_clone3];

/// A driver reserves more addresses than any limit on them could allow, and needs more descriptors than a compiler alone.
pub(in crate::device) const COMPILING: Limits = Limits::compiling(256, None);
