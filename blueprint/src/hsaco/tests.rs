//! Code objects that come with Pappus are judged good; what no compiler writes is refused, in words or at all, and never
//! more than that.

use proptest::prelude::*;

use super::artefacts::{ARTEFACTS, artefact};
use super::elf::u64_at;
use super::synthetic::{self, CodeObject as Made, Kernel as MadeKernel, Value};
use super::*;

/// The smallest code object that comes with Pappus.
const SMALL: &[u8] = include_bytes!("../../../kernels/built/module.hsaco");

fn refused(bytes: &[u8]) -> String {
    match read(bytes) {
        Ok(objects) => panic!("this is to be refused: {:?}", objects[0].kernels),
        Err(why) => why.to_string(),
    }
}

fn object(kernels: Vec<MadeKernel>) -> Vec<u8> {
    Made::new(kernels).bytes()
}

/// A kernel that takes an address and a number.
fn scale() -> MadeKernel {
    MadeKernel::new("scale", &[(0, 8, "global_buffer"), (8, 4, "by_value"), (16, 4, "hidden_block_count_x")])
}

/// A kernel whose note tells something else or more.
fn told(key: &'static str, value: Value) -> Vec<u8> {
    object(vec![MadeKernel { more: vec![(key, value)], ..scale() }])
}

/// A copy with these bytes at a place.
fn patched(bytes: &[u8], at: usize, with: &[u8]) -> Vec<u8> {
    let mut patched = bytes.to_vec();
    patched[at..at + with.len()].copy_from_slice(with);
    patched
}

#[test]
fn every_code_object_that_comes_with_pappus_is_good() {
    let mut judged = 0;
    for (name, bytes) in ARTEFACTS.iter().filter(|(name, _)| name.ends_with(".hsaco")) {
        let objects = read(bytes).unwrap_or_else(|why| panic!("{name}: {why}"));
        let target = if name.contains("gfx942") { "gfx942" } else { "gfx90a" };
        assert_eq!((objects.len(), objects[0].target.to_string().as_str()), (1, target), "{name}");
        assert_eq!((objects[0].version, objects[0].bytes), (5, *bytes), "{name}");
        // The same source as PTX tells as many kernels with the same arguments.
        let text = artefact(&format!("{}.ptx", name.split('.').next().unwrap())).unwrap();
        let entries = crate::ptx::entries(std::str::from_utf8(text).unwrap()).unwrap();
        assert_eq!(objects[0].kernels.len(), entries.len(), "{name}");
        for entry in entries {
            let kernel = objects[0].kernels.iter().find(|kernel| kernel.name == entry.name).unwrap();
            let one: Vec<_> = kernel.arguments.iter().map(|one| (one.offset, one.bytes)).collect();
            let other: Vec<_> = entry.params.unwrap().iter().map(|one| (one.offset, one.bytes)).collect();
            assert_eq!(one, other, "{name}: {}", entry.name);
        }
        judged += 1;
    }
    assert_eq!(judged, 10);
}

#[test]
fn a_kernel_is_read_with_arguments_and_needs() {
    let objects = read(SMALL).unwrap();
    let [hello, check] = &objects[0].kernels[..] else { panic!("{objects:?}") };
    assert_eq!(
        (hello.name.as_str(), hello.arguments.len(), hello.has_hidden_arguments),
        ("hello_world", 0, false)
    );
    let argument = Argument { offset: 0, bytes: 8, is_pointer: true };
    let expected = Kernel {
        name: "check_then_write".into(),
        arguments: vec![argument],
        kernarg_bytes: 264,
        has_hidden_arguments: true,
        lds_bytes: 0,
        private_bytes: 0,
        max_threads: 1024,
        required_block: None,
        wave: 64,
        vector_registers: Some(2),
        scalar_registers: Some(11),
        accumulation_registers: Some(0),
    };
    assert_eq!(*check, expected);
    let variables = vec![Variable { name: "__hip_cuid_".into(), offset: 0, bytes: 1 }];
    assert_eq!(objects[0].writable, [Section { name: ".bss".into(), bytes: 1, variables }]);
    assert!(objects[0].writable[0].is_compilers_mark());
}

