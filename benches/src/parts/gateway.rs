//! What the gateway adds to a call of 4 KiB over the supervisor's own socket, how many calls a second it takes, and ten thousand tenants
//! on a thousand connections.

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
    tenants(&runtime, report)
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

/// Each of ten thousand tenants calls its function once, over a thousand connections.
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
    for nth in 0..TENANTS {
        let mut tenant = supervisor.connect()?;
        tenant.act_for(token(nth).as_bytes())?;
        register(&mut tenant, &["vec_add"])?;
    }
    let gateway = Gateway::start(supervisor.socket(), &[])?;
    let failed = runtime.block_on(async {
        let mut loops = tokio::task::JoinSet::new();
        for connection in 0..TENANTS_CONNECTIONS {
            let mut client = Grpc::connect(&gateway).await?;
            loops.spawn(async move {
                let mut failed = 0u64;
                for nth in (connection..TENANTS).step_by(TENANTS_CONNECTIONS) {
                    let answer = client.add(ELEMENTS, Some(&format!("the token of tenant {nth}"))).await;
                    failed += u64::from(answer.is_err());
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
    let title = format!("{TENANTS} tenants by token, {TENANTS_CONNECTIONS} connections: calls that failed");
    report.at_most(0.0, title, failed as f64, Unit::Count);
    Ok(())
}
