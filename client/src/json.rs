//! The protocol's messages as JSON, for `--json`. Keys are the protocol's own field names.

use pappus_client::v1;
use serde_json::{Value, json};

use crate::stages;
use crate::units::hex;

/// A module.
pub(crate) fn module(module: &v1::ModuleInfo) -> Value {
    let variants = module.variants.iter().map(|info| {
        let mut value = info.variant.as_ref().map_or_else(|| json!({}), variant);
        value["bytes"] = info.bytes.into();
        value["kernels"] = info.kernels.clone().into();
        value["details"] = info.details.iter().map(kernel).collect();
        value
    });
    let mut value = json!({"name": module.name, "variants": variants.collect::<Vec<_>>()});
    if let Some(done) = registration(module.registration()) {
        value["registration"] = done.into();
    }
    value
}

/// What a registration did: `added`, `replaced` or `unchanged`; nothing in other answers.
pub(crate) fn registration(done: v1::Registration) -> Option<&'static str> {
    match done {
        v1::Registration::Unspecified => None,
        v1::Registration::Added => Some("added"),
        v1::Registration::Replaced => Some("replaced"),
        v1::Registration::Unchanged => Some("unchanged"),
    }
}

/// A kernel; its parameters are null where its machine code does not tell them.
fn kernel(kernel: &v1::Kernel) -> Value {
    let params = kernel
        .params
        .iter()
        .map(|param| json!({"name": param.name, "offset": param.offset, "bytes": param.bytes, "type": param.r#type}));
    json!({
        "name": kernel.name,
        "params": kernel.has_params.then(|| params.collect::<Vec<_>>()),
        "local_bytes": kernel.local_bytes,
        "stack_bytes": kernel.stack_bytes,
        "shared_bytes": kernel.shared_bytes,
        "max_threads": kernel.max_threads,
    })
}

/// A function; its configuration only where the answer holds it.
pub(crate) fn function(function: &v1::FunctionInfo) -> Value {
    let modules = function.modules.iter().map(|module| {
        let variants: Vec<_> = module.variants.iter().map(variant).collect();
        json!({"name": module.name, "registered": module.registered, "variants": variants})
    });
    let weights = function
        .weights
        .iter()
        .map(|weight| json!({"name": weight.name, "bytes": weight.bytes, "sha256": hex(&weight.sha256)}));
    let outputs = function
        .outputs
        .iter()
        .map(|output| json!({"name": output.name, "dtype": output.dtype, "shape": shape(&output.shape)}));
    let outputs: Vec<Value> = outputs.collect();
    let types = function
        .input_types
        .iter()
        .map(|declared| json!({"dtype": declared.dtype, "shape": shape(&declared.shape)}));
    let types: Vec<Value> = types.collect();
    let mut value = json!({
        "name": function.name,
        "config_sha256": hex(&function.config_sha256),
        "modules": modules.collect::<Vec<_>>(),
        "weights": weights.collect::<Vec<_>>(),
        "inputs": function.inputs,
        "input_types": types,
        "outputs": outputs,
    });
    // Of another tenant's, nothing else is known.
    if function.granted {
        value = json!({
            "name": function.name,
            "granted": true,
            "inputs": function.inputs,
            "input_types": types,
            "outputs": outputs,
        });
    }
    // An older supervisor knows no versions.
    if function.number > 0 {
        let aliases = function.aliases.iter().map(|alias| (alias.name.clone(), alias.number.into()));
        value["number"] = function.number.into();
        value["current"] = function.current.into();
        value["kept"] = function.kept.clone().into();
        value["aliases"] = Value::Object(aliases.collect());
    }
    if let Some(done) = registration(function.registration()) {
        value["registration"] = done.into();
    }
    if !function.composition_sha256.is_empty() {
        value["composition_sha256"] = hex(&function.composition_sha256).into();
    }
    if !function.quarantine.is_empty() {
        value["quarantine"] = function.quarantine.iter().map(refusal).collect();
    }
    if !function.warm_on.is_empty() {
        value["warm_on"] = function.warm_on.clone().into();
    }
    // It was registered as JSON; were it not, its text would still be worth showing.
    if !function.config.is_empty() {
        value["config"] =
            serde_json::from_str(&function.config).unwrap_or_else(|_| function.config.clone().into());
    }
    if !function.found.is_empty() {
        value["found"] = function.found.iter().map(module).collect();
    }
    value
}

/// A declared shape: a number for a fixed dimension, a name for a free one, and how another is computed; null where none is
/// declared.
fn shape(declared: &Option<v1::DeclaredShape>) -> Value {
    use v1::dimension::Elements;
    let Some(shape) = declared else { return Value::Null };
    let dimensions = shape.dimensions.iter().map(|dimension| match &dimension.elements {
        Some(Elements::Fixed(value)) => json!(value),
        Some(Elements::Free(name)) => json!(name),
        Some(Elements::Computed(formula)) => json!({"computed": formula}),
        None => Value::Null,
    });
    dimensions.collect()
}

/// A tenant; limits that there are not are null.
pub(crate) fn tenant(tenant: &v1::TenantInfo) -> Value {
    let quotas = tenant.quotas.iter().map(|quota| {
        let value = json!({"used": quota.used, "limit": quota.limit});
        (quota.name.clone(), value)
    });
    let peers =
        tenant.peers.iter().map(|peer| json!({"uid": peer.uid, "pid": peer.pid, "process": peer.process}));
    json!({
        "name": tenant.name,
        "uids": tenant.uids,
        "configured": tenant.configured,
        "quotas": quotas.collect::<serde_json::Map<_, _>>(),
        "connections": tenant.connections,
        "peers": peers.collect::<Vec<_>>(),
        "device_ns": tenant.device_ns,
        "weight": tenant.weight,
        "class": tenant.class,
        "declined": tenant.declined,
    })
}

/// The supervisor's status.
pub(crate) fn status(status: &v1::Status) -> Value {
    let devices: Vec<Value> = status.devices.iter().map(device).collect();
    json!({
        "version": status.version,
        "uptime_ms": status.uptime_ms,
        "draining": status.draining,
        "ready": status.ready,
        "functions": status.functions,
        "modules": status.modules,
        "connections": status.connections,
        "devices": devices,
        "uses": status.uses.iter().map(function_use).collect::<Vec<_>>(),
        "sessions": status.sessions.iter().map(session).collect::<Vec<_>>(),
    })
}

/// An open session.
fn session(one: &v1::SessionStatus) -> Value {
    json!({
        "session": one.session,
        "tenant": one.tenant,
        "function": one.function,
        "bytes": one.bytes,
        "calls": one.calls,
        "open_calls": one.open_calls,
        "age_ms": one.age_ms,
        "idle_ms": one.idle_ms,
        "device": one.device,
    })
}

/// How a function was used.
fn function_use(one: &v1::FunctionUse) -> Value {
    json!({
        "owner": one.owner,
        "function": one.function,
        "completed": one.completed,
        "failed": one.failed,
        "device_ns": one.device_ns,
    })
}

/// A call's timings, each in nanoseconds.
pub(crate) fn timings(timings: &v1::Timings) -> Value {
    let stages = stages::all(timings);
    stages.into_iter().map(|(name, ns)| (stage_key(name), Value::from(ns))).collect()
}

/// A stage's key: `copy in` → `copy_in_ns`.
pub(crate) fn stage_key(name: &str) -> String {
    format!("{}_ns", name.replace(' ', "_"))
}

fn variant(variant: &v1::Variant) -> Value {
    json!({"format": variant.format, "arch": variant.arch, "sha256": hex(&variant.sha256)})
}

pub(crate) fn device(device: &v1::DeviceStatus) -> Value {
    let workers = device.workers.iter().map(|worker| {
        json!({
            "pid": worker.pid,
            "state": worker.state,
            "completed": worker.completed,
            "restarts": worker.restarts,
            "scrubs": worker.scrubs,
            "busy_lanes": worker.busy_lanes,
            "device_ns": worker.device_ns,
            "sandbox": worker.sandbox,
            "owner": worker.owner,
            "caller": worker.caller,
            "lent_bytes": worker.lent_bytes,
            "weight_bytes": worker.weight_bytes,
            "context_bytes": worker.context_bytes,
            "functions": worker.functions,
            "last_gone": worker.last_gone,
        })
    });
    let memory = device.memory.as_ref().map(|memory| {
        json!({
            "total_bytes": memory.total_bytes,
            "context_bytes": memory.context_bytes,
            "stack_bytes": memory.stack_bytes,
            "lease_bytes": memory.lease_bytes,
            "weight_bytes": memory.weight_bytes,
            "free_bytes": memory.free_bytes,
        })
    });
    let weights = device.weights.as_ref().map(|weights| {
        json!({
            "most_bytes": weights.most_bytes,
            "bytes": weights.bytes,
            "calls": weights.calls,
            "hits": weights.hits,
            "loads": weights.loads,
            "loaded_bytes": weights.loaded_bytes,
            "loads_ahead": weights.loads_ahead,
            "loads_in_place": weights.loads_in_place,
            "evictions": weights.evictions,
        })
    });
    json!({
        "name": device.name,
        "kind": device.kind,
        "description": device.description,
        "arch": device.arch,
        "driver": device.driver,
        "lanes": device.lanes,
        "standbys": device.standbys,
        "standbys_ready": device.standbys_ready,
        "turns": device.turns,
        "quantum_us": device.quantum_us,
        "min_residency_us": device.min_residency_us,
        "lost": device.lost,
        "scrub_calls": device.scrub_calls,
        "memory": memory,
        "weights": weights,
        "memory_bytes": device.memory_bytes,
        "largest_call_bytes": device.largest_call_bytes,
        "workers_at_most": device.workers_at_most,
        "queued": device.queued,
        "queued_bytes": device.queued_bytes,
        "queue_calls_at_most": device.queue_calls_at_most,
        "queue_bytes_at_most": device.queue_bytes_at_most,
        "running": device.running,
        "completed": device.completed,
        "failed": device.failed,
        "workers": workers.collect::<Vec<_>>(),
        "quarantined": device.quarantined.iter().map(quarantined).collect::<Vec<_>>(),
        "kept_apart": device.kept_apart.iter().map(kept_apart).collect::<Vec<_>>(),
        "budgets": device.budgets.iter().map(budget).collect::<Vec<_>>(),
        "tenants": device.tenants.iter().map(tenant_time).collect::<Vec<_>>(),
    })
}

/// Where a function is refused to the caller.
fn refusal(one: &v1::Quarantine) -> Value {
    json!({"device": one.device, "failures": one.failures, "retry_after_ms": one.retry_after_ms})
}

/// A function that is refused to a caller.
fn quarantined(one: &v1::Quarantine) -> Value {
    json!({
        "function": one.function,
        "owner": one.owner,
        "caller": one.caller,
        "failures": one.failures,
        "retry_after_ms": one.retry_after_ms,
    })
}

/// Calls that are not in workers that tenants share; `for_ms` is null until the function is replaced.
fn kept_apart(one: &v1::KeptApart) -> Value {
    json!({
        "function": one.function,
        "owner": one.owner,
        "caller": one.caller,
        "why": one.why,
        "for_ms": (one.for_ms > 0).then_some(one.for_ms),
    })
}

/// What a tenant used of a device, and what it is given of it.
fn tenant_time(one: &v1::TenantDeviceTime) -> Value {
    json!({"tenant": one.tenant, "device_ns": one.device_ns, "weight": one.weight, "class": one.class})
}

fn budget(budget: &v1::FaultBudget) -> Value {
    json!({
        "caller": budget.caller,
        "left": budget.left,
        "per_minute": budget.per_minute,
        "waits_ms": budget.waits_ms,
    })
}
