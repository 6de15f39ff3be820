//! The attempts, as bare system calls: what a prisoner would do who runs machine code of its own. Their order is
//! known to the test (`integration/prisoner.rs`), which also knows what ought to come of each.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::ptr::{null, null_mut};

use libc::{c_long, syscall};

type Outcome = Result<(), String>;

fn done(result: c_long) -> Outcome {
    match result {
        0.. => Ok(()),
        _ => Err(std::io::Error::last_os_error().to_string()),
    }
}

/// What would change the host if it succeeded outside of any sandbox.
const CHANGE_THE_HOST: [usize; 5] = [9, 27, 28, 29, 34];

/// Makes sure that a control changes nothing of the host: it mounts, renames and shares memory for itself only.
pub(super) struct Fence(bool);

impl Fence {
    /// Around what runs without a sandbox.
    pub(super) fn build() -> Self {
        let own = libc::CLONE_NEWNS | libc::CLONE_NEWUTS | libc::CLONE_NEWIPC;
        let private = libc::MS_REC | libc::MS_PRIVATE;
        // SAFETY: system calls on constants; the process has one thread.
        Self(unsafe {
            syscall(libc::SYS_unshare, own) == 0
                && syscall(libc::SYS_mount, null::<u8>(), c"/".as_ptr(), null::<u8>(), private, null::<u8>())
                    == 0
        })
    }

    /// As [`attempt`], if nothing of the host can be changed by it.
    pub(super) fn attempt(&self, number: usize, other: i32) -> Outcome {
        match self.0 || !CHANGE_THE_HOST.contains(&number) {
            true => attempt(number, other),
            false => Err("not tried: it would change the host".to_owned()),
        }
    }
}

/// One of them; `other` is a process that the prisoner has no business with.
pub(super) fn attempt(number: usize, other: i32) -> Outcome {
    // SAFETY: each is a single system call on arguments that live through it, in a process that does nothing else.
    unsafe { attempt_raw(number, other) }
}

/// # Safety
/// The process has one thread and ends soon.
unsafe fn attempt_raw(number: usize, other: i32) -> Outcome {
    let open = |path: &CStr, flags: i32| {
        // SAFETY: a path that ends with a zero.
        unsafe { syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0o600) }
    };
    // SAFETY: as the caller promises; no call keeps a pointer.
    unsafe {
        match number {
            // The network.
            0 => done(syscall(libc::SYS_socket, libc::AF_INET, libc::SOCK_STREAM, 0)),
            1 => connect_abstract(),
            // Files.
            2 => done(open(c"/etc/passwd", libc::O_RDONLY)),
            3 => done(open(c"/tmp", libc::O_TMPFILE | libc::O_RDWR)),
            4 => done(open(c"/proc/self/mem", libc::O_RDWR)),
            5 => done(open(c"/proc/sys/kernel/core_pattern", libc::O_WRONLY)),
            6 => done(open(&path(&format!("/proc/{other}/fd/0")), libc::O_RDONLY)),
            7 => done(open(&path(&format!("/proc/{other}/mem")), libc::O_RDONLY)),
            8 => done(syscall(libc::SYS_chroot, c"/".as_ptr())),
            9 => done(syscall(
                libc::SYS_mount,
                c"t".as_ptr(),
                c"/tmp".as_ptr(),
                c"tmpfs".as_ptr(),
                0,
                null::<u8>(),
            )),
            // Other programs.
            10 => match syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) {
                0 => libc::_exit(0),
                pid => done(pid),
            },
            11 => exec(c"/proc/self/exe", 0),
            12 => exec_memfd(),
            // Other processes.
            13 => done(syscall(libc::SYS_ptrace, libc::PTRACE_SEIZE, other, 0, 0)),
            14 => done(syscall(libc::SYS_kill, other, 0)),
            15 => done(syscall(libc::SYS_tgkill, other, other, 0)),
            16 => read_memory(other),
            17 => done(syscall(libc::SYS_pidfd_open, other, 0)),
            // More room.
            18 => done(syscall(libc::SYS_unshare, libc::CLONE_NEWUSER)),
            19 => done(syscall(libc::SYS_unshare, libc::CLONE_NEWNET)),
            20 => done(syscall(libc::SYS_setuid, 0)),
            21 => done(syscall(libc::SYS_setpriority, libc::PRIO_PROCESS, 0, -20)),
            22 => {
                let more = libc::rlimit { rlim_cur: 4096, rlim_max: 1 << 20 };
                done(syscall(libc::SYS_setrlimit, libc::RLIMIT_CORE, &raw const more))
            }
            // Large surfaces of the kernel.
            23 => {
                let mut parameters = [0u64; 15];
                done(syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()))
            }
            24 => {
                // A map of the kind array: four bytes each, one entry.
                let map = [2u32, 4, 4, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
                done(syscall(libc::SYS_bpf, 0, map.as_ptr(), 48))
            }
            25 => done(syscall(libc::SYS_userfaultfd, 1)),
            26 => {
                // The clock of this process: type software, 112 bytes, not counting the kernel.
                let mut event = [0u64; 14];
                event[0] = 1 | 112 << 32;
                event[5] = 1 << 5 | 1 << 6;
                done(syscall(libc::SYS_perf_event_open, event.as_ptr(), 0, -1, -1, 0))
            }
            27 => {
                // The process's own ring, which goes with it.
                let (kind, name, ring) = (c"user", c"prisoner", -2);
                done(syscall(libc::SYS_add_key, kind.as_ptr(), name.as_ptr(), name.as_ptr(), 4, ring))
            }
            28 => done(syscall(libc::SYS_shmget, 0, 4096, 0o600)),
            29 => done(syscall(libc::SYS_sethostname, c"prisoner".as_ptr(), 8)),
            30 => {
                // Pushes a character into the terminal that is the log.
                let kept = b'x';
                match syscall(libc::SYS_ioctl, 2, libc::TIOCSTI, &raw const kept) {
                    // Only a call that is let through hears that there is no terminal.
                    -1 if *libc::__errno_location() == libc::ENOTTY => Ok(()),
                    result => done(result),
                }
            }
            // No length that a file can have: only who is let through hears that.
            31 => match syscall(libc::SYS_ftruncate, 2, -1_i64) {
                -1 if *libc::__errno_location() == libc::EINVAL => Ok(()),
                result => done(result),
            },
            // Signals through the owner of a descriptor.
            32 => done(syscall(libc::SYS_fcntl, 3, libc::F_SETOWN, other)),
            33 => {
                let both = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                done(syscall(libc::SYS_mmap, 0, 4096, both, flags, -1, 0))
            }
            34 => {
                let (path, mode) = (c"/tmp/pappus-prisoner", libc::S_IFIFO | 0o600);
                let made = done(syscall(libc::SYS_mknodat, libc::AT_FDCWD, path.as_ptr(), mode, 0));
                if made.is_ok() {
                    syscall(libc::SYS_unlinkat, libc::AT_FDCWD, path.as_ptr(), 0);
                }
                made
            }
            35 => done(syscall(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 1, 0, 0, 0)),
            36 => done(syscall(libc::SYS_memfd_create, c"huge".as_ptr(), libc::MFD_HUGETLB)),
            // Where none are reserved, only who is let through hears that.
            37 => {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB;
                match syscall(libc::SYS_mmap, 0, 2 << 20, libc::PROT_READ, flags, -1, 0) {
                    -1 if *libc::__errno_location() == libc::ENOMEM => Ok(()),
                    result => done(result),
                }
            }
            _ => Err("there is no such attempt".to_owned()),
        }
    }
}

