//! How a worker begins: what its arguments mean for its sandbox, and its descriptors at the numbers that
//! [`pappus_protocol::launch`] fixes.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use pappus_protocol::Layers;
use pappus_protocol::launch::{Arguments, COMMANDS_FD, CONTROL_FD, TURNS_FD};

use crate::sandbox::policy::Policy;
use crate::sandbox::{self, Confinement, Sandbox, SandboxError};

/// Layers of the sandbox that are not tried. More of them can be left off in what is built for tests only.
fn without(arguments: &Arguments) -> Layers {
    let hook = if cfg!(feature = "test-hooks") { std::env::var("PAPPUS_TEST_WITHOUT").ok() } else { None };
    let more: Layers = hook.and_then(|names| names.parse().ok()).unwrap_or_default();
    arguments.without.iter().chain(more.iter()).collect()
}

/// How the process that was started with these arguments is confined, on a kind of device with this policy.
pub fn confinement(arguments: &Arguments, policy: &'static Policy) -> Confinement {
    Confinement {
        role: arguments.role,
        policy,
        first_foreign: COMMANDS_FD as u32 + arguments.role.descriptors() as u32,
        uid: arguments.uid,
        adopted: arguments.adopted,
        without: without(arguments),
    }
}

/// Takes signals as programs do: the supervisor's thread that starts processes takes none, which they inherit.
pub fn take_signals() {
    let mut none = std::mem::MaybeUninit::uninit();
    // SAFETY: sigemptyset fills in the set that pthread_sigmask then reads; the old mask is not asked for.
    unsafe {
        libc::sigemptyset(none.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
    }
}

/// Why a process does not begin.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// It was not started by the supervisor.
    #[error("descriptor {number}: {why}; {usage}", usage = Arguments::USAGE)]
    Descriptor {
        /// The one that is missing.
        number: i32,
        /// The error of the system call.
        why: rustix::io::Errno,
    },
    /// It cannot be confined.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
}

/// Takes over the descriptors, and enters the sandbox with nothing else.
pub fn adopt<const N: usize>(confinement: Confinement) -> Result<([OwnedFd; N], Sandbox), LaunchError> {
    let descriptors = take::<N>()?;
    let control = &descriptors[(CONTROL_FD - COMMANDS_FD) as usize];
    let sandbox = sandbox::enter(confinement, control.as_fd())?;
    Ok((descriptors, sandbox))
}

/// The descriptors at their numbers. Must be called once, before anything is opened.
pub fn take<const N: usize>() -> Result<[OwnedFd; N], LaunchError> {
    const { assert!(COMMANDS_FD + N as i32 <= TURNS_FD + 1) };
    let numbers = std::array::from_fn::<i32, N, _>(|at| COMMANDS_FD + at as i32);
    for number in numbers {
        // SAFETY: only asks whether the descriptor is open; nothing keeps the borrow.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        rustix::io::fcntl_getfd(fd.as_fd()).map_err(|why| LaunchError::Descriptor { number, why })?;
    }
    // SAFETY: they are open (checked above), and nothing else in this process, which has opened no file
    // yet, knows their numbers.
    Ok(numbers.map(|number| unsafe { OwnedFd::from_raw_fd(number) }))
}
