//! Calls a second, for information: several connections, each with a few calls on their way.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use pappus_client::v1::response;
use pappus_client::{Client, Invocation};

use crate::Result;
use crate::harness::functions::{Matmul, register};
use crate::harness::supervisor::{Home, Supervisor};
use crate::report::{Report, Unit};

const WORKERS: [usize; 2] = [1, 2];
const CONNECTIONS: [usize; 3] = [1, 2, 4];
const MEASURED: Duration = Duration::from_secs(1);
/// Calls of a connection on their way at once.
const EMPTY_WINDOW: usize = 16;
const MATMUL_WINDOW: usize = 2;

pub(super) fn measure(report: &mut Report) -> Result<()> {
    for workers in WORKERS {
        let home = Home::new()?;
        let supervisor = home.start(&format!("cpu:workers={workers},memory=128MiB"))?;
        register(&mut supervisor.connect()?, &["hello", "matmul_tiled"])?;
        for connections in CONNECTIONS {
            let empty = run(&supervisor, connections, empty_calls)?;
            let matmul = run(&supervisor, connections, matmul_calls)?;
            let title = |what| format!("{what}, workers: {workers}, connections: {connections}");
            report.info(title("empty calls"), empty, Unit::PerSecond);
            report.info(title("128×128 i64 matmul"), matmul, Unit::PerSecond);
        }
    }
    Ok(())
}

/// A connection's loop: until the moment, how many calls were answered.
type Work = fn(&mut Client, &Barrier) -> Result<u64>;

/// Calls a second of all connections together.
fn run(supervisor: &Supervisor, connections: usize, work: Work) -> Result<f64> {
    let barrier = Barrier::new(connections);
    // Errors of threads travel as text.
    let one = || -> Result<u64, String> {
        let client = supervisor.connect().map_err(|e| e.to_string());
        // A thread that failed must not keep the others waiting.
        match client {
            Ok(mut client) => work(&mut client, &barrier).map_err(|e| e.to_string()),
            Err(error) => {
                barrier.wait();
                Err(error)
            }
        }
    };
    let counts = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..connections).map(|_| scope.spawn(one)).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        let flat =
            joined.map(|result| result.unwrap_or_else(|_| Err("a connection's thread panicked".into())));
        flat.collect::<Result<Vec<u64>, String>>()
    })?;
    Ok(counts.iter().sum::<u64>() as f64 / MEASURED.as_secs_f64())
}

fn empty_calls(client: &mut Client, barrier: &Barrier) -> Result<u64> {
    let calls = vec![Invocation::new("hello"); EMPTY_WINDOW];
    keep_in_flight(client, &calls, barrier)
}

fn matmul_calls(client: &mut Client, barrier: &Barrier) -> Result<u64> {
    let mut works = Vec::new();
    for _ in 0..MATMUL_WINDOW {
        works.push(Matmul::tiled(client)?);
    }
    let calls: Vec<Invocation> = works.iter().map(|work| work.call.clone()).collect();
    keep_in_flight(client, &calls, barrier)
}

/// Keeps each of `calls` on its way: an answer is followed by the same call again.
fn keep_in_flight(client: &mut Client, calls: &[Invocation], barrier: &Barrier) -> Result<u64> {
    let mut ids = Vec::with_capacity(calls.len());
    barrier.wait();
    let end = Instant::now() + MEASURED;
    for call in calls {
        ids.push(client.send_invocation(call)?);
    }
    let mut answered = 0;
    while client.in_flight() > 0 {
        let answer = client.recv()?;
        let Some(response::Body::Invoked(_)) = answer.body else {
            return Err(format!("a call ended with {:?}", answer.body).into());
        };
        if Instant::now() >= end {
            continue;
        }
        answered += 1;
        let slot = ids.iter().position(|id| *id == answer.id);
        let slot = slot.ok_or("an answer to a call that was not sent")?;
        ids[slot] = client.send_invocation(&calls[slot])?;
    }
    Ok(answered)
}
