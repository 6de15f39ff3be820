//! A loaded function: its modules, its weights, its kernels by their blueprint index.

use std::cell::RefCell;
use std::io::Read;
use std::rc::Rc;

use pappus_protocol::{Fault, FaultCode};

use super::driver::{Context, CudaError, Stream};
use super::memory::{MappedWeights, WeightsLoader};
use super::module::{KernelEntry, LoadedModule};
use super::scripts::Scripts;
use crate::device::{FunctionImage, MAX_MODULE_BYTES};

/// Machine code is larger than the text it comes from, within reason.
const MAX_CODE_BYTES: u64 = 16 * MAX_MODULE_BYTES as u64;

/// A function ready to run on a GPU.
#[derive(Debug)]
pub struct Function {
    /// Tells its scripts from those of others.
    pub(super) id: u64,
    kernels: Vec<KernelPlace>,
    names: Rc<[String]>,
    modules: Vec<LoadedModule>,
    pub(super) weights: Option<MappedWeights>,
    scripts: Rc<RefCell<Scripts>>,
}

/// Where a kernel of the blueprint is.
#[derive(Debug)]
struct KernelPlace {
    module: usize,
    /// Among the kernels of its module.
    position: usize,
}

impl Function {
    pub(super) fn load(
        context: &Context,
        stream: &Stream,
        loader: &mut WeightsLoader,
        scripts: &Rc<RefCell<Scripts>>,
        image: FunctionImage<'_>,
        lanes: usize,
    ) -> Result<Self, Fault> {
        let load = |message| Fault::new(FaultCode::Load, message);
        let blueprint = image.blueprint;
        image.check()?;
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
            modules.push(LoadedModule::load(context, stream, code, symbols, lanes).map_err(in_module)?);
        }
        let weights = image.weights.map(|weights| loader.load(context, stream, weights)).transpose()?;
        let id = scripts.borrow_mut().next_function();
        let names = blueprint.kernels().iter().map(|kernel| kernel.name.clone()).collect();
        Ok(Self { id, kernels, names, modules, weights, scripts: scripts.clone() })
    }

    /// A lane's instance of a kernel.
    pub(super) fn kernel(
        &mut self,
        context: &Context,
        stream: &Stream,
        lane: usize,
        kernel: u32,
    ) -> Result<KernelEntry, Fault> {
        let place = self.kernels.get(kernel as usize).ok_or_else(super::launch::broken)?;
        let module = self.modules.get_mut(place.module).ok_or_else(super::launch::broken)?;
        module.kernel(context, stream, lane, place.position)
    }

    /// Names of the blueprint's kernels.
    pub(super) fn names(&self) -> Rc<[String]> {
        self.names.clone()
    }

    /// The largest stack of its kernels' threads.
    pub(super) fn stack_bytes(&self) -> u32 {
        self.modules.iter().map(LoadedModule::stack_bytes).max().unwrap_or(0)
    }

    /// Clears every module's variables and their pristine copies.
    pub(super) fn wipe(&self, stream: &Stream) -> Result<(), CudaError> {
        self.modules.iter().try_for_each(|module| module.wipe(stream))
    }

    /// Resets every module's variables behind a lane's call.
    pub(super) fn reset(&mut self, stream: &Stream, lane: usize) -> Result<(), CudaError> {
        for module in &mut self.modules {
            if !module.reset(stream, lane)? {
                self.scripts.borrow_mut().forget_lane(self.id, lane);
            }
        }
        Ok(())
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        // Graphs refer to the modules, so they go first.
        self.scripts.borrow_mut().forget(self.id);
    }
}
