//! A kernel as the CPU device calls it, in this process and with nothing around it: the engine has the
//! worker's settings, and all blocks run in one call.

use pappus_kernels::artefact;
use pappus_worker::device::cpu::compiler::judge;
use wasmtime::{Engine, Instance, Memory, MemoryType, Module, Store, TypedFunc};

use super::cases::{Case, Slot};
use crate::Result;

const WASM_PAGE: usize = 64 << 10;
/// Room for the launch record and the parameters, and between buffers.
const ALIGN: usize = 256;

/// An engine that makes the code the worker runs.
pub fn engine() -> Result<Engine> {
    Ok(Engine::new(&pappus_worker::device::cpu::settings())?)
}

/// A kernel with its data in place.
pub struct Kernel {
    store: Store<()>,
    memory: Memory,
    function: TypedFunc<(u32, u32, u64, u64), ()>,
    args: u32,
    launch: u32,
    blocks: u64,
    buffers: Vec<(usize, usize)>,
}

impl Kernel {
    /// Compiles the case's module, as code that can be interrupted or not, and lays its data out behind the module's own.
    pub fn load(engine: &Engine, case: &Case, interruptible: bool) -> Result<Self> {
        let file = format!("{}.wasm", case.module);
        let wasm = artefact(&file).ok_or("no such module")?;
        let module = Module::new(engine, wasm)?;
        let import = module.imports().next().map(|import| import.ty());
        let low_pages = import
            .and_then(|import| import.memory().map(MemoryType::minimum))
            .ok_or("a module that imports no memory")?;
        let low = usize::try_from(low_pages)? * WASM_PAGE;

        let mut end = low;
        let mut place = |bytes: usize| {
            let start = end;
            end = (start + bytes).next_multiple_of(ALIGN);
            start
        };
        let launch = place(32);
        let args = place(case.slots.len() * 8);
        let buffers: Vec<(usize, usize)> =
            case.buffers.iter().map(|buffer| (place(buffer.len()), buffer.len())).collect();

        let mut store = Store::new(engine, ());
        // As a worker's, the module defines its memory, which is all that can be addressed.
        let (rewritten, _) = judge(wasm, interruptible).map_err(|why| why.0)?;
        let instance = Instance::new(&mut store, &Module::new(engine, rewritten)?, &[])?;
        let memory = instance.exports(&mut store).find_map(wasmtime::Export::into_memory);
        let memory = memory.ok_or("a module without memory")?;
        let record = [case.grid, case.block].concat().into_iter().chain([0, 0]);
        let record: Vec<u8> = record.flat_map(u32::to_le_bytes).collect();
        let slots = case.slots.iter().map(|slot| match *slot {
            Slot::Buffer(at) => buffers[at].0 as u64,
            Slot::Word(word) => word,
        });
        let slots: Vec<u8> = slots.flat_map(u64::to_le_bytes).collect();
        memory.write(&mut store, launch, &record)?;
        memory.write(&mut store, args, &slots)?;
        for ((start, _), bytes) in buffers.iter().zip(&case.buffers) {
            memory.write(&mut store, *start, bytes)?;
        }
        Ok(Self {
            function: instance.get_typed_func(&mut store, case.kernel)?,
            store,
            memory,
            args: u32::try_from(args)?,
            launch: u32::try_from(launch)?,
            blocks: case.blocks(),
            buffers,
        })
    }

    /// Runs all blocks.
    pub fn run(&mut self) -> Result<()> {
        let arguments = (self.args, self.launch, 0, self.blocks);
        Ok(self.function.call(&mut self.store, arguments)?)
    }

    /// What a buffer holds now.
    pub fn buffer(&self, at: usize) -> Result<Vec<u8>> {
        let (start, bytes) = self.buffers[at];
        let mut out = vec![0; bytes];
        self.memory.read(&self.store, start, &mut out)?;
        Ok(out)
    }
}
