//! The compiling role's part of the CPU device: judge, rewrite, compile.

use pappus_protocol::from_worker::{CompiledModule, Hello};
use pappus_protocol::{Fault, FaultCode};
use wasmtime::Engine;

use super::{check, engine, rewrite};
use crate::device::Compiler;

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

impl Compiler for CpuCompiler {
    fn hello(&self) -> Hello {
        engine::hello(&self.engine)
    }

    fn compile(&self, module: &[u8]) -> Result<(Vec<u8>, CompiledModule), Fault> {
        let refused = |why: String| Fault::new(FaultCode::BadModule, why);
        let judged = check::check(module).map_err(refused)?;
        let rewritten = rewrite::rewrite(module, &judged).map_err(|e| refused(format!("malformed: {e}")))?;
        let code = self.engine.precompile_module(&rewritten);
        let code = code.map_err(|e| refused(format!("the compiler refuses it: {e:#}")))?;
        Ok((code, CompiledModule { kernels: judged.kernels }))
    }
}
