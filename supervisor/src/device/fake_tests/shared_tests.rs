//! A GPU with a worker that tenants share: whose calls go there, which processes may serve there, and what becomes of calls there
//! when its process is lost.

use super::*;
use crate::arena::Arena;
use crate::call::WhyApart;
use crate::client_io::ClientIo;
use crate::client_memfd::ClientMemfd;
use crate::limits::{SHARED_ARENA_BYTES, SHARED_POOL_BYTES, SHARED_WEIGHTS_BYTES};
use crate::quota::Limit;
use crate::schedule::Sharing;

/// A GPU whose first worker is shared.
fn shared() -> DeviceConfig {
    DeviceConfig { shared_workers: 1, memory_bytes: 100 << 30, ..config(false) }
}

/// The configuration of a function with a launch that says so.
fn launch(says: &str) -> String {
    let number = |name: &str| format!(r#""{name}": {{"Absolute": 1}}, "#);
    let grid = ["grid_dim_x", "grid_dim_y", "grid_dim_z", "block_dim_x", "block_dim_y", "block_dim_z"];
    let grid: String = grid.into_iter().map(number).collect();
    format!(
        r#"{{"modules": [{{"module_name": "m", "path": "m.ptx"}}], "kernels": [{{"module_name": "m", "kernel_name": "k"}}], "blueprint": {{"inputs": [], "weights": ["w"],
            "buffers": {{}}, "outputs": [], "control_flow": [{{"ExecKernel": ["k", [], {{{grid} {says}
            "shared_mem_bytes": {{"Absolute": 0}}}}]}}]}}}}"#
    )
}

