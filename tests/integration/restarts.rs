//! Clients that outlive a restart of their supervisor, and, as the control, those that do not.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pappus_client::aio;
use pappus_client::steady::SteadyClient;
use pappus_client::{Error, Invocation, Result};

use crate::fixture::{PATIENCE, Supervisor, until};
use crate::kit;

const DATA: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

fn with_copy() -> Supervisor {
    let supervisor = Supervisor::start();
    kit::add_copy(&mut supervisor.client());
    supervisor
}

/// A call whose data travel with it.
fn call() -> Invocation {
    Invocation::new("copy").input("in", DATA.to_vec()).output("out")
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
    let supervisor = with_copy();
    let mut client = SteadyClient::connect(supervisor.socket(), PATIENCE).unwrap();
    let once = move || {
        let answer = client.invoke(&call())?;
        assert_eq!(answer.outputs[0].inline[..], DATA);
        Ok(())
    };
    through_restarts(supervisor, once).unwrap();
}

#[test]
fn arenas_are_opened_again_after_a_restart() {
    let supervisor = with_copy();
    let mut client = SteadyClient::connect(supervisor.socket(), PATIENCE).unwrap();
    let once = move || {
        let copied = client.run(|client| {
            let mut arena = client.open_arena(4096)?;
            let (input, output) = (arena.store(&DATA)?, arena.alloc(8)?);
            client.invoke(&Invocation::new("copy").input("in", input).output_to("out", output))?;
            let copied = arena.load(output)?;
            client.close_arena(arena)?;
            Ok(copied)
        })?;
        assert_eq!(copied, DATA);
        Ok(())
    };
    through_restarts(supervisor, once).unwrap();
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn asynchronous_calls_of_many_tasks_are_made_again_after_a_restart() {
    let supervisor = with_copy();
    let runtime = runtime();
    let client = runtime.block_on(aio::SteadyClient::connect(supervisor.socket(), PATIENCE)).unwrap();
    let once = move || {
        runtime.block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            for _ in 0..8 {
                let client = client.clone();
                tasks.spawn(async move { client.invoke(call()).await });
            }
            for answer in tasks.join_all().await {
                assert_eq!(answer?.outputs[0].inline[..], DATA);
            }
            Ok(())
        })
    };
    through_restarts(supervisor, once).unwrap();
}

#[test]
fn a_plain_asynchronous_client_ends_with_its_supervisor() {
    let supervisor = with_copy();
    let runtime = runtime();
    let client = runtime.block_on(aio::Client::connect(supervisor.socket())).unwrap();
    let why =
        through_restarts(supervisor, move || runtime.block_on(client.invoke(call())).map(drop)).unwrap_err();
    assert!(matches!(why, Error::Lost | Error::Refused(_)), "{why}");
}

#[test]
fn an_asynchronous_client_waits_for_no_supervisor_longer_than_its_patience() {
    let mut supervisor = with_copy();
    runtime().block_on(async {
        let patience = Duration::from_millis(50);
        let absent = aio::SteadyClient::connect(supervisor.socket().with_extension("absent"), patience).await;
        assert!(matches!(absent, Err(Error::Unreachable { .. })));
        let client = aio::SteadyClient::connect(supervisor.socket(), patience).await.unwrap();
        client.invoke(call()).await.unwrap();
        supervisor.kill9();
        let (a, b) = tokio::join!(client.invoke(call()), client.invoke(call()));
        for why in [a.unwrap_err(), b.unwrap_err()] {
            assert!(matches!(why, Error::Unreachable { .. } | Error::Silent { .. } | Error::Lost), "{why}");
        }
        // What is refused for another reason is no reason to try again.
        supervisor.restart();
        assert!(matches!(client.invoke(Invocation::new("absent")).await, Err(Error::Refused(_))));
        let region = pappus_client::v1::Region { arena: 1, offset: 0, bytes: 8 };
        let of_one = Invocation::new("copy").input("in", region).output("out");
        assert!(matches!(client.invoke(of_one).await, Err(Error::Invalid(_))));
        client.invoke(call()).await.unwrap();
    });
}

#[test]
fn a_plain_client_ends_with_its_supervisor() {
    let supervisor = with_copy();
    let mut client = supervisor.client();
    let why = through_restarts(supervisor, move || client.invoke(&call()).map(drop)).unwrap_err();
    assert!(matches!(why, Error::Lost | Error::Refused(_)), "{why}");
}

#[test]
fn a_supervisor_that_does_not_come_back_is_an_error_when_patience_ends() {
    let mut supervisor = with_copy();
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
