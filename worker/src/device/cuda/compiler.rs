//! The compiling role's part: judge a module, make a cubin for this device, and tell what is in it.

use std::collections::HashMap;

use pappus_blueprint::kernel_info::check_size;
use pappus_blueprint::ptx;
use pappus_fence::window::VARIABLES_BEGIN;
use pappus_fence::{Fenced, Variable};
use pappus_protocol::from_worker::{CodeInfo, Hello, KernelInfo, ParamClass, ParamInfo};
use pappus_protocol::{Fault, FaultCode};

use super::check::{self, Format};
use super::driver::module::{Kernel, Module, Source, link};
use super::engine::Engine;
use super::{elf, image};
use crate::device::Compiler;
use crate::device::gpu::driver::{Code, Driver, DriverError};
use crate::device::gpu::windows::VARIABLES_BYTES;

/// Compiles PTX, cubins and fatbins for the first GPU that the process sees.
#[derive(Debug)]
pub struct CudaCompiler {
    pub(super) engine: Engine,
}

impl CudaCompiler {
    /// What the driver says of a kernel, and its text where it has one: the classes of its parameters, and the threads that a block
    /// has at most.
    fn describe(&self, name: String, kernel: Kernel, text: Option<&KernelInfo>) -> KernelInfo {
        let info = &self.engine.context.info;
        let declared = text.and_then(|text| text.params.as_deref()).unwrap_or_default();
        let params = kernel.params().into_iter().enumerate().map(|(position, (offset, bytes))| {
            let class = declared.get(position).map_or(ParamClass::Unknown, |param| param.class);
            ParamInfo { name: Box::default(), offset, bytes, class }
        });
        let most = text.map(|text| text.max_threads).filter(|most| *most > 0).unwrap_or(u32::MAX);
        let local_bytes = kernel.local_bytes();
        KernelInfo {
            params: Some(params.collect()),
            local_bytes,
            stack_bytes: u64::from(local_bytes) * u64::from(info.threads) * u64::from(info.multiprocessors),
            shared_bytes: kernel.shared_bytes(),
            max_threads: kernel.max_threads().min(most),
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
        let mut source = None;
        let (code, texts) = match check::format(module).map_err(refused)? {
            Format::Cubin => (module.to_vec(), Default::default()),
            Format::Fatbin => {
                let code = link(Source::Fatbin, module);
                (
                    code.map_err(|why| refused(format!("the fatbin has nothing for {arch}: {why}")))?,
                    Default::default(),
                )
            }
            Format::Ptx => {
                source = std::str::from_utf8(module).ok();
                let texts = source.map(described).unwrap_or_default();
                let mut text = module.to_vec();
                text.push(0);
                let code = link(Source::Ptx, &text);
                (
                    code.map_err(|why| {
                        refused(format!("the driver's compiler refuses it for {arch}: {why}"))
                    })?,
                    texts,
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
        let mut kernels: Vec<_> = kernels
            .into_iter()
            .map(|(name, kernel)| {
                let text = texts.get(&name);
                self.describe(name, kernel, text)
            })
            .collect();
        check_size(&kernels).map_err(refused)?;
        if !self.engine.interruptible {
            return Ok((code, CodeInfo { kernels, ..CodeInfo::default() }));
        }
        let fenced = source.and_then(|text| self.fence(text, &mut kernels));
        let image = image::write(&code, fenced.as_ref());
        let window_variables = fenced.as_ref().map_or(0, |code| code.variables_bytes);
        Ok((image, CodeInfo { kernels, fenced: fenced.is_some(), window_variables, ..CodeInfo::default() }))
    }

    /// Code of the same kernels that cannot leave a window; none where the text cannot be fenced, which `pappus function check`
    /// explains. What kernels need from the device is as much as both codes need.
    fn fence(&self, text: &str, plain: &mut [KernelInfo]) -> Option<Code> {
        if !self.engine.properties().has_windows {
            return None;
        }
        let fenced = pappus_fence::fence(text).ok()?;
        let code = self.window_code(fenced, plain);
        code.inspect_err(|why| crate::log(format_args!("a module is not shared: {why}"))).ok()
    }

    /// The driver's code of a fenced text; why it is none for windows.
    fn window_code(&self, fenced: Fenced, plain: &mut [KernelInfo]) -> Result<Code, String> {
        let Fenced { mut text, variables, variables_bytes, .. } = fenced;
        if variables_bytes > VARIABLES_BYTES {
            return Err(format!(
                "its variables take {variables_bytes} bytes, a window has {VARIABLES_BYTES}"
            ));
        }
        // The very text that the driver's compiler gets, but for the zero behind it.
        let checked = pappus_fence::check(&text).map_err(|why| why.to_string())?;
        text.push('\0');
        // Only a mistake of the fence gets here: the plain text was accepted.
        let machine = link(Source::Ptx, text.as_bytes())
            .map_err(|why| format!("the driver's compiler refuses its fenced text: {why}"))?;
        if !elf::judge(&machine).map_err(|why| why.to_string())?.is_empty() {
            return Err("its fenced code has variables outside of the window".to_owned());
        }
        // Kernels are the module's: it stays until they are described.
        let loaded = Module::load(&machine).map_err(|why| format!("its fenced code does not load: {why}"))?;
        let kernels =
            loaded.kernels().map_err(|why| format!("its fenced kernels cannot be listed: {why}"))?;
        let found: HashMap<_, _> = kernels
            .into_iter()
            .map(|(name, kernel)| (name.clone(), self.describe(name, kernel, None)))
            .collect();
        if checked.kernels.len() != found.len() {
            return Err(format!(
                "of {} fenced kernels, the driver has {}",
                checked.kernels.len(),
                found.len()
            ));
        }
        let other =
            |kernel: &&KernelInfo| !found.get(&kernel.name).is_some_and(|own| takes_window(kernel, own));
        if let Some(KernelInfo { name, max_threads, .. }) = plain.iter().find(other) {
            let fenced = found.get(name).map_or(0, |kernel| kernel.max_threads);
            return Err(format!(
                "kernel `{name}` takes other parameters with its fence, or a block of {fenced} threads at most, not {max_threads}"
            ));
        }
        for kernel in plain {
            let Some(fenced) = found.get(&kernel.name) else { continue };
            kernel.local_bytes = kernel.local_bytes.max(fenced.local_bytes);
            kernel.stack_bytes = kernel.stack_bytes.max(fenced.stack_bytes);
            kernel.shared_bytes = kernel.shared_bytes.max(fenced.shared_bytes);
        }
        let initial = initial(&variables).ok_or("its variables begin beyond the window's")?;
        Ok(Code { machine, variables_bytes, initial })
    }
}

/// True if a fenced kernel takes what the plain one does and its window, and may have as many threads.
fn takes_window(plain: &KernelInfo, fenced: &KernelInfo) -> bool {
    let (Some(plain_params), Some(params)) = (&plain.params, &fenced.params) else { return false };
    let Some((window, others)) = params.split_last() else { return false };
    let place = |param: &ParamInfo| (param.offset, param.bytes);
    window.bytes == 4
        && others.iter().map(place).eq(plain_params.iter().map(place))
        && fenced.max_threads >= plain.max_threads
}

/// The first bytes of all variables, up to the last that is not left at zero.
fn initial(variables: &[Variable]) -> Option<Vec<u8>> {
    let mut initial = Vec::new();
    for variable in variables.iter().filter(|variable| !variable.bytes.is_empty()) {
        let at = variable.offset.checked_sub(VARIABLES_BEGIN)? as usize;
        let end = at + variable.bytes.len();
        if end as u64 > VARIABLES_BYTES {
            return None;
        }
        initial.resize(end.max(initial.len()), 0);
        initial[at..end].copy_from_slice(&variable.bytes);
    }
    Some(initial)
}

/// All kernels of a text by name, as it describes them; none where it is not understood.
fn described(text: &str) -> HashMap<String, KernelInfo> {
    let kernels = ptx::entries(text).unwrap_or_default().into_iter();
    kernels.map(|kernel| (kernel.name.clone(), kernel)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_begin_where_fenced_code_looks_for_them() {
        let text = ".version 7.0\n.target sm_70\n.address_size 64\n.global .align 4 .u32 first = 7;\n\
            .global .align 8 .b8 empty[100];\n.global .align 4 .u32 last[2] = {1, 16908546};\n\
            .visible .entry k(.param .u64 to)\n{\n.reg .b32 %r<2>;\n.reg .b64 %t<3>;\n ld.param.u64 %t1, [to];\n\
            ld.global.u32 %r1, [last];\n cvta.to.global.u64 %t2, %t1;\n st.global.u32 [%t2], %r1;\n ret;\n}\n";
        let fenced = pappus_fence::fence(text).unwrap();
        pappus_fence::check(&fenced.text).unwrap();
        let bytes = initial(&fenced.variables).unwrap();
        assert_eq!(bytes[..4], 7u32.to_le_bytes());
        let at = (fenced.variables[2].offset - VARIABLES_BEGIN) as usize;
        assert_eq!(bytes[at..], [1, 0, 0, 0, 2, 1, 2, 1]);
        assert!(bytes[4..at].iter().all(|byte| *byte == 0) && bytes.len() as u64 <= fenced.variables_bytes);
        let mut far = fenced.variables;
        far[2].offset = VARIABLES_BEGIN + VARIABLES_BYTES as u32;
        assert_eq!(initial(&far), None);
    }

    #[test]
    fn fenced_code_is_of_the_same_kernels() {
        let kernel = |params: &[(u32, u32)], max_threads| {
            let param = |&(offset, bytes)| ParamInfo {
                name: Box::default(),
                offset,
                bytes,
                class: ParamClass::Unknown,
            };
            KernelInfo {
                params: Some(params.iter().map(param).collect()),
                max_threads,
                ..KernelInfo::default()
            }
        };
        let plain = kernel(&[(0, 8), (8, 4)], 512);
        assert!(takes_window(&plain, &kernel(&[(0, 8), (8, 4), (12, 4)], 512)));
        for other in [
            kernel(&[(0, 8), (8, 4)], 512),
            kernel(&[(0, 8), (8, 4), (16, 8)], 512),
            kernel(&[(0, 8), (8, 8), (16, 4)], 512),
            kernel(&[(0, 8), (8, 4), (12, 4)], 256),
            kernel(&[], 512),
        ] {
            assert!(!takes_window(&plain, &other), "{other:?}");
        }
    }
}
