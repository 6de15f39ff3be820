//! The smallest device that can run a wasm kernel: one memory, buffers one after another with
//! guard bytes between them.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use pappus_kernels::ARTEFACTS;
use wasmtime::{Config, Engine, Instance, Memory, MemoryType, Module, Store};

const PAGE_BYTES: usize = 64 * 1024;
const MEMORY_PAGES: u32 = 256;
const GUARD: [u8; 64] = [0xA5; 64];
/// What an unused part of a slot holds: kernels must not look at it.
pub(crate) const GARBAGE: u64 = 0xDEAD_BEEF << 32;

/// Every wasm module by its stem, compiled once for all tests.
static MODULES: LazyLock<BTreeMap<&str, Module>> = LazyLock::new(|| {
    let engine = Engine::new(&Config::new()).unwrap();
    let stems = ARTEFACTS.iter().filter_map(|(file, bytes)| Some((file.strip_suffix(".wasm")?, bytes)));
    stems.map(|(stem, bytes)| (stem, Module::new(&engine, bytes).unwrap())).collect()
});

pub(crate) struct Device {
    store: Store<()>,
    memory: Memory,
    instance: Instance,
    free: usize,
}

/// A buffer on the device. `address` is what a kernel gets.
#[derive(Clone, Copy)]
pub(crate) struct Buffer {
    pub(crate) address: u64,
    len: usize,
}

impl Device {
    pub(crate) fn load(stem: &str) -> Device {
        let module = &MODULES[stem];
        let low_region = module.imports().next().unwrap().ty().unwrap_memory().minimum() as usize;
        let mut store = Store::new(module.engine(), ());
        let memory = Memory::new(&mut store, MemoryType::new(MEMORY_PAGES, None)).unwrap();
        let instance = Instance::new(&mut store, module, &[memory.into()]).unwrap();
        Device { store, memory, instance, free: low_region * PAGE_BYTES }
    }

    /// A buffer with these bytes.
    pub(crate) fn place(&mut self, bytes: &[u8]) -> Buffer {
        let address = self.free.next_multiple_of(16);
        self.memory.write(&mut self.store, address, bytes).unwrap();
        self.memory.write(&mut self.store, address + bytes.len(), &GUARD).unwrap();
        self.free = address + bytes.len() + GUARD.len();
        Buffer { address: address as u64, len: bytes.len() }
    }

    /// A buffer of zeros.
    pub(crate) fn zeroed(&mut self, len: usize) -> Buffer {
        self.place(&vec![0; len])
    }

    /// The bytes of a buffer; panics where a kernel wrote beyond its end.
    pub(crate) fn read(&self, buffer: Buffer) -> Vec<u8> {
        let start = buffer.address as usize;
        let data = self.memory.data(&self.store);
        assert_eq!(data[start + buffer.len..][..GUARD.len()], GUARD, "written beyond the end");
        data[start..start + buffer.len].to_vec()
    }

    /// Runs a kernel, in two ranges of blocks where there is more than one block. `slots` are its
    /// parameters; grid and block are (x, y, z).
    pub(crate) fn launch(&mut self, kernel: &str, slots: &[u64], grid: [u32; 3], block: [u32; 3]) {
        self.try_launch(kernel, slots, grid, block).unwrap();
    }

    pub(crate) fn try_launch(
        &mut self,
        kernel: &str,
        slots: &[u64],
        grid: [u32; 3],
        block: [u32; 3],
    ) -> wasmtime::Result<()> {
        let arguments = self.place(&pappus_kernels::bytes::from_elements(slots));
        let record = [grid, block].concat().into_iter().chain([0, 0]).flat_map(u32::to_le_bytes);
        let launch = self.place(&record.collect::<Vec<_>>());
        let function = self.instance.get_typed_func::<(i32, i32, i64, i64), ()>(&mut self.store, kernel)?;
        let (arguments, launch) = (arguments.address as i32, launch.address as i32);
        let blocks = grid.iter().map(|&side| i64::from(side)).product::<i64>();
        let half = blocks / 2;
        function.call(&mut self.store, (arguments, launch, 0, half))?;
        function.call(&mut self.store, (arguments, launch, half, blocks - half))
    }
}

/// The slot of an f32 parameter.
pub(crate) fn f32_slot(value: f32) -> u64 {
    GARBAGE | u64::from(value.to_bits())
}
