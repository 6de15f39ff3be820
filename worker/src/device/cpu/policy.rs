//! The built-in device: nothing of the host at all. Kernels run on the process's own thread, modules and code
//! come as descriptors.

use crate::Role;
use crate::sandbox::policy::{
    Files, Limits, Policy, Rule, allow, allow_only, never_both, never_both_nor_huge,
};

pub(super) const POLICY: Policy =
    Policy { files: Files::default, rules, absent: &[], compiling: Limits::compiling(64, Some(4 << 30)) };

fn rules(role: Role) -> Vec<Rule> {
    let mut rules = vec![
        allow_only(
            "mmap",
            libc::SYS_mmap,
            never_both_nor_huge(),
            "memory, arenas, machine code; never writable and executable, nor of huge pages",
        ),
        allow_only(
            "mprotect",
            libc::SYS_mprotect,
            never_both(),
            "machine code, the edges of memory; never both either",
        ),
    ];
    if role == Role::Serve {
        rules.push(allow("fallocate", libc::SYS_fallocate, "clearing what a call left in the pool"));
    }
    rules
}
