//! Weights as a cache over host memory, beside copies from pinned memory in the same run:
//!
//! - a function with 1 GiB of weights: its first call, a second worker's first call (the memory is there already), and
//!   calls that have to load it again because something else took its place;
//! - first calls of registered functions;
//! - working sets of half to four times what weights may take, of one to 32 functions that are called in turns: how
//!   long it takes against what must be computed or copied, whichever is longer (`cache` below).

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use pappus_client::source::Source;
use pappus_client::v1::response;
use pappus_client::{Blob, Client, Invocation};

use super::bed::{Bed, Running};
use super::fault;
use super::load;
use crate::Result;
use crate::harness::functions::Handed;
use crate::harness::sampling::median;
use crate::report::{Report, Unit};

const WEIGHT_BYTES: u64 = 1 << 30;
const SMALL_BYTES: u64 = 4096;
const INPUT_BYTES: u64 = 4096;
/// Each kills a worker or evicts weights.
const ROUNDS: usize = 8;
const HOT: usize = 50;
const MAPPING_NS: f64 = 500e3;
const SETTINGS: &str = "workers=1,lanes=2,standbys=1,memory=24GiB,weights=1536MiB";
/// What weights may take of the device where several functions share it; less in a rehearsal.
const CACHE_BYTES: u64 = 2 << 30;
const REHEARSED_CACHE_BYTES: u64 = 1 << 20;
/// Functions, and working sets in quarters of that.
const FUNCTIONS: [u64; 3] = [1, 8, 32];
const WORKING_SETS: [u64; 4] = [2, 4, 8, 16];
/// Calls in flight while functions share the device.
const IN_FLIGHT: usize = 8;
/// Launches of a call there, enough to compute for a while.
const LAUNCHES: u32 = 100;
/// How long each working set is measured.
const MEASURED: Duration = Duration::from_millis(1200);
/// Functions whose first calls are measured, and hot calls before each.
const FIRSTS: usize = 100;
const BEFORE_FIRST: usize = 9;
const FIRST_P50_NS: f64 = 500e3;
const FIRST_P99_NS: f64 = 1e6;

pub(super) fn measure(bed: &Bed, report: &mut Report) -> Result<()> {
    let pinned = bed.bandwidth()?;
    report.info("copies from pinned memory, 1 GiB, bare", pinned, Unit::BytesPerSecond);
    one_function(bed, report, pinned)?;
    first_calls(bed, report)?;
    cache(bed, report, pinned)
}

/// A function with 1 GiB of weights.
fn one_function(bed: &Bed, report: &mut Report, pinned: f64) -> Result<()> {
    // What is rehearsed is the order of things.
    let large = if bed.rehearses() { 2 * SMALL_BYTES } else { WEIGHT_BYTES };
    let running = bed.start(SETTINGS)?;
    let mut client = running.connect()?;
    for (name, bytes, tag) in [("first", large, 1), ("second", large, 2), ("small", SMALL_BYTES, 3)] {
        add(bed, &mut client, name, bytes, tag)?;
    }
    bed.register(&mut client, &["hello"])?;
    let mut arena = client.open_arena(64 << 10)?;
    let (input, output) = (arena.store(&[0; INPUT_BYTES as usize])?, arena.alloc(INPUT_BYTES)?);
    let call = |name: &str| Invocation::new(name).input("A", input).output_to("C", output);
    let (first, second, small) = (call("first"), call("second"), call("small"));

    load::call(&mut client, &small)?;
    let cold = load::call(&mut client, &first)? as f64;
    let hot = hot(&mut client, &first)?;
    report.info("hot call of a function with 1 GiB of weights, p50", hot, Unit::Nanoseconds);
    report.info("its first call, from a memfd to the device, added", cold - hot, Unit::Nanoseconds);

    // Every call needs the memory that the call before took.
    let mut reloads = Vec::new();
    for nth in 0..ROUNDS {
        let call = if nth % 2 == 0 { &second } else { &first };
        reloads.push((load::call(&mut client, call)? as f64 - hot).max(1.0));
    }
    let bandwidth = large as f64 / (median(&reloads) / 1e9);
    report.info("loading 1 GiB again in its place", median(&reloads), Unit::Nanoseconds);
    report.info("… that is", bandwidth, Unit::BytesPerSecond);
    report.at_least(0.9, "… / copies from pinned memory", bandwidth / pinned, Unit::Ratio);

    // A worker that has never seen the function takes the place of one that has.
    let hello = Invocation::new("hello");
    let (mut mapped, mut plain) = (Vec::new(), Vec::new());
    load::call(&mut client, &first)?;
    for _ in 0..ROUNDS {
        fault::kill_worker(&running)?;
        // Not what is measured: the end of the killed worker's context, and the making of the next standby's,
        // hold the driver's locks.
        fault::recover();
        for _ in 0..HOT {
            load::call(&mut client, &hello)?;
        }
        // The arena is pinned by the small function's call, which costs what the large one's does but its weights.
        plain.push(load::call(&mut client, &small)? as f64);
        mapped.push(load::call(&mut client, &first)? as f64 - hot);
    }
    report.info("second worker's first call of it, weights of 4 KiB", median(&plain), Unit::Nanoseconds);
    let what = "second worker's first call, weights of 1 GiB, added to a hot call";
    report.at_most(MAPPING_NS, what, median(&mapped), Unit::Nanoseconds);
    Ok(())
}