#[test]
fn only_the_compilers_mark_alone_in_its_section_is_no_variable() {
    let section = |bytes, variables: &[(&str, u64, u64)]| {
        let variable =
            |&(name, offset, bytes): &(&str, u64, u64)| Variable { name: name.into(), offset, bytes };
        Section { name: ".bss".into(), bytes, variables: variables.iter().map(variable).collect() }
    };
    assert!(section(1, &[("__hip_cuid_1a3c23a02dc3dd01", 0, 1)]).is_compilers_mark());
    for (bytes, variables) in [
        (1, &[][..]),
        (1, &[("counter", 0, 1)]),
        (1, &[("__hip_cuid_counter", 0, 1)]),
        (8, &[("__hip_cuid_1a", 0, 8)]),
        (8, &[("__hip_cuid_1a", 0, 1)]),
        (2, &[("__hip_cuid_1a", 1, 1)]),
        (2, &[("__hip_cuid_1a", 0, 1), ("__hip_cuid_1b", 1, 1)]),
    ] {
        assert!(!section(bytes, variables).is_compilers_mark(), "{variables:?}");
    }
}

#[test]
fn what_was_made_here_is_good_before_anything_is_wrong_with_it() {
    let lds =
        MadeKernel { lds_bytes: 4096, private_bytes: 16, ..MadeKernel::new("lds", &[(0, 24, "by_value")]) };
    let made = Made { variables: vec![("a".into(), 4), ("b".into(), 8)], ..Made::new(vec![scale(), lds]) };
    let bytes = made.bytes();
    let objects = read(&bytes).unwrap();
    let CodeObject { kernels, writable, .. } = &objects[0];
    assert_eq!((kernels[1].lds_bytes, kernels[1].private_bytes), (4096, 16));
    assert_eq!(kernels[0].arguments.iter().map(|one| one.is_pointer).collect::<Vec<_>>(), [true, false]);
    let places: Vec<_> =
        writable[0].variables.iter().map(|it| (it.name.as_str(), it.offset, it.bytes)).collect();
    assert_eq!((writable[0].bytes, places), (12, vec![("a", 0, 4), ("b", 4, 8)]));
    // Version 4, and a family of version 6.
    for (flags, abi_version, target, version) in
        [(0x53f, 2, "gfx90a", 4), (0x63f, 3, "gfx90a:xnack-", 5), (0x0100_0151, 4, "gfx9-generic", 6)]
    {
        let made = Made { flags, abi_version, target: target.into(), ..made.clone() };
        let bytes = made.bytes();
        let objects = read(&bytes).unwrap();
        assert_eq!((objects[0].version, objects[0].target.to_string().as_str()), (version, target));
    }
}

#[test]
fn what_no_kernel_may_need_is_refused_with_the_reason() {
    let hidden = |kind| object(vec![MadeKernel::new("k", &[(0, 8, kind)])]);
    for (bytes, words) in [
        (hidden("hidden_heap_v1"), "kernel `k` allocates memory: kernels have no heap"),
        (hidden("hidden_hostcall_buffer"), "kernel `k` calls the host (printf, assert or malloc)"),
        (hidden("hidden_printf_buffer"), "kernel `k` prints"),
        (hidden("hidden_default_queue"), "kernel `k` starts kernels"),
        (hidden("hidden_multigrid_sync_arg"), "waits for all blocks of a grid"),
        (hidden("hidden_of_tomorrow"), "an argument that is not known here: \"hidden_of_tomorrow\""),
        (hidden("image"), "takes a \"image\""),
        (hidden("dynamic_shared_pointer"), "declare it `extern __shared__`"),
        (told(".uses_dynamic_stack", Value::Flag(true)), "kernel `scale` has a stack of unknown size"),
        (told(".uses_dynamic_stack", Value::Number(1)), "stack of unknown size"),
        (told(".device_enqueue_symbol", "x".into()), "starts kernels"),
        (told(".kind", "init".into()), "is a constructor or destructor"),
        (
            told(".group_segment_fixed_size", 65537.into()),
            "65537 bytes of shared memory, a block can have 65536 on gfx90a",
        ),
        (
            Made { variables: vec![("x".into(), 4)], ..Made::new(Vec::new()) }.bytes(),
            "the module has no kernel",
        ),
        (object(Vec::new()), "it has no dynamic symbols"),
    ] {
        let why = refused(&bytes);
        assert!(why.contains(words), "{why}");
    }
}

