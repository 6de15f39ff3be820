//! The compiling role's part: judge a module, make a cubin for this device, and tell what is in it.

use std::collections::HashMap;

use pappus_blueprint::kernel_info::check_size;
use pappus_blueprint::ptx;
use pappus_protocol::from_worker::{CodeInfo, Hello, KernelInfo, ParamClass, ParamInfo};
use pappus_protocol::{Fault, FaultCode};

use super::check::{self, Format};
use super::driver::module::{Kernel, Module, Source, link};
use super::elf;
use super::engine::Engine;
use crate::device::Compiler;
use crate::device::gpu::driver::{Driver, DriverError};

/// Compiles PTX, cubins and fatbins for the first GPU that the process sees.
#[derive(Debug)]
pub struct CudaCompiler {
    pub(super) engine: Engine,
}

impl CudaCompiler {
    fn describe(&self, name: String, kernel: Kernel, classes: Option<&Vec<ParamClass>>) -> KernelInfo {
        let info = &self.engine.context.info;
        let params = kernel.params().into_iter().enumerate().map(|(position, (offset, bytes))| {
            let class = classes.and_then(|classes| classes.get(position)).copied();
            ParamInfo { name: Box::default(), offset, bytes, class: class.unwrap_or(ParamClass::Unknown) }
        });
        let local_bytes = kernel.local_bytes();
        KernelInfo {
            params: Some(params.collect()),
            local_bytes,
            stack_bytes: u64::from(local_bytes) * u64::from(info.threads) * u64::from(info.multiprocessors),
            shared_bytes: kernel.shared_bytes(),
            max_threads: kernel.max_threads(),
            name,
        }
    }
}

impl Compiler for CudaCompiler {
    fn hello(&self) -> Hello {
        self.engine.hello()
    }

    fn compile(&self, module: &[u8]) -> Result<(Vec<u8>, CodeInfo), Fault> {
        // No kernel runs here, so a lost context is not the module's fault.
        self.judge(module).map_err(|refused| match self.engine.context.synchronize() {
            Ok(()) => refused,
            Err(e) => e.fault("the device failed meanwhile"),
        })
    }
}

impl CudaCompiler {
    fn judge(&self, module: &[u8]) -> Result<(Vec<u8>, CodeInfo), Fault> {
        fn refused(why: impl std::fmt::Display) -> Fault {
            Fault::new(FaultCode::BadModule, why.to_string())
        }
        let arch = &self.engine.context.info.arch;
        let (code, classes) = match check::format(module).map_err(refused)? {
            Format::Cubin => (module.to_vec(), Default::default()),
            Format::Fatbin => {
                let code = link(Source::Fatbin, module);
                (
                    code.map_err(|why| refused(format!("the fatbin has nothing for {arch}: {why}")))?,
                    Default::default(),
                )
            }
            Format::Ptx => {
                let classes = std::str::from_utf8(module).map(classes).unwrap_or_default();
                let mut text = module.to_vec();
                text.push(0);
                let code = link(Source::Ptx, &text);
                (
                    code.map_err(|why| {
                        refused(format!("the driver's compiler refuses it for {arch}: {why}"))
                    })?,
                    classes,
                )
            }
        };
        elf::judge(&code).map_err(refused)?;
        let loaded =
            Module::load(&code).map_err(|e| refused(format!("the driver refuses it for {arch}: {e}")))?;
        let kernels = loaded.kernels().map_err(|e| refused(format!("its kernels cannot be listed: {e}")))?;
        if kernels.is_empty() {
            return Err(refused("the module has no kernel"));
        }
        let kernels: Vec<_> = kernels
            .into_iter()
            .map(|(name, kernel)| {
                let classes = classes.get(&name);
                self.describe(name, kernel, classes)
            })
            .collect();
        check_size(&kernels).map_err(refused)?;
        Ok((code, CodeInfo { kernels, ..CodeInfo::default() }))
    }
}

/// The classes of every kernel's parameters, as far as the text tells them.
fn classes(text: &str) -> HashMap<String, Vec<ParamClass>> {
    let classes = |kernel: KernelInfo| {
        let params = kernel.params.unwrap_or_default();
        (kernel.name, params.iter().map(|param| param.class).collect())
    };
    ptx::entries(text).unwrap_or_default().into_iter().map(classes).collect()
}
