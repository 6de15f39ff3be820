//! The work that each path of a call submits, in order, as a driver that only records saw it.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs::File;
use std::io::Seek;
use std::os::fd::AsFd;
use std::sync::Arc;

use pappus_blueprint::{Blueprint, Plan, Sizes};
use pappus_protocol::{ArenaId, FaultCode, LaneId};
use pappus_shmem::{Mapping, memfd};

use super::fake::{self, Did, Fake, FakeError, GRANULE, MULTIPROCESSORS, VARIABLE_BYTES, VARIABLES_AT};
use super::*;
use crate::arenas::Arenas;
use crate::device::{Call, CopyIn, CopyOut, FunctionImage, Functions, Hygiene, Lanes, Memory, Source};

pub(super) const ARENA: ArenaId = ArenaId::new(1);
pub(super) const LANE: LaneId = LaneId::new(0);
const BYTES: u64 = 512;
/// The plan's buffers are an input and an output of so many bytes.
const USED: u64 = 2 * BYTES;
pub(super) const MODULE: &str = "kernel k 8 8";

/// A device with memory for its first lane and one function `k(A, B)`, launched `repeats` times.
pub(super) struct Fixture {
    pub(super) gpu: Gpu<Fake>,
    pub(super) function: Option<Function<Fake>>,
    blueprint: Blueprint,
    pub(super) plan: Arc<Plan>,
    pub(super) arenas: Arenas,
    pub(super) base: u64,
}

/// A launch of `k`.
pub(super) fn launch(from: &str, to: &str, one: &str) -> String {
    format!(
        r#"{{"ExecKernel": ["k", [{{"Ptr": "{from}"}}, {{"Ptr": "{to}"}}], {{
            "grid_dim_x": {one}, "grid_dim_y": {one}, "grid_dim_z": {one},
            "block_dim_x": {one}, "block_dim_y": {one}, "block_dim_z": {one},
            "shared_mem_bytes": {{"Absolute": 0}}}}]}}"#
    )
}

fn blueprint(repeats: u64) -> Blueprint {
    let launch = launch("A", "B", r#"{"Absolute": 1}"#);
    let json = format!(
        r#"{{"module_path": "m.ptx", "kernels": ["k"], "blueprint": {{
            "inputs": ["A"], "buffers": {{"B": {{"Sizeof": "A"}}}}, "outputs": ["B"],
            "control_flow": [{{"Repeat": [{{"Absolute": {repeats}}}, [{launch}]]}}]}}}}"#
    );
    pappus_blueprint::parse(json.as_bytes()).unwrap()
}

pub(super) fn file(content: &str) -> File {
    let memfd = memfd::sealed("module", content.as_bytes()).unwrap();
    let mut file = File::from(memfd.as_fd().try_clone_to_owned().unwrap());
    file.rewind().unwrap();
    file
}

fn load(gpu: &mut Gpu<Fake>, blueprint: &Blueprint, module: &str) -> Result<Function<Fake>, Fault> {
    gpu.load(FunctionImage { blueprint, modules: vec![file(module)], weight_bytes: 0 })
}

impl Fixture {
    pub(super) fn new(repeats: u64, module: &str) -> Self {
        Self::with(Fake::new(), repeats, module)
    }

    pub(super) fn with(driver: Fake, repeats: u64, module: &str) -> Self {
        let fixture = Self::over(driver, blueprint(repeats), 4 * GRANULE, module);
        assert_eq!(fixture.plan.pool_bytes, USED);
        fixture
    }

