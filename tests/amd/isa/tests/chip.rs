//! The chip around the instructions: what stays in it behind a kernel, what a launch may be, how kernels fail, and that
//! hostile code objects are errors.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use gfx9::chip::{Chip, Dispatch};
use gfx9::memory::{Access, Fault, Pieces, Reason};
use gfx9::object::CodeObject;
use pappus_kernels::artefact;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

const AT: u64 = 0x1_0000_0000;
/// A word that is nowhere by chance.
const MARK: u32 = 0x3e5e_c2e7;

fn object(name: &str) -> CodeObject {
    CodeObject::parse(artefact(name).unwrap()).unwrap()
}

/// Both architectures' modules.
fn both(stem: &str) -> [CodeObject; 2] {
    [object(&format!("{stem}.hsaco")), object(&format!("{stem}.gfx942.hsaco"))]
}

fn launch(
    chip: &mut Chip,
    object: &CodeObject,
    kernel: &str,
    block: [u32; 3],
    slots: &[u64],
    memory: &Pieces,
) -> Result<(), Fault> {
    let arguments: Vec<u8> = slots.iter().flat_map(|slot| slot.to_le_bytes()).collect();
    let kernel = object.kernel(kernel).unwrap();
    let dispatch = Dispatch {
        object,
        kernel,
        loaded_at: 0,
        grid: [1, 1, 1],
        block,
        lds_bytes: 0,
        arguments: &arguments,
    };
    chip.run(&dispatch, memory)
}

fn marked() -> Pieces {
    let mut memory = Pieces::default();
    memory.add(AT, &MARK.to_le_bytes().repeat(8192), true);
    memory.add(2 * AT, &[0; 32768], true);
    memory
}

#[test]
fn registers_and_lds_keep_what_kernels_left() {
    for object in both("linalg") {
        let (mut chip, memory) = (Chip::new(1), marked());
        assert_eq!(chip.holds(MARK), [false; 3]);
        let slots = [AT, AT, 2 * AT, u64::from(MARK) << 32 | 64];
        launch(&mut chip, &object, "vec_add_f", [64, 1, 1], &slots, &memory).unwrap();
        assert_eq!(chip.holds(MARK), [false, true, true], "the numbers, and the argument");
        launch(&mut chip, &object, "sgemm", [32, 8, 1], &[AT, AT, 2 * AT, 32, 32, 32, 0], &memory).unwrap();
        assert!(chip.holds(MARK)[0], "a tile");
        // Another kernel's registers are where the first's were.
        let before = chip.holds(MARK);
        launch(&mut chip, &object_of("module", &object), "hello_world", [1024, 1, 1], &[], &memory).unwrap();
        assert_eq!(chip.holds(MARK), before);
    }
}

fn object_of(stem: &str, like: &CodeObject) -> CodeObject {
    both(stem).into_iter().find(|object| object.arch == like.arch).unwrap()
}

/// The worker's own kernels, for both architectures.
const SCRUBS: [&[u8]; 2] = [
    include_bytes!("../../../../worker/src/device/hip/kernels/built/scrub.gfx90a.hsaco"),
    include_bytes!("../../../../worker/src/device/hip/kernels/built/scrub.gfx942.hsaco"),
];
const COPIES: [&[u8]; 2] = [
    include_bytes!("../../../../worker/src/device/hip/kernels/built/copy.gfx90a.hsaco"),
    include_bytes!("../../../../worker/src/device/hip/kernels/built/copy.gfx942.hsaco"),
];

/// Runs a scrubbing kernel as the worker does; how many blocks each unit ran.
fn scrub(chip: &mut Chip, object: &CodeObject, kernel: &str, lds_bytes: u32, each: u32) -> Vec<u32> {
    let mut memory = Pieces::default();
    memory.add(AT, &[0; 4096], true);
    let blocks = chip.units() as u32 * each;
    let arguments = [&AT.to_le_bytes()[..], &blocks.to_le_bytes(), &lds_bytes.to_le_bytes()].concat();
    let kernel = object.kernel(kernel).unwrap();
    let (grid, block) = ([blocks, 1, 1], [1024, 1, 1]);
    let dispatch = Dispatch { object, kernel, loaded_at: 0, grid, block, lds_bytes, arguments: &arguments };
    chip.run(&dispatch, &memory).unwrap();
    let counters = memory.bytes(AT);
    let counters = counters.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
    counters.skip(1).take(chip.units()).collect()
}

