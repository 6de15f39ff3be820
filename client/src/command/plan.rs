//! `pappus plan`: how many GPUs tenants need, and what takes their memory. Asks no supervisor.

use std::io::Write;

use serde_json::json;

use crate::arguments::PlanArguments;
use crate::capacity::{self, CONTEXT_BYTES, GPUS, Gpu, Load, Plan, Setup};
use crate::failure::{Failure, Result};
use crate::table::{Align, Table};
use crate::units::{exact_bytes, rough_bytes};

/// Computes and prints.
pub(crate) fn run(arguments: &PlanArguments, out: &mut dyn Write) -> Result<()> {
    let gpu = gpu(arguments)?;
    let plan = planned(arguments, gpu)?;
    match arguments.json.json {
        true => Ok(writeln!(out, "{}", as_json(arguments, gpu, &plan))?),
        false => print(arguments, gpu, &plan, out),
    }
}

/// The kind that is asked for; one of another size where only that is said.
fn gpu(arguments: &PlanArguments) -> Result<Gpu> {
    if let Some(memory) = arguments.gpu_memory {
        let memory_mib = memory.as_u64() >> 20;
        return Ok(Gpu { name: "GPU", backend: "cuda", memory_mib, measured: true });
    }
    let asked = arguments.gpu.as_deref().unwrap_or_default();
    Gpu::named(asked).ok_or_else(|| {
        let names: Vec<_> = GPUS.iter().map(|gpu| gpu.name).collect();
        Failure::Usage(format!(
            "{asked:?} is no GPU that is known here: {}; or give --gpu-memory SIZE",
            names.join(", ")
        ))
    })
}

fn planned(arguments: &PlanArguments, gpu: Gpu) -> Result<Plan> {
    let load = Load {
        domains: arguments.tenants,
        busy: arguments.busy.unwrap_or(arguments.tenants),
        in_flight: arguments.in_flight,
        call_bytes: arguments.call.as_u64(),
        weight_bytes: arguments.weights.as_u64(),
        shared_weight_bytes: arguments.shared_weights.as_u64(),
        stack_bytes: arguments.stack.as_u64(),
    };
    let context = arguments.context.map_or(CONTEXT_BYTES, |context| context.as_u64());
    let memory = arguments.memory.map(|memory| memory.as_u64());
    let has = gpu.memory_mib << 20;
    if let Some(memory) = memory.filter(|memory| *memory > has) {
        let (memory, has) = (rough_bytes(memory), rough_bytes(has));
        return Err(Failure::Usage(format!("--memory {memory} is more than the GPU has: {has}")));
    }
    let mut setup = Setup::of(has, memory, context);
    let most = capacity::most_workers(arguments.standbys);
    if let Some(workers) = arguments.workers.filter(|workers| *workers > most) {
        return Err(Failure::Usage(format!(
            "--workers {workers}: the driver makes the contexts of 64 processes on one GPU, so beside {} standbys and a \
             compiler there may be {most}",
            arguments.standbys,
        )));
    }
    setup.workers = arguments.workers.unwrap_or(setup.workers.min(most));
    setup.lanes = arguments.lanes;
    setup.standbys = arguments.standbys.min(setup.workers);
    setup.weights_bytes =
        arguments.weights_cache.map_or(setup.weights_bytes, |most| most.as_u64().min(setup.memory_bytes));
    Ok(match arguments.gpus {
        Some(gpus) => capacity::plan(&load, setup, gpus),
        None => capacity::fewest(&load, setup),
    })
}

/// The device as `pappus-supervisor` is told of it. Everything has a number, so that nothing depends on what happens to be free.
fn flag(gpu: Gpu, plan: &Plan) -> String {
    let Setup { workers, lanes, standbys, memory_bytes, weights_bytes, .. } = plan.setup;
    format!(
        "--device {}:all:workers={workers},lanes={lanes},standbys={standbys},memory={},weights={}",
        gpu.backend,
        exact_bytes(memory_bytes),
        exact_bytes(weights_bytes)
    )
}

fn print(arguments: &PlanArguments, gpu: Gpu, plan: &Plan, out: &mut dyn Write) -> Result<()> {
    let gpus = if plan.gpus == 1 { "GPU" } else { "GPUs" };
    let each = rough_bytes(gpu.memory_mib << 20);
    writeln!(out, "{} tenants on {} {gpus} ({}, {each} each)", arguments.tenants, plan.gpus, gpu.name)?;
    if !gpu.measured {
        writeln!(
            out,
            "{}'s memory was not measured: `pappus-supervisor --list-devices` says what there is",
            gpu.name
        )?;
    }
    if gpu.backend == "hip" {
        writeln!(
            out,
            "what a process takes for itself was measured on NVIDIA's: --context says another size"
        )?;
    }
    writeln!(out)?;
    let mut table = Table::new(&[("EACH GPU", Align::Left), ("SIZE", Align::Right), ("FOR", Align::Left)]);
    let setup = plan.setup;
    let mut row = |what: &str, bytes: u64, of: String| table.row([what.to_owned(), rough_bytes(bytes), of]);
    row("memory", setup.memory_bytes, "all that Pappus may use".to_owned());
    let context = rough_bytes(setup.context_bytes);
    row(
        "contexts",
        plan.contexts_bytes,
        format!("{} residents, {} standby, 1 compiler: {context} each", plan.residents, setup.standbys),
    );
    row("stacks", plan.stacks_bytes, format!("of {} residents", plan.residents));
    let most = rough_bytes(setup.weights_bytes);
    row(
        "weights",
        plan.weights_there_bytes,
        format!("of {}, at most {most}", rough_bytes(plan.weights_bytes)),
    );
    row("left", plan.left_bytes, format!("{} of {} calls in flight at once", plan.calls_at_once, plan.calls));
    row(
        "one call",
        plan.largest_call_bytes,
        "the most that it can have, with the device for itself".to_owned(),
    );
    table.print(out)?;
    writeln!(
        out,
        "\nhost memory for weights: {} on one machine with all GPUs",
        rough_bytes(plan.host_weights_bytes)
    )?;
    writeln!(out, "start with: {}", flag(gpu, plan))?;
    match plan.short.as_slice() {
        [] => writeln!(out, "it is enough")?,
        short => short.iter().try_for_each(|one| writeln!(out, "short: {one}"))?,
    }
    Ok(())
}