    pub(super) fn over(driver: Fake, blueprint: Blueprint, lease: u64, module: &str) -> Self {
        let mut gpu = Gpu::new(driver, 2, None).unwrap();
        gpu.grow(LANE, lease).unwrap();
        let function = Some(load(&mut gpu, &blueprint, module).unwrap());
        let plan = Arc::new(
            blueprint.plan(&Sizes { inputs: &[BYTES], weights: &[], words: &[], free: &[] }).unwrap(),
        );
        let staging = Mapping::writable(&memfd::arena("staging", 4096).unwrap()).unwrap();
        let mut arenas = Arenas::new(staging);
        let arena = Mapping::writable(&memfd::arena("arena", 16 << 10).unwrap()).unwrap();
        gpu.map_arena(ARENA, &arena).unwrap();
        arenas.insert(ARENA, arena);
        let base = gpu.memory[0].base();
        fake::log();
        Self { gpu, function, blueprint, plan, arenas, base }
    }

    /// Hands a call to the device whose input begins at `offset` of the arena.
    pub(super) fn hand<T>(
        &mut self,
        offset: u64,
        deadline_ns: u64,
        alone: bool,
        hand: impl FnOnce(&mut Gpu<Fake>, &mut Function<Fake>, &Call<'_>) -> T,
    ) -> T {
        let [from, to] = [0, 1].map(|buffer| self.plan.buffers[buffer].offset);
        let call = Call {
            plan: &self.plan,
            inputs: &[CopyIn { from: Source::Arena(ARENA), offset, bytes: BYTES, to: from, reached: true }],
            outputs: &[CopyOut { from: to, arena: ARENA, offset: 8192, bytes: BYTES }],
            arenas: &self.arenas,
            descriptors: &[],
            deadline_ns,
            alone,
        };
        hand(&mut self.gpu, self.function.as_mut().unwrap(), &call)
    }

    /// Starts one on lane 0.
    pub(super) fn start(&mut self, offset: u64, deadline_ns: u64, alone: bool) {
        self.hand(offset, deadline_ns, alone, |gpu, function, call| gpu.start(LANE, function, call));
    }

    pub(super) fn end(&mut self) -> Result<Done, Fault> {
        self.end_of(LANE)
    }

    pub(super) fn end_of(&mut self, lane: LaneId) -> Result<Done, Fault> {
        let result = loop {
            if let Some(result) = self.gpu.poll(lane) {
                break result;
            }
        };
        self.gpu.clear(lane, self.function.as_mut().unwrap()).unwrap();
        result
    }

    /// One call from start to clearing, and what the driver was told.
    pub(super) fn call(&mut self) -> Vec<Did> {
        self.start(0, u64::MAX, false);
        self.end().unwrap();
        without_records(fake::log())
    }

    pub(super) fn cleared(&self) -> Did {
        Did::Fill { to: self.base, byte: 0, bytes: USED }
    }

    /// The copies and launches of a direct call, in order.
    fn work(&self, launches: usize) -> Vec<Did> {
        let [from, to] = [0, 1].map(|buffer| self.base + self.plan.buffers[buffer].offset);
        let mut work = vec![Did::CopyIn { to: from, bytes: BYTES }];
        work.extend(std::iter::repeat_n(Did::Launch("k"), launches));
        work.push(Did::CopyOut { from: to, bytes: BYTES });
        work
    }
}

pub(super) fn without_records(log: Vec<Did>) -> Vec<Did> {
    log.into_iter().filter(|did| !matches!(did, Did::Record(_))).collect()
}

#[test]
fn what_the_device_does_not_need_is_not_copied() {
    let copied = |reached: bool| {
        let mut fixture = Fixture::new(1, MODULE);
        fixture.hand(0, u64::MAX, false, |gpu, function, call| {
            let inputs = [CopyIn { reached, ..call.inputs[0] }];
            gpu.start(LANE, function, &Call { inputs: &inputs, ..*call });
        });
        fake::log().iter().filter(|did| matches!(did, Did::CopyIn { .. })).count()
    };
    assert_eq!([true, false].map(copied), [1, 0]);
}

#[test]
fn a_call_is_copied_run_copied_back_and_cleared_in_this_order() {
    let mut fixture = Fixture::new(3, MODULE);
    // Data of an earlier holder of the range is cleared in front of the first call.
    let cleared = fixture.cleared();
    let expected = [vec![cleared.clone()], fixture.work(3), vec![cleared.clone()]].concat();
    assert_eq!(fixture.call(), expected);
    // The range is clean now.
    assert_eq!(fixture.call(), [fixture.work(3), vec![cleared]].concat());
}

/// A function of `A` and `B` with one launch of `k`, which passes these arguments.
fn passing(arguments: &str) -> Blueprint {
    let one = r#"{"Absolute": 1}"#;
    let launch = launch("A", "B", one).replace(r#"{"Ptr": "A"}, {"Ptr": "B"}"#, arguments);
    let json = format!(
        r#"{{"module_path": "m.ptx", "kernels": ["k"], "blueprint": {{
            "inputs": ["A"], "buffers": {{"B": {{"Sizeof": "A"}}}}, "outputs": ["B"],
            "control_flow": [{launch}]}}}}"#
    );
    pappus_blueprint::parse(json.as_bytes()).unwrap()
}

