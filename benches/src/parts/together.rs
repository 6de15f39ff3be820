//! Functions that work together: a chain of steps that are linked into one function against separate calls, and against consecutive
//! calls of the supervisor's; calls that run side by side against calls that do not.

use std::collections::VecDeque;
use std::fmt::Write;
use std::time::Instant;

use pappus_client::{Blob, Client, Invocation, v1};
use serde_json::{Value, json};

use super::ONE_WORKER;
use crate::Result;
use crate::harness::functions::{Form, Handed};
use crate::harness::sampling::{Samples, median, nanoseconds};
use crate::harness::supervisor::Home;
use crate::report::{Report, Unit};

const CALLS: u32 = 300;
/// Steps of the chain.
const STEPS: usize = 10;
/// Floats of each array: a kernel of a few microseconds.
const FLOATS: u64 = 4096;
/// What a further step of a linked chain may take more than a further kernel of one function, in nanoseconds.
const STEP_NS: f64 = 3000.0;
/// How many times as long as the linked chain its steps take as calls of the client's.
const SEPARATE_TARGET: f64 = 5.0;
/// What consecutive calls of the supervisor's may take of calls of the client's.
const CONSECUTIVE_TARGET: f64 = 1.0;
/// Calls in flight, and how many are answered in a round.
const IN_FLIGHT: usize = 32;
const ANSWERS: usize = 3200;
/// What a call of a function that runs calls together may take of one that does not, alone.
const ALONE_TARGET: f64 = 1.02;
/// How many times as many calls it answers under load.
const BATCH_TARGET: f64 = 1.0;

pub(super) fn measure_chain(rounds: u32, report: &mut Report) -> Result<()> {
    let home = Home::new()?;
    let supervisor = home.start(ONE_WORKER)?;
    chain(&mut supervisor.connect()?, Form::Wasm, rounds, report)
}

pub(super) fn measure_batch(rounds: u32, report: &mut Report) -> Result<()> {
    let home = Home::new()?;
    let supervisor = home.start(ONE_WORKER)?;
    batch(&mut supervisor.connect()?, Form::Wasm, rounds, report)
}

/// `a` + `b` ten times, on any device whose modules have this form.
pub(crate) fn chain(client: &mut Client, form: Form, rounds: u32, report: &mut Report) -> Result<()> {
    let handed = Handed::put_as(client, "vec_add", form, "")?;
    client.add_function(handed.named("vec_add"))?;
    in_one(client, form)?;
    let own = client.quota()?.name;
    compose(client, "linked", "vec_add", STEPS)?;
    // With its owner's name, a function is called as another's would be.
    compose(client, "consecutive", &format!("{own}/vec_add"), STEPS)?;
    let bytes = 4 * FLOATS;
    let mut arena = client.open_arena(8 * bytes.next_multiple_of(4096))?;
    let [a, b, x, y] = [(); 4].map(|()| arena.alloc(bytes));
    let (a, b, x, y) = (a?, b?, x?, y?);
    let one = |from, to| {
        let call = Invocation::new("vec_add").input("A", from).input("B", b);
        call.output_to("C", to)
    };
    let separate: Vec<_> = (0..STEPS)
        .map(|step| match step {
            0 => one(a, x),
            odd if odd % 2 == 1 => one(x, y),
            _ => one(y, x),
        })
        .collect();
    let composed = |name: &str| Invocation::new(name).input("a", a).input("b", b).output_to("y", y);
    let (linked, consecutive, in_one) = (composed("linked"), composed("consecutive"), composed("in-one"));
    let (mut alone, mut chained, mut called, mut carried, mut plain) =
        (Samples::new()?, Samples::new()?, Samples::new()?, Samples::new()?, Samples::new()?);
    for _ in 0..CALLS {
        for call in [&separate[0], &linked, &consecutive, &in_one] {
            client.invoke(call)?;
        }
    }
    for _ in 0..rounds {
        alone.round(CALLS, || Ok(client.invoke(&separate[0]).map(drop)?))?;
        chained.round(CALLS, || Ok(client.invoke(&linked).map(drop)?))?;
        plain.round(CALLS, || Ok(client.invoke(&in_one).map(drop)?))?;
        called.round(CALLS, || Ok(client.invoke(&consecutive).map(drop)?))?;
        carried
            .round(CALLS / 4, || separate.iter().try_for_each(|call| Ok(client.invoke(call).map(drop)?)))?;
    }
    let further = |more: &Samples, less: &Samples| (more.p50() - less.p50()) / (STEPS - 1) as f64;
    report.info("call of one step, p50", alone.p50(), Unit::Nanoseconds);
    report.info(format!("chain of {STEPS} such steps, linked, p50"), chained.p50(), Unit::Nanoseconds);
    report.info("… a further step", further(&chained, &alone), Unit::Nanoseconds);
    report.at_most(
        STEP_NS,
        "… a further step, beside its kernel in one function",
        further(&chained, &plain),
        Unit::Nanoseconds,
    );
    report.at_least(
        SEPARATE_TARGET,
        "its steps as calls, in linked chains",
        carried.ratio_to(&chained),
        Unit::Ratio,
    );
    report.info("the chain as consecutive calls, p50", called.p50(), Unit::Nanoseconds);
    let (title, ratio) = ("… in its steps as calls of the client", called.ratio_to(&carried));
    match form {
        Form::Wasm => report.at_most(CONSECUTIVE_TARGET, title, ratio, Unit::Ratio),
        // A GPU's driver pins the data between steps anew for each call.
        Form::Ptx => report.info(title, ratio, Unit::Ratio),
    }
    Ok(client.close_arena(arena)?)
}