fn as_json(arguments: &PlanArguments, gpu: Gpu, plan: &Plan) -> serde_json::Value {
    let setup = plan.setup;
    json!({
        "gpu": {"name": gpu.name, "memory_bytes": gpu.memory_mib << 20, "measured": gpu.measured},
        "tenants": arguments.tenants,
        "gpus": plan.gpus,
        "settings": {
            "workers": setup.workers, "lanes": setup.lanes, "standbys": setup.standbys,
            "memory_bytes": setup.memory_bytes, "weights_bytes": setup.weights_bytes,
        },
        "each": {
            "tenants": plan.domains, "residents": plan.residents,
            "context_bytes": plan.contexts_bytes, "stack_bytes": plan.stacks_bytes,
            "weight_bytes": plan.weights_there_bytes, "weights_wanted_bytes": plan.weights_bytes,
            "left_bytes": plan.left_bytes, "calls": plan.calls, "calls_at_once": plan.calls_at_once,
            "largest_call_bytes": plan.largest_call_bytes,
        },
        "host_weight_bytes": plan.host_weights_bytes,
        "device": flag(gpu, plan),
        "enough": plan.short.is_empty(),
        "short": plan.short.iter().map(|one| json!({"what": one.name(), "why": one.to_string()})).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::arguments::{Arguments, Command};

    fn asked(line: &str) -> PlanArguments {
        match Arguments::try_parse_from(line.split(' ')).unwrap().command {
            Command::Plan(arguments) => arguments,
            other => panic!("{other:?}"),
        }
    }

    fn said(line: &str) -> String {
        let mut out = anstream::StripStream::new(Vec::new());
        run(&asked(line), &mut out).unwrap();
        String::from_utf8(out.into_inner()).unwrap()
    }

    #[test]
    fn a_plan_is_printed_with_what_to_start() {
        let text =
            said("pappus plan --gpu h200 --tenants 64 --call 256MiB --in-flight 8 --busy 16 --weights 1GiB");
        let wanted = "64 tenants on 3 GPUs (H200, 139.8 GiB each)

EACH GPU       SIZE  FOR
memory    125.0 GiB  all that Pappus may use
contexts   12.7 GiB  22 residents, 1 standby, 1 compiler: 540.0 MiB each
stacks          0 B  of 22 residents
weights    22.0 GiB  of 22.0 GiB, at most 31.2 GiB
left       90.3 GiB  48 of 48 calls in flight at once
one call  123.4 GiB  the most that it can have, with the device for itself

host memory for weights: 64.0 GiB on one machine with all GPUs
start with: --device cuda:all:workers=62,lanes=8,standbys=1,memory=125GiB,weights=32000MiB
it is enough
";
        assert_eq!(text, wanted);
    }

    #[test]
    fn what_is_short_is_said() {
        let text = said("pappus plan --gpu L4 --gpus 1 --tenants 64 --call 15GiB");
        assert!(text.contains("was not measured"), "{text}");
        assert!(text.contains("short: 64 tenants share 10 workers"), "{text}");
        assert!(text.contains("has the device for itself"), "{text}");
        let json: serde_json::Value =
            serde_json::from_str(&said("pappus plan --gpu L4 --gpus 1 --tenants 64 --json")).unwrap();
        assert_eq!(json["enough"], false);
        assert_eq!(json["short"][0]["what"], "workers");
        assert_eq!(json["settings"]["workers"], 10);
    }

    #[test]
    fn a_gpu_that_is_not_known_is_refused_with_those_that_are() {
        let refused = run(&asked("pappus plan --gpu X1 --tenants 1"), &mut Vec::new()).unwrap_err();
        assert!(refused.to_string().contains("H200, B200"), "{refused}");
        for (asked, name) in [("rtx4090", "RTX-4090"), ("NVIDIA-A100-40", "A100-40"), ("l40_s", "L40S")] {
            let text = said(&format!("pappus plan --gpu {asked} --tenants 4"));
            assert!(text.contains(&format!("({name}, ")) && text.contains("--device cuda:all:"), "{text}");
        }
        let text = said("pappus plan --gpu mi300x --tenants 4");
        assert!(text.contains("--device hip:all:") && text.contains("measured on NVIDIA's"), "{text}");
        let text = said("pappus plan --gpu-memory 24GiB --tenants 4");
        assert!(text.starts_with("4 tenants on 1 GPU (GPU, 24.0 GiB each)"), "{text}");
    }
}
