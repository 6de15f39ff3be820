//! The sandbox: a worker can only compute.
//!
//! [`enter`] comes first of all, before the process has a second thread or has opened anything: it closes
//! every descriptor but its channels, leaves every namespace that the host permits, and becomes another user, without
//! capabilities, under resource limits and Landlock. [`Sandbox::close`] comes when the device has started and
//! before the first byte of a tenant: it puts the filter of system calls in force on all threads.
//!
//! In the order of what happens:
//! - `namespaces`: what of the host cannot even be named; `raw`, the calls for it without a safe form.
//! - `root`: a root directory with nothing but what the driver needs.
//! - `identity`: users and capabilities.
//! - `limits`: resource limits.
//! - `files`: files that can be reached, and Landlock.
//! - `filter`: seccomp.
//! - [`policy`]: what is allowed on every kind of device, and what a kind adds to that.
//!
//! Layers that the host does not permit are left out; [`Sandbox::close`] returns the layers in force, and the
//! supervisor decides whether they are enough.

mod files;
mod filter;
mod identity;
mod limits;
mod namespaces;
pub mod policy;
mod raw;
mod root;

use std::os::fd::{AsFd, BorrowedFd};

use pappus_protocol::{Layer, Layers};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;

use files::Files;
use namespaces::First;
use policy::Policy;

use crate::Role;

/// Which step of the lock-down failed.
#[derive(Debug, thiserror::Error)]
#[error("the sandbox: {step}: {why}")]
pub struct SandboxError {
    step: &'static str,
    why: String,
}

fn at<E: std::fmt::Display>(step: &'static str) -> impl Fn(E) -> SandboxError {
    move |why| SandboxError { step, why: why.to_string() }
}

/// How a process is confined.
#[derive(Debug, Clone)]
pub struct Confinement {
    /// What it is for.
    pub role: Role,
    /// What it may do, on its kind of device.
    pub policy: &'static Policy,
    /// The first descriptor that is not the worker's own.
    pub first_foreign: u32,
    /// The user to become, for who may become another one.
    pub uid: Option<u32>,
    /// The supervisor adopts the first process of a pid namespace.
    pub adopted: bool,
    /// Layers that are not tried.
    pub without: Layers,
}

/// A process on its way into the sandbox.
#[derive(Debug)]
pub struct Sandbox {
    confinement: Confinement,
    layers: Layers,
}

/// Locks the process down as far as it goes before the device starts. It must have one thread. With a pid
/// namespace, another process returns from here than the one that came in.
pub fn enter(confinement: Confinement, control: BorrowedFd<'_>) -> Result<Sandbox, SandboxError> {
    let io = |step| move |e: rustix::io::Errno| at(step)(e);
    raw::close_from(confinement.first_foreign).map_err(io("closing descriptors"))?;
    // Until it is set again behind the last change of user, which clears it.
    die_with_parent()?;
    let mut layers = Layers::default();
    let wanted = |layer| !confinement.without.has(layer);
    let files = (confinement.policy.files)();
    let Left { namespaces: left, first } = leave_namespaces(&confinement, &files, control, &mut layers)?;
    left.iter().for_each(|layer| layers.add(layer));
    let mut own_proc = !files.proc;
    if left.has(Layer::MountNs) {
        let root = root::enter(&files, first.is_some());
        own_proc = root.own_proc;
        if !root.entered {
            layers.remove(Layer::MountNs);
        }
    }
    if let Some(first) = &first {
        // A driver that sees the processes of another namespace does not start.
        if !own_proc {
            first.does_not_fit();
        }
        first.fits().map_err(io("the pid namespace"))?;
    }
    if left.has(Layer::UtsNs) {
        let _ = rustix::system::sethostname(b"worker");
    }
    identity::drop_bounding();
    become_user(&confinement, &mut layers);
    identity::drop_capabilities().map_err(io("capabilities"))?;
    // A driver names its threads through /proc; until the sandbox is closed.
    identity::show_own_files(true).map_err(io("its own files"))?;
    rustix::thread::set_no_new_privs(true).map_err(io("no_new_privs"))?;
    limits::Limits::of(confinement.role, confinement.policy.compiling)
        .set()
        .map_err(io("resource limits"))?;
    if wanted(Layer::Landlock) && files::restrict(&files).map_err(at("Landlock"))? {
        layers.add(Layer::Landlock);
    }
    if let Some(first) = &first {
        first.adopted();
    }
    die_with_parent()?;
    if hung_up(control) {
        return Err(at("the supervisor")("it is gone"));
    }
    Ok(Sandbox { confinement, layers })
}

impl Sandbox {
    /// Closes it: from here on, only the system calls of the policy are left. Says what is in force.
    pub fn close(mut self) -> Result<Layers, SandboxError> {
        let Confinement { role, policy, without, .. } = self.confinement;
        identity::show_own_files(false).map_err(at("hiding from others"))?;
        if !without.has(Layer::Seccomp) {
            filter::close(&policy.rules(role), policy.absent).map_err(at("seccomp"))?;
            self.layers.add(Layer::Seccomp);
        }
        Ok(self.layers)
    }
}

/// What was left behind.
#[derive(Default)]
struct Left {
    namespaces: Layers,
    /// With a pid namespace.
    first: Option<First>,
}

/// Leaves namespaces: with the rights of root, else with those that a user namespace gives.
fn leave_namespaces(
    confinement: &Confinement,
    files: &Files,
    control: BorrowedFd<'_>,
    layers: &mut Layers,
) -> Result<Left, SandboxError> {
    let wanted = |layer| !confinement.without.has(layer) && (layer != Layer::PidNs || confinement.adopted);
    let leave = || -> Result<Left, SandboxError> {
        let mut left = Left::default();
        // The pid namespace comes first: the process before ends while this one enters the others.
        if wanted(Layer::PidNs) && namespaces::leave_pids() {
            let first = namespaces::go_on_as_first(control, files.proc).map_err(at("the pid namespace"))?;
            left = Left { namespaces: [Layer::PidNs].into_iter().collect(), first: Some(first) };
        }
        namespaces::leave(wanted).iter().for_each(|layer| left.namespaces.add(layer));
        Ok(left)
    };
    if identity::may_administer() {
        let left = leave()?;
        if !left.namespaces.is_empty() {
            return Ok(left);
        }
    }
    // The user in the new namespace is the one that this process is when it leaves.
    become_user(confinement, layers);
    if wanted(Layer::UserNs) && namespaces::leave_users() {
        layers.add(Layer::UserNs);
        return leave();
    }
    Ok(Left::default())
}

fn become_user(confinement: &Confinement, layers: &mut Layers) {
    let Some(uid) = confinement.uid else { return };
    if confinement.without.has(Layer::Uid) || layers.has(Layer::Uid) || layers.has(Layer::UserNs) {
        return;
    }
    if identity::become_user(uid) {
        layers.add(Layer::Uid);
    }
}

/// A killed supervisor leaves no process behind, even if this one is inside a kernel then.
fn die_with_parent() -> Result<(), SandboxError> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(at("PR_SET_PDEATHSIG"))
}

/// True if the supervisor has closed its end: it may have died before the kernel was asked to say so.
fn hung_up(control: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(control.as_fd(), PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let _ = rustix::event::poll(&mut polled, Some(&now));
    polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}