#[test]
fn small_arguments_lie_where_the_kernel_expects_them() {
    let arguments = r#"{"I8": -2}, {"F16": 1.5}, {"Bool": true}, {"U16": 513}, {"Ptr": "B"}, {"BF16": -1}"#;
    let module = "kernel k 1 2 1 2 8 2";
    let mut fixture = Fixture::over(Fake::new(), passing(arguments), 4 * GRANULE, module);
    fixture.call();
    let [(shape, params)] = &fake::launched()[..] else { panic!("one launch") };
    assert_eq!((shape.grid, shape.block), ([1, 1, 1], [1, 1, 1]));
    let to = (fixture.base + fixture.plan.buffers[1].offset).to_le_bytes();
    let expected = [&[0xfe, 0, 0x00, 0x3e, 1, 0, 1, 2][..], &to, &[0x80, 0xbf]].concat();
    assert_eq!(params, &expected);
    // A kernel that takes another size is not launched.
    let mut fixture = Fixture::over(Fake::new(), passing(arguments), 4 * GRANULE, "kernel k 1 2 4 2 8 2");
    fixture.start(0, u64::MAX, false);
    let fault = fixture.end().unwrap_err();
    assert!(fault.message.contains("argument 3 takes 4 bytes, the blueprint passes 1"), "{}", fault.message);
}

#[test]
fn tensor_maps_are_encoded_where_the_kernel_expects_them() {
    let map = r#"{"U8": 7}, {"TensorMap": {"buffer": "B", "offset": {"Absolute": 32}, "dtype": "f16",
        "shape": [{"Absolute": 5}, {"Absolute": 16}], "strides": [{"Absolute": 32}], "box": [4, 8]}}, {"Ptr": "A"}"#;
    let mut fixture = Fixture::over(Fake::new(), passing(map), 4 * GRANULE, "kernel k 1 128 8");
    fixture.call();
    let [(_, params)] = &fake::launched()[..] else { panic!("one launch") };
    let [from, to] = [0, 1].map(|buffer| fixture.base + fixture.plan.buffers[buffer].offset);
    let mut expected = vec![0; 64 + 128 + 8];
    expected[0] = 7;
    expected[64..72].copy_from_slice(&(to + 32).to_le_bytes());
    expected[72] = 5;
    expected[64 + 120] = 4;
    expected[192..].copy_from_slice(&from.to_le_bytes());
    assert_eq!(params, &expected);
    // What the driver refuses is a fault of the call, which names kernel and argument.
    let mut fixture = Fixture::over(Fake::new(), passing(map), 4 * GRANULE, "kernel k 1 128 8");
    fake::fail_next_map();
    fixture.start(0, u64::MAX, false);
    let fault = fixture.end().unwrap_err();
    assert_eq!((fault.code, &*fault.message), (FaultCode::BadInvoke, "kernel `k`: argument 2: no such map"));
    fixture.call();
}

