//! Clients that outlive a restart of their supervisor, and, as the control, those that do not.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pappus_client::steady::SteadyClient;
use pappus_client::{Error, Invocation, Result};
use pappus_kernels::{artefact, config};

use crate::fixture::{PATIENCE, Supervisor, until};

fn with_vec_add() -> Supervisor {
    let supervisor = Supervisor::start();
    supervisor.write("built/linalg.wasm", artefact("linalg.wasm").unwrap());
    supervisor.write("configs/vec_add.json", config("vec_add").unwrap());
    supervisor.ok(&["function", "add", "vec_add", "configs/vec_add.json"]);
    supervisor
}

fn floats(numbers: [f32; 2]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// A call whose data travel with it.
fn call() -> Invocation {
    Invocation::new("vec_add").input("A", floats([1.0, 2.0])).input("B", floats([3.0, 4.0])).output("C")
}

/// Calls again and again while the supervisor is ended and started twice; the first error.
fn through_restarts(mut supervisor: Supervisor, mut once: impl FnMut() -> Result<()> + Send) -> Result<()> {
    let (calls, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                once()?;
                calls.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        let some_more = || {
            let before = calls.load(Ordering::Relaxed);
            until("calls are made", || caller.is_finished() || calls.load(Ordering::Relaxed) > before + 3);
        };
        some_more();
        supervisor.terminate();
        supervisor.ended();
        supervisor.restart();
        some_more();
        supervisor.kill9();
        supervisor.restart();
        some_more();
        stop.store(true, Ordering::Relaxed);
        caller.join().unwrap()
    })
}

#[test]
fn calls_are_made_again_after_a_restart() {
    let supervisor = with_vec_add();
    let mut client = SteadyClient::connect(supervisor.socket(), PATIENCE).unwrap();
    let once = move || {
        let answer = client.invoke(&call())?;
        assert_eq!(answer.outputs[0].inline, floats([4.0, 6.0]));
        Ok(())
    };
    through_restarts(supervisor, once).unwrap();
}

#[test]
fn arenas_are_opened_again_after_a_restart() {
    let supervisor = with_vec_add();
    let mut client = SteadyClient::connect(supervisor.socket(), PATIENCE).unwrap();
    let once = move || {
        let sum = client.run(|client| {
            let mut arena = client.open_arena(4096)?;
            let (a, b) = (arena.store(&floats([1.0, 2.0]))?, arena.store(&floats([3.0, 4.0]))?);
            let c = arena.alloc(8)?;
            client.invoke(&Invocation::new("vec_add").input("A", a).input("B", b).output_to("C", c))?;
            let sum = arena.load(c)?;
            client.close_arena(arena)?;
            Ok(sum)
        })?;
        assert_eq!(sum, floats([4.0, 6.0]));
        Ok(())
    };
    through_restarts(supervisor, once).unwrap();
}

#[test]
fn a_plain_client_ends_with_its_supervisor() {
    let supervisor = with_vec_add();
    let mut client = supervisor.client();
    let why = through_restarts(supervisor, move || client.invoke(&call()).map(drop)).unwrap_err();
    assert!(matches!(why, Error::Lost | Error::Refused(_)), "{why}");
}

#[test]
fn a_supervisor_that_does_not_come_back_is_an_error_when_patience_ends() {
    let mut supervisor = with_vec_add();
    let mut client = SteadyClient::connect(supervisor.socket(), Duration::from_millis(50)).unwrap();
    client.invoke(&call()).unwrap();
    supervisor.kill9();
    let why = client.invoke(&call()).unwrap_err();
    assert!(matches!(why, Error::Unreachable { .. } | Error::Lost), "{why}");
    // What is refused for another reason is no reason to try again.
    supervisor.restart();
    assert!(matches!(client.invoke(&Invocation::new("absent")), Err(Error::Refused(_))));
    client.invoke(&call()).unwrap();
}
