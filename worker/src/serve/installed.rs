//! The functions installed in this worker. One that could not be loaded is remembered with the reason,
//! which answers every call of it. A function that is to be forgotten stays as long as calls of it are here.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use pappus_blueprint::{Blueprint, CacheBounds, PlanCache, limits};
use pappus_protocol::to_worker::Install;
use pappus_protocol::{Fault, FaultCode, FunctionId};

use crate::channels::read_whole;
use crate::device::{Device, FunctionImage, Functions};

/// Plans kept for each function.
const PLANS: CacheBounds = CacheBounds { plans: 64, bytes: 16 << 20 };

/// A function with everything that a call of it needs.
pub(super) struct Installed<F> {
    pub(super) function: F,
    pub(super) blueprint: Blueprint,
    pub(super) weight_bytes: Vec<u64>,
    pub(super) plans: PlanCache,
    /// Bytes of its weights as they are packed.
    pub(super) packed_bytes: u64,
    pub(super) weights: WeightsState,
}

/// Where a function's weights are.
#[derive(Debug)]
pub(super) enum WeightsState {
    /// On the device, or it has none.
    There,
    /// On their way.
    Loading,
    /// Not on the device.
    Absent,
    /// They did not load.
    Failed(Fault),
}

/// A function as it was installed once: the same id may be installed again while calls of it are here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Installation {
    pub(super) function: FunctionId,
    /// Counts what was installed; 0 names nothing.
    nth: u64,
}

/// What an installation came to.
type Outcome<D> = Result<Installed<<D as Functions>::Function>, Fault>;

/// All of them, by the ids that the supervisor gave them.
pub(super) struct Installations<D: Device> {
    by_id: HashMap<FunctionId, (Installation, Outcome<D>)>,
    /// Those that no further call names, until they are forgotten.
    leaving: Vec<(Installation, Outcome<D>)>,
    installed: u64,
}

impl<D: Device> Default for Installations<D> {
    fn default() -> Self {
        Self { by_id: HashMap::new(), leaving: Vec::new(), installed: 0 }
    }
}

impl<D: Device> Installations<D> {
    /// Loads a function from its parts and keeps it, or the reason why not. True if it is loaded.
    pub(super) fn install(
        &mut self,
        device: &mut D,
        id: FunctionId,
        install: &Install,
        parts: Vec<OwnedFd>,
    ) -> (Installation, bool) {
        let outcome = load(device, install, parts);
        let is_loaded = outcome.is_ok();
        self.installed += 1;
        let installation = Installation { function: id, nth: self.installed };
        self.by_id.insert(id, (installation, outcome));
        (installation, is_loaded)
    }

    /// What calls find by an id, loaded or not.
    pub(super) fn current(&self, id: FunctionId) -> Option<Installation> {
        self.by_id.get(&id).map(|(installation, _)| *installation)
    }

    /// The same with the function, for a call: or why there is none.
    pub(super) fn called(
        &mut self,
        id: FunctionId,
    ) -> (Installation, Result<&mut Installed<D::Function>, Fault>) {
        match self.by_id.get_mut(&id) {
            Some((installation, outcome)) => (*installation, outcome.as_mut().map_err(|fault| fault.clone())),
            None => (Installation { function: id, nth: 0 }, Err(missing(id))),
        }
    }

    /// No further call finds a function by its id. Calls that have it keep it until [`Installations::remove`].
    pub(super) fn retire(&mut self, id: FunctionId) -> Option<Installation> {
        let retired = self.by_id.remove(&id)?;
        let installation = retired.0;
        self.leaving.push(retired);
        Some(installation)
    }

    /// Forgets a function that was retired, whose weights are gone first: they may be on their way.
    pub(super) fn remove(&mut self, device: &mut D, which: Installation) -> Result<(), Fault> {
        let at = self.leaving.iter().position(|(installation, _)| *installation == which);
        match at.map(|at| self.leaving.swap_remove(at)) {
            Some((_, Ok(mut installed))) => device.unload_weights(&mut installed.function, false),
            Some((_, Err(_))) | None => Ok(()),
        }
    }

    /// Takes all of them out.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = D::Function> {
        let all = std::mem::take(&mut self.by_id).into_values().chain(std::mem::take(&mut self.leaving));
        all.filter_map(|(_, outcome)| Some(outcome.ok()?.function))
    }

    /// The function, or why there is none.
    pub(super) fn get(&mut self, which: Installation) -> Result<&mut Installed<D::Function>, Fault> {
        let current = self.by_id.get_mut(&which.function).filter(|(installation, _)| *installation == which);
        let leaving = &mut self.leaving;
        let found = current.or_else(|| leaving.iter_mut().find(|(installation, _)| *installation == which));
        match found {
            Some((_, outcome)) => outcome.as_mut().map_err(|fault| fault.clone()),
            None => Err(missing(which.function)),
        }
    }

    /// True if a function's weights let a call start; the error says why they never will.
    pub(super) fn is_ready(&self, which: Installation) -> Result<bool, Fault> {
        let current = self.by_id.get(&which.function).filter(|(installation, _)| *installation == which);
        let found = current.or_else(|| self.leaving.iter().find(|(installation, _)| *installation == which));
        let Some((_, Ok(Installed { weights, .. }))) = found else {
            // `Installations::get` says why a function is missing.
            return Ok(true);
        };
        match weights {
            WeightsState::There => Ok(true),
            WeightsState::Loading => Ok(false),
            WeightsState::Failed(fault) => Err(fault.clone()),
            WeightsState::Absent => {
                let message = format!("the weights of function {} are not here", which.function);
                Err(Fault::new(FaultCode::BadInvoke, message))
            }
        }
    }
}

fn missing(id: FunctionId) -> Fault {
    Fault::new(FaultCode::BadInvoke, format!("function {id} is not installed here"))
}

fn load<D: Device>(
    device: &mut D,
    install: &Install,
    parts: Vec<OwnedFd>,
) -> Result<Installed<D::Function>, Fault> {
    let refused = |message: String| Fault::new(FaultCode::Load, message);
    let mut parts = parts.into_iter();
    let mut next = || parts.next().ok_or_else(|| refused("a part is missing".into()));
    let json = read_whole(next()?, limits::JSON_BYTES as u64);
    let json =
        json.map_err(|e| Fault::new(FaultCode::Exhausted, format!("reading the configuration: {e}")))?;
    let blueprint = pappus_blueprint::parse(&json).and_then(|plain| match install.checked {
        true => plain.checked().map_err(Into::into),
        false => Ok(plain),
    });
    let blueprint = blueprint.map_err(|e| refused(e.to_string()))?;
    let layout = blueprint.weight_layout(&install.weight_bytes);
    let layout = layout.map_err(|e| refused(e.to_string()))?;
    let image = FunctionImage {
        blueprint: &blueprint,
        modules: parts.map(Into::into).collect(),
        weight_bytes: layout.total,
    };
    let function = device.load(image).map_err(|fault| match fault.code {
        FaultCode::Exhausted => fault,
        // For the caller, any other fault of a device is a function that does not load.
        _ => refused(fault.message),
    })?;
    Ok(Installed {
        function,
        blueprint,
        weight_bytes: install.weight_bytes.clone(),
        plans: PlanCache::new(PLANS),
        packed_bytes: layout.total,
        weights: if layout.total == 0 { WeightsState::There } else { WeightsState::Absent },
    })
}
