//! Weights of functions come and go while calls run: a load begins, the loop asks how far it is, and calls that wait
//! for it start once it is over. What calls still use goes behind them ([`behind`](super::behind)).

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

use pappus_protocol::to_worker::{Load, WeightsForm};
use pappus_protocol::{Fault, FaultCode, FromWorker, FunctionId, LaneId, control};
use pappus_shmem::memfd;

use super::Server;
use super::behind::Step;
use super::installed::{Installation, WeightsState};
use crate::Error;
use crate::device::{Device, LoadedWeights, Loading, Weights};

/// Weights that are on their way to the device.
#[derive(Debug, Default)]
pub(super) struct OnTheirWay {
    /// Functions whose weights are loaded, in the order in which that began.
    loads: VecDeque<Installation>,
}

impl OnTheirWay {
    /// True if the loop need not go on with any.
    pub(super) fn is_none(&self) -> bool {
        self.loads.is_empty()
    }

    /// A function is forgotten.
    pub(super) fn forget(&mut self, function: Installation) {
        self.loads.retain(|loading| *loading != function);
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
    /// The weights of a function come, in place of another's if so.
    pub(super) fn load_weights(&mut self, id: FunctionId, load: Load) -> Result<(), Error> {
        let descriptor = control::recv(&self.control, id.get(), 1)?.pop();
        let descriptor = descriptor.ok_or(Error::Unexpected("weights without a descriptor"))?;
        let function = self.functions.current(id);
        let function = function.ok_or(Error::Unexpected("weights of a function that is not installed"))?;
        let instead_of = load.instead_of.and_then(|other| self.functions.current(FunctionId::new(other)));
        self.behind.push(function, Step::Load { form: load.weights, descriptor, instead_of });
        self.go_on().map(drop)
    }

    /// The weights of a function leave the device.
    pub(super) fn unload_weights(&mut self, id: FunctionId) -> Result<(), Error> {
        match self.functions.current(id) {
            Some(function) => self.behind.push(function, Step::Unload),
            None => self.outbox.push_from_worker(&FromWorker::Unloaded { function: id }),
        }
        self.go_on().map(drop)
    }

    /// Begins to load the weights of a function; the others go first and leave their memory.
    pub(super) fn begin_load(
        &mut self,
        function: Installation,
        form: WeightsForm,
        descriptor: OwnedFd,
        instead_of: Option<Installation>,
    ) -> Result<(), Error> {
        if self.on_their_way.loads.contains(&function) {
            return Err(Error::Unexpected("weights that are on their way already"));
        }
        if let Some(before) = instead_of {
            self.let_go(before, true)?;
        }
        // Of one that did not load, each call says why.
        let Ok(installed) = self.functions.get(function) else {
            self.outbox.push_from_worker(&FromWorker::NotLoaded { function: function.function });
            return Ok(());
        };
        if matches!(installed.weights, WeightsState::There) {
            return Err(Error::Unexpected(
                "weights that are there already, or that the function does not have",
            ));
        }
        match received(form, descriptor, installed.packed_bytes) {
            Ok(weights) => {
                installed.weights = WeightsState::Loading;
                self.device.load_weights(&mut installed.function, weights);
                self.on_their_way.loads.push_back(function);
                // What is there at once need not be waited for.
                self.poll_weights()
            }
            Err(fault) => self.loaded(function, Err(fault)),
        }
    }

    /// The weights of a function go, which no call uses. The next load may have their memory if it is to `keep`.
    pub(super) fn let_go(&mut self, function: Installation, keep: bool) -> Result<(), Error> {
        self.on_their_way.forget(function);
        if let Ok(installed) = self.functions.get(function)
            && installed.packed_bytes > 0
        {
            installed.weights = WeightsState::Absent;
            self.device.unload_weights(&mut installed.function, keep)?;
        }
        Ok(())
    }

    /// Goes on with loads; starts calls whose weights are there.
    pub(super) fn poll_weights(&mut self) -> Result<(), Error> {
        let mut at = 0;
        while let Some(&function) = self.on_their_way.loads.get(at) {
            let loading = match self.functions.get(function) {
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
                    self.loaded(function, outcome)?;
                }
            }
        }
        Ok(())
    }

    /// A load is over: the first call that waited for it starts, the supervisor is told, and the others start; or all fail.
    fn loaded(&mut self, function: Installation, outcome: Result<LoadedWeights, Fault>) -> Result<(), Error> {
        let id = function.function;
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
        if let Ok(installed) = self.functions.get(function) {
            installed.weights = state;
        }
        let mut lanes = LaneId::first(self.lanes.len());
        if let Some(first) = lanes.find(|lane| self.waits(*lane, function)) {
            self.start_if_ready(first)?;
        }
        if let Some(loaded) = there {
            self.tell_loaded(id, loaded)?;
        }
        // The calls of other lanes may wait for the first one's end.
        for lane in lanes {
            if self.waits(lane, function) {
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
