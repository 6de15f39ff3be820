//! A loaded function: its modules side by side in one store, its kernels by their blueprint index.

use std::sync::Arc;

use pappus_protocol::{Fault, FaultCode};
use pappus_shmem::{Mapping, ValidatedMemfd};
use wasmtime::{Engine, Store, Val};

use super::layout::{POOL_AT, WEIGHTS_END};
use super::memory::{Handover, Pool, weights_at};
use super::module::{KernelFn, LoadedModule, mapping};
use crate::device::{self, FunctionImage};

/// A function ready to run on the CPU.
pub struct Function {
    pub(super) store: Store<()>,
    pub(super) modules: Vec<LoadedModule>,
    pub(super) kernels: Vec<Kernel>,
    pub(super) weights: Option<Weights>,
    /// The pool its memories are mapped on; none before its first call.
    pool: Option<Arc<Pool>>,
}

/// A kernel of the blueprint.
pub(super) struct Kernel {
    pub(super) name: String,
    pub(super) module: usize,
    pub(super) code: KernelFn,
}

/// The function's weights.
#[derive(Debug)]
pub(super) struct Weights {
    /// The host's view, for copies out of weights.
    pub(super) mapping: Mapping,
    /// Their address in linear memory.
    pub(super) at: u64,
}

impl Function {
    pub(super) fn load(
        engine: &Engine,
        handover: &Handover,
        image: FunctionImage<'_>,
    ) -> Result<Self, Fault> {
        let load = |message| Fault::new(FaultCode::Load, message);
        let blueprint = image.blueprint;
        image.check()?;
        let memfd = match &image.weights {
            None => None,
            Some(device::Weights::Host { memfd, .. }) => Some(memfd),
            Some(device::Weights::Device { .. }) => {
                return Err(load("this device has no memory of its own".into()));
            }
        };
        let weights = memfd.map(Weights::map).transpose()?;
        let mut function = Self {
            store: Store::new(engine, ()),
            modules: Vec::with_capacity(image.modules.len()),
            kernels: Vec::with_capacity(blueprint.kernels().len()),
            weights,
            pool: None,
        };
        for (file, module) in image.modules.into_iter().zip(blueprint.modules()) {
            let store = &mut function.store;
            let loaded = LoadedModule::load(engine, store, handover, file, memfd);
            let loaded = loaded.map_err(|fault| Fault {
                message: format!("module `{}`: {}", module.name, fault.message),
                ..fault
            })?;
            function.modules.push(loaded);
        }
        for kernel in blueprint.kernels() {
            let module = function.modules.get(kernel.module);
            let code = module.and_then(|module| module.kernel(&mut function.store, &kernel.symbol));
            let code = code.ok_or_else(|| load(format!("the module has no kernel `{}`", kernel.symbol)))?;
            function.kernels.push(Kernel { name: kernel.name.clone(), module: kernel.module, code });
        }
        Ok(function)
    }

    /// Maps the pool, unless it is the one that is mapped, as far as it fits below the weights. A call needs
    /// `needed_bytes` of it.
    pub(super) fn adopt(&mut self, pool: &Arc<Pool>, needed_bytes: u64) -> Result<(), Fault> {
        let weights_at = self.weights.as_ref().map_or(WEIGHTS_END, |weights| weights.at);
        let room = weights_at.saturating_sub(POOL_AT);
        if needed_bytes > room {
            return Err(Fault::new(
                FaultCode::OutOfMemory,
                format!(
                    "the call's {needed_bytes} bytes of buffers and {} bytes of weights do not fit into the 4 GiB that a \
                     kernel on this device can address: use smaller ones",
                    WEIGHTS_END - weights_at
                ),
            ));
        }
        if self.pool.as_ref().is_some_and(|own| Arc::ptr_eq(own, pool)) {
            return Ok(());
        }
        self.pool = None;
        for module in &mut self.modules {
            module.map_pool(pool, room)?;
        }
        self.pool = Some(pool.clone());
        Ok(())
    }

    /// Restores memory and globals of every module in which something ran.
    pub(super) fn restore(&mut self) -> Result<(), Fault> {
        for module in self.modules.iter_mut().filter(|module| module.used) {
            module.memory.restore().map_err(mapping)?;
            if let Some((global, initial)) = &module.stack_pointer {
                global.set(&mut self.store, Val::I32(*initial)).map_err(|e| {
                    Fault::new(FaultCode::Internal, format!("restoring the stack pointer: {e:#}"))
                })?;
            }
            module.used = false;
        }
        Ok(())
    }
}

impl Weights {
    fn map(memfd: &ValidatedMemfd) -> Result<Self, Fault> {
        if memfd.bytes() > WEIGHTS_END - POOL_AT {
            return Err(Fault::new(
                FaultCode::Load,
                format!(
                    "{} bytes of weights, a kernel on this device can address at most {}",
                    memfd.bytes(),
                    WEIGHTS_END - POOL_AT
                ),
            ));
        }
        Ok(Self { mapping: Mapping::read_only(memfd).map_err(mapping)?, at: weights_at(memfd.bytes()) })
    }
}
