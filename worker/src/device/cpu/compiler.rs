//! The compiling role's part of the CPU device: judge, rewrite, compile.

use std::collections::HashMap;

use pappus_blueprint::signatures::Signature;
use pappus_protocol::from_worker::{CodeInfo, Hello, KernelInfo};
use pappus_protocol::{Fault, FaultCode};
use wasmtime::Engine;

use super::lines::Lines;
use super::rewrite::{Additions, Checks};
use super::{check, engine, rewrite};
use crate::device::{CodeError, Compiler};

/// Compiles wasm modules for the CPU device.
pub struct CpuCompiler {
    engine: Engine,
    interruptible: bool,
}

impl CpuCompiler {
    /// A compiler for the processor it runs on. Code for a device whose calls can be interrupted is `interruptible`.
    pub fn new(interruptible: bool) -> Result<Self, Fault> {
        Ok(Self { engine: engine::compiling()?, interruptible })
    }
}

/// Judges a module and rewrites it for the compiler. Returns the kernels, with parameters as far as the module
/// declares them.
pub fn judge(module: &[u8], interruptible: bool) -> Result<(Vec<u8>, Vec<KernelInfo>), CodeError> {
    judge_for(module, Additions { checks: Checks::None, interruptible })
}

fn judge_for(module: &[u8], additions: Additions) -> Result<(Vec<u8>, Vec<KernelInfo>), CodeError> {
    let judged = check::check(module)?;
    let rewritten = rewrite::rewrite(module, &judged, additions);
    let rewritten = rewritten.map_err(|e| CodeError(format!("malformed: {e}")))?;
    let told: HashMap<&str, &Signature> =
        judged.signatures.iter().map(|signature| (signature.kernel.as_str(), signature)).collect();
    let kernels = judged.kernels.iter().map(|name| KernelInfo {
        name: name.clone(),
        params: told.get(name.as_str()).map(|signature| signature.params.iter().map(Into::into).collect()),
        ..KernelInfo::default()
    });
    Ok((rewritten, kernels.collect()))
}

impl CpuCompiler {
    fn compile_for(&self, module: &[u8], checks: Checks) -> Result<(Vec<u8>, CodeInfo), Fault> {
        let refused = |why: CodeError| Fault::new(FaultCode::BadModule, why.0);
        let additions = Additions { checks, interruptible: self.interruptible };
        let (rewritten, kernels) = judge_for(module, additions).map_err(refused)?;
        let code = self.engine.precompile_module(&rewritten);
        let mut code = code.map_err(|e| refused(CodeError(format!("the compiler refuses it: {e:#}"))))?;
        if checks == Checks::All {
            let lines = Lines::find(module).map_err(|e| refused(CodeError(format!("malformed: {e}"))))?;
            lines.append_to(&mut code);
        }
        Ok((code, CodeInfo { kernels, fenced: self.interruptible, ..CodeInfo::default() }))
    }
}

impl Compiler for CpuCompiler {
    fn hello(&self) -> Hello {
        engine::hello(&self.engine, self.interruptible)
    }

    fn compile(&self, module: &[u8]) -> Result<(Vec<u8>, CodeInfo), Fault> {
        self.compile_for(module, Checks::None)
    }

    fn compile_checked(&self, module: &[u8]) -> Result<(Vec<u8>, CodeInfo), Fault> {
        self.compile_for(module, Checks::All)
    }
}
