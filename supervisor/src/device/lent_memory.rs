//! Where processes ask for device memory that calls may be lent: the scheduler says whether there is some, and has others
//! give memory back where there is not.

use std::sync::{Arc, Weak};

use super::commands::CommandRunner;
use super::decisions::{Actions, Decisions};
use crate::processes::memory_ledger::MemorySource;
use crate::schedule::events::{ContextWanted, MemoryCame};

/// Where processes ask for device memory that calls may be lent.
#[derive(Debug)]
pub(super) struct LentMemory {
    pub(super) decisions: Arc<Decisions>,
    /// They keep the ledger that asks here.
    pub(super) commands: Weak<CommandRunner>,
}

impl MemorySource for LentMemory {
    fn take(&self, bytes: u64, urgent: bool, take: &dyn Fn()) -> bool {
        let mut actions = Actions::default();
        let there = self.decisions.decide(&mut actions, |deciding| {
            let there = deciding.handle(ContextWanted { bytes, urgent });
            if there {
                take();
            }
            there
        });
        match self.commands.upgrade() {
            Some(commands) => commands.carry_out(&mut actions, None),
            None => actions.discard(),
        }
        there
    }

    fn freed(&self) {
        if let Some(commands) = self.commands.upgrade() {
            commands.handle(MemoryCame {});
        }
    }
}