#[test]
fn clusters_are_launched_as_such_and_refused_where_there_are_none() {
    let eight = r#"{"Absolute": 8}"#;
    let launch = launch("A", "B", eight)
        .replace(r#""shared_mem_bytes""#, r#""cluster_dim_x": {"Absolute": 4}, "shared_mem_bytes""#);
    let json = format!(
        r#"{{"module_path": "m.ptx", "kernels": ["k"], "blueprint": {{
            "inputs": ["A"], "buffers": {{"B": {{"Sizeof": "A"}}}}, "outputs": ["B"],
            "control_flow": [{launch}]}}}}"#
    );
    let blueprint = || pappus_blueprint::parse(json.as_bytes()).unwrap();
    let mut fixture = Fixture::over(Fake::new(), blueprint(), 4 * GRANULE, MODULE);
    fixture.call();
    let [(shape, _)] = &fake::launched()[..] else { panic!("one launch") };
    assert_eq!((shape.grid, shape.cluster), ([8, 8, 8], [4, 1, 1]));
    let mut driver = Fake::new();
    driver.properties.has_clusters = false;
    let mut gpu = Gpu::new(driver, 1, None).unwrap();
    let fault = load(&mut gpu, &blueprint(), MODULE).unwrap_err();
    assert_eq!(fault.code, FaultCode::Load);
    assert_eq!(
        fault.message,
        "kernel `k` is launched with clusters of blocks, which this device does not have"
    );
}

#[test]
fn memory_is_cleared_between_the_launches_that_hand_it_on() {
    // Through three buffers of which the first and the last have the same memory.
    const HALF: u64 = 2 * GRANULE;
    let one = r#"{"Absolute": 1}"#;
    let buffers = ["C", "D", "E"].map(|name| format!(r#""{name}": {{"Absolute": {HALF}}}"#)).join(",");
    let flow =
        [("A", "C"), ("C", "D"), ("D", "E"), ("E", "B")].map(|(from, to)| launch(from, to, one)).join(",");
    let json = format!(
        r#"{{"module_path": "m.ptx", "kernels": ["k"], "blueprint": {{"inputs": ["A"],
            "buffers": {{"B": {{"Sizeof": "A"}}, {buffers}}}, "outputs": ["B"], "control_flow": [{flow}]}}}}"#
    );
    let blueprint = pappus_blueprint::parse(json.as_bytes()).unwrap();
    let mut fixture = Fixture::over(Fake::new(), blueprint, 16 * GRANULE, MODULE);
    assert_eq!(fixture.plan.pool_bytes, USED + 2 * HALF);
    let handed_on = fixture.base + fixture.plan.buffers[4].offset;
    assert_eq!(handed_on, fixture.base + fixture.plan.buffers[2].offset);
    let mut work = fixture.work(4);
    work.insert(3, Did::Fill { to: handed_on, byte: 0, bytes: HALF });
    work.push(Did::Fill { to: fixture.base, byte: 0, bytes: fixture.plan.pool_bytes });
    // Directly, as a graph of its steps, and as one of the whole call.
    for call in 0..5 {
        let submitted = fixture.call();
        let submitted: Vec<_> =
            submitted.into_iter().filter(|did| !matches!(did, Did::Graph(_) | Did::Capture)).collect();
        assert!(submitted.ends_with(&work), "call {call}: {submitted:?}");
    }
}

#[test]
fn the_event_that_answers_a_call_lies_between_its_outputs_and_its_clearing() {
    let mut fixture = Fixture::new(100, MODULE);
    // The first two are timed; the third is not, and has no other event.
    (0..3).for_each(|_| drop(fixture.call()));
    fixture.start(0, u64::MAX, false);
    let submitted = fake::log();
    let at = |wanted: &dyn Fn(&Did) -> bool| submitted.iter().rposition(wanted).unwrap();
    let copied = at(&|did| matches!(did, Did::CopyOut { .. }));
    let answered = at(&|did| matches!(did, Did::Record(_)));
    let cleared = at(&|did| matches!(did, Did::Fill { .. }));
    assert!(copied < answered && answered < cleared, "{submitted:?}");
    fake::events(Some(Ok(false)));
    assert!(fixture.gpu.poll(LANE).is_none(), "answered before the event passed");
    fake::events(None);
    assert!(fixture.gpu.poll(LANE).unwrap().is_ok());
}

