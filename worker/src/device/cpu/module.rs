//! One module of a loaded function: machine code mapped from its file and instantiated once.

use std::fs::File;

use pappus_protocol::{Fault, FaultCode};
use rustix::io::Errno;
use wasmtime::{Engine, ExternType, Global, Instance, Module, Store, TypedFunc};

use super::layout::LowPart;
use super::lines::Lines;
use super::memory::{Handover, LinearMemory, Pool};
use super::rewrite::{Additions, Checks, low_part_of};

/// A kernel's parameters: `args`, `launch`, `first`, `count`.
pub(super) type KernelFn = TypedFunc<(u32, u32, u64, u64), ()>;

/// A module, ready to run.
pub(super) struct LoadedModule {
    pub(super) memory: LinearMemory,
    pub(super) low: LowPart,
    /// Where in its source its checked accesses are.
    pub(super) lines: Lines,
    instance: Instance,
    /// The module's one mutable global, and its initial value.
    pub(super) stack_pointer: Option<(Global, i32)>,
    /// A kernel ran in it since it was restored.
    pub(super) used: bool,
}

impl LoadedModule {
    /// Maps machine code, which must have these additions, and instantiates it over a memory of its own.
    pub(super) fn load(
        engine: &Engine,
        store: &mut Store<()>,
        handover: &Handover,
        file: File,
        additions: Additions,
    ) -> Result<Self, Fault> {
        let lines = match additions.checks {
            Checks::None => Lines::default(),
            Checks::All => Lines::read(&file).unwrap_or_default(),
        };
        // SAFETY: the descriptor comes from the supervisor and holds what this build's compiling role
        // made of a checked module; the file is sealed or private to the supervisor, so its bytes do not change.
        // Machine code of a tenant runs in this process in any case, and the sandbox confines the process.
        #[allow(unsafe_code)]
        let module = unsafe { Module::deserialize_open_file(engine, file) }.map_err(|e| refused(&e))?;
        let (low, has) = module
            .exports()
            .find_map(|export| match export.ty() {
                ExternType::Memory(_) => low_part_of(export.name()),
                _ => None,
            })
            .ok_or_else(|| Fault::new(FaultCode::Load, "machine code: it says nothing about its memory"))?;
        if has.checks != additions.checks {
            return Err(Fault::new(FaultCode::Load, "machine code with checks is for checked calls"));
        }
        if has.interruptible != additions.interruptible {
            let message = "machine code that can be interrupted is for devices that share workers";
            return Err(Fault::new(FaultCode::Load, message));
        }
        let mut memory = LinearMemory::new(&low, additions.interruptible).map_err(mapping)?;
        memory.offer(handover);
        let instance = Instance::new(&mut *store, &module, &[]).map_err(|e| refused(&e))?;
        memory.remember(&low);
        let stack_pointer = instance.get_global(&mut *store, "__stack_pointer");
        let stack_pointer = stack_pointer.and_then(|global| Some((global, global.get(&mut *store).i32()?)));
        Ok(Self { memory, low, lines, instance, stack_pointer, used: false })
    }

    /// The kernel of that name.
    pub(super) fn kernel(&self, store: &mut Store<()>, symbol: &str) -> Option<KernelFn> {
        self.instance.get_typed_func(store, symbol).ok()
    }

    /// Gives it another pool.
    pub(super) fn map_pool(&mut self, pool: &Pool, room: u64) -> Result<(), Fault> {
        self.memory.map_pool(pool, room).map_err(mapping)
    }
}

/// Machine code that does not load: the host lacks memory or descriptors, or the code is wrong. Errors of the operating
/// system are reported without their path, which belongs to the supervisor.
fn refused(error: &wasmtime::Error) -> Fault {
    let io = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>().map(ToString::to_string));
    let lacking =
        io.or_else(|| error.chain().find_map(|cause| Some(cause.downcast_ref::<Errno>()?.to_string())));
    match lacking {
        Some(lacking) => Fault::new(FaultCode::Exhausted, format!("mapping machine code: {lacking}")),
        None => Fault::new(FaultCode::Load, format!("machine code: {error:#}")),
    }
}

/// A mapping that the kernel refused: usually the host is out of memory or address space.
pub(super) fn mapping(error: std::io::Error) -> Fault {
    Fault::new(FaultCode::Exhausted, format!("mapping a kernel's memory: {error}"))
}