/// Registers the function that a linked chain should be: its kernels, written by hand.
fn in_one(client: &mut Client, form: Form) -> Result<()> {
    let mut steps = String::new();
    for step in 0..STEPS {
        let (from, to) = match step {
            0 => ("a", "x"),
            odd if odd % 2 == 1 => ("x", "y"),
            _ => ("y", "x"),
        };
        let comma = if step == 0 { "" } else { "," };
        write!(
            steps,
            r#"{comma} {{"ExecKernel": ["vec_add_f", [{{"Ptr": "{from}"}}, {{"Ptr": "b"}}, {{"Ptr": "{to}"}},
                {{"I64": {FLOATS}}}], {{"grid_dim_x": {}, "block_dim_x": 256}}]}}"#,
            FLOATS.div_ceil(256)
        )?;
    }
    let bytes = 4 * FLOATS;
    let config = format!(
        r#"{{"modules": [{{"module_name": "linalg", "path": "linalg.wasm"}}],
            "kernels": [{{"module_name": "linalg", "kernel_name": "vec_add_f"}}], "blueprint": {{
            "inputs": ["a", "b"], "buffers": {{"x": {bytes}, "y": {bytes}}}, "outputs": ["y"],
            "control_flow": [{steps}]}}}}"#
    );
    let handed = Handed::put_text(client, &config, form, "")?;
    client.add_function(handed.named("in-one"))?;
    Ok(())
}

/// Registers a composition of so many steps, each of which adds `b`.
fn compose(client: &mut Client, name: &str, function: &str, steps: usize) -> Result<()> {
    let from = |at: usize| match at {
        0 => json!("a"),
        at => json!({"step": format!("s{}", at - 1)}),
    };
    let step =
        |at| json!({"name": format!("s{at}"), "function": function, "inputs": {"A": from(at), "B": "b"}});
    let all: Vec<Value> = (0..steps).map(step).collect();
    let text = json!({"inputs": ["a", "b"], "steps": all, "outputs": {"y": from(steps)}}).to_string();
    let config_sha256 = client.put_blob(Blob::Bytes(text.as_bytes()))?.sha256;
    client.add_function(v1::AddFunction { name: name.into(), config_sha256, ..Default::default() })?;
    Ok(())
}

