//! A worker that strangers share, as a driver that only records saw it: what a window shows, and when kernels are told to end.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;

use pappus_blueprint::{Plan, Sizes};
use pappus_fence::window::{STOP, VARIABLES_BEGIN};
use pappus_protocol::limits::SHARED_BYTES;
use pappus_shmem::{Mapping, memfd};

use super::driver::Access;
use super::fake::{self, Did, Fake, FakeError, GRANULE};
use super::tests::{LANE, file, launch, without_records};
use super::windows::{HEADER, POOL, VARIABLES_BYTES};
use super::*;
use crate::arenas::Arenas;
use crate::device::{Device, FunctionImage, Functions, Lanes, Loading, Memory, Weights};

/// A kernel of two addresses, which takes its window as well.
const FENCED: &str = "kernel k 8 8 4\nfenced 0 0";
/// The same with variables: the first 16 of 128 bytes are not zero.
const VARIABLES: &str = "kernel k 8 8 4\nfenced 128 16";
const BYTES: u64 = 512;
/// Of the device, for each call.
const LIMIT: Duration = Duration::from_secs(1000);

fn gpu() -> Gpu<Fake> {
    let mut gpu = Gpu::new(Fake::new(), 2, Some(LIMIT)).unwrap();
    gpu.grow(LANE, 4 * GRANULE).unwrap();
    gpu
}

/// Of so many modules of one kernel each; the first kernel reads the weights.
fn load(gpu: &mut Gpu<Fake>, modules: &[&str], weight_bytes: u64) -> Result<Function<Fake>, Fault> {
    let one = r#"{"Absolute": 1}"#;
    let modules_json = match modules.len() {
        1 => r#""module_path": "m.ptx", "kernels": ["k"]"#,
        _ => {
            r#""modules": [{"module_name": "m", "path": "m"}, {"module_name": "n", "path": "n"}],
            "kernels": [{"module_name": "m", "kernel_name": "k"}, {"module_name": "n", "kernel_name": "k", "alias": "l"}]"#
        }
    };
    let launch = launch("W", "B", one);
    let json = format!(
        r#"{{{modules_json}, "blueprint": {{"inputs": ["A"], "weights": ["W"],
            "buffers": {{"B": {{"Sizeof": "A"}}}}, "outputs": ["B"], "control_flow": [{launch}]}}}}"#
    );
    let blueprint = pappus_blueprint::parse(json.as_bytes()).unwrap();
    let modules = modules.iter().map(|module| file(module)).collect();
    gpu.load(FunctionImage { blueprint: &blueprint, modules, weight_bytes })
}

/// A function with weights, which are there.
fn ready(gpu: &mut Gpu<Fake>, module: &str, weight_bytes: u64) -> (Function<Fake>, Arc<Plan>) {
    let mut function = load(gpu, &[module], weight_bytes).unwrap();
    let descriptor = memfd::sealed("weights", b"w").unwrap().as_fd().try_clone_to_owned().unwrap();
    let bytes = weight_bytes.next_multiple_of(GRANULE);
    gpu.load_weights(&mut function, Weights::Device { descriptor, bytes });
    let Loading::Over(Ok(_)) = gpu.poll_weights(&mut function) else { panic!("no weights") };
    (function, plan(1, weight_bytes))
}

/// Of so many launches of a function of one module.
fn plan(launches: u32, weight_bytes: u64) -> Arc<Plan> {
    let one = r#"{"Absolute": 1}"#;
    let json = format!(
        r#"{{"module_path": "m.ptx", "kernels": ["k"], "blueprint": {{"inputs": ["A"], "weights": ["W"],
            "buffers": {{"B": {{"Sizeof": "A"}}}}, "outputs": ["B"],
            "control_flow": [{{"Repeat": [{{"Absolute": {launches}}}, [{}]]}}]}}}}"#,
        launch("W", "B", one)
    );
    let blueprint = pappus_blueprint::parse(json.as_bytes()).unwrap();
    let sizes = Sizes { inputs: &[BYTES], weights: &[weight_bytes], words: &[], free: &[] };
    Arc::new(blueprint.plan(&sizes).unwrap())
}

