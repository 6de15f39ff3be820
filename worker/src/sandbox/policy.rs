//! What a process may do once its device has started: what every kind needs, and beside it the policy that each kind's
//! backend has (`device/KIND/policy.rs`). Each rule says who needs it; docs/sandbox.md lists them all.

use seccompiler::SeccompCmpOp;

pub(crate) use super::files::{Files, library_path};
pub use super::filter::Rule;
pub(crate) use super::filter::{allow, allow_only, never_both, never_both_nor_huge};
pub(crate) use super::limits::Limits;
use crate::Role;

/// What the processes of one kind of device may do.
#[derive(Debug)]
pub struct Policy {
    /// Files that they reach.
    pub(crate) files: fn() -> Files,
    /// System calls of a role beside the common ones.
    pub(crate) rules: fn(Role) -> Vec<Rule>,
    /// System calls that a device's libraries must believe this kernel does not have.
    pub(crate) absent: &'static [i64],
    /// Limits of a process that compiles.
    pub(crate) compiling: Limits,
}

impl Policy {
    /// The system calls of a role, which must not be listed twice.
    pub fn rules(&self, role: Role) -> Vec<Rule> {
        let mut rules = common();
        rules.extend((self.rules)(role));
        rules
    }
}

/// How libraries ask for the size of a page; libc does not name it.
const PR_GET_AUXV: i32 = 0x4155_5856;

fn common() -> Vec<Rule> {
    let this = rustix::process::getpid().as_raw_nonzero().get() as u64;
    let commands =
        [libc::F_GETFD, libc::F_GETFL, libc::F_ADD_SEALS, libc::F_GET_SEALS, libc::F_DUPFD_CLOEXEC];
    let commands = commands.into_iter().map(|command| vec![(1, SeccompCmpOp::Eq, command as u64)]).collect();
    let own = [libc::PR_SET_NAME, libc::PR_SET_VMA, PR_GET_AUXV];
    let own = own.into_iter().map(|option| vec![(0, SeccompCmpOp::Eq, option as u64)]).collect();
    vec![
        // Channels.
        allow("read", libc::SYS_read, "commands"),
        allow("write", libc::SYS_write, "answers; last words"),
        allow("writev", libc::SYS_writev, "last words"),
        allow("recvmsg", libc::SYS_recvmsg, "descriptors of arenas, code, weights, inputs"),
        allow("sendmsg", libc::SYS_sendmsg, "descriptors of machine code and of weights in device memory"),
        #[cfg(target_arch = "x86_64")]
        allow("poll", libc::SYS_poll, "waiting for commands"),
        allow("ppoll", libc::SYS_ppoll, "waiting for commands"),
        allow("restart_syscall", libc::SYS_restart_syscall, "a wait that a stop interrupted"),
        allow("close", libc::SYS_close, "descriptors that came over the control socket"),
        allow_only(
            "fcntl",
            libc::SYS_fcntl,
            commands,
            "seals and flags of descriptors; never owners or signals",
        ),
        allow("fstat", libc::SYS_fstat, "the size of a memfd"),
        allow(
            "newfstatat",
            libc::SYS_newfstatat,
            "the same, as the C library asks for it; Landlock lets it ask of paths, too, where a worker has no root of its own",
        ),
        allow("statx", libc::SYS_statx, "the same, as the standard library asks for it"),
        allow("fstatfs", libc::SYS_fstatfs, "whether a descriptor is a memfd"),
        allow("pread64", libc::SYS_pread64, "inputs in descriptors, modules"),
        allow("lseek", libc::SYS_lseek, "holes of a memfd"),
        // Memory.
        allow("munmap", libc::SYS_munmap, "arenas and code that are over"),
        allow("mremap", libc::SYS_mremap, "the allocator: growing large blocks"),
        allow("madvise", libc::SYS_madvise, "the allocator; clearing"),
        allow("brk", libc::SYS_brk, "the allocator"),
        allow_only(
            "memfd_create",
            libc::SYS_memfd_create,
            // No limit of a process counts them.
            vec![vec![(1, SeccompCmpOp::MaskedEq(libc::MFD_HUGETLB.into()), 0)]],
            "pools and machine code as descriptors; never of huge pages",
        ),
        allow_only(
            "ftruncate",
            libc::SYS_ftruncate,
            vec![vec![(0, SeccompCmpOp::Gt, 2)]],
            "the size of a new memfd; not of standard error",
        ),
        // Threads and time.
        allow("futex", libc::SYS_futex, "locks"),
        allow("sched_yield", libc::SYS_sched_yield, "locks"),
        allow(
            "clock_gettime",
            libc::SYS_clock_gettime,
            "deadlines and timings, where the vDSO cannot answer",
        ),
        allow("clock_nanosleep", libc::SYS_clock_nanosleep, "pauses while memory is about to be free"),
        allow("gettid", libc::SYS_gettid, "locks; panics"),
        allow("getpid", libc::SYS_getpid, "aborts; the driver"),
        allow("getrandom", libc::SYS_getrandom, "seeds of hash tables"),
        allow_only("prctl", libc::SYS_prctl, own, "names of threads and of memory; its own auxiliary vector"),
        // Signals that the process sends itself.
        allow("rt_sigaction", libc::SYS_rt_sigaction, "traps of kernels; aborts"),
        allow("rt_sigprocmask", libc::SYS_rt_sigprocmask, "aborts; starting threads"),
        allow("rt_sigreturn", libc::SYS_rt_sigreturn, "after a trap"),
        allow("sigaltstack", libc::SYS_sigaltstack, "traps of kernels"),
        allow_only(
            "tgkill",
            libc::SYS_tgkill,
            vec![vec![(0, SeccompCmpOp::Eq, this)]],
            "aborts; to this process only",
        ),
        // The end.
        allow("exit", libc::SYS_exit, "threads that are over"),
        allow("exit_group", libc::SYS_exit_group, "the end"),
    ]
}
