//! Seccomp: the system calls that are left once the device has started. Anything else ends the process, and
//! the supervisor reports it.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

/// Arguments that a call is allowed with: alternatives, each a list of conditions that must all hold.
pub(crate) type Arguments = Vec<Vec<(u8, SeccompCmpOp, u64)>>;

/// A permitted system call, and who needs it.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Its name.
    pub name: &'static str,
    number: i64,
    only: Arguments,
    /// Who needs it.
    pub who: &'static str,
}

/// A call with any arguments.
pub(crate) fn allow(name: &'static str, number: i64, who: &'static str) -> Rule {
    Rule { name, number, only: Vec::new(), who }
}

/// A call with some arguments.
pub(crate) fn allow_only(name: &'static str, number: i64, only: Arguments, who: &'static str) -> Rule {
    Rule { name, number, only, who }
}

/// Writable and executable at the same time.
const WRITE_EXEC: u64 = (libc::PROT_WRITE | libc::PROT_EXEC) as u64;
const PROTECTION: u8 = 2;
/// Which argument of `mmap` has its flags.
const FLAGS: u8 = 3;

/// Protections that are not both writable and executable.
pub(crate) fn never_both() -> Arguments {
    let one_of = [0, libc::PROT_WRITE as u64, libc::PROT_EXEC as u64];
    one_of.into_iter().map(|is| vec![(PROTECTION, SeccompCmpOp::MaskedEq(WRITE_EXEC), is)]).collect()
}

/// The same of a new mapping, which has no huge pages either: no limit of a process counts them.
pub(crate) fn never_both_nor_huge() -> Arguments {
    let mut arguments = never_both();
    let huge = SeccompCmpOp::MaskedEq(libc::MAP_HUGETLB as u64);
    arguments.iter_mut().for_each(|one| one.push((FLAGS, huge.clone(), 0)));
    arguments
}

/// A filter cannot be made or put in force.
#[derive(Debug, thiserror::Error)]
pub(super) enum FilterError {
    /// It is too large or contradicts itself.
    #[error("making the filter: {0}")]
    Make(#[from] BackendError),
    /// The kernel does not take it.
    #[error("the filter: {0}")]
    Apply(#[from] seccompiler::Error),
}

fn program(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    otherwise: SeccompAction,
    matched: SeccompAction,
) -> Result<BpfProgram, BackendError> {
    let arch: TargetArch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, otherwise, matched, arch)?.try_into()
}

/// Puts the rules in force on every thread there is; threads to come inherit them.
pub(super) fn close(rules: &[Rule], absent: &[i64]) -> Result<(), FilterError> {
    let mut allowed: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for rule in rules {
        let conditions = allowed.entry(rule.number).or_default();
        for all in &rule.only {
            let all = all.iter().map(|(argument, op, value)| {
                // Flags, commands and ids are 32 bits wide; the kernel ignores what is above.
                SeccompCondition::new(*argument, SeccompCmpArgLen::Dword, op.clone(), *value)
            });
            conditions.push(SeccompRule::new(all.collect::<Result<_, _>>()?)?);
        }
    }
    let otherwise = SeccompAction::KillProcess;
    let filter = program(allowed.clone(), otherwise.clone(), SeccompAction::Allow)?;
    if !absent.is_empty() {
        // The stricter of two filters wins: these are allowed by the one above and fail in this one.
        let absent = absent.iter().map(|number| (*number, Vec::new())).collect();
        let missing = SeccompAction::Errno(libc::ENOSYS as u32);
        seccompiler::apply_filter_all_threads(&program(absent, SeccompAction::Allow, missing)?)?;
    }
    Ok(seccompiler::apply_filter_all_threads(&filter)?)
}
