//! What the gateway adds to a call of 4 KiB over the supervisor's own socket, how many calls a second it takes, ten thousand tenants on a
//! thousand connections, and a hundred thousand requests of those who break rules.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use pappus_client::Invocation;
use sha2::{Digest, Sha256};
use tokio::runtime::Runtime;

use super::ONE_WORKER;
use crate::Result;
use crate::harness::functions::register;
use crate::harness::gateway::{Gateway, Grpc, Http};
use crate::harness::sampling::Samples;
use crate::harness::supervisor::Home;
use crate::report::{Report, Unit};

/// Elements of each of two vectors: together 4 KiB.
const ELEMENTS: usize = 512;
const CALLS: u32 = 300;
/// What may come on top of a call over the socket.
const GRPC_NS: f64 = 150_000.0;
const HTTP_NS: f64 = 200_000.0;
/// Calls a second over one pool of connections, and how they are on their way.
const RATE: f64 = 15_000.0;
const CONNECTIONS: usize = 8;
const WINDOW: usize = 16;
const MEASURED: Duration = Duration::from_secs(2);
/// Requests that break rules, and the memory that they may leave behind.
const HOSTILE: usize = 100_000;
const HOSTILE_BYTES: f64 = (50u64 << 20) as f64;
const TENANTS: usize = 10_000;
const TENANTS_CONNECTIONS: usize = 1000;

pub(super) fn measure(rounds: u32, report: &mut Report) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let home = Home::new()?;
    let supervisor = home.start(ONE_WORKER)?;
    let mut client = supervisor.connect()?;
    register(&mut client, &["vec_add"])?;
    let gateway = Gateway::start(supervisor.socket(), &["--own-tenant"])?;

    let vector = vec![0; 4 * ELEMENTS];
    let add = Invocation::new("vec_add").input("A", vector.clone()).input("B", vector).output("C");
    let mut over_grpc = runtime.block_on(Grpc::connect(&gateway))?;
    let mut over_http = Http::connect(&gateway, ELEMENTS)?;
    let (mut socket, mut grpc, mut http) = (Samples::new()?, Samples::new()?, Samples::new()?);
    for _ in 0..rounds {
        socket.round(CALLS, || Ok(client.invoke(&add).map(drop)?))?;
        grpc.round(CALLS, || runtime.block_on(over_grpc.add(ELEMENTS, None)).map(drop))?;
        http.round(CALLS, || over_http.add().map(|_| ()))?;
    }
    report.info("vec_add of 4 KiB over the socket, p50", socket.p50(), Unit::Nanoseconds);
    for (protocol, samples, target) in [("gRPC", grpc, GRPC_NS), ("HTTP", http, HTTP_NS)] {
        report.info(format!("… over {protocol}, p50"), samples.p50(), Unit::Nanoseconds);
        report.info(format!("… over {protocol}, p99"), samples.p99(), Unit::Nanoseconds);
        let more = samples.p50() - socket.p50();
        report.at_most(target, format!("{protocol} adds, p50"), more, Unit::Nanoseconds);
    }

    let rate = rate(&runtime, &gateway)?;
    let title = format!("calls over gRPC, {CONNECTIONS} connections, {WINDOW} on their way on each");
    report.at_least(RATE, title, rate, Unit::PerSecond);
    drop(gateway);
    tenants(&runtime, report)?;
    hostile(report)
}