fn start(gpu: &mut Gpu<Fake>, function: &mut Function<Fake>, plan: &Arc<Plan>, deadline_ns: u64) {
    let arenas = Arenas::new(Mapping::writable(&memfd::arena("staging", 4096).unwrap()).unwrap());
    let call = Call {
        plan,
        inputs: &[],
        outputs: &[],
        arenas: &arenas,
        descriptors: &[],
        deadline_ns,
        alone: false,
    };
    gpu.start(LANE, function, &call);
}

fn end(gpu: &mut Gpu<Fake>, function: &mut Function<Fake>) -> Result<(), Fault> {
    let ended = std::iter::repeat_with(|| gpu.poll(LANE)).flatten().next().unwrap();
    gpu.clear(LANE, function).unwrap();
    ended.map(drop)
}

/// A whole call; what the driver was told.
fn call(gpu: &mut Gpu<Fake>, (function, plan): &mut (Function<Fake>, Arc<Plan>)) -> Vec<Did> {
    start(gpu, function, plan, u64::MAX);
    end(gpu, function).unwrap();
    without_records(fake::log())
}

/// The driver would wait for strangers' kernels at the first launch.
#[test]
fn larger_stacks_are_made_when_a_function_is_loaded() {
    let mut gpu = gpu();
    let mut made = |stack: u32| {
        fake::log();
        let module = format!("{FENCED}\nstack {stack}");
        drop(load(&mut gpu, &[&module], 0).unwrap());
        let stacks = |did: &Did| if let Did::Stacks(bytes) = *did { Some(bytes) } else { None };
        fake::log().iter().filter_map(stacks).collect::<Vec<_>>()
    };
    assert_eq!([1024, 3000, 2000, 4096].map(&mut made), [vec![], vec![3000], vec![], vec![4096]]);
}

fn window(gpu: &Gpu<Fake>) -> u64 {
    gpu.windows.as_ref().unwrap().base(LANE)
}

/// What is mapped in a window, with its bytes: followed through the driver's log.
#[derive(Default)]
struct Shown(HashMap<u64, (u64, Access)>);

impl Shown {
    /// What is there whenever a kernel begins.
    fn follow(&mut self, window: u64, log: &[Did]) -> Vec<Vec<(u64, u64, Access)>> {
        let mut at_launches = Vec::new();
        for did in log {
            match *did {
                Did::Map { at, bytes, access } => {
                    assert!(self.0.insert(at, (bytes, access)).is_none(), "mapped twice");
                }
                Did::Unmap { at, .. } => drop(self.0.remove(&at).expect("mapped")),
                Did::Launch("k") => {
                    let inside = self.0.iter().filter(|(at, _)| **at >> 32 == window >> 32);
                    let mut inside: Vec<_> =
                        inside.map(|(at, &(bytes, access))| (at - window, bytes, access)).collect();
                    inside.sort_unstable_by_key(|one| one.0);
                    at_launches.push(inside);
                }
                _ => {}
            }
        }
        at_launches
    }
}

#[test]
fn windows_are_aligned_and_have_guards() {
    let gpu = gpu();
    let log = fake::log();
    let &Did::Reserve { base, bytes } = log.iter().find(|did| matches!(did, Did::Reserve { .. })).unwrap()
    else {
        unreachable!()
    };
    let windows = gpu.windows.as_ref().unwrap();
    let bases = [0, 1].map(|lane| windows.base(LaneId::new(lane)));
    const WINDOW: u64 = 4 << 30;
    assert!(bases.iter().all(|at| at.is_multiple_of(WINDOW)));
    assert!(bases[0] >= base + WINDOW && bases[1] == bases[0] + 2 * WINDOW);
    assert!(bases[1] + 2 * WINDOW <= base + bytes);
}

#[test]
fn a_kernel_is_told_its_window_and_addresses_in_it_also_in_a_graph() {
    let mut gpu = gpu();
    let mut one = ready(&mut gpu, FENCED, GRANULE + 1);
    let window = window(&gpu);
    let output = window + POOL + one.1.buffers.last().unwrap().offset;
    fake::launched();
    for _ in 0..5 {
        let shown = Shown::default().follow(window, &call(&mut gpu, &mut one)).len();
        assert_eq!(shown, 1);
    }
    let all = fake::launched();
    assert!(all.len() >= 3, "directly, and into a graph");
    for (_, params) in all {
        let [weights, pool] = [0, 8].map(|at| u64::from_le_bytes(params[at..at + 8].try_into().unwrap()));
        assert!(weights > window + POOL && weights + 2 * GRANULE <= window + HEADER, "{weights:#x}");
        assert_eq!((pool, &params[16..]), (output, &((window >> 32) as u32).to_le_bytes()[..]));
    }
}

