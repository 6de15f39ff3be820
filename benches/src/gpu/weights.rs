//! A function with 1 GiB of weights: its first call, a second worker's first call (the memory is there
//! already), and calls that have to load it again because something else took its place.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};

use hdrhistogram::Histogram;
use pappus_client::{Blob, Client, Invocation};

use super::bed::Bed;
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

pub(super) fn measure(bed: &Bed, report: &mut Report) -> Result<()> {
    // What is rehearsed is the order of things.
    let large = if bed.rehearses() { 2 * SMALL_BYTES } else { WEIGHT_BYTES };
    let pinned = bed.bandwidth()?;
    report.info("copies from pinned memory, 1 GiB, bare", pinned, Unit::BytesPerSecond);
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

    // Each call needs what the one before it took.
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

/// Registers `vec_add_constant` with weights that are mostly zeros; `tag` makes them different ones.
fn add(bed: &Bed, client: &mut Client, name: &str, bytes: u64, tag: u8) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("weights");
    let mut file = File::create(&path)?;
    file.set_len(bytes)?;
    file.seek(SeekFrom::Start(bytes - 1))?;
    file.write_all(&[tag])?;
    drop(file);
    let blob = client.put_blob(Blob::File(&path))?;
    let handed = Handed::put_text(client, &untyped()?, &bed.form(), "")?.weight("B", &blob);
    client.add_function(handed.named(name))?;
    Ok(())
}