/// What functions with weights did on the device so far: bytes that were loaded, and calls that found theirs there.
fn loaded(running: &Running) -> Result<(u64, u64)> {
    let mut client = running.connect()?;
    let status = client.status()?;
    let weights = status.devices.first().and_then(|device| device.weights.as_ref());
    let weights = weights.ok_or("the status says nothing about weights")?;
    Ok((weights.loaded_bytes, weights.hits))
}

/// Calls functions in turns for a while, several at a time: how many calls, and how long they took.
fn in_turns(client: &mut Client, calls: &[Invocation], measured: Duration) -> Result<(u64, Duration)> {
    let start = Instant::now();
    let mut next = calls.iter().cycle();
    let mut sent = 0u64;
    let mut done = 0u64;
    loop {
        while client.in_flight() < IN_FLIGHT && start.elapsed() < measured {
            client.send_invocation(next.next().ok_or("no calls")?)?;
            sent += 1;
        }
        if done == sent {
            return Ok((done, start.elapsed()));
        }
        let answer =
            client.recv_within(Duration::from_secs(30))?.ok_or("a call was not answered for 30 s")?;
        match answer.body {
            Some(response::Body::Invoked(_)) => done += 1,
            other => return Err(format!("a call ended with {other:?}").into()),
        }
    }
}

/// Working sets around what weights may take.
fn cache(bed: &Bed, report: &mut Report, pinned: f64) -> Result<()> {
    let cache = if bed.rehearses() { REHEARSED_CACHE_BYTES } else { CACHE_BYTES };
    let measured = if bed.rehearses() { Duration::from_millis(20) } else { MEASURED };
    let running =
        bed.start(&format!("workers=1,lanes=8,standbys=0,memory=24GiB,weights={}KiB", cache >> 10))?;
    let mut client = running.connect()?;
    let text = repeated(if bed.rehearses() { 1 } else { LAUNCHES })?;
    let mut arena = client.open_arena((IN_FLIGHT as u64 * 16) << 10)?;
    let input = arena.store(&[0; INPUT_BYTES as usize])?;
    let output = arena.alloc(INPUT_BYTES)?;
    let call = |name: &str| Invocation::new(name).input("A", input).output_to("C", output);
    // What calls compute, without any weights to speak of.
    add_as(bed, &mut client, "light", &text, SMALL_BYTES, 4)?;
    let light = [call("light")];
    in_turns(&mut client, &light, measured)?;
    let (calls, took) = in_turns(&mut client, &light, measured)?;
    let computes = took.as_secs_f64() / calls as f64;
    report.info("a call of the working sets, computed only", computes * 1e9, Unit::Nanoseconds);
    for functions in FUNCTIONS {
        for quarters in WORKING_SETS {
            let bytes = cache * quarters / 4 / functions;
            if bytes > cache {
                // One function that weights have no room for is refused.
                continue;
            }
            let names: Vec<String> =
                (0..functions).map(|nth| format!("w{functions}-{quarters}-{nth}")).collect();
            for name in &names {
                add_as(bed, &mut client, name, &text, bytes, 5)?;
            }
            let calls: Vec<Invocation> = names.iter().map(|name| call(name)).collect();
            // Code, graphs, pinned host copies.
            for call in calls.iter().chain(&calls) {
                load::call(&mut client, call)?;
            }
            in_turns(&mut client, &calls, measured / 4)?;
            let (before, hits_before) = loaded(&running)?;
            let (done, took) = in_turns(&mut client, &calls, measured)?;
            let (after, hits) = loaded(&running)?;
            let took = took.as_secs_f64();
            let (compute, copy) = (done as f64 * computes, (after - before) as f64 / pinned);
            let what = format!("working set {}× of {functions} functions", quarters as f64 / 4.0);
            let found = (hits - hits_before) as f64 / done as f64;
            report.info(format!("{what}: calls a second"), done as f64 / took, Unit::PerSecond);
            report.info(format!("{what}: loaded"), (after - before) as f64 / took, Unit::BytesPerSecond);
            report.info(format!("{what}: calls that found theirs there"), found, Unit::Ratio);
            let ratio = compute.max(if copy.is_nan() { 0.0 } else { copy }) / took;
            let what = format!("{what}: the longer of computing and copying / measured");
            report.at_least(0.9, what, ratio, Unit::Ratio);
            for name in &names {
                client.remove_function(name)?;
            }
        }
    }
    Ok(())
}