#[test]
fn a_window_shows_the_pool_the_header_and_what_the_running_function_has() {
    let mut gpu = gpu();
    let (mut one, mut two) = (ready(&mut gpu, FENCED, 2 * GRANULE), ready(&mut gpu, VARIABLES, 3 * GRANULE));
    let window = window(&gpu);
    let mut shown = Shown::default();
    shown.follow(window, &fake::log());
    let pool = (POOL, 4 * GRANULE, Access::ReadWrite);
    let header = (HEADER, GRANULE, Access::Read);
    let variables = (u64::from(VARIABLES_BEGIN), VARIABLES_BYTES, Access::ReadWrite);
    for _ in 0..3 {
        for _ in 0..2 {
            let seen = shown.follow(window, &call(&mut gpu, &mut one));
            let [at, (weights, 0x40_0000, Access::Read), end] = seen[0][..] else { panic!("{seen:x?}") };
            assert!(at == pool && end == header && weights + 2 * GRANULE <= HEADER);
        }
        for _ in 0..2 {
            let seen = shown.follow(window, &call(&mut gpu, &mut two));
            let [first, at, (weights, 0x60_0000, Access::Read), end] = seen[0][..] else {
                panic!("{seen:x?}")
            };
            assert!(first == variables && at == pool && end == header && weights + 3 * GRANULE <= HEADER);
        }
    }
    // Weights that go are in no window.
    gpu.unload_weights(&mut two.0, false).unwrap();
    shown.follow(window, &fake::log());
    let left: Vec<_> = shown.0.keys().filter(|at| **at >> 32 == window >> 32).collect();
    assert_eq!(left.len(), 2, "{left:x?}");
}

#[test]
fn variables_begin_each_call_as_the_module_says_and_leave_nothing() {
    let mut gpu = gpu();
    let mut function = ready(&mut gpu, VARIABLES, 100);
    let at = window(&gpu) + u64::from(VARIABLES_BEGIN);
    fake::log();
    for _ in 0..3 {
        let log = call(&mut gpu, &mut function);
        let place = |wanted: &dyn Fn(&Did) -> bool| log.iter().position(wanted).expect("it was done");
        let begun = place(&|did| matches!(did, Did::Copy { to, bytes: 16, .. } if *to == at));
        let ran = place(&|did| *did == Did::Launch("k"));
        let cleared = place(&|did| *did == Did::Fill { to: at, byte: 0, bytes: VARIABLES_BYTES });
        assert!(begun < ran && ran < cleared, "{log:?}");
    }
}

#[test]
fn all_that_a_kernel_reaches_is_cleared_behind_each_call() {
    let mut gpu = gpu();
    let mut function = ready(&mut gpu, FENCED, 100);
    let pool = Did::Fill { to: window(&gpu) + POOL, byte: 0, bytes: 4 * GRANULE };
    for _ in 0..3 {
        assert_eq!(call(&mut gpu, &mut function).last(), Some(&pool));
    }
}

#[test]
fn a_call_that_is_one_graph_clears_what_its_lane_has_now() {
    let mut driver = Fake::new();
    driver.properties.host_addresses = true;
    let mut gpu = Gpu::new(driver, 2, Some(LIMIT)).unwrap();
    gpu.grow(LANE, GRANULE).unwrap();
    let mut function = ready(&mut gpu, FENCED, 100);
    (0..5).for_each(|_| drop(call(&mut gpu, &mut function)));
    let pool = window(&gpu) + POOL;
    // The range that the kernel behind the steps clears: nothing is copied in a call without inputs and outputs.
    let cleared = || {
        let params = fake::ran().pop().unwrap();
        let word = |at: usize| u64::from_le_bytes(params[8 * at..8 * at + 8].try_into().unwrap());
        [word(0), word(1), word(2), word(3)]
    };
    let as_one = |did: &[Did]| did.iter().any(|did| matches!(did, Did::Graph(_)));
    assert!(as_one(&call(&mut gpu, &mut function)));
    assert_eq!(cleared(), [1, 0, pool, GRANULE], "the control");
    gpu.grow(LANE, 2 * GRANULE).unwrap();
    assert!(as_one(&call(&mut gpu, &mut function)));
    assert_eq!(cleared(), [1, 0, pool, 2 * GRANULE]);
    gpu.give_back(LANE).unwrap();
    gpu.grow(LANE, GRANULE).unwrap();
    assert!(as_one(&call(&mut gpu, &mut function)));
    assert_eq!(cleared(), [1, 0, pool, GRANULE]);
}

