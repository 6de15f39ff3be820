//! A loaded function: modules, weights, and kernels by their index in the blueprint.

use std::cell::RefCell;
use std::io::Read;
use std::rc::Rc;

use pappus_protocol::{Fault, FaultCode, LaneId};

use super::driver::{Driver, LoadedKernel};
use super::module::LoadedModule;
use super::plan_cache::{BoundPlans, FunctionKey};
use super::variables::Variables;
use super::weights::FunctionWeights;
use crate::device::{FunctionImage, MAX_MODULE_BYTES, broken};

/// Machine code is larger than the text it comes from, within reason.
const MAX_CODE_BYTES: u64 = 16 * MAX_MODULE_BYTES as u64;

/// A function ready to run on a GPU.
#[derive(Debug)]
pub struct Function<D: Driver> {
    /// Tells the function's bound plans from other functions'.
    pub(super) key: FunctionKey,
    kernels: Vec<KernelPlace>,
    names: Rc<[String]>,
    modules: Vec<LoadedModule<D>>,
    pub(super) weights: FunctionWeights<D>,
    /// Its kernels can write variables, which are reset behind every call.
    pub(super) has_variables: bool,
    /// The module whose variables lie in the window of the call.
    in_window: Option<usize>,
    plans: Rc<RefCell<BoundPlans<D>>>,
}

/// Where a kernel of the blueprint is.
#[derive(Debug)]
struct KernelPlace {
    module: usize,
    /// Among the kernels of its module.
    position: usize,
}

impl<D: Driver> Function<D> {
    pub(super) fn load(
        driver: &D,
        stream: &D::Stream,
        plans: &Rc<RefCell<BoundPlans<D>>>,
        image: FunctionImage<'_>,
        lanes: usize,
        fenced: bool,
    ) -> Result<Self, Fault> {
        let load = |message| Fault::new(FaultCode::Load, message);
        let blueprint = image.blueprint;
        image.check()?;
        if fenced || !driver.properties().has_clusters {
            image.check_plain()?;
        }
        let mut symbols = vec![Vec::new(); blueprint.modules().len()];
        let mut kernels = Vec::with_capacity(blueprint.kernels().len());
        for kernel in blueprint.kernels() {
            let of_module =
                symbols.get_mut(kernel.module).ok_or_else(|| load("a kernel of no module".into()))?;
            kernels.push(KernelPlace { module: kernel.module, position: of_module.len() });
            of_module.push(kernel.symbol.clone());
        }
        let mut modules = Vec::with_capacity(symbols.len());
        for ((file, module), symbols) in image.modules.into_iter().zip(blueprint.modules()).zip(symbols) {
            let in_module = |fault: Fault| Fault {
                message: format!("module `{}`: {}", module.name, fault.message),
                ..fault
            };
            let mut code = Vec::new();
            file.take(MAX_CODE_BYTES)
                .read_to_end(&mut code)
                .map_err(|e| load(format!("reading machine code: {e}")))?;
            modules
                .push(LoadedModule::load(driver, stream, code, symbols, lanes, fenced).map_err(in_module)?);
        }
        let weights = FunctionWeights::absent(image.weight_bytes);
        let key = plans.borrow_mut().next_function();
        let names = blueprint.kernels().iter().map(|kernel| kernel.name.clone()).collect();
        let has_variables = modules.iter().any(LoadedModule::has_variables);
        let have: Vec<_> =
            (0..modules.len()).filter(|&at| modules[at].window_variables().is_some()).collect();
        if let [_, second, ..] = have[..] {
            let name = &blueprint.modules()[second].name;
            let why = "has variables in the same place as an earlier module's: link the two";
            return Err(load(format!("module `{name}` {why}")));
        }
        let (plans, in_window) = (plans.clone(), have.first().copied());
        Ok(Self { key, kernels, names, modules, weights, has_variables, in_window, plans })
    }

    /// A lane's instance of a kernel.
    pub(super) fn kernel(
        &mut self,
        driver: &D,
        stream: &D::Stream,
        lane: LaneId,
        kernel: u32,
    ) -> Result<LoadedKernel<D::Kernel>, Fault> {
        let place = self.kernels.get(kernel as usize).ok_or_else(broken)?;
        let module = self.modules.get_mut(place.module).ok_or_else(broken)?;
        module.kernel(driver, stream, lane, place.position)
    }

    /// Names of the blueprint's kernels.
    pub(super) fn names(&self) -> Rc<[String]> {
        self.names.clone()
    }

    /// The largest stack of its kernels' threads.
    pub(super) fn stack_bytes(&self) -> u32 {
        self.modules.iter().map(LoadedModule::stack_bytes).max().unwrap_or(0)
    }

    /// Its variables in the window of the call.
    pub(super) fn window_variables(&self) -> Option<&Variables<D>> {
        self.modules[self.in_window?].window_variables()
    }

    /// Clears every module's variables and their pristine copies.
    pub(super) fn wipe(&self, stream: &D::Stream) -> Result<(), D::Error> {
        self.modules.iter().try_for_each(|module| module.wipe(stream))
    }

    /// Resets every module's variables behind a lane's call.
    pub(super) fn reset(&mut self, stream: &D::Stream, lane: LaneId) -> Result<(), D::Error> {
        for module in &mut self.modules {
            if !module.reset(stream, lane)? {
                self.plans.borrow_mut().forget_lane(self.key, lane);
            }
        }
        Ok(())
    }
}

impl<D: Driver> Drop for Function<D> {
    fn drop(&mut self) {
        // Graphs refer to the modules, so they go first.
        self.plans.borrow_mut().forget(self.key);
    }
}
