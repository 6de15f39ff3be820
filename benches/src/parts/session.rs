//! A call of a session against the same call with its state in an arena of the client's, in and out, and against a call without state;
//! on GPUs, which keep states, many sessions in turn against one.

use std::time::Instant;

use pappus_client::v1::Region;
use pappus_client::{Client, Invocation};

use super::ONE_WORKER;
use crate::Result;
use crate::harness::functions::{Form, Handed};
use crate::harness::sampling::{Samples, median};
use crate::harness::supervisor::Home;
use crate::report::{Report, Unit};

const CALLS: u32 = 500;
/// More of them take long.
const LARGE_CALLS: u32 = 20;
/// What a session may add to a call without state whose inputs are as short.
const ADDED_TARGET: f64 = 1.25;
/// What a session may take of a call that brings the state and takes it back.
const ARENA_TARGET: f64 = 1.1;
/// The same where a large state stays on the device.
const KEPT_TARGET: f64 = 0.5;
/// What a call of one of many sessions may take, in the mean, of a call of one, and of the time to bring its state if not all states
/// fit.
const MANY_TARGET: f64 = 1.2;
const SIZES: [(u64, &str); 3] = [(8, "8 B"), (64 << 10, "64 KiB"), (12 << 20, "12 MiB")];

pub(super) fn measure(rounds: u32, report: &mut Report) -> Result<()> {
    let home = Home::new()?;
    let supervisor = home.start(ONE_WORKER)?;
    compare(&mut supervisor.connect()?, Form::Wasm, rounds, report)
}

/// The same on any device, whose modules have this form.
pub(crate) fn compare(client: &mut Client, form: Form, rounds: u32, report: &mut Report) -> Result<()> {
    add(client, form, "stateless", "", "")?;
    let stateless = Invocation::new("stateless").input("x", vec![1; 8]).output("y");
    let mut floor = Samples::new()?;
    for (bytes, size) in SIZES {
        let calls = if bytes > 1 << 20 { LARGE_CALLS } else { CALLS };
        let state = format!(r#""state": {{"kv": {bytes}}},"#);
        add(client, form, &format!("kept{bytes}"), &state, "")?;
        add(client, form, &format!("carried{bytes}"), "", "kv")?;
        let session = client.open_session(&format!("kept{bytes}"))?.session;
        let kept =
            Invocation::new(&format!("kept{bytes}")).session(session).input("x", vec![1; 8]).output("y");
        let mut arena = client.open_arena(2 * bytes.next_multiple_of(4096))?;
        let halves = [arena.alloc(bytes)?, arena.alloc(bytes)?];
        let carried =
            [(halves[0], halves[1]), (halves[1], halves[0])].map(|(from, to)| carried(bytes, from, to));
        let (mut with, mut through) = (Samples::new()?, Samples::new()?);
        // Clocks rise, graphs are made.
        for _ in 0..calls {
            client.invoke(&kept)?;
            carried.iter().try_for_each(|call| client.invoke(call).map(drop))?;
        }
        for _ in 0..rounds {
            floor.round(calls, || Ok(client.invoke(&stateless).map(drop)?))?;
            with.round(calls, || Ok(client.invoke(&kept).map(drop)?))?;
            let mut nth = 0;
            through.round(calls, || {
                nth += 1;
                Ok(client.invoke(&carried[nth % 2]).map(drop)?)
            })?;
        }
        report.info(format!("call of a session, state of {size}, p50"), with.p50(), Unit::Nanoseconds);
        report.info("… with the state in the client's arena, p50", through.p50(), Unit::Nanoseconds);
        let is_kept = form != Form::Wasm && bytes > 1 << 20;
        let target = if is_kept { KEPT_TARGET } else { ARENA_TARGET };
        report.at_most(target, "… of a session, in those", with.ratio_to(&through), Unit::Ratio);
        if bytes == 8 {
            report.at_most(
                ADDED_TARGET,
                "… of a session, in calls without state",
                with.ratio_to(&floor),
                Unit::Ratio,
            );
        }
        client.close_session(session)?;
        client.close_arena(arena)?;
    }
    report.info("call without state, p50", floor.p50(), Unit::Nanoseconds);
    Ok(())
}

/// Sessions of the largest state, each of which has a call in its turn, against one of them; says how many have their state on the
/// device, which gets `pinned` bytes a second from memory of the host. [`compare`] registered the function.
pub(crate) fn many(client: &mut Client, sessions: usize, pinned: f64, report: &mut Report) -> Result<()> {
    let [.., (bytes, size)] = SIZES;
    let name = format!("kept{bytes}");
    let open = |client: &mut Client| Ok(client.open_session(&name)?.session);
    let opened = (0..sessions).map(|_| open(client)).collect::<Result<Vec<_>>>()?;
    let calls: Vec<_> = opened
        .iter()
        .map(|session| Invocation::new(&name).session(*session).input("x", vec![1; 8]).output("y"))
        .collect();
    for call in calls.iter().chain(&calls) {
        client.invoke(call)?;
    }
    let (mut one, mut all, mut means) = (Samples::new()?, Samples::new()?, Vec::new());
    for _ in 0..3 {
        one.round(LARGE_CALLS, || Ok(client.invoke(&calls[0]).map(drop)?))?;
        let (mut next, start) = (calls.iter().cycle(), Instant::now());
        all.round(sessions as u32, || {
            next.next().map_or(Ok(()), |call| Ok(client.invoke(call).map(drop)?))
        })?;
        means.push(start.elapsed().as_nanos() as f64 / sessions as f64);
    }
    let there = client.status()?.sessions.iter().filter(|session| !session.device.is_empty()).count();
    let title = format!("{sessions} sessions in turn, state of {size}");
    report.info(format!("{title}: in memory of the device"), there as f64, Unit::Count);
    report.info(format!("{title}, p50"), all.p50(), Unit::Nanoseconds);
    report.info(format!("{title}, p99"), all.p99(), Unit::Nanoseconds);
    report.info(format!("{title}, mean"), median(&means), Unit::Nanoseconds);
    let (against, may) = match there == sessions {
        true => ("one of them", one.p50()),
        false => {
            ("one of them, whose state is copied from pinned memory", one.p50() + 1e9 * bytes as f64 / pinned)
        }
    };
    report.at_most(MANY_TARGET, format!("{title}, mean / {against}"), median(&means) / may, Unit::Ratio);
    opened.into_iter().try_for_each(|session| Ok(client.close_session(session).map(drop)?))
}

/// Registers `x` → `y`, eight bytes, with what is written before its buffers, and with one input more that is an output as well.
fn add(client: &mut Client, form: Form, name: &str, state: &str, more: &str) -> Result<()> {
    let and = if more.is_empty() { String::new() } else { format!(r#", "{more}""#) };
    let config = format!(
        r#"{{"module_path": "module.wasm", "kernels": [], "blueprint": {{"inputs": ["x"{and}], {state}
            "buffers": {{"y": 8}}, "outputs": ["y"{and}], "control_flow": [{{"Copy": {{"from": "x", "to": "y"}}}}]}}}}"#
    );
    let handed = Handed::put_text(client, &config, form, "")?;
    client.add_function(handed.named(name))?;
    Ok(())
}

/// A call that brings its state and takes it back.
fn carried(bytes: u64, from: Region, to: Region) -> Invocation {
    let call = Invocation::new(&format!("carried{bytes}")).input("x", vec![1; 8]).input("kv", from);
    call.output("y").output_to("kv", to)
}