#[test]
fn only_calls_that_cannot_leave_their_window_are_beside_those_of_strangers() {
    let gpu = Gpu::of(shared());
    let runs_in = |function: &Arc<Loaded>, pool_bytes: u64| {
        let id = gpu.submit(function, CALLER, pool_bytes);
        let worker = if gpu.device.decisions.ask().busy_lanes(W0).is_some_and(|(_, lanes)| lanes == 1) {
            W0
        } else {
            W1
        };
        gpu.done(worker, id);
        worker
    };
    let of = |config: &str, name: &str, fenced| gpu.function_of(config, name, 0, fenced);
    let fenced = of(PLAIN, "fenced", true);
    assert_eq!(runs_in(&fenced, 0), W0);
    assert_eq!(runs_in(&gpu.function("not fenced", 0), 0), W1);
    assert_eq!(runs_in(&fenced, SHARED_POOL_BYTES), W0);
    assert_eq!(runs_in(&fenced, SHARED_POOL_BYTES + 1), W1);
    assert_eq!(runs_in(&of(&launch(""), "a launch", true), 0), W0);
    assert_eq!(runs_in(&of(&launch(r#""cluster_dim_x": {"Absolute": 1},"#), "no cluster", true), 0), W0);
    let clusters = launch(r#""cluster_dim_x": {"Absolute": 2},"#).replacen(
        r#""grid_dim_x": {"Absolute": 1}"#,
        r#""grid_dim_x": {"Absolute": 2}"#,
        1,
    );
    assert_eq!(runs_in(&of(&clusters, "clusters", true), 0), W1);
    let apart = PLAIN.replacen('{', r#"{"isolation": "process", "#, 1);
    assert_eq!(runs_in(&of(&apart, "apart", true), 0), W1);
    let call = gpu.call(&fenced, CALLER, 0);
    let other = DeviceConfig { arch: "sm_80".into(), ..shared() };
    let cases = [
        (&*gpu.device.config, SHARED_WEIGHTS_BYTES, None),
        (&*gpu.device.config, SHARED_WEIGHTS_BYTES + 1, Some(WhyApart::Large)),
        (&config(false), 0, Some(WhyApart::Device)),
        // What is fenced for one architecture may not be for another.
        (&other, 0, Some(WhyApart::Unfenced)),
    ];
    let only = PLAIN.replacen('{', r#"{"isolation": "shared", "#, 1);
    let only = gpu.call(&of(&only, "only", true), CALLER, 0);
    for (device, weight_bytes, why) in cases {
        let apart = if why.is_some() { Sharing::Never } else { Sharing::May };
        assert_eq!(call.sharing(device, weight_bytes), Ok(apart));
        assert_eq!(only.sharing(device, weight_bytes), why.map_or(Ok(Sharing::Only), Err));
    }
}

#[test]
fn nobody_waits_while_a_shared_worker_pins_a_large_arena() {
    let (gpu, io) = (Gpu::of(shared()), ClientIo::default());
    let function = gpu.function_of(PLAIN, "f", 0, true);
    let sharing = |bytes: &[u64]| {
        let arena = |(id, bytes): (u64, &u64)| {
            let memory = ClientMemfd::new(memfd::arena("a", *bytes).unwrap(), CALLER, &io);
            Arc::new(Arena::new(id, memory, &gpu.tenants.account(CALLER), Limit::ArenaBytes).unwrap())
        };
        let mut call = gpu.call(&function, CALLER, 0);
        Arc::get_mut(&mut call).unwrap().arenas = (7..).zip(bytes).map(arena).collect();
        call.sharing(&gpu.device.config, 0).unwrap()
    };
    let half = SHARED_ARENA_BYTES / 2;
    assert_eq!(sharing(&[half, half]), Sharing::May);
    assert_eq!(sharing(&[half, half + 4096]), Sharing::Never);
}

#[test]
fn a_process_that_is_not_made_to_be_shared_never_is_and_the_other_way_round() {
    let gpu = Gpu::of(shared());
    let edition = gpu.device.made_for().edition;
    let attach = |worker, generation, made| {
        let process = (Generation::new(generation), made);
        attach_process(&gpu.device, worker, process, Epoch::new(0), ended_process(), edition)
    };
    assert!(matches!(attach(W0, 2, false), Err(Unusable::WrongSlot)));
    assert!(matches!(attach(W1, 2, true), Err(Unusable::WrongSlot)));
    // The control.
    for worker in [W0, W1] {
        gpu.device.slots.channel(worker).detach();
        gpu.device.events.worker_gone(worker);
        assert!(attach(worker, 2, worker == W0).is_ok());
    }
}

#[test]
fn calls_of_a_shared_worker_that_is_lost_run_again_alone_and_are_answered_once() {
    let mut gpu = Gpu::of(shared());
    let function = gpu.function_of(PLAIN, "f", 0, true);
    let calls = [1, 2, 3].map(|caller| gpu.submit(&function, TenantId::new(caller), 0));
    gpu.expect(W0, &["install 1", "invoke on 0 flags 0", "invoke on 1 flags 0", "invoke on 2 flags 0"]);
    gpu.expect(W1, &[]);
    gpu.device.slots.channel(W0).detach();
    let lost = gpu.device.events.worker_gone(W0);
    assert_eq!(lost.len(), 3);
    gpu.reaped(W0);
    gpu.device.events.bury(lost, &killed(), false);
    gpu.workers[0] = attach_of(&gpu.device, W0, Generation::new(2), Epoch::new(0)).unwrap();
    gpu.expect(W0, &["settings"]);
    // Each is alone in the worker of its tenant; those behind it do not keep the shared worker from others.
    gpu.expect(W1, &["install 1", "invoke on 0 flags 1"]);
    let other = gpu.submit(&function, TenantId::new(4), 0);
    gpu.expect(W0, &["install 1", "invoke on 0 flags 0"]);
    gpu.done(W0, other);
    let mut generation = 1;
    for (nth, id) in calls.into_iter().enumerate() {
        gpu.done(W1, id);
        if nth < 2 {
            // Another tenant's turn: the process gives way to a fresh one.
            let commands = &gpu.device.commands;
            commands.decisions.passed_ns.fetch_add(1_000_000_000, Ordering::Relaxed);
            commands.handle(crate::schedule::events::Tick {});
            gpu.device.slots.channel(W1).detach();
            gpu.device.events.worker_gone(W1);
            let reaped = Reaped { worker: W1, generation: Generation::new(generation), from_outside: false };
            gpu.device.commands.handle(reaped);
            generation += 1;
            gpu.workers[1] = attach_of(&gpu.device, W1, Generation::new(generation), Epoch::new(0)).unwrap();
            gpu.expect(W1, &["settings", "install 1", "invoke on 0 flags 1"]);
        }
    }
    let mut answered = super::panic_tests::answered(&mut gpu);
    answered.sort_unstable();
    assert_eq!(answered, [1, 2, 3, 4]);
    assert_eq!(gpu.device.load(), 0);
}