/// First calls of registered functions, each with weights and an instance of the module of its own, beside hot calls. Once
/// they were just registered, and once behind a restart of the supervisor, so that it has to read and plan them, too.
fn first_calls(bed: &Bed, report: &mut Report) -> Result<()> {
    let running = bed.start("workers=1,lanes=8,memory=24GiB")?;
    let mut client = running.connect()?;
    let count = if bed.rehearses() { 3 } else { FIRSTS };
    let names: Vec<String> = (0..count).map(|nth| format!("first-{nth}")).collect();
    for name in ["hot"].into_iter().chain(names.iter().map(String::as_str)) {
        add(bed, &mut client, name, SMALL_BYTES, 6)?;
    }
    added_by_first_calls(client, &names, "just registered", report)?;
    let running = bed.restart(running)?;
    added_by_first_calls(running.connect()?, &names, "behind a restart", report)
}

/// What the first call of each of these functions takes over hot calls of another.
fn added_by_first_calls(mut client: Client, names: &[String], when: &str, report: &mut Report) -> Result<()> {
    let mut arena = client.open_arena(64 << 10)?;
    let (input, output) = (arena.store(&[0; INPUT_BYTES as usize])?, arena.alloc(INPUT_BYTES)?);
    let call = |name: &str| Invocation::new(name).input("A", input).output_to("C", output);
    let hot = call("hot");
    for _ in 0..100 {
        load::call(&mut client, &hot)?;
    }
    // Contexts of compilations, or of the supervisor before, end.
    fault::recover();
    let mut added = Histogram::<u64>::new(3)?;
    for name in names {
        let mut around = [0; BEFORE_FIRST];
        for taken in &mut around {
            *taken = load::call(&mut client, &hot)?;
        }
        around.sort_unstable();
        let first = load::call(&mut client, &call(name))?;
        added.record(first.saturating_sub(around[BEFORE_FIRST / 2]))?;
    }
    let at = |quantile| added.value_at_quantile(quantile) as f64;
    let title = format!("first call of a registered function, {when}: added");
    report.at_most(FIRST_P50_NS, format!("{title}, p50"), at(0.5), Unit::Nanoseconds);
    report.at_most(FIRST_P99_NS, format!("{title}, p99"), at(0.99), Unit::Nanoseconds);
    Ok(())
}

fn hot(client: &mut Client, call: &Invocation) -> Result<f64> {
    let mut latencies = Histogram::<u64>::new(3)?;
    for _ in 0..HOT {
        latencies.record(load::call(client, call)?)?;
    }
    Ok(latencies.value_at_quantile(0.5) as f64)
}

/// `vec_add_constant` without the types of its buffers, which tie the weights' size to the input's.
fn untyped() -> Result<String> {
    let text = pappus_kernels::config("vec_add_constant").ok_or("the library has no vec_add_constant")?;
    let mut config: serde_json::Value = serde_json::from_str(text)?;
    if let Some(blueprint) = config["blueprint"].as_object_mut() {
        blueprint.remove("types");
    }
    Ok(config.to_string())
}

/// The same, with so many launches in place of one.
fn repeated(launches: u32) -> Result<String> {
    let mut config: serde_json::Value = serde_json::from_str(&untyped()?)?;
    let flow = &mut config["blueprint"]["control_flow"];
    *flow = serde_json::json!([{"Repeat": [{"Absolute": launches}, flow.take()]}]);
    Ok(config.to_string())
}

/// Registers `vec_add_constant` with weights that are mostly zeros; `tag` makes them different ones.
fn add(bed: &Bed, client: &mut Client, name: &str, bytes: u64, tag: u8) -> Result<()> {
    add_as(bed, client, name, &untyped()?, bytes, tag)
}

/// The same, of another configuration.
fn add_as(bed: &Bed, client: &mut Client, name: &str, text: &str, bytes: u64, tag: u8) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("weights");
    let mut file = File::create(&path)?;
    file.set_len(bytes)?;
    file.seek(SeekFrom::Start(bytes - 1))?;
    file.write_all(&[tag])?;
    drop(file);
    let blob = client.put_blob(Blob::File(&Source::file(&path)))?;
    let handed = Handed::put_text(client, text, bed.form(), "")?.weight("B", &blob);
    client.add_function(handed.named(name))?;
    Ok(())
}