#[test]
fn a_call_that_fails_is_cleared_as_well() {
    let refuse = |did: Did, code: FaultCode| {
        let mut fixture = Fixture::new(2, MODULE);
        fixture.call();
        fake::fail(did, FakeError::Refused);
        fixture.start(0, u64::MAX, false);
        assert_eq!(fixture.end().unwrap_err().code, code);
        assert_eq!(fake::log().last(), Some(&fixture.cleared()));
    };
    let fixture = Fixture::new(2, MODULE);
    let [copy_in, .., copy_out] = &fixture.work(2)[..] else { unreachable!() };
    // The numbers of reservations, and so addresses, are the same in every fixture.
    let (copy_in, copy_out) = (copy_in.clone(), copy_out.clone());
    drop(fixture);
    refuse(copy_in, FaultCode::KernelTrap);
    refuse(Did::Launch("k"), FaultCode::KernelTrap);
    refuse(copy_out, FaultCode::KernelTrap);
    let mut fixture = Fixture::new(2, MODULE);
    fixture.start(0, 0, false);
    assert_eq!(fixture.end().unwrap_err().code, FaultCode::Deadline);
    assert_eq!(fake::log().last(), Some(&fixture.cleared()));
}

#[test]
fn a_launch_that_is_refused_names_its_kernel() {
    let mut fixture = Fixture::new(2, MODULE);
    fake::fail(Did::Launch("k"), FakeError::Refused);
    fixture.start(0, u64::MAX, false);
    let fault = fixture.end().unwrap_err();
    assert_eq!((fault.code, fault.kernel), (FaultCode::KernelTrap, Some(0)));
    assert!(fault.message.contains("`k`"), "{fault}");
}

#[test]
fn arguments_that_the_kernel_does_not_take_are_refused_before_it_is_launched() {
    for (module, why) in [("kernel k 8", "takes 1 arguments"), ("kernel k 8 4", "argument 2 takes 4 bytes")] {
        let mut fixture = Fixture::new(2, module);
        fixture.start(0, u64::MAX, false);
        let fault = fixture.end().unwrap_err();
        assert!(fault.code == FaultCode::BadInvoke && fault.message.contains(why), "{fault}");
        assert!(!fake::log().contains(&Did::Launch("k")));
    }
}

#[test]
fn a_long_plan_becomes_a_graph_behind_two_direct_runs() {
    let mut fixture = Fixture::new(100, MODULE);
    let graphs = |log: &[Did]| log.iter().filter(|did| matches!(did, Did::Graph(_))).count();
    for direct in 0..2 {
        assert_eq!(graphs(&fixture.call()), 0, "run {direct}");
    }
    let made = fixture.call();
    assert!(made.contains(&Did::Capture) && graphs(&made) == 1, "{made:?}");
    let again = fixture.call();
    assert!(!again.contains(&Did::Capture), "it is kept");
    // The graph runs the same as was launched one by one.
    let run: Vec<_> = again.into_iter().filter(|did| !matches!(did, Did::Graph(_))).collect();
    assert_eq!(run, [fixture.work(100), vec![fixture.cleared()]].concat());
}

#[test]
fn a_graph_that_cannot_be_made_is_not_tried_again() {
    let mut fixture = Fixture::new(100, MODULE);
    (0..2).for_each(|_| drop(fixture.call()));
    fake::fail(Did::Capture, FakeError::Refused);
    assert_eq!(fixture.call(), [fixture.work(100), vec![fixture.cleared()]].concat());
    assert!(!fixture.call().contains(&Did::Capture));
}

