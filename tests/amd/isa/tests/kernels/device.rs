//! A device that is three: each launch runs as wasm, on gfx90a and on gfx942, in memories of the same addresses.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::LazyLock;

use gfx9::chip::{Chip, Dispatch};
use gfx9::memory::{Access, Memory, Reason};
use gfx9::object::CodeObject;
use pappus_kernels::ARTEFACTS;
use wasmtime::{Config, Engine, Instance, MemoryType, Module, Store};

const PAGE_BYTES: usize = 64 * 1024;
const MEMORY_PAGES: u32 = 64;
const GUARD: [u8; 64] = [0xA5; 64];
/// What an unused part of a slot holds: kernels must not look at it.
pub(crate) const GARBAGE: u64 = 0xDEAD_BEEF << 32;
/// Few, so that a launch has more workgroups than are resident.
const UNITS: usize = 2;
/// Where code objects lie.
const LOADED_AT: u64 = 0x7000_0000_0000;

static MODULES: LazyLock<BTreeMap<&str, Module>> = LazyLock::new(|| {
    let engine = Engine::new(&Config::new()).unwrap();
    let stems = ARTEFACTS.iter().filter_map(|(file, bytes)| Some((file.strip_suffix(".wasm")?, bytes)));
    stems.map(|(stem, bytes)| (stem, Module::new(&engine, bytes).unwrap())).collect()
});

/// Code objects by file name.
static OBJECTS: LazyLock<BTreeMap<&str, CodeObject>> = LazyLock::new(|| {
    let files = ARTEFACTS.iter().filter(|(file, _)| file.ends_with(".hsaco"));
    files.map(|(file, bytes)| (*file, CodeObject::parse(bytes).unwrap())).collect()
});

/// The three.
pub(crate) struct Device {
    store: Store<()>,
    memory: wasmtime::Memory,
    instance: Instance,
    gpus: Vec<(&'static CodeObject, Chip, Image)>,
    from: usize,
    free: usize,
}

/// The memory of a GPU: one range.
struct Image {
    from: u64,
    cells: Vec<Cell<u8>>,
}

impl Memory for Image {
    fn at(&self, address: u64, bytes: u64, _: Access) -> Result<&[Cell<u8>], Reason> {
        let offset = address.checked_sub(self.from).ok_or(Reason::NotPresent)?;
        let end = offset.checked_add(bytes).filter(|end| *end <= self.cells.len() as u64);
        let end = end.ok_or(Reason::NotPresent)?;
        Ok(&self.cells[offset as usize..end as usize])
    }
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
        let memory = wasmtime::Memory::new(&mut store, MemoryType::new(MEMORY_PAGES, None)).unwrap();
        let instance = Instance::new(&mut store, module, &[memory.into()]).unwrap();
        let from = low_region * PAGE_BYTES;
        let gpu = |file: String| {
            let cells = vec![Cell::new(0); MEMORY_PAGES as usize * PAGE_BYTES - from];
            (&OBJECTS[file.as_str()], Chip::new(UNITS), Image { from: from as u64, cells })
        };
        let gpus = [format!("{stem}.hsaco"), format!("{stem}.gfx942.hsaco")].map(gpu).into();
        Device { store, memory, instance, gpus, from, free: from }
    }

    fn write(&mut self, address: usize, bytes: &[u8]) {
        self.memory.write(&mut self.store, address, bytes).unwrap();
        for (_, _, image) in &self.gpus {
            let cells = image.at(address as u64, bytes.len() as u64, Access::Write).unwrap();
            cells.iter().zip(bytes).for_each(|(cell, byte)| cell.set(*byte));
        }
    }

