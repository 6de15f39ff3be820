//! The process's user: one of its own where the host permits it, and without capabilities.

use rustix::process::{DumpableBehavior, Gid, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};

fn effective() -> CapabilitySet {
    rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective)
}

/// True if namespaces may be left as this user.
pub(super) fn may_administer() -> bool {
    effective().contains(CapabilitySet::SYS_ADMIN)
}

/// Becomes another user without any groups; true if that worked. The supervisor must still be able to kill
/// the process.
pub(super) fn become_user(uid: u32) -> bool {
    let needed = CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::KILL;
    if !effective().contains(needed) {
        return false;
    }
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
    let became = rustix::thread::set_thread_groups(&[])
        .and_then(|()| rustix::thread::set_thread_res_gid(group, group, group))
        .and_then(|()| rustix::thread::set_thread_res_uid(user, user, user));
    // A change of user hides the process's own files in /proc from it.
    became.and_then(|()| show_own_files(true)).is_ok()
}

/// Lets processes of the same user, this one included, look into this process, or forbids it.
pub(super) fn show_own_files(show: bool) -> rustix::io::Result<()> {
    rustix::process::set_dumpable_behavior(match show {
        true => DumpableBehavior::Dumpable,
        false => DumpableBehavior::NotDumpable,
    })
}

/// Empties the bounding set, so that no program executed from here gets capabilities. Where the process lacks the right
/// to do so, the other steps still hold.
pub(super) fn drop_bounding() {
    for capability in CapabilitySet::all().iter() {
        let _ = rustix::thread::remove_capability_from_bounding_set(capability);
    }
}

/// Gives up every capability.
pub(super) fn drop_capabilities() -> rustix::io::Result<()> {
    // Kernels without ambient capabilities have none to clear.
    let _ = rustix::thread::clear_ambient_capability_set();
    let none = CapabilitySet::empty();
    rustix::thread::set_capabilities(
        None,
        CapabilitySets { effective: none, permitted: none, inheritable: none },
    )
}
