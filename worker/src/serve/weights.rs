//! Weights of functions come and go while calls run: a load begins, the loop asks how far it is, and calls that wait
//! for it start once it is over.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

use pappus_protocol::to_worker::{Load, WeightsForm};
use pappus_protocol::{Fault, FaultCode, FromWorker, FunctionId, LaneId, control};
use pappus_shmem::memfd;

use super::Server;
use super::installed::WeightsState;
use crate::Error;
use crate::device::{Device, LoadedWeights, Loading, Weights};

/// Weights that are on their way, to the device or from it.
#[derive(Debug, Default)]
pub(super) struct OnTheirWay {
    /// Functions whose weights are loaded, in the order in which they were told to load.
    loads: VecDeque<FunctionId>,
    /// Functions whose weights go once their calls here are over, and whether the supervisor is told.
    leaving: Vec<(FunctionId, bool)>,
}

impl OnTheirWay {
    /// True if the loop has to go on with any.
    pub(super) fn is_none(&self) -> bool {
        self.loads.is_empty() && self.leaving.is_empty()
    }

    /// A function is forgotten.
    pub(super) fn forget(&mut self, id: FunctionId) {
        self.loads.retain(|loading| *loading != id);
    }
}

/// The weights of a function that takes so many bytes of them, as they came.
fn received(form: WeightsForm, descriptor: OwnedFd, needed_bytes: u64) -> Result<Weights, Fault> {
    let (weights, bytes) = match form {
        WeightsForm::Device(bytes) => (Weights::Device { descriptor, bytes }, bytes),
        form => {
            let memfd = memfd::judge_sealed(descriptor, u64::MAX);
            let memfd = memfd.map_err(|e| Fault::new(FaultCode::Exhausted, format!("weights: {e}")))?;
            let bytes = memfd.bytes();
            (Weights::Host { memfd, export: form == WeightsForm::Export }, bytes)
        }
    };
    match bytes < needed_bytes {
        true => {
            let message = format!("weights of {bytes} bytes, {needed_bytes} are needed");
            Err(Fault::new(FaultCode::Load, message))
        }
        false => Ok(weights),
    }
}

impl<D: Device> Server<D> {
    /// Begins to load the weights of a function.
    pub(super) fn load_weights(&mut self, id: FunctionId, load: Load) -> Result<(), Error> {
        let descriptor = control::recv(&self.control, id.get(), 1)?.pop();
        let descriptor = descriptor.ok_or(Error::Unexpected("weights without a descriptor"))?;
        if self.on_their_way.loads.contains(&id) {
            return Err(Error::Unexpected("weights that are on their way already"));
        }
        if let Some(before) = load.instead_of.map(FunctionId::new) {
            self.let_go(before, true, false)?;
        }
        if !self.functions.contains(id) {
            return Err(Error::Unexpected("weights of a function that is not installed"));
        }
        // Of one that did not load, each call says why.
        let Ok(installed) = self.functions.get(id) else {
            self.outbox.push_from_worker(&FromWorker::NotLoaded { function: id });
            return Ok(());
        };
        if matches!(installed.weights, WeightsState::There) {
            return Err(Error::Unexpected(
                "weights that are there already, or that the function does not have",
            ));
        }
        match received(load.weights, descriptor, installed.packed_bytes) {
            Ok(weights) => {
                installed.weights = WeightsState::Loading;
                self.device.load_weights(&mut installed.function, weights);
                self.on_their_way.loads.push_back(id);
                // What is there at once need not be waited for.
                self.poll_weights()
            }
            Err(fault) => self.loaded(id, Err(fault)),
        }
    }

    /// The weights of a function leave the device.
    pub(super) fn unload_weights(&mut self, id: FunctionId) -> Result<(), Error> {
        self.let_go(id, false, true)
    }

    /// Lets the weights of a function go, once no call of it is here.
    fn let_go(&mut self, id: FunctionId, keep: bool, tell: bool) -> Result<(), Error> {
        if self.lanes.iter().any(|lane| lane.has_call() && lane.function == id) {
            self.on_their_way.leaving.push((id, tell));
            return Ok(());
        }
        self.on_their_way.forget(id);
        if let Ok(installed) = self.functions.get(id)
            && installed.packed_bytes > 0
        {
            installed.weights = WeightsState::Absent;
            self.device.unload_weights(&mut installed.function, keep)?;
        }
        if tell {
            self.outbox.push_from_worker(&FromWorker::Unloaded { function: id });
        }
        Ok(())
    }

    /// Goes on with all that come and go; starts the calls that waited for those that are there.
    pub(super) fn poll_weights(&mut self) -> Result<(), Error> {
        for (id, tell) in std::mem::take(&mut self.on_their_way.leaving) {
            self.let_go(id, false, tell)?;
        }
        let mut at = 0;
        while let Some(&id) = self.on_their_way.loads.get(at) {
            let loading = match self.functions.get(id) {
                Ok(installed) => self.device.poll_weights(&mut installed.function),
                Err(fault) => Loading::Over(Err(fault)),
            };
            if self.device.lost().is_some() {
                return Err(self.broken());
            }
            match loading {
                // Later loads follow once this one is submitted.
                Loading::Submitting => break,
                Loading::Copying => at += 1,
                Loading::Over(outcome) => {
                    self.on_their_way.loads.remove(at);
                    self.loaded(id, outcome)?;
                }
            }
        }
        Ok(())
    }

    /// A load is over: the first call that waited for it starts, the supervisor is told, and the others start; or all fail.
    fn loaded(&mut self, id: FunctionId, outcome: Result<LoadedWeights, Fault>) -> Result<(), Error> {
        let (state, there) = match outcome {
            Ok(loaded) => (WeightsState::There, Some(loaded)),
            Err(fault) => {
                crate::log(format_args!("the weights of function {id} do not load: {fault}"));
                self.outbox.push_from_worker(&FromWorker::NotLoaded { function: id });
                let fault = match fault.code {
                    FaultCode::Exhausted => fault,
                    // For the caller, any other fault of a device is a function that does not load.
                    _ => Fault::new(FaultCode::Load, fault.message),
                };
                (WeightsState::Failed(fault), None)
            }
        };
        if let Ok(installed) = self.functions.get(id) {
            installed.weights = state;
        }
        let waits = |lane: &LaneId, server: &Self| {
            let lane = &server.lanes[lane.index()];
            lane.is_prepared() && lane.function == id
        };
        let mut lanes = LaneId::first(self.lanes.len());
        if let Some(first) = lanes.find(|lane| waits(lane, self)) {
            self.start_if_ready(first)?;
        }
        if let Some(loaded) = there {
            self.tell_loaded(id, loaded)?;
        }
        // The calls of other lanes may wait for the first one's end.
        for lane in lanes {
            if waits(&lane, self) {
                self.start_if_ready(lane)?;
            }
        }
        Ok(())
    }

    /// Tells the supervisor that weights are there, with a descriptor of their memory if wanted.
    fn tell_loaded(&mut self, id: FunctionId, loaded: LoadedWeights) -> Result<(), Error> {
        let LoadedWeights { bytes, export } = loaded;
        match export {
            Some(descriptor) => {
                control::send(self.control.as_fd(), id.get(), &[descriptor.as_fd()])?;
                self.outbox.push_from_worker(&FromWorker::Exported { function: id, bytes });
            }
            None => self.outbox.push_from_worker(&FromWorker::Loaded { function: id, bytes }),
        }
        Ok(())
    }
}