#[test]
fn variables_are_reset_behind_every_call() {
    let mut fixture = Fixture::new(2, "kernel k 8 8\nvariable seen\nvariable kept");
    let [.., reset] = &fixture.call()[..] else { panic!("nothing") };
    let &Did::Copy { to: VARIABLES_AT, from, bytes } = reset else { panic!("{reset:?}") };
    assert_eq!(bytes, 2 * VARIABLE_BYTES, "neighbours are one range");
    // For good, both copies are cleared.
    let function = fixture.function.take().unwrap();
    fixture.gpu.unload(function).unwrap();
    let wiped = [VARIABLES_AT, from].map(|to| Did::Fill { to, byte: 0, bytes });
    assert_eq!(fake::log()[..2], wiped);
}

#[test]
fn variables_that_are_not_copied_as_one_range_get_a_fresh_module_for_every_call() {
    let module = "kernel k 8 8\nvariable seen\nvariable kept";
    let driver = Fake::new();
    fake::keep_variables_apart(FakeError::Refused);
    let mut fixture = Fixture::with(driver, 2, module);
    assert_eq!(fixture.call().last(), Some(&Did::Unload));
    for _ in 0..4 {
        let log = fixture.call();
        assert_eq!((log.first(), log.last()), (Some(&Did::Load), Some(&Did::Unload)));
    }
    // Nothing goes on with a lost device.
    fake::keep_variables_apart(FakeError::Kernel);
    assert!(load(&mut fixture.gpu, &blueprint(2), module).is_err());
}

#[test]
fn code_with_variables_that_the_driver_does_not_locate_is_loaded_anew_for_every_call() {
    let mut fixture = Fixture::new(2, "kernel k 8 8\nhidden seen");
    assert_eq!(fixture.call().last(), Some(&Did::Unload));
    for _ in 0..4 {
        let log = fixture.call();
        assert_eq!((log.first(), log.last()), (Some(&Did::Load), Some(&Did::Unload)));
    }
}

#[test]
fn a_kernel_that_traps_says_why_for_its_own_call_only() {
    let said = |alone: bool, between: bool| {
        let mut fixture = Fixture::new(2, MODULE);
        fixture.gpu.reason = Some(reason::tests::apart());
        let left = |fixture: &Fixture| {
            reason::tests::leave(fixture.gpu.reason.as_ref().unwrap(), b"REQUIRE:k.c:7: requires n > 0\0")
        };
        left(&fixture);
        if between {
            fixture.call();
        }
        fixture.start(0, u64::MAX, alone);
        fake::events(Some(Err(FakeError::Kernel)));
        fixture.gpu.poll(LANE).unwrap().unwrap_err().message
    };
    assert_eq!(said(true, false), "kernel `k` at k.c:7: requires n > 0");
    // What an earlier call left is not this one's, and of several at once nobody knows whose it is.
    assert!(said(true, true).starts_with("kernel `k` failed: "));
    assert!(said(false, false).starts_with("a kernel failed: "));
}

#[test]
fn a_call_that_ran_alone_is_believed_once_the_device_did_more_behind_it() {
    for alone in [true, false] {
        let mut fixture = Fixture::new(2, MODULE);
        fixture.start(0, u64::MAX, alone);
        fake::fail(Did::Synchronize, FakeError::Kernel);
        let end = std::iter::repeat_with(|| fixture.gpu.poll(LANE)).flatten().next().unwrap();
        assert_eq!(end.is_err(), alone, "{end:?}");
        let lost = fixture.gpu.lost().map(|fault| (fault.code, fault.kernel));
        assert_eq!(lost, alone.then_some((FaultCode::KernelTrap, Some(0))));
    }
}

#[test]
fn a_lost_device_blames_a_kernel_only_if_its_call_ran_alone() {
    for alone in [false, true] {
        let mut fixture = Fixture::new(2, MODULE);
        fixture.start(0, u64::MAX, alone);
        fake::events(Some(Err(FakeError::Kernel)));
        let fault = fixture.gpu.poll(LANE).unwrap().unwrap_err();
        assert_eq!((fault.code, fault.kernel), (FaultCode::KernelTrap, alone.then_some(0)));
        assert_eq!(fixture.gpu.lost(), Some(&fault));
    }
}

