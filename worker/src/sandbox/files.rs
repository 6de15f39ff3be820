//! Files that a process may still reach, and Landlock, which holds it to them; and to no socket or signal beyond its
//! own domain.

use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope, path_beneath_rules,
};

/// Files that can be reached.
#[derive(Debug, Default)]
pub(crate) struct Files {
    /// Read, and what is below.
    pub(crate) read: Vec<PathBuf>,
    /// Read, written and sent commands to: device files.
    pub(crate) write: Vec<PathBuf>,
    /// `/proc` is needed.
    pub(crate) proc: bool,
}

/// Directories of libraries that the loader was told about.
pub(crate) fn library_path() -> Vec<PathBuf> {
    let told = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    std::env::split_paths(&told).filter(|path| path.is_absolute()).collect()
}

/// The newest rules that Pappus uses; older Linux kernels enforce the rules they know.
const NEWEST: ABI = ABI::V6;

/// Puts the rules in force for this thread and its children; true if the kernel knows Landlock.
pub(super) fn restrict(files: &Files) -> Result<bool, RulesetError> {
    let read: BitFlags<AccessFs> = AccessFs::ReadFile | AccessFs::ReadDir;
    let write = read | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
    let rules: RulesetCreated = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?;
    let proc = files.proc.then(|| "/proc".into());
    let status = rules
        .add_rules(path_beneath_rules(files.read.iter().chain(&proc), read))?
        .add_rules(path_beneath_rules(&files.write, write))?
        .restrict_self()?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}
