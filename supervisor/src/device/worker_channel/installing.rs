//! What a process has of functions: their code, and their weights, which come and go without it.

use std::sync::Arc;

use pappus_protocol::ToWorker;

use super::{Connected, StartError};
use crate::call::Call;
use crate::device::weights::{Follows, Need, WeightStore};
use crate::ids::{FunctionId, WorkerId};
use crate::limits::MAX_INSTALLED;
use crate::store::StateDir;

/// A function that a process was told to install.
#[derive(Debug, Clone, Copy)]
pub(super) struct Installed {
    /// When it was used last.
    used: u64,
    /// Its weights are there, or on their way.
    weights: bool,
    /// What the weights take, if they are.
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
    /// Installs the call's function and has its weights loaded, as far as that was not done. For a call that starts, they
    /// are in use from here on.
    pub(super) fn install(
        &mut self,
        state: &StateDir,
        weights: Option<&WeightStore>,
        worker: WorkerId,
        need: Need,
        call: &Call,
        follows: &mut Follows,
    ) -> Result<(), StartError> {
        let function = call.function.id;
        self.clock += 1;
        let mut has_weights = false;
        match self.installed.get_mut(&function) {
            Some(installed) => {
                installed.used = self.clock;
                has_weights = installed.weights;
            }
            None => self.install_code(state, call)?,
        }
        let Some(store) = weights.filter(|_| call.function.packed_weight_bytes() > 0) else {
            return Ok(());
        };
        if has_weights {
            if matches!(need, Need::Soon) || store.begin(&call.function) {
                return Ok(());
            }
            // They gave way a moment ago, and whoever decided that did not come here yet.
            self.unload(function);
        }
        let has = |other: FunctionId| self.installed.get(&other).is_some_and(|installed| installed.weights);
        let before = follows.evicted.len();
        let delivery = store.deliver(&call.function, worker, need, has, follows)?;
        // Before what takes their place.
        follows.evicted[before..].iter().for_each(|other| self.unload(*other));
        let load = delivery.load();
        if let Some(replaced) = load.instead_of.map(FunctionId::new)
            && let Some(replaced) = self.installed.get_mut(&replaced)
        {
            replaced.weights = false;
        }
        if let Some(fd) = delivery.device().or_else(|| call.function.host_weights()) {
            self.pass(function.get(), &[fd])?;
            self.arrival.outbox.push_to_worker(&ToWorker::Load { function, load });
            let weight_bytes = call.function.packed_weight_bytes();
            self.installed.insert(function, Installed { used: self.clock, weights: true, weight_bytes });
        }
        Ok(())
    }

    /// Installs the call's function, without its weights.
    fn install_code(&mut self, state: &StateDir, call: &Call) -> Result<(), StartError> {
        if self.installed.len() >= MAX_INSTALLED
            && let Some(oldest) =
                self.installed.iter().min_by_key(|(_, installed)| installed.used).map(|(id, _)| *id)
        {
            self.uninstall(oldest);
        }
        let function = call.function.id;
        let installed = call.function.install(state, &self.arrival.target);
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

    /// Has weights loaded for calls that wait, see [`WorkerChannel::look_ahead`](super::WorkerChannel::look_ahead).
    pub(super) fn look_ahead(
        &mut self,
        state: &StateDir,
        weights: &WeightStore,
        worker: WorkerId,
        calls: &[Arc<Call>],
        follows: &mut Follows,
    ) -> Vec<FunctionId> {
        let mut left_out = Vec::new();
        weights.expect(worker, calls.iter().map(|call| call.function.id).collect());
        for call in calls {
            // What is wrong is said when the call starts.
            if self.install(state, Some(weights), worker, Need::Soon, call, follows).is_err() {
                left_out.push(call.function.id);
            }
        }
        left_out
    }

    /// The process says that it forgot a function or its weights: true if it had these; none if it was not told to.
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
