//! The compiling role's part of the CPU device: judge, rewrite, compile.

use pappus_protocol::from_worker::{CompiledModule, Hello, KernelInfo};
use pappus_protocol::{Fault, FaultCode};
use wasmtime::Engine;

use super::{check, engine, rewrite};
use crate::device::{CodeError, Compiler};

/// Compiles wasm modules for the CPU device.
pub struct CpuCompiler {
    engine: Engine,
}

impl CpuCompiler {
    /// A compiler for the processor it runs on.
    pub fn new() -> Result<Self, Fault> {
        Ok(Self { engine: engine::compiling()? })
    }
}

/// Judges a module and rewrites it into what the compiler takes; its kernels' names.
pub fn judge(module: &[u8]) -> Result<(Vec<u8>, Vec<String>), CodeError> {
    let judged = check::check(module)?;
    let rewritten = rewrite::rewrite(module, &judged).map_err(|e| CodeError(format!("malformed: {e}")))?;
    Ok((rewritten, judged.kernels))
}

impl Compiler for CpuCompiler {
    fn hello(&self) -> Hello {
        engine::hello(&self.engine)
    }

    fn compile(&self, module: &[u8]) -> Result<(Vec<u8>, CompiledModule), Fault> {
        let refused = |why: CodeError| Fault::new(FaultCode::BadModule, why.0);
        let (rewritten, kernels) = judge(module).map_err(refused)?;
        let code = self.engine.precompile_module(&rewritten);
        let code = code.map_err(|e| refused(CodeError(format!("the compiler refuses it: {e:#}"))))?;
        let kernels = kernels.into_iter().map(|name| KernelInfo { name, ..Default::default() });
        Ok((code, CompiledModule { kernels: kernels.collect(), ..CompiledModule::default() }))
    }
}