/// Requests that break rules, each on a connection of its own that is left as soon as it is sent, every fourth after an answer was read.
fn hostile(report: &mut Report) -> Result<()> {
    let home = Home::new()?;
    let supervisor = home.start(ONE_WORKER)?;
    register(&mut supervisor.connect()?, &["vec_add"])?;
    let gateway = Gateway::start(supervisor.socket(), &["--own-tenant"])?;
    let mut honest = Http::connect(&gateway, ELEMENTS)?;
    honest.add()?;
    let before = gateway.resident_bytes()?;
    let post = |headers: &str, body: &str| {
        format!("POST /v2/models/vec_add/infer HTTP/1.1\r\nHost: g\r\n{headers}\r\n{body}").into_bytes()
    };
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    // A stream that is opened by a broken head, and reset.
    let reset = |stream: u32| {
        let id = stream.to_be_bytes();
        [&[0, 0, 1, 1, 4][..], &id, &[0x82], &[0, 0, 4, 3, 0], &id, &[0, 0, 0, 8]].concat()
    };
    let resets: Vec<u8> = (0..50).flat_map(|nth| reset(2 * nth + 1)).collect();
    let continuations: Vec<u8> = (0..50).flat_map(|_| [0, 0, 1, 9, 0, 0, 0, 0, 1, 0x82]).collect();
    // To which address, and what.
    let attacks: [(bool, Vec<u8>); 12] = [
        (true, post("Content-Length: 4096\r\n", "{\"inputs\"")),
        (true, post("Content-Length: 2\r\n", "{}{}{}")),
        (true, post("Content-Length: 99999999999999999999\r\n", "")),
        (true, post("Content-Length: 4\r\nInference-Header-Content-Length: 400\r\n", "{}xx")),
        (true, post(&"X: y\r\n".repeat(100), "")),
        (true, post(&format!("X: {}\r\n", "y".repeat(40 << 10)), "")),
        (true, post("Content-Encoding: gzip\r\nContent-Length: 4\r\n", "gzip")),
        (true, post("Authorization: Bearer a.b.c\r\nContent-Length: 2\r\n", "{}")),
        (true, post("Transfer-Encoding: chunked\r\n", "ffffffffffffffff\r\n")),
        (false, [&preface[..], &settings, &resets].concat()),
        (false, [&preface[..], &settings, &[0, 0, 1, 1, 0, 0, 0, 0, 1, 0x82], &continuations].concat()),
        (false, [&preface[..], &[0xff; 64]].concat()),
    ];
    for nth in 0..HOSTILE {
        let (is_http, bytes) = &attacks[nth % attacks.len()];
        let mut stream = TcpStream::connect(if *is_http { &gateway.http } else { &gateway.grpc })?;
        // It may have been left already.
        let sent = stream.write_all(bytes);
        if nth % 4 == 0 && sent.is_ok() {
            stream.set_read_timeout(Some(Duration::from_millis(1)))?;
            let _ = stream.read(&mut [0; 512]);
        }
        if nth % 1000 == 0 {
            honest.add()?;
        }
    }
    honest.add()?;
    let more = (gateway.resident_bytes()? - before).max(0.0);
    let title =
        format!("{HOSTILE} hostile requests, an honest client beside them: memory of the gateway afterwards");
    report.at_most(HOSTILE_BYTES, title, more, Unit::Bytes);
    Ok(())
}

/// Calls a second of all connections together.
fn rate(runtime: &Runtime, gateway: &Gateway) -> Result<f64> {
    runtime.block_on(async {
        let mut loops = tokio::task::JoinSet::new();
        let end = Instant::now() + MEASURED;
        for _ in 0..CONNECTIONS {
            let connection = Grpc::connect(gateway).await?;
            for _ in 0..WINDOW {
                let mut client = connection.clone();
                loops.spawn(async move {
                    let mut answered = 0u64;
                    while Instant::now() < end {
                        // Errors of tasks travel as text.
                        client.add(ELEMENTS, None).await.map_err(|why| why.to_string())?;
                        answered += 1;
                    }
                    Ok::<_, String>(answered)
                });
            }
        }
        let mut answered = 0;
        while let Some(one) = loops.join_next().await {
            answered += one??;
        }
        Ok(answered as f64 / MEASURED.as_secs_f64())
    })
}

/// Each of ten thousand tenants calls a function that one of them has, over a thousand connections.
fn tenants(runtime: &Runtime, report: &mut Report) -> Result<()> {
    let home = Home::new()?;
    let token = |nth: usize| format!("the token of tenant {nth}");
    let hash =
        |token: String| Sha256::digest(token).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let own = rustix::process::geteuid().as_raw();
    let sections: String = (0..TENANTS)
        .map(|nth| format!("[tenants.t{nth}]\ntoken-sha256 = \"{}\"\n", hash(token(nth))))
        .collect();
    home.configure(&format!("gateways = [{own}]\n{sections}"))?;
    let supervisor = home.start("cpu:workers=2,memory=64MiB,isolation=auto")?;
    let mut owner = supervisor.connect()?;
    owner.act_for(token(0).as_bytes())?;
    register(&mut owner, &["vec_add"])?;
    let gateway = Gateway::start(supervisor.socket(), &[])?;
    let failed = runtime.block_on(async {
        let mut loops = tokio::task::JoinSet::new();
        for connection in 0..TENANTS_CONNECTIONS {
            let mut client = Grpc::connect(&gateway).await?;
            loops.spawn(async move {
                let mut failed = 0u64;
                for nth in (connection..TENANTS).step_by(TENANTS_CONNECTIONS) {
                    let answer = client.add(ELEMENTS, Some(&format!("the token of tenant {nth}"))).await;
                    // All but one are told that they have no such function: whose token it is was found out.
                    let is_right = match answer {
                        Ok(_) => nth == 0,
                        Err(why) => {
                            let code = why.downcast_ref::<tonic::Status>().map(tonic::Status::code);
                            nth != 0 && code == Some(tonic::Code::NotFound)
                        }
                    };
                    failed += u64::from(!is_right);
                }
                failed
            });
        }
        let mut failed = 0;
        while let Some(one) = loops.join_next().await {
            failed += one?;
        }
        Ok::<u64, Box<dyn std::error::Error>>(failed)
    })?;
    let title =
        format!("{TENANTS} tenants by token, {TENANTS_CONNECTIONS} connections: requests answered wrongly");
    report.at_most(0.0, title, failed as f64, Unit::Count);
    Ok(())
}