    /// A buffer with these bytes.
    pub(crate) fn place(&mut self, bytes: &[u8]) -> Buffer {
        let address = self.free.next_multiple_of(16);
        self.write(address, bytes);
        self.write(address + bytes.len(), &GUARD);
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

    /// Runs a kernel on all three, and compares all memory.
    pub(crate) fn launch(&mut self, kernel: &str, slots: &[u64], grid: [u32; 3], block: [u32; 3]) {
        self.try_launch(kernel, slots, grid, block).unwrap();
    }

    /// The same; an error is that of all three.
    pub(crate) fn try_launch(
        &mut self,
        kernel: &str,
        slots: &[u64],
        grid: [u32; 3],
        block: [u32; 3],
    ) -> Result<(), String> {
        let end = self.free;
        let mut faults = Vec::new();
        for (object, chip, image) in &mut self.gpus {
            let found = object.kernel(kernel).unwrap();
            let mut arguments = vec![0; found.arguments_bytes];
            let mut rest = slots;
            for argument in found.arguments.iter().filter(|argument| !argument.kind.starts_with("hidden_")) {
                let (own, behind) = rest.split_at(argument.bytes.div_ceil(8));
                // A pointer has 32 bits in wasm, and the upper half of its slot is not looked at.
                let narrow =
                    |slot: &u64| if argument.kind == "global_buffer" { slot & 0xffff_ffff } else { *slot };
                let bytes: Vec<u8> =
                    own.iter().map(narrow).flat_map(|slot| slot.to_le_bytes()).take(argument.bytes).collect();
                arguments[argument.offset..][..argument.bytes].copy_from_slice(&bytes);
                rest = behind;
            }
            assert!(rest.is_empty(), "{kernel} has fewer arguments");
            let dispatch = Dispatch {
                object,
                kernel: found,
                loaded_at: LOADED_AT,
                grid,
                block,
                lds_bytes: 0,
                arguments: &arguments,
            };
            faults.push(chip.run(&dispatch, &*image).err().map(|fault| fault.to_string()));
        }
        let wasm = self.launch_wasm(kernel, slots, grid, block);
        if wasm.is_err() {
            assert!(faults.iter().all(Option::is_some), "{kernel}: only wasm fails: {wasm:?}, {faults:?}");
            return wasm;
        }
        for (fault, (object, _, image)) in faults.iter().zip(&self.gpus) {
            assert_eq!(fault, &None, "{kernel} on {:?}", object.arch);
            let data = &self.memory.data(&self.store)[self.from..end];
            for (index, (word, cells)) in data.chunks(4).zip(image.cells.chunks(4)).enumerate() {
                let own: Vec<u8> = cells.iter().take(word.len()).map(Cell::get).collect();
                assert!(
                    own == word || (is_nan(&own) && is_nan(word)),
                    "{kernel} on {:?}: at {:#x} are {own:x?}, on the CPU {word:x?}",
                    object.arch,
                    self.from + 4 * index
                );
            }
        }
        Ok(())
    }

    fn launch_wasm(
        &mut self,
        kernel: &str,
        slots: &[u64],
        grid: [u32; 3],
        block: [u32; 3],
    ) -> Result<(), String> {
        let end = self.free;
        let arguments = self.place(&pappus_kernels::bytes::from_elements(slots));
        let record = [grid, block].concat().into_iter().chain([0, 0]).flat_map(u32::to_le_bytes);
        let launch = self.place(&record.collect::<Vec<_>>());
        let function = self.instance.get_typed_func::<(i32, i32, i64, i64), ()>(&mut self.store, kernel);
        let blocks = grid.iter().map(|&side| i64::from(side)).product::<i64>();
        let parameters = (arguments.address as i32, launch.address as i32, 0, blocks);
        let ended = function.unwrap().call(&mut self.store, parameters);
        self.free = end;
        ended.map_err(|error| error.to_string())
    }
}

fn is_nan(bytes: &[u8]) -> bool {
    bytes.first_chunk().is_some_and(|bytes| f32::from_le_bytes(*bytes).is_nan())
}

/// The slot of an f32 parameter.
pub(crate) fn f32_slot(value: f32) -> u64 {
    GARBAGE | u64::from(value.to_bits())
}
