//! The functions installed in this worker. One that could not be loaded is remembered with the reason,
//! which answers every call of it.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use pappus_blueprint::{Blueprint, CacheBounds, PlanCache, limits};
use pappus_protocol::to_worker::Install;
use pappus_protocol::{Fault, FaultCode, FunctionId};

use crate::channels::read_whole;
use crate::device::{Device, FunctionImage};

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

/// All of them, by the ids that the supervisor gave them.
pub(super) struct Functions<D: Device> {
    by_id: HashMap<FunctionId, Result<Installed<D::Function>, Fault>>,
}

impl<D: Device> Default for Functions<D> {
    fn default() -> Self {
        Self { by_id: HashMap::new() }
    }
}

impl<D: Device> Functions<D> {
    /// Loads a function from its parts and keeps it, or the reason why not.
    pub(super) fn install(&mut self, device: &mut D, id: FunctionId, install: &Install, parts: Vec<OwnedFd>) {
        let loaded = load(device, install, parts);
        self.by_id.insert(id, loaded);
    }

    /// True if a function has that id, loaded or not.
    pub(super) fn contains(&self, id: FunctionId) -> bool {
        self.by_id.contains_key(&id)
    }

    /// Forgets a function, whose weights are gone first: they may be on their way.
    pub(super) fn remove(&mut self, device: &mut D, id: FunctionId) -> Result<(), Fault> {
        match self.by_id.remove(&id) {
            Some(Ok(mut installed)) => device.unload_weights(&mut installed.function, false),
            Some(Err(_)) | None => Ok(()),
        }
    }

    /// Takes all of them out.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = D::Function> {
        let all = std::mem::take(&mut self.by_id).into_values();
        all.filter_map(|installed| Some(installed.ok()?.function))
    }

    /// The function, or why there is none.
    pub(super) fn get(&mut self, id: FunctionId) -> Result<&mut Installed<D::Function>, Fault> {
        match self.by_id.get_mut(&id) {
            Some(Ok(installed)) => Ok(installed),
            Some(Err(fault)) => Err(fault.clone()),
            None => Err(Fault::new(FaultCode::BadInvoke, format!("function {id} is not installed here"))),
        }
    }

    /// True if a function's weights let a call start; the error says why they never will.
    pub(super) fn is_ready(&self, id: FunctionId) -> Result<bool, Fault> {
        match self.by_id.get(&id) {
            Some(Ok(Installed { weights: WeightsState::There, .. })) => Ok(true),
            Some(Ok(Installed { weights: WeightsState::Loading, .. })) => Ok(false),
            Some(Ok(Installed { weights: WeightsState::Failed(fault), .. })) => Err(fault.clone()),
            Some(Ok(Installed { weights: WeightsState::Absent, .. })) => {
                Err(Fault::new(FaultCode::BadInvoke, format!("the weights of function {id} are not here")))
            }
            // `Functions::get` says why a function is missing.
            Some(Err(_)) | None => Ok(true),
        }
    }
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
