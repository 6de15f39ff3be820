//! A process's functions: code, and weights, which come and go without the code.

use pappus_protocol::ToWorker;

use super::{Connected, StartError, WorkerChannel};
use crate::call::Call;
use crate::device::weights::{Memory, descriptor_of, load_of};
use crate::ids::FunctionId;
use crate::limits::MAX_INSTALLED;
use crate::schedule::weights::Supply;
use crate::store::StateDir;

/// A function that a process was told to install.
#[derive(Debug, Clone, Copy)]
pub(super) struct Installed {
    /// When it was used last.
    used: u64,
    /// True if the weights are there, or on their way.
    weights: bool,
    /// Bytes of the weights, if they are.
    weight_bytes: u64,
}

/// What a process is to forget of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device) enum Forget {
    /// All of it.
    Function,
    /// Its weights.
    Weights,
}

/// What a process was told to forget.
#[derive(Debug)]
pub(super) struct Forgetting {
    function: FunctionId,
    what: Forget,
    /// True if the process had its weights, or was to load them.
    had_weights: bool,
}

impl Connected {
    /// Installs the call's function if the process does not have it, and has weights loaded as was decided.
    pub(super) fn install(
        &mut self,
        state: &StateDir,
        call: &Call,
        load: Option<&Supply<Memory>>,
    ) -> Result<(), StartError> {
        let function = call.function.id;
        self.clock += 1;
        match self.installed.get_mut(&function) {
            Some(installed) => installed.used = self.clock,
            None => self.install_code(state, call)?,
        }
        let Some(supply) = load else { return Ok(()) };
        let load = load_of(supply);
        if let Some(fd) = descriptor_of(supply, &call.function) {
            self.pass(function.get(), &[fd])?;
            self.arrival.outbox.push_to_worker(&ToWorker::Load { function, load });
            if let Some(replaced) = supply.instead_of.and_then(|replaced| self.installed.get_mut(&replaced)) {
                replaced.weights = false;
            }
            let weight_bytes = call.function.packed_weight_bytes();
            self.installed.insert(function, Installed { used: self.clock, weights: true, weight_bytes });
        }
        Ok(())
    }

    /// Installs the call's function, without its weights.
    fn install_code(&mut self, state: &StateDir, call: &Call) -> Result<(), StartError> {
        if self.installed.len() >= MAX_INSTALLED {
            // Weights go where that is decided.
            let without = self.installed.iter().filter(|(_, installed)| !installed.weights);
            let oldest = without.min_by_key(|(_, installed)| installed.used).map(|(id, _)| *id);
            oldest.into_iter().for_each(|oldest| self.uninstall(oldest));
        }
        let function = call.function.id;
        let installed = call.function.install(state, &self.arrival.target, self.arrival.shared);
        let (install, parts) = installed.map_err(StartError::Refused)?;
        self.pass(function.get(), &parts.descriptors())?;
        self.arrival.outbox.push_to_worker(&ToWorker::Install { function, install });
        self.installed.insert(function, Installed { used: self.clock, weights: false, weight_bytes: 0 });
        Ok(())
    }

    /// The functions that the process has or is about to have, and whether their weights are among that.
    pub(super) fn installed(&self) -> impl Iterator<Item = (FunctionId, bool)> {
        self.installed.iter().map(|(function, installed)| (*function, installed.weights))
    }

    /// What the weights take that the process has or is about to have.
    pub(super) fn weight_bytes(&self) -> u64 {
        let there = self.installed.values().filter(|installed| installed.weights);
        there.map(|installed| installed.weight_bytes).sum()
    }

    /// What the weights of a function take that the process was told to load; nothing where it was not.
    pub(super) fn asked_bytes(&self, function: FunctionId) -> u64 {
        let asked = self.installed.get(&function).filter(|installed| installed.weights);
        asked.map_or(0, |installed| installed.weight_bytes)
    }

    /// The process forgot a function or its weights. True if it had the weights; none if nobody told it to forget.
    pub(super) fn forgot(&mut self, function: FunctionId, what: Forget) -> Option<bool> {
        let told = self.forgetting.iter().position(|told| (told.function, told.what) == (function, what));
        told.map(|at| self.forgetting.remove(at).had_weights)
    }

    /// True if the process was told to forget a function or its weights, and did not say that it did: what else it says of it
    /// comes from before.
    pub(super) fn is_forgetting(&self, function: FunctionId) -> bool {
        self.forgetting.iter().any(|told| told.function == function)
    }

    /// Tells the process to forget a function, if it has it.
    pub(super) fn uninstall(&mut self, function: FunctionId) {
        if let Some(Installed { weights: had_weights, .. }) = self.installed.remove(&function) {
            self.forgetting.push(Forgetting { function, what: Forget::Function, had_weights });
            self.arrival.outbox.push_to_worker(&ToWorker::Uninstall { function });
        }
    }

    /// Tells the process to let the weights of a function go, if it has them.
    pub(super) fn unload(&mut self, function: FunctionId) {
        if let Some(installed) = self.installed.get_mut(&function)
            && std::mem::take(&mut installed.weights)
        {
            self.forgetting.push(Forgetting { function, what: Forget::Weights, had_weights: true });
            self.arrival.outbox.push_to_worker(&ToWorker::Unload { function });
        }
    }
}

impl WorkerChannel {
    /// True if [`Connected::is_forgetting`] is.
    pub(in crate::device) fn is_forgetting(&self, function: FunctionId) -> bool {
        self.process.as_ref().is_some_and(|process| process.is_forgetting(function))
    }

    /// As [`Connected::asked_bytes`]; none where that is not known any more: the process is gone, or was told to forget everything.
    pub(in crate::device) fn asked_bytes(&self, function: FunctionId) -> Option<u64> {
        let process = self.process.as_ref().filter(|process| process.handover.is_none())?;
        Some(process.asked_bytes(function))
    }

    /// The process forgot a function or its weights. True if it had the weights; none if nobody told it to forget. Weights
    /// go once the calls that use them are over, others before.
    pub(in crate::device) fn forgot(&mut self, function: FunctionId, what: Forget) -> Option<bool> {
        self.process.as_mut()?.forgot(function, what)
    }
}
