//! How a worker is started: its arguments, and the descriptors that the supervisor placed at fixed numbers:
//! 3 commands, 4 answers, 5 control socket, 6 staging arena (serving role only).

#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use pappus_protocol::{Kind, Layer, Layers};

use crate::Role;
use crate::sandbox::{self, Confinement, Sandbox};

/// What there is to say about the arguments.
pub const USAGE: &str = "usage: pappus-worker serve|compile|survey --device cpu|cuda [--lanes N] [--numa-node=N] [--uid=N] \
    [--adopted] [--without=pidns] (started by pappus-supervisor)";
const COMMANDS: i32 = 3;
const CONTROL: i32 = 5;
const STAGING: i32 = 6;

/// What the command line says.
#[derive(Debug)]
pub struct Arguments {
    /// What the process is for.
    pub role: Role,
    /// The device's kind, as named.
    pub kind: String,
    /// Concurrent calls.
    pub lanes: usize,
    /// The host's memory node to pin threads to.
    pub numa_node: Option<u32>,
    uid: Option<u32>,
    adopted: bool,
    without: Layers,
}

impl Arguments {
    /// Reads them.
    pub fn parse(arguments: &[String]) -> Option<Self> {
        let [role, flag, kind, rest @ ..] = arguments else {
            return None;
        };
        let role = match (role.as_str(), flag.as_str()) {
            ("serve", "--device") => Role::Serve,
            ("compile", "--device") => Role::Compile,
            ("survey", "--device") => Role::Survey,
            _ => return None,
        };
        let mut parsed = Self {
            role,
            kind: kind.clone(),
            lanes: 1,
            numa_node: None,
            uid: None,
            adopted: false,
            without: Layers::default(),
        };
        let mut rest = rest.iter();
        while let Some(flag) = rest.next() {
            match flag.split_once('=') {
                Some(("--numa-node", node)) => parsed.numa_node = Some(node.parse().ok()?),
                Some(("--uid", uid)) => parsed.uid = Some(uid.parse().ok()?),
                // The one layer that some hosts offer and then do not let be used.
                Some(("--without", "pidns")) => parsed.without.add(Layer::PidNs),
                None if flag == "--adopted" => parsed.adopted = true,
                None if flag == "--lanes" => parsed.lanes = rest.next()?.parse().ok()?,
                _ => return None,
            }
        }
        Some(parsed)
    }

    /// Layers that are not tried. More of them can be left off in what is built for tests only.
    fn without(&self) -> Layers {
        let hook =
            if cfg!(feature = "test-hooks") { std::env::var("PAPPUS_TEST_WITHOUT").ok() } else { None };
        let more: Layers = hook.and_then(|names| names.parse().ok()).unwrap_or_default();
        self.without.iter().chain(more.iter()).collect()
    }

    /// How the process with `descriptors` of its own is confined.
    pub fn confinement(&self, kind: Kind, descriptors: usize) -> Confinement {
        Confinement {
            role: self.role,
            kind,
            first_foreign: COMMANDS as u32 + descriptors as u32,
            uid: self.uid,
            adopted: self.adopted,
            without: self.without(),
        }
    }
}

/// Takes over the descriptors, and enters the sandbox with nothing else.
pub fn adopt<const N: usize>(
    confinement: Confinement,
) -> Result<([OwnedFd; N], Sandbox), Box<dyn std::error::Error>> {
    let descriptors = take::<N>()?;
    let control = &descriptors[(CONTROL - COMMANDS) as usize];
    let sandbox = sandbox::enter(confinement, control.as_fd())?;
    Ok((descriptors, sandbox))
}

/// The descriptors at their numbers. Must be called once, before anything is opened.
pub fn take<const N: usize>() -> Result<[OwnedFd; N], String> {
    const { assert!(COMMANDS + N as i32 <= STAGING + 1) };
    let numbers = std::array::from_fn::<i32, N, _>(|at| COMMANDS + at as i32);
    for number in numbers {
        // SAFETY: only asks whether the descriptor is open; nothing keeps the borrow.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        rustix::io::fcntl_getfd(fd.as_fd()).map_err(|e| format!("descriptor {number}: {e}; {USAGE}"))?;
    }
    // SAFETY: they are open (checked above), and nothing else in this process, which has opened no file
    // yet, knows their numbers.
    Ok(numbers.map(|number| unsafe { OwnedFd::from_raw_fd(number) }))
}
