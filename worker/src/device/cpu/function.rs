//! A loaded function: its modules side by side in one store, its kernels by their blueprint index.

use std::sync::Arc;

use pappus_protocol::{Fault, FaultCode};
use pappus_shmem::Mapping;
use wasmtime::{Engine, Store, Val};

use super::bounds::Buffers;
use super::layout::{POOL_AT, WEIGHTS_END};
use super::memory::{Handover, PollPage, Pool, weights_at};
use super::module::{KernelFn, LoadedModule, mapping};
use super::rewrite::{Additions, Checks};
use crate::device::{self, FunctionImage, LoadedWeights};

/// A function ready to run on the CPU.
pub struct Function {
    pub(super) store: Store<()>,
    pub(super) modules: Vec<LoadedModule>,
    pub(super) kernels: Vec<Kernel>,
    /// Its buffers, where its calls are checked.
    pub(super) checked: Option<Buffers>,
    /// Its weights, while they are there.
    pub(super) weights: Option<Weights>,
    /// Where they lie, if it has any.
    pub(super) weights_at: u64,
    /// What the last load of weights came to, until that is asked for.
    pub(super) loaded: Option<Result<LoadedWeights, Fault>>,
    /// What its code writes to, where it can be interrupted.
    pub(super) poll_pages: Arc<[PollPage]>,
    /// True if these were taken away.
    pub(super) interrupted: bool,
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
        interruptible: bool,
    ) -> Result<Self, Fault> {
        let load = |message| Fault::new(FaultCode::Load, message);
        let blueprint = image.blueprint;
        image.check()?;
        image.check_plain()?;
        if image.weight_bytes > WEIGHTS_END - POOL_AT {
            return Err(load(format!(
                "{} bytes of weights, a kernel on this device can address at most {}",
                image.weight_bytes,
                WEIGHTS_END - POOL_AT
            )));
        }
        let mut function = Self {
            store: Store::new(engine, ()),
            modules: Vec::with_capacity(image.modules.len()),
            kernels: Vec::with_capacity(blueprint.kernels().len()),
            checked: Buffers::of(blueprint),
            weights: None,
            weights_at: weights_at(image.weight_bytes),
            loaded: None,
            poll_pages: Arc::new([]),
            interrupted: false,
            pool: None,
        };
        let checks = if blueprint.is_checked() { Checks::All } else { Checks::None };
        let additions = Additions { checks, interruptible };
        for (file, module) in image.modules.into_iter().zip(blueprint.modules()) {
            let store = &mut function.store;
            let loaded = LoadedModule::load(engine, store, handover, file, additions);
            let loaded = loaded.map_err(|fault| Fault {
                message: format!("module `{}`: {}", module.name, fault.message),
                ..fault
            })?;
            function.modules.push(loaded);
        }
        if interruptible {
            function.poll_pages = function.modules.iter().map(|module| module.memory.poll_page()).collect();
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
        let weights_at = self.weights_at;
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

    /// Maps weights into all modules.
    pub(super) fn map_weights(&mut self, weights: device::Weights) -> Result<LoadedWeights, Fault> {
        let load = |message: &str| Err(Fault::new(FaultCode::Load, message));
        let device::Weights::Host { memfd, .. } = weights else {
            return load("this device has no memory of its own");
        };
        if weights_at(memfd.bytes()) != self.weights_at {
            return load("weights of another size than the function's");
        }
        for module in &mut self.modules {
            module.memory.map_weights(Some(&memfd)).map_err(mapping)?;
        }
        let view = Mapping::read_only(&memfd).map_err(mapping)?;
        self.weights = Some(Weights { mapping: view, at: self.weights_at });
        Ok(LoadedWeights { bytes: memfd.bytes(), export: None })
    }

    /// Unmaps them.
    pub(super) fn unmap_weights(&mut self) -> Result<(), Fault> {
        (self.weights, self.loaded) = (None, None);
        self.modules.iter_mut().try_for_each(|module| module.memory.map_weights(None).map_err(mapping))
    }

    /// Restores memory and globals of every module in which something ran.
    pub(super) fn restore(&mut self) -> Result<(), Fault> {
        if std::mem::take(&mut self.interrupted) {
            self.poll_pages.iter().try_for_each(PollPage::bring_back).map_err(mapping)?;
        }
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