#[test]
fn a_call_whose_time_is_over_is_told_to_end_and_the_next_is_not() {
    let mut gpu = gpu();
    let (mut function, plan) = ready(&mut gpu, FENCED, 100);
    let stop = |did: &Did| match *did {
        Did::CopyIn { to, bytes: 4 } => Some(to),
        _ => None,
    };
    fake::log();
    fake::events(Some(Ok(false)));
    start(&mut gpu, &mut function, &plan, now_ns() + 50_000_000);
    let told = std::iter::repeat_with(|| {
        assert!(gpu.poll(LANE).is_none(), "it runs");
        fake::log().iter().find_map(stop)
    });
    let at = told.flatten().next().unwrap();
    assert_eq!(at & (GRANULE - 1), u64::from(STOP) & (GRANULE - 1));
    assert_ne!(at >> 32, window(&gpu) >> 32, "kernels cannot write there");
    assert!(gpu.poll(LANE).is_none() && fake::log().iter().find_map(stop).is_none(), "told once");
    fake::events(None);
    assert_eq!(end(&mut gpu, &mut function).unwrap_err().code, FaultCode::Deadline);
    let zeroed = Did::Fill { to: at, byte: 0, bytes: 4 };
    assert!(fake::log().contains(&zeroed));
    // One that ends in time is not told.
    let log = call(&mut gpu, &mut (function, plan));
    assert!(!log.contains(&zeroed) && log.iter().find_map(stop).is_none());
}

#[test]
fn a_call_that_had_its_part_of_the_device_is_told_to_end() {
    let mut gpu = Gpu::new(Fake::new(), 2, Some(Duration::from_millis(1))).unwrap();
    gpu.grow(LANE, 4 * GRANULE).unwrap();
    let (mut function, plan) = ready(&mut gpu, FENCED, 100);
    fake::events(Some(Ok(false)));
    start(&mut gpu, &mut function, &plan, u64::MAX);
    let is_stop = |did: &Did| matches!(did, Did::CopyIn { bytes: 4, .. });
    let mut polls = std::iter::repeat_with(|| gpu.poll(LANE).is_none() && fake::log().iter().any(is_stop));
    assert!(polls.any(|told| told));
    fake::events(None);
    assert_eq!(end(&mut gpu, &mut function).unwrap_err().code, FaultCode::Deadline);
}

#[test]
fn a_call_whose_first_kernels_do_not_end_has_its_part_like_any_other() {
    let mut gpu = gpu();
    let (mut function, _) = ready(&mut gpu, FENCED, 100);
    fake::events(Some(Ok(false)));
    start(&mut gpu, &mut function, &plan(5000, 100), u64::MAX);
    let steps = gpu.lanes[0].steps();
    assert!((1..5000).contains(&steps), "{steps}");
    let begin_ns = now_ns();
    let had = |gpu: &mut Gpu<Fake>, lane, steps, now_ns| {
        gpu.windows.as_mut().unwrap().had_its_part(lane, steps, now_ns)
    };
    assert!(gpu.poll(LANE).is_none() && !had(&mut gpu, LANE, steps, begin_ns));
    assert_eq!(gpu.lanes[0].steps(), steps);
    // It goes on for as long as calls may, seen every 50 us.
    let looks = (0..LIMIT.as_nanos() as u64).step_by(50_000);
    let told = looks.map(|after_ns| had(&mut gpu, LANE, steps, begin_ns + after_ns));
    assert!(told.last().unwrap(), "all of it counts");
    // What is submitted for a call is no other's.
    gpu.windows.as_mut().unwrap().begins(LaneId::new(1), begin_ns);
    let most = LIMIT.as_nanos() as u64 / 1000;
    assert!(!had(&mut gpu, LaneId::new(1), 0, begin_ns) && had(&mut gpu, LaneId::new(1), most, begin_ns));
}

