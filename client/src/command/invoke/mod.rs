//! `pappus invoke`: calls a function with the contents of files, once or many times.

pub(super) mod data;
mod deadline;
mod latency;

use std::io::Write;

use pappus_blueprint::PRINTED;
use pappus_client::{Client, Invocation, v1};
use serde_json::{Value, json};

use crate::arguments::{Destination, InvokeArguments};
use crate::failure::{Failure, Result};
use crate::input::Input;
use crate::progress::Progress;
use crate::{json, stages, units};
use data::Data;
use latency::Latencies;

/// Calls, writes the outputs, and shows where the time went.
pub(crate) fn run(
    connect: impl FnOnce() -> Result<Client>,
    arguments: &InvokeArguments,
    out: &mut dyn Write,
) -> Result<()> {
    arguments.check().map_err(|why| Failure::Usage(why.to_string()))?;
    let client = &mut connect()?;
    let progress = Progress::spinner("preparing inputs");
    let data = Data::prepare(client, arguments)?;
    drop(progress);
    let mut call = data.invocation(&arguments.name);
    if let Some(deadline) = arguments.deadline {
        call = call.deadline(deadline);
    }
    if let Some(id) = &arguments.request_id {
        call = call.request_id(id);
    }
    if arguments.is_checked() {
        call = call.checked();
    }
    if data.has_state() {
        // All calls of the command are in one, which ends with its connection.
        call = call.session(client.open_session(&arguments.name)?.session);
    }
    let (answer, latencies) = repeat(client, &call, arguments)?;
    // A closed stderr hears nothing.
    let _ = write!(anstream::stderr(), "{}", data.printed(&answer)?);
    let is_json = arguments.json.json;
    // What goes to stdout is part of the object there.
    let apart = |output: &&data::Output| !(is_json && output.to == Some(Destination::Stdout));
    for output in data.outputs.iter().filter(apart) {
        output.save(&data.arena, &answer)?;
    }
    if is_json {
        return Ok(writeln!(out, "{}", to_json(arguments, &data, &answer, &latencies)?)?);
    }
    // Where the output is, nothing else may be.
    let mut stderr = anstream::stderr().lock();
    let to_stdout = data.outputs.iter().any(|output| output.to == Some(Destination::Stdout));
    let out: &mut dyn Write = if to_stdout { &mut stderr } else { out };
    print(arguments, &data, &answer, &latencies, out)
}

/// Calls as often as is asked for, and returns the last answer.
fn repeat(
    client: &mut Client,
    call: &Invocation,
    arguments: &InvokeArguments,
) -> Result<(v1::Invoked, Latencies)> {
    let count = arguments.repeat;
    let progress = Progress::calls(count);
    let mut latencies = Latencies::new();
    let mut last = None;
    for _ in 0..count {
        let start = std::time::Instant::now();
        let answer = client.invoke(call).map_err(|why| deadline::explain(why, arguments, start.elapsed()))?;
        latencies.record(start.elapsed(), &answer.timings.unwrap_or_default());
        progress.call_done();
        last = Some(answer);
    }
    let last = last.ok_or_else(|| Failure::Usage("--repeat must be at least 1".into()))?;
    Ok((last, latencies))
}

fn to_json(
    arguments: &InvokeArguments,
    data: &Data,
    answer: &v1::Invoked,
    latencies: &Latencies,
) -> Result<Value> {
    let outputs = data.outputs.iter().filter(|output| output.name != PRINTED);
    let outputs = outputs.map(|output| output.to_json(&data.arena, answer));
    let outputs: Vec<Value> = outputs.collect::<Result<_>>()?;
    Ok(json!({
        "function": arguments.name,
        "device": answer.device,
        "loaded": data.has_loaded(answer),
        "deadline_ns": answer.deadline_ns,
        "number": answer.number,
        "calls": arguments.repeat,
        "inputs": data.inputs.iter().map(Input::to_json).collect::<Vec<_>>(),
        "outputs": outputs,
        "timings": json::timings(&answer.timings.unwrap_or_default()),
        "latency": latencies.to_json(),
    }))
}

fn print(
    arguments: &InvokeArguments,
    data: &Data,
    answer: &v1::Invoked,
    latencies: &Latencies,
    out: &mut dyn Write,
) -> Result<()> {
    for input in &data.inputs {
        for item in &input.items {
            let array = item.array.as_ref().map_or_else(String::new, |array| format!("{array}, "));
            writeln!(out, "{} ← {}: {array}{}", input.name, item.source, units::size(item.bytes()))?;
        }
    }
    for output in &data.outputs {
        match &output.to {
            None => {}
            Some(Destination::Stdout) => {
                writeln!(out, "{} → stdout: {}", output.name, units::size(output.bytes(answer)))?;
            }
            Some(to) => writeln!(out, "{} → {to}: {}", output.name, units::size(output.bytes(answer)))?,
        }
    }
    match arguments.repeat {
        1 => {
            writeln!(out, "{} ran on {}", arguments.name, answer.device)?;
            let other = if data.has_loaded(answer) { stages::LOADING } else { stages::OTHER };
            stages::print(&answer.timings.unwrap_or_default(), other, out)?;
        }
        calls => {
            writeln!(out, "{} ran {calls} times on {}", arguments.name, answer.device)?;
            latencies.print(out)?;
        }
    }
    match deadline::shortened(arguments, answer) {
        Some(words) => Ok(writeln!(out, "{words}")?),
        None => Ok(()),
    }
}
