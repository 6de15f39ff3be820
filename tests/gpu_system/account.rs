//! What `status` says of a GPU's memory agrees with what the driver says, and metrics have what the GPU measures.

use std::io::{Read, Write};
use std::net::TcpStream;

use pappus_client::{Client, Invocation};

use crate::fixture::{Supervisor, until};
use crate::functions::{add_heavy, on_gpu};
use crate::gpu::Gpu;

const MIB: u64 = 1 << 20;
/// What the driver takes for itself as it pleases: for each process, and for the device.
const SLACK: u64 = 96 * MIB;
const WEIGHTS: u64 = 512 * MIB;

/// Bytes of the GPU under test in use by any process, as the driver says.
fn used(gpu: &Gpu) -> u64 {
    let device = gpu.listed();
    device["memory_bytes"].as_u64().unwrap() - device["free_bytes"].as_u64().unwrap()
}

/// Waits until no process is about to start or to end.
fn settled(supervisor: &Supervisor) {
    let workers = supervisor.worker_pids().len();
    until("all processes are ready", || {
        let device = supervisor.device();
        device.standbys_ready == device.standbys
            && supervisor.children().len() == workers + device.standbys as usize
    });
}

/// The account and the driver agree, where no other program uses the device; stacks count as the setting allows them.
fn agrees(gpu: &Gpu, supervisor: &Supervisor, others: u64, when: &str) {
    settled(supervisor);
    let memory = supervisor.device().memory.unwrap();
    let taken = memory.context_bytes + memory.lease_bytes + memory.weight_bytes;
    let used = used(gpu).saturating_sub(others);
    let slack = SLACK * (supervisor.children().len() as u64 + 1);
    println!(
        "{when}: driver {} MiB; contexts {}, leases {}, weights {}, stacks at most {} MiB",
        used / MIB,
        memory.context_bytes / MIB,
        memory.lease_bytes / MIB,
        memory.weight_bytes / MIB,
        memory.stack_bytes / MIB
    );
    assert!(used + slack >= taken, "{when}: {used} bytes are used, the account says {taken}");
    assert!(
        used <= taken + memory.stack_bytes + slack,
        "{when}: {used} bytes are used, the account says {taken}"
    );
}

fn calls(client: &mut Client) {
    let answer = client.invoke(&Invocation::new("heavy").output("out")).unwrap();
    assert_eq!(&answer.outputs[0].inline[..], [7; 64]);
}

pub(crate) fn the_account_agrees_with_the_driver(gpu: &Gpu) {
    // Whatever others use of the GPU.
    let before = used(gpu);
    let supervisor = on_gpu(gpu, "workers=2,lanes=4,standbys=1,memory=24GiB,weights=2GiB");
    agrees(gpu, &supervisor, before, "at the start");
    let mut client = supervisor.client();
    add_heavy(&mut client, "heavy", WEIGHTS);
    agrees(gpu, &supervisor, before, "after a compilation");
    calls(&mut client);
    assert_eq!(supervisor.device().memory.unwrap().weight_bytes / MIB, WEIGHTS / MIB);
    agrees(gpu, &supervisor, before, "with weights");
    let with = used(gpu);
    client.remove_function("heavy").unwrap();
    // Weights count until the worker said that they are forgotten: then their memory really is free.
    until("they are forgotten", || supervisor.device().memory.unwrap().weight_bytes == 0);
    let without = used(gpu);
    assert!(with - without >= WEIGHTS - SLACK, "{} MiB came back", (with - without) / MIB);
    agrees(gpu, &supervisor, before, "without them");
}

/// Where the supervisor tells its metrics; each case has the machine's loopback network in a process of its own, one at a time.
const METRICS: &str = "127.0.0.1:9489";

/// The value of a device's series, if there is one.
fn measured(series: &str) -> Option<f64> {
    let mut stream = TcpStream::connect(METRICS).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: m\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let lines = text
        .lines()
        .filter_map(|line| line.strip_prefix("pappus_device_")?.strip_prefix(series)?.split_once("} "));
    lines.map(|(_, value)| value.parse().unwrap()).next()
}

/// What NVIDIA's management library tells of a whole GPU: energy that grows, and power within what GPUs take.
pub(crate) fn what_the_gpu_measures_is_in_the_metrics(gpu: &Gpu) {
    if gpu.name().contains("MIG-") {
        return;
    }
    let supervisor = gpu.supervisor(gpu.name(), "workers=1,memory=24GiB", &["--metrics", METRICS]);
    let energy = || measured("energy_joules_total{").unwrap_or_default();
    until("energy was asked for", || energy() > 0.0);
    let (before, watts) = (energy(), measured("power_watts{").unwrap());
    let busy = measured("utilization_ratio{").unwrap();
    println!("{before} J, {watts} W, {busy} of the time");
    assert!((10.0..2000.0).contains(&watts) && (0.0..=1.0).contains(&busy), "{watts} W, {busy}");
    until("it grows", || energy() > before);
    assert!(!supervisor.log().contains("are not in the metrics"), "{}", supervisor.log());
}