#[test]
fn only_fenced_code_is_loaded() {
    let mut gpu = gpu();
    let larger = format!("kernel k 8 8 4\nfenced {} 0", VARIABLES_BYTES + 1);
    for (modules, words) in [
        (&["kernel k 8 8"][..], "not fenced"),
        (&[FENCED, "kernel k 8 8"], "module `n`: machine code: it is not fenced"),
        (&["kernel k 8 8\nfenced 0 0"], "does not take its window"),
        (&["kernel k 8 8 4\nfenced 0 0\nvariable seen"], "outside of its window"),
        (&[VARIABLES, VARIABLES], "module `n` has variables in the same place"),
        (&[&larger], "a window has room for"),
    ] {
        let fault = load(&mut gpu, modules, 0).unwrap_err();
        assert_eq!(fault.code, FaultCode::Load);
        assert!(fault.message.contains(words), "{fault}");
    }
    load(&mut gpu, &[FENCED, VARIABLES], 0).unwrap();
    // The same files serve a worker of one tenant.
    let mut plain = Gpu::new(Fake::new(), 1, None).unwrap();
    load(&mut plain, &["kernel k 8 8\nfenced 0 0"], 0).unwrap();
}

#[test]
fn a_pool_larger_than_its_place_is_refused_and_one_too_large_for_the_weights_shrinks() {
    let mut gpu = gpu();
    gpu.give_back(LANE).unwrap();
    let fault = gpu.grow(LANE, SHARED_BYTES + 1).unwrap_err();
    assert!(fault.code == FaultCode::OutOfMemory && fault.message.contains("3221225472"), "{fault}");
    gpu.grow(LANE, SHARED_BYTES).unwrap();
    let mut function = ready(&mut gpu, FENCED, 1 << 30);
    fake::log();
    let log = call(&mut gpu, &mut function);
    assert_eq!(gpu.lane_bytes(LANE), GRANULE);
    let pool = window(&gpu) + POOL;
    let taken = log.iter().position(|did| matches!(did, Did::Unmap { at, .. } if *at == pool)).unwrap();
    let inside = |did: &Did| !matches!(*did, Did::Fill { to, bytes, .. } if to == pool && bytes > GRANULE);
    assert!(log[taken..].iter().all(inside), "{log:?}");
    // The other way round, weights of the call before are in the place of more pool.
    gpu.grow(LANE, SHARED_BYTES).unwrap();
    let weights = window(&gpu) + super::windows::weights_at(function.0.weights.room_bytes());
    assert!(fake::log().iter().any(|did| matches!(did, Did::Unmap { at, .. } if *at == weights)));
    let (mut function, plan) = ready(&mut gpu, FENCED, 4 << 30);
    start(&mut gpu, &mut function, &plan, u64::MAX);
    let fault = end(&mut gpu, &mut function).unwrap_err();
    assert!(fault.code == FaultCode::OutOfMemory && fault.message.contains("do not fit a window"), "{fault}");
}

#[test]
fn a_call_fails_whose_weights_cannot_be_shown_and_the_next_tries_again() {
    let mut gpu = gpu();
    let (mut function, plan) = ready(&mut gpu, FENCED, 100);
    let at = window(&gpu) + super::windows::weights_at(function.weights.room_bytes());
    fake::fail(Did::Map { at, bytes: GRANULE, access: Access::Read }, FakeError::Refused);
    start(&mut gpu, &mut function, &plan, u64::MAX);
    end(&mut gpu, &mut function).unwrap_err();
    assert!(!fake::log().contains(&Did::Launch("k")));
    let log = call(&mut gpu, &mut (function, plan));
    assert!(log.contains(&Did::Map { at, bytes: GRANULE, access: Access::Read }), "{log:?}");
}

#[test]
fn what_windows_take_is_told_and_a_device_without_has_none() {
    let told = |shared: Option<Duration>| {
        let mut driver = Fake::new();
        driver.context_bytes = 1;
        Gpu::new(driver, 2, shared).unwrap().hello().context_bytes
    };
    assert_eq!(told(Some(LIMIT)) - told(None), 2 * (GRANULE + VARIABLES_BYTES));
    let mut driver = Fake::new();
    driver.properties.has_windows = false;
    let fault = Gpu::new(driver, 2, Some(LIMIT)).unwrap_err();
    assert!(fault.code == FaultCode::Device && fault.message.contains("fake"), "{fault}");
}