#[test]
fn a_call_that_runs_alone_launches_one_kernel_at_a_time() {
    let mut fixture = Fixture::new(3, MODULE);
    fake::events(Some(Ok(false)));
    fixture.start(0, u64::MAX, true);
    let launches = || fake::log().into_iter().filter(|did| *did == Did::Launch("k")).count();
    assert_eq!(launches(), 1);
    assert!(fixture.gpu.poll(LANE).is_none() && launches() == 0, "the one before still runs");
    fake::events(None);
    assert!(fixture.gpu.poll(LANE).is_none() && launches() == 1);
    fixture.end().unwrap();
    assert_eq!(launches(), 1);
}

#[test]
fn nothing_of_a_domain_is_left_when_another_follows() {
    let mut fixture = Fixture::new(2, MODULE);
    (0..5).for_each(|_| drop(fixture.call()));
    fixture.gpu.unmap_arena(ARENA);
    let function = fixture.function.take().unwrap();
    fixture.gpu.unload(function).unwrap();
    fake::log();
    fixture.gpu.forget().unwrap();
    let pool = Did::Fill { to: fixture.base, byte: 0, bytes: 4 * GRANULE };
    assert_eq!(fake::log(), [Did::Synchronize, pool, Did::Synchronize]);
    // Timings begin anew, too: the first call of the next domain is a direct one.
    let arena = Mapping::writable(&memfd::arena("arena", 16 << 10).unwrap()).unwrap();
    fixture.gpu.map_arena(ARENA, &arena).unwrap();
    fixture.arenas.insert(ARENA, arena);
    fixture.function = Some(load(&mut fixture.gpu, &fixture.blueprint, MODULE).unwrap());
    fake::log();
    let cleared = fixture.cleared();
    let mut called = fixture.call();
    // Memory that is ready for weights was in reach of its kernels, too: it is zeroed before others run.
    let spare: Vec<_> = called.drain(1..3).collect();
    assert!(matches!(spare[..], [Did::Fill { bytes: GRANULE, byte: 0, .. }, Did::Synchronize]), "{spare:?}");
    assert_eq!(called, [vec![cleared.clone()], fixture.work(2), vec![cleared]].concat());
}

#[test]
fn a_scrub_is_over_when_it_reached_all_of_the_chip() {
    let launched = || launches(&fake::log());
    let mut gpu = Gpu::new(Fake::new(), 1, None).unwrap();
    gpu.scrub().unwrap();
    assert_eq!(launched(), ["chip", "chip", "stack of 1024"]);
    // Kernels with larger stacks make it clear larger ones.
    let function = load(&mut gpu, &blueprint(1), "kernel k 8 8\nstack 3000").unwrap();
    gpu.scrub().unwrap();
    assert_eq!(launched(), ["chip", "chip", "stack of 4096"]);
    fake::reached(MULTIPROCESSORS - 1);
    let fault = gpu.scrub().unwrap_err();
    assert!(fault.code == FaultCode::Device && fault.message.contains("does not reach all 4"), "{fault}");
    assert_eq!(launched().len(), 8, "not without trying again");
    drop(function);
}

#[test]
fn stacks_are_cleared_on_every_stream_where_each_has_its_own() {
    let mut driver = Fake::new();
    driver.properties.stacks_per_stream = true;
    let mut gpu = Gpu::new(driver, 2, None).unwrap();
    fake::log();
    gpu.scrub().unwrap();
    assert_eq!(launches(&fake::log()), ["chip", "chip", "stack of 1024", "stack of 1024", "stack of 1024"]);
}

fn launches(log: &[Did]) -> Vec<&'static str> {
    let launched = log.iter().filter_map(|did| match did {
        Did::Launch(name) => Some(*name),
        _ => None,
    });
    launched.collect()
}
