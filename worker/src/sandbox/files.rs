//! Landlock: which files may still be opened, and no socket or signal beyond this process's own domain.

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope, path_beneath_rules,
};

use super::policy::Files;

/// The newest rules that this was written for; kernels that know fewer enforce those they know.
const NEWEST: ABI = ABI::V6;

/// Puts the rules in force for this thread and all it starts; whether the kernel knows Landlock.
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