#[test]
fn scrubbing_kernels_reach_every_unit_and_leave_nothing() {
    for (scrubs, linalg) in SCRUBS.into_iter().zip(both("linalg")) {
        let scrubs = CodeObject::parse(scrubs).unwrap();
        assert_eq!(scrubs.arch, linalg.arch);
        let (mut chip, memory) = (Chip::new(3), marked());
        let slots = [AT, AT, 2 * AT, u64::from(MARK) << 32 | 64];
        let tiled = [AT, AT, 2 * AT, 32, 32, 32, 0];
        for _ in 0..3 {
            launch(&mut chip, &linalg, "vec_add_f", [64, 1, 1], &slots, &memory).unwrap();
            launch(&mut chip, &linalg, "sgemm", [32, 8, 1], &tiled, &memory).unwrap();
        }
        assert_eq!(chip.holds(MARK), [true; 3]);
        assert_eq!(scrub(&mut chip, &scrubs, "chip", 64 << 10, 1), [1, 1, 1]);
        assert_eq!(chip.holds(MARK)[..2], [false; 2]);
        assert_eq!(scrub(&mut chip, &scrubs, "scalars", 32 << 10, 2), [2, 2, 2]);
        assert_eq!(chip.holds(MARK), [false; 3]);
        // Stacks: what is written there is not seen from outside, but the kernels run.
        assert_eq!(scrub(&mut chip, &scrubs, "stack_1024", 32 << 10, 2), [2, 2, 2]);
    }
}

#[test]
fn the_copying_kernel_has_no_unknown_instruction() {
    for object in COPIES.into_iter().chain(SCRUBS).map(|file| CodeObject::parse(file).unwrap()) {
        let unknown = object.program.instructions().filter(|inst| inst.op.is_none()).count();
        assert_eq!(unknown, 0, "{:?}", object.arch);
    }
}

#[test]
fn launches_that_do_not_fit_are_named() {
    let memory = marked();
    for object in both("linalg") {
        let mut chip = Chip::new(1);
        let mut fails = |block, kernel: &str| {
            launch(&mut chip, &object, kernel, block, &[AT; 6], &memory).unwrap_err().to_string()
        };
        assert!(fails([1025, 1, 1], "vec_add_f").contains("a block of [1025, 1, 1]"));
        assert!(fails([0, 1, 1], "vec_add_f").contains("a block"));
        assert_eq!(fails([64, 1, 1], "matmul_tiled_i64"), "s_trap 2", "REQUIRE");
    }
}

#[test]
fn stray_addresses_are_faults_with_address_and_reason() {
    let mut memory = marked();
    memory.add(3 * AT, &[0; 4096], false);
    for object in both("linalg") {
        let mut chip = Chip::new(1);
        let mut add =
            |to: u64| launch(&mut chip, &object, "vec_add_f", [64, 1, 1], &[AT, AT, to, 64], &memory);
        let fault = |address, reason| Err(Fault::Memory { address, reason, access: Access::Write });
        assert_eq!(add(2 * AT), Ok(()));
        assert_eq!(add(3 * AT), fault(3 * AT, Reason::ReadOnly));
        // The first word that is outside.
        assert_eq!(add(2 * AT + 32768 - 128), fault(2 * AT + 32768, Reason::NotPresent));
        assert_eq!(add(0), fault(0, Reason::NotPresent));
        // The chip serves the next launch.
        assert_eq!(add(2 * AT), Ok(()));
    }
    assert_eq!(memory.bytes(3 * AT), [0; 4096]);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512,
        // Proptest's own place is found by a lib.rs or main.rs, which this folder lacks.
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("proptest-regressions"))),
        ..ProptestConfig::default()
    })]

    /// Flipped bytes and cuts: an error, or an object whose kernels run or fail, but nothing else happens.
    #[test]
    fn damaged_code_objects_are_errors_or_harmless(
        flips in proptest::collection::vec((0usize..5336, any::<u8>()), 0..8),
        length in prop_oneof![3 => Just(5336usize), 1 => 0usize..5336],
    ) {
        let mut bytes = artefact("module.hsaco").unwrap().to_vec();
        for (at, value) in flips {
            bytes[at] = value;
        }
        bytes.truncate(length);
        if let Ok(object) = CodeObject::parse(&bytes) {
            let memory = marked();
            for kernel in object.kernels.iter().filter(|kernel| kernel.scratch_bytes < 4096) {
                let arguments = vec![0; 64];
                let (grid, block) = ([1, 1, 1], [64, 1, 1]);
                let dispatch =
                    Dispatch { object: &object, kernel, loaded_at: 0, grid, block, lds_bytes: 0, arguments: &arguments };
                if kernel.arguments_bytes < 1 << 20 {
                    let _ = Chip::new(1).run_for(&dispatch, &memory, 100_000);
                }
            }
        }
    }
}
