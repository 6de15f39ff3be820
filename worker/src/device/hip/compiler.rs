//! The compiling role's part: judge a module, take the code object that suits this device, and tell what is in it.

use pappus_blueprint::hsaco;
use pappus_protocol::from_worker::{CodeInfo, Hello, KernelInfo};
use pappus_protocol::{Fault, FaultCode};

use super::driver::module::Module;
use super::engine::Engine;
use crate::device::gpu::driver::{Driver, DriverError};
use crate::device::{Compiler, MAX_MODULE_BYTES};

/// Judges code objects and bundles of them for the first GPU that the process sees.
#[derive(Debug)]
pub struct HipCompiler {
    pub(super) engine: Engine,
}

impl HipCompiler {
    fn judge(&self, module: &[u8]) -> Result<(Vec<u8>, CodeInfo), Fault> {
        fn refused(why: impl std::fmt::Display) -> Fault {
            Fault::new(FaultCode::BadModule, why.to_string())
        }
        if module.len() > MAX_MODULE_BYTES {
            let why = format!("the module has {} bytes, allowed are {MAX_MODULE_BYTES}", module.len());
            return Err(refused(why));
        }
        let object = hsaco::pick(module, &self.engine.target).map_err(refused)?;
        let threads = u64::from(self.engine.info.threads) * u64::from(self.engine.info.multiprocessors);
        let described = |kernel: &hsaco::Kernel| KernelInfo {
            stack_bytes: u64::from(kernel.private_bytes) * threads,
            ..kernel.into()
        };
        let kernels = object.kernels.iter().map(described).collect();
        let compiled = CodeInfo { kernels, ..CodeInfo::default() };
        let loaded = Module::load(object.bytes);
        let loaded = loaded
            .map_err(|e| refused(format!("the driver refuses it for {}: {e}", self.engine.info.arch)))?;
        for kernel in &object.kernels {
            let found = loaded.find(&kernel.name);
            found.map_err(|e| refused(format!("the driver finds no kernel `{}`: {e}", kernel.name)))?;
        }
        Ok((object.bytes.to_vec(), compiled))
    }
}

impl Compiler for HipCompiler {
    fn hello(&self) -> Hello {
        self.engine.hello()
    }

    fn compile(&self, module: &[u8]) -> Result<(Vec<u8>, CodeInfo), Fault> {
        // No kernel runs here, so a lost device is not the module's fault.
        self.judge(module).map_err(|refused| match self.engine.synchronize() {
            Ok(()) => refused,
            Err(e) => e.fault("the device failed meanwhile"),
        })
    }
}