/// Rows that are added, one a call: many in flight, and alone, with a batch and without.
pub(crate) fn batch(client: &mut Client, form: Form, rounds: u32, report: &mut Report) -> Result<()> {
    const ROW: u64 = 1024;
    for (name, batch) in [("apart", ""), ("together", r#""batch": {"dimension": "n", "most": 32},"#)] {
        let rows = format!(r#"{{"dtype": "f32", "shape": [{{"Free": "n"}}, {ROW}]}}"#);
        let count = format!(r#"{{"Product": [{{"Free": "n"}}, {ROW}]}}"#);
        let config = format!(
            r#"{{"modules": [{{"module_name": "linalg", "path": "linalg.wasm"}}],
                "kernels": [{{"module_name": "linalg", "kernel_name": "vec_add_f"}}], "blueprint": {{
                "inputs": ["A", "B"], "buffers": {{"C": {{"Product": [4, {count}]}}}}, "outputs": ["C"], {batch}
                "types": {{"A": {rows}, "B": {rows}, "C": {rows}}}, "control_flow": [{{"ExecKernel": ["vec_add_f",
                [{{"Ptr": "A"}}, {{"Ptr": "B"}}, {{"Ptr": "C"}}, {{"I64": {count}}}],
                {{"grid_dim_x": {{"CeilDiv": [{count}, 256]}}, "block_dim_x": 256}}]}}]}}}}"#
        );
        let handed = Handed::put_text(client, &config, form, "")?;
        client.add_function(handed.named(name))?;
    }
    let mut arena = client.open_arena(1 << 20)?;
    let (a, b) = (arena.alloc(4 * ROW)?, arena.alloc(4 * ROW)?);
    let places: Vec<_> =
        (0..IN_FLIGHT).map(|_| arena.alloc(4 * ROW)).collect::<std::result::Result<_, _>>()?;
    let calls = |name: &str| -> Vec<Invocation> {
        let call = || {
            let call = Invocation::new(name).input("A", a).typed("A", "f32", &[1, ROW]);
            call.input("B", b).typed("B", "f32", &[1, ROW])
        };
        places.iter().map(|place| call().output_to("C", *place)).collect()
    };
    let (apart, together) = (calls("apart"), calls("together"));
    let (mut one, mut other) = (Samples::new()?, Samples::new()?);
    let (mut rates, mut ratios) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        one.round(CALLS, || Ok(client.invoke(&apart[0]).map(drop)?))?;
        other.round(CALLS, || Ok(client.invoke(&together[0]).map(drop)?))?;
        let (single, batched) = (rate(client, &apart)?, rate(client, &together)?);
        rates.push(batched);
        ratios.push(batched / single);
    }
    report.at_most(
        ALONE_TARGET,
        "a call alone, of a function with a batch / without",
        other.ratio_to(&one),
        Unit::Ratio,
    );
    report.info(
        format!("{IN_FLIGHT} calls in flight, side by side, a second"),
        median(&rates),
        Unit::PerSecond,
    );
    report.at_least(BATCH_TARGET, "… / one by one", median(&ratios), Unit::Ratio);
    Ok(client.close_arena(arena)?)
}

/// Answers a second, with all of these calls in flight.
fn rate(client: &mut Client, calls: &[Invocation]) -> Result<f64> {
    let mut waiting: VecDeque<(u64, usize)> = VecDeque::with_capacity(calls.len());
    let begun = Instant::now();
    for (at, call) in calls.iter().enumerate() {
        waiting.push_back((client.send_invocation(call)?, at));
    }
    for _ in 0..ANSWERS {
        let (id, at) = waiting.pop_front().ok_or("no call is in flight")?;
        client.wait_invoked(id)?;
        waiting.push_back((client.send_invocation(&calls[at])?, at));
    }
    let rate = ANSWERS as f64 / (nanoseconds(begun) as f64 * 1e-9);
    waiting.into_iter().try_for_each(|(id, _)| client.wait_invoked(id).map(drop))?;
    Ok(rate)
}