fn path(text: &str) -> std::ffi::CString {
    std::ffi::CString::new(text).unwrap_or_default()
}

/// # Safety
/// The path must be one; if it succeeds, nothing here goes on.
unsafe fn exec(program: &CStr, descriptor: i32) -> Outcome {
    let arguments = [c"prisoner".as_ptr(), c"escaped".as_ptr(), null()];
    let nothing = [null::<u8>()];
    // The program complains about its arguments and ends with code 1.
    // SAFETY: both lists end with a null.
    done(unsafe {
        match descriptor {
            0 => syscall(libc::SYS_execve, program.as_ptr(), arguments.as_ptr(), nothing.as_ptr()),
            fd => syscall(
                libc::SYS_execveat,
                fd,
                c"".as_ptr(),
                arguments.as_ptr(),
                nothing.as_ptr(),
                libc::AT_EMPTY_PATH,
            ),
        }
    })
}

/// # Safety
/// As [`exec`].
unsafe fn exec_memfd() -> Outcome {
    let script = b"#!/bin/sh\nexit 1\n";
    // SAFETY: the name ends with a zero, the bytes live through the call.
    unsafe {
        let memfd = syscall(libc::SYS_memfd_create, c"escape".as_ptr(), 0);
        done(syscall(libc::SYS_write, memfd, script.as_ptr(), script.len()))?;
        exec(c"", memfd as i32)
    }
}

/// # Safety
/// None beyond a system call.
unsafe fn read_memory(other: i32) -> Outcome {
    let mut byte = [0u8; 1];
    let local = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // No address of the other process is known: a call that is let through fails with `EFAULT`.
    let remote = libc::iovec { iov_base: null_mut(), iov_len: 1 };
    // SAFETY: both lists have one element.
    match unsafe { syscall(libc::SYS_process_vm_readv, other, &raw const local, 1, &raw const remote, 1, 0) }
    {
        // SAFETY: the calling thread's own.
        -1 if unsafe { *libc::__errno_location() } == libc::EFAULT => Ok(()),
        result => done(result),
    }
}

/// # Safety
/// None beyond system calls.
unsafe fn connect_abstract() -> Outcome {
    // SAFETY: an address of plain bytes, and its length.
    unsafe {
        let socket = syscall(libc::SYS_socket, libc::AF_UNIX, libc::SOCK_STREAM, 0);
        done(socket)?;
        let mut address: libc::sockaddr_un = std::mem::zeroed();
        address.sun_family = libc::AF_UNIX as u16;
        let name = b"\0pappus-prisoner";
        address.sun_path.iter_mut().zip(name).for_each(|(to, from)| *to = *from as _);
        let length = size_of::<libc::sa_family_t>() + name.len();
        done(syscall(libc::SYS_connect, socket, &raw const address, length))
    }
}
