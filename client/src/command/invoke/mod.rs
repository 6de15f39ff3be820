//! `pappus invoke`: calls a function with the contents of files, once or many times.

mod data;
mod latency;

use std::io::Write;

use pappus_client::{Client, Invocation, v1};
use serde_json::{Value, json};

use crate::arguments::InvokeArguments;
use crate::failure::{Failure, Result};
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
    arguments.check().map_err(Failure::Usage)?;
    let client = &mut connect()?;
    let progress = Progress::spinner("preparing inputs");
    let data = Data::prepare(client, arguments)?;
    drop(progress);
    let mut call = data.invocation(&arguments.name);
    if let Some(deadline) = arguments.deadline {
        call = call.deadline(deadline);
    }
    let (answer, latencies) = repeat(client, &call, arguments.repeat)?;
    for output in &data.outputs {
        output.save(&data.arena, &answer)?;
    }
    match arguments.json.json {
        true => Ok(writeln!(out, "{}", to_json(arguments, &data, &answer, &latencies))?),
        false => print(arguments, &data, &answer, &latencies, out),
    }
}

/// Calls `count` times and returns the last answer.
fn repeat(client: &mut Client, call: &Invocation, count: u64) -> Result<(v1::Invoked, Latencies)> {
    let progress = Progress::calls(count);
    let mut latencies = Latencies::new();
    let mut last = None;
    for _ in 0..count {
        let start = std::time::Instant::now();
        let answer = client.invoke(call)?;
        latencies.record(start.elapsed(), &answer.timings.unwrap_or_default());
        progress.call_done();
        last = Some(answer);
    }
    let last = last.ok_or_else(|| Failure::Usage("--repeat must be at least 1".into()))?;
    Ok((last, latencies))
}

fn to_json(arguments: &InvokeArguments, data: &Data, answer: &v1::Invoked, latencies: &Latencies) -> Value {
    let outputs: Vec<Value> = data.outputs.iter().map(|output| output.to_json(answer)).collect();
    json!({
        "function": arguments.name,
        "device": answer.device,
        "calls": arguments.repeat,
        "outputs": outputs,
        "timings": json::timings(&answer.timings.unwrap_or_default()),
        "latency": latencies.to_json(),
    })
}

fn print(
    arguments: &InvokeArguments,
    data: &Data,
    answer: &v1::Invoked,
    latencies: &Latencies,
    out: &mut dyn Write,
) -> Result<()> {
    for output in &data.outputs {
        if let Some(path) = &output.path {
            writeln!(out, "{} → {}: {}", output.name, path.display(), units::size(output.bytes(answer)))?;
        }
    }
    match arguments.repeat {
        1 => {
            writeln!(out, "{} ran on {}", arguments.name, answer.device)?;
            Ok(stages::print(&answer.timings.unwrap_or_default(), out)?)
        }
        calls => {
            writeln!(out, "{} ran {calls} times on {}", arguments.name, answer.device)?;
            Ok(latencies.print(out)?)
        }
    }
}
