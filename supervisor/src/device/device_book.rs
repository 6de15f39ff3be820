//! Where memory of processes is written down: the scheduler's book says whether there is some, and has others give memory
//! back where there is not.

use std::sync::{Arc, Weak};

use super::commands::CommandRunner;
use super::decisions::{Actions, Decisions};
use crate::processes::process_table::ContextBook;
use crate::schedule::events::{ContextChanged, ContextWanted};

/// The book of a device, for its processes.
#[derive(Debug)]
pub(super) struct DeviceBook {
    pub(super) decisions: Arc<Decisions>,
    /// They keep the table that writes here.
    pub(super) commands: Weak<CommandRunner>,
}

impl DeviceBook {
    fn carry_out(&self, actions: &mut Actions) {
        match self.commands.upgrade() {
            Some(commands) => commands.carry_out(actions, None),
            None => actions.discard(),
        }
    }
}

impl ContextBook for DeviceBook {
    fn take(&self, bytes: u64, urgent: bool) -> bool {
        let mut actions = Actions::default();
        let wanted = ContextWanted { bytes, urgent };
        let there = self.decisions.decide(&mut actions, |deciding| deciding.handle(wanted));
        self.carry_out(&mut actions);
        there
    }

    fn change(&self, before: u64, now: u64) {
        let mut actions = Actions::default();
        let changed = ContextChanged { before, now };
        self.decisions.decide(&mut actions, |deciding| deciding.handle(changed));
        self.carry_out(&mut actions);
    }
}