#[test]
fn what_headers_note_and_descriptor_say_must_be_one_thing() {
    let other_target = Made { target: "gfx942".into(), ..Made::new(vec![scale()]) }.bytes();
    let other_version = {
        let Value::Map(mut note) = Made::new(vec![scale()]).note() else { panic!("a note is a map") };
        note[2].1 = Value::Array(vec![1.into(), 1.into()]);
        let mut bytes = Vec::new();
        Value::Map(note).write(&mut bytes);
        Made::new(vec![scale()]).bytes_with(&bytes)
    };
    let behind = {
        let mut note = Vec::new();
        Made::new(vec![scale()]).note().write(&mut note);
        note.push(0);
        Made::new(vec![scale()]).bytes_with(&note)
    };
    let arguments = |arguments: &[(u32, u32, &'static str)]| object(vec![MadeKernel::new("k", arguments)]);
    for (bytes, words) in [
        (
            other_target,
            "its header says that it is made for gfx90a, its note for \"amdgcn-amd-amdhsa--gfx942\"",
        ),
        (other_version, "different versions"),
        (behind, "something follows its metadata"),
        (told(".private_segment_fixed_size", 8.into()), "its note and its descriptor say different things"),
        (told(".kernarg_segment_size", 64.into()), "its note and its descriptor say different things"),
        (told(".wavefront_size", 32.into()), "its note and its descriptor say different things"),
        (told(".wavefront_size", 16.into()), "neither 32 nor 64"),
        (told(".symbol", "other.kd".into()), "its descriptor is not called like it"),
        (told(".name", "scal".into()), "its descriptor is not called like it"),
        (told(".max_flat_workgroup_size", 2048.into()), "more than 1024 threads"),
        (told(".reqd_workgroup_size", Value::Array(vec![0.into(), 1.into(), 1.into()])), "no block"),
        (told(".vgpr_count", 100_000.into()), "more registers than there are"),
        (told(".name", Value::Flag(true)), "something else where a text belongs"),
        (object(vec![scale(), scale()]), "two symbols are called \"scale\""),
        (arguments(&[(0, 8, "by_value"), (4, 8, "by_value")]), "overlap"),
        (arguments(&[(0, 0, "by_value")]), "are empty"),
        (arguments(&[(0, 4, "global_buffer")]), "an address of other than 8 bytes"),
        (
            arguments(&[(0, 2, "hidden_grid_dims"), (8, 8, "by_value")]),
            "lies behind those that the driver fills in",
        ),
        (arguments(&[(0, 4, "hidden_grid_dims")]), "has another size"),
        (arguments(&[(0, 2, "hidden_grid_dims"), (2, 2, "hidden_grid_dims")]), "twice"),
        (arguments(&[(0, 70_000, "by_value")]), "takes 70000 bytes of arguments, allowed are 65536"),
    ] {
        let why = refused(&bytes);
        assert!(why.contains(words), "{why}");
    }
    let twice = {
        let Value::Map(mut note) = Made::new(vec![scale()]).note() else { panic!("a note is a map") };
        note.push(note[0].clone());
        let mut bytes = Vec::new();
        Value::Map(note).write(&mut bytes);
        Made::new(vec![scale()]).bytes_with(&bytes)
    };
    assert!(refused(&twice).contains("\"amdhsa.kernels\" is in its metadata twice"));
    // One block only, of so many threads.
    let block = told(".reqd_workgroup_size", Value::Array(vec![32.into(), 2.into(), 1.into()]));
    let objects = read(&block).unwrap();
    assert_eq!(
        (objects[0].kernels[0].max_threads, objects[0].kernels[0].required_block),
        (64, Some([32, 2, 1]))
    );
}

#[test]
fn a_file_that_is_something_else_is_refused_by_its_header() {
    let own = std::fs::read("/proc/self/exe").unwrap();
    for (bytes, words) in [
        (Vec::new(), "truncated: shorter than the header"),
        (b"\x7fELF".to_vec(), "truncated"),
        (vec![0; 64], "this is no ELF file of 64 bits"),
        (own, "not of AMD machine code (machine "),
        (patched(SMALL, 4, &[1]), "no ELF file of 64 bits"),
        (patched(SMALL, 7, &[0]), "not made for AMD's HSA runtime (OS ABI 0)"),
        (patched(SMALL, 8, &[1]), "ABI version 1: build it with -mcode-object-version=5"),
        (patched(SMALL, 8, &[5]), "ABI version 5"),
        (patched(SMALL, 16, &[1, 0]), "not linked"),
        (patched(SMALL, 48, &[0x20]), "not known here (machine 0x20)"),
        (patched(SMALL, 48, &[0x4c]), "its header says that it is made for gfx942, its note for"),
        (b"CCOB\x02\0\x01\0".to_vec(), "a compressed bundle: build it with --no-offload-compress"),
    ] {
        let why = refused(&bytes);
        assert!(why.contains(words), "{why}");
    }
}

#[test]
fn what_a_loader_would_have_to_do_more_than_load_is_refused() {
    let number = |at| u64_at(SMALL, at).unwrap() as usize;
    let (programs, sections) = (number(32), number(40));
    // In the order of the file: see `llvm-readelf -lS`.
    let (code, dynamic, symbols) = (programs + 2 * 56, programs + 5 * 56, sections + 2 * 64);
    let table = number(dynamic + 8);
    let first_symbol = number(symbols + 24) + 24;
    for (bytes, words) in [
        (patched(SMALL, symbols + 4 + 64, &4u32.to_le_bytes()), "it has relocations"),
        (patched(SMALL, symbols + 4 + 64, &14u32.to_le_bytes()), "it has constructors"),
        (
            patched(SMALL, table, &[&8u64.to_le_bytes()[..], &24u64.to_le_bytes()].concat()),
            "it has relocations",
        ),
        (
            patched(SMALL, table, &[&27u64.to_le_bytes()[..], &8u64.to_le_bytes()].concat()),
            "it has constructors",
        ),
        (patched(SMALL, table, &1u64.to_le_bytes()), "it needs another library"),
        (patched(SMALL, first_symbol + 6, &[0, 0]), "it needs the symbol `hello_world`"),
        (patched(SMALL, code + 4, &[7]), "both code and writable"),
        (patched(SMALL, programs + 7 * 56, &3u32.to_le_bytes()), "an interpreter"),
        (patched(SMALL, code + 40, &(1u64 << 40).to_le_bytes()), "it takes more than 256 MiB"),
        (patched(SMALL, code + 16, &0u64.to_le_bytes()), "loaded over each other"),
        (patched(SMALL, code + 8, &0u64.to_le_bytes()), "section .text is not what is loaded there"),
        (patched(SMALL, first_symbol + 16, &u64::MAX.to_le_bytes()), "a symbol lies outside"),
    ] {
        let why = refused(&bytes);
        assert!(why.contains(words), "{why}");
    }
}

#[test]
fn of_a_bundle_the_best_entry_is_taken() {
    let settings =
        |target: &str, flags| Made { target: target.into(), flags, ..Made::new(vec![scale()]) }.bytes();
    let (any, off, other) =
        (settings("gfx90a", 0x53f), settings("gfx90a:xnack-", 0x63f), settings("gfx942", 0x54c));
    let file = synthetic::bundle(&[
        ("host-x86_64-unknown-linux-gnu-", b""),
        ("hipv4-amdgcn-amd-amdhsa--gfx90a", &any),
        ("hipv4-amdgcn-amd-amdhsa--gfx90a:xnack-", &off),
        ("hip-amdgcn-amd-amdhsa--gfx942", &other),
        ("hipv4-amdgcn-amd-amdhsa--gfx1310", b"of tomorrow"),
    ]);
    assert!(recognises(&file) && recognises(SMALL) && recognises(b"CCOB") && !recognises(b".version 7.0"));
    assert_eq!(read(&file).unwrap().len(), 3);
    for (device, expected) in [
        ("gfx90a:sramecc+:xnack-", Some(&off)),
        ("gfx90a:sramecc+:xnack+", Some(&any)),
        ("gfx942:sramecc+:xnack-", Some(&other)),
        ("gfx1100", None),
    ] {
        let device = Target::of_text(device).unwrap();
        let picked = pick(&file, &device).map(|object| object.bytes.to_vec()).map_err(|why| why.to_string());
        match expected {
            Some(bytes) => assert_eq!(picked.as_ref(), Ok(bytes)),
            None => assert_eq!(
                picked,
                Err("the bundle has code for gfx90a, gfx90a:xnack-, gfx942, the device is gfx1100".to_owned())
            ),
        }
    }
    let why = pick(SMALL, &Target::of_text("gfx942:sramecc+:xnack-").unwrap()).unwrap_err().to_string();
    assert_eq!(why, "it is made for gfx90a, the device is gfx942:sramecc+:xnack-");

    let id = "hipv4-amdgcn-amd-amdhsa--gfx942";
    for (file, words) in [
        (
            synthetic::bundle(&[(id, &any)]),
            "the bundle says that it is made for gfx942, the object for gfx90a",
        ),
        (synthetic::bundle(&[(id, &other), (id, &other)]), "two entries of the bundle are for gfx942"),
        (synthetic::bundle(&[("host-x86_64-unknown-linux-gnu-", b"")]), "has no code object for an AMD GPU"),
        (synthetic::bundle(&[("hipv4-amdgcn-amd-amdhsa--gfx1310", &any)]), "code for [\"gfx1310\"] only"),
        (synthetic::bundle(&[(&"x".repeat(300), b"")]), "an entry's id has 300 bytes"),
        (patched(&file, 24, &u64::MAX.to_le_bytes()), "entries, allowed are 64"),
        (file[..file.len() - 1].to_vec(), "an entry of the bundle ends behind the file"),
    ] {
        let why = refused(&file);
        assert!(why.contains(words), "{why}");
    }
}

#[test]
fn kernels_of_a_bundle_are_those_that_all_of_it_has() {
    let of = |target: &str, flags, kernels: Vec<MadeKernel>| {
        Made { target: target.into(), flags, ..Made::new(kernels) }.bytes()
    };
    let plain = |name: &str| MadeKernel::new(name, &[(0, 8, "by_value")]);
    let common = |one: Vec<MadeKernel>, other: Vec<MadeKernel>| {
        let (one, other) = (of("gfx90a", 0x53f, one), of("gfx942", 0x54c, other));
        let objects = [read(&one).unwrap().remove(0), read(&other).unwrap().remove(0)];
        let kernels = common_kernels(&objects).map_err(|why| why.to_string())?;
        Ok(kernels.into_iter().map(|kernel| kernel.name).collect::<Vec<_>>())
    };
    let names: Result<Vec<String>, String> = common(vec![plain("a"), scale()], vec![scale(), plain("b")]);
    assert_eq!(names, Ok(vec!["scale".to_owned()]));
    assert!(common(vec![plain("a")], vec![plain("b")]).unwrap_err().contains("no kernel that all"));
    let other = MadeKernel::new("scale", &[(0, 8, "by_value")]);
    let why = common(vec![scale()], vec![other]).unwrap_err();
    assert_eq!(why, "kernel `scale` takes other arguments for gfx942 than for gfx90a");
}

#[test]
fn many_kernels_are_too_many() {
    let many = |count: usize, arguments: usize| {
        let arguments: Vec<_> = (0..arguments as u32).map(|at| (8 * at, 8, "by_value")).collect();
        object((0..count).map(|at| MadeKernel::new(&format!("k{at}"), &arguments)).collect())
    };
    assert_eq!(read(&many(MAX_KERNELS, 8)).unwrap()[0].kernels.len(), MAX_KERNELS);
    assert!(refused(&many(MAX_KERNELS + 1, 0)).contains("more than 1024 kernels"));
    assert!(refused(&many(1000, 9)).contains("1000 kernels with 9000 parameters"));
    assert!(refused(&object(vec![MadeKernel::new(&"k".repeat(5000), &[])])).contains("within 4096 bytes"));
}

#[test]
fn every_beginning_of_a_code_object_is_refused() {
    for end in 0..SMALL.len() {
        assert!(read(&SMALL[..end]).is_err(), "the first {end} bytes");
    }
}

/// What passes keeps what its reader promises.
fn judge_quietly(bytes: &[u8]) {
    let Ok(objects) = read(bytes) else { return };
    for object in objects {
        assert!(!object.kernels.is_empty() && object.kernels.len() <= MAX_KERNELS);
        for kernel in &object.kernels {
            let ends = kernel.arguments.iter().map(|one| u64::from(one.offset) + u64::from(one.bytes));
            assert!(ends.max().unwrap_or(0) <= kernel.kernarg_bytes.into());
            assert!((1..=1024).contains(&kernel.max_threads));
        }
        for section in &object.writable {
            assert!(section.variables.iter().all(|it| it.offset + it.bytes <= section.bytes));
        }
    }
}

#[test]
fn no_changed_byte_of_a_code_object_does_harm() {
    let mut changed = SMALL.to_vec();
    let mut passed = 0;
    for at in 0..changed.len() {
        for change in [0x01, 0x80, 0xff] {
            changed[at] ^= change;
            judge_quietly(&changed);
            passed += usize::from(read(&changed).is_ok());
            changed[at] ^= change;
        }
    }
    assert_eq!(changed, SMALL);
    // The control: a change of the code passes, and one of the tables does not.
    assert!((1000..3 * SMALL.len() - 1000).contains(&passed), "{passed}");
}

proptest! {
    #[test]
    fn no_changed_bytes_of_a_code_object_do_harm(
        changes in proptest::collection::vec((0..SMALL.len(), any::<u8>()), 1..8),
        cut in 0..SMALL.len(),
    ) {
        let mut changed = SMALL.to_vec();
        for (at, byte) in changes {
            changed[at] = byte;
        }
        judge_quietly(&changed);
        judge_quietly(&changed[..cut]);
        judge_quietly(&synthetic::bundle(&[("hipv4-amdgcn-amd-amdhsa--gfx90a", &changed)])[..cut]);
    }

    #[test]
    fn any_note_is_judged(note in proptest::collection::vec(any::<u8>(), 0..200)) {
        judge_quietly(&Made::new(vec![scale()]).bytes_with(&note));
    }
}

#[test]
fn notes_of_older_and_newer_compilers_name_their_targets() {
    for (told, named) in [
        ("amdgcn-amd-amdhsa--gfx90a", Some("gfx90a")),
        ("amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-", Some("gfx90a:sramecc+:xnack-")),
        ("amdgpu9.42-amd-amdhsa-unknown-gfx942", Some("gfx942")),
        ("nvptx64-amd-amdhsa--gfx90a", None),
        ("amdgcn-amd-amdpal--gfx90a", None),
        ("amdgcn-amd-amdhsa-gfx90a", None),
        ("gfx90a", None),
    ] {
        assert_eq!(processor(told), named, "{told}");
    }
}
