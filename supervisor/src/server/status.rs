//! What `status` answers.

use std::cmp::Reverse;

use pappus_proto::v1;

use super::responses::milliseconds;
use super::state::RequestCtx;
use crate::device::Device;
use crate::device::status::{WorkerState, WorkerStatus};
use crate::ids::TenantId;
use crate::limits::MAX_USES_SHOWN;
use crate::routing::Destination;
use crate::schedule::quarantine::{Quarantined, Use};
use crate::schedule::{Compartment, WhyGone};

/// How a worker without a process is shown.
const STARTING: &str = "starting";
/// How a slot is shown in which no process is wanted.
const UNUSED: &str = "unused";

/// The supervisor, as far as it is this client's business.
pub fn status(ctx: &RequestCtx) -> v1::Status {
    let server = &ctx.server;
    let (functions, modules) = server.registry.counts();
    let mut devices: Vec<_> = server.devices.iter().map(|device| of_device(ctx, device)).collect();
    // Who else runs what, and since when, is for the operator.
    let operator = ctx.operator;
    if !operator {
        devices.iter_mut().for_each(|device| hide(device, &ctx.account.name));
    }
    let own = server.registry.counts_of(ctx.account.tenant);
    v1::Status {
        version: pappus_version::VERSION.to_owned(),
        uptime_ms: if operator { server.started.elapsed().as_millis() as u64 } else { 0 },
        draining: server.is_draining(),
        ready: server.is_ready(),
        devices,
        functions: if operator { functions } else { own.0 },
        modules: if operator { modules } else { own.1 },
        connections: if operator { server.connections() as u64 } else { 0 },
        uses: uses(ctx),
        sessions: server.sessions.status((!operator).then_some(ctx.account.tenant)),
    }
}

/// Functions in memory that were called, the ones with most device time first.
fn uses(ctx: &RequestCtx) -> Vec<v1::FunctionUse> {
    let registry = &ctx.server.registry;
    let whose = (!ctx.operator).then_some(ctx.account.tenant);
    let all = registry.loaded.all(whose).into_iter();
    let mut used: Vec<_> = all.filter_map(|function| Some((function.uses.now()?, function))).collect();
    used.sort_by_key(|(used, function)| {
        (Reverse((used.device_ns, used.completed, used.failed)), function.id)
    });
    used.truncate(MAX_USES_SHOWN);
    let shown = used.into_iter().map(|(used, function)| v1::FunctionUse {
        owner: function.account.name.to_string(),
        function: function.record.name.clone(),
        completed: used.completed,
        failed: used.failed,
        device_ns: used.device_ns,
    });
    shown.collect()
}

/// What others do with a device.
fn hide(device: &mut v1::DeviceStatus, tenant: &str) {
    device.budgets.retain(|budget| budget.caller == tenant);
    device.workers.clear();
    device.memory = None;
    (device.queued, device.running, device.completed, device.failed) = (0, 0, 0, 0);
    (device.queued_bytes, device.standbys_ready) = (0, 0);
}

/// What the device does, and how it was set up.
fn of_device(ctx: &RequestCtx, device: &Device) -> v1::DeviceStatus {
    let (config, settings) = (&device.config, device.settings());
    let queue = ctx.server.settings();
    let (quarantined, budgets) = device.refusals();
    let kept_apart = device.kept_apart();
    let uses = quarantined.iter().map(|one| one.used).chain(kept_apart.iter().map(|(used, _)| *used));
    let functions = ctx.server.registry.loaded.by_id(uses.map(|used| used.function));
    let name_of = |tenant| ctx.server.registry.tenants.names().name(tenant).to_string();
    // The operator sees all, others their own functions and those that they called and may call: steps of others' compositions are none.
    let shown = |used: Use| {
        let function = functions.get(&used.function)?;
        let tenant = ctx.account.tenant;
        let calls = || used.caller == tenant && function.may_call(&ctx.account);
        let is_theirs = ctx.operator || function.owner == tenant || calls();
        is_theirs.then(|| (function.record.name.clone(), name_of(function.owner)))
    };
    let quarantined = quarantined.into_iter().filter_map(|one| {
        let (function, owner) = shown(one.used)?;
        Some(v1::Quarantine { function, owner, ..quarantine(ctx, device, &one) })
    });
    let kept_apart = kept_apart.into_iter().filter_map(|(used, for_ns)| {
        let (function, owner) = shown(used)?;
        let (why, for_ms) = match for_ns {
            Some(ns) => ("it took longer than shared-limit there", milliseconds(ns)),
            None => ("a process ended under it there", 0),
        };
        let caller = name_of(used.caller);
        Some(v1::KeptApart { function, owner, caller, why: why.to_owned(), for_ms })
    });
    let budgets = budgets.into_iter().map(|budget| v1::FaultBudget {
        caller: name_of(budget.caller),
        left: budget.left,
        per_minute: budget.per_minute,
        waits_ms: milliseconds(budget.waits_ns),
    });
    let times = match ctx.operator {
        true => device.device_times(),
        false => {
            let (tenant, share) = (ctx.account.tenant, ctx.account.share());
            vec![(tenant, device.device_time_of(tenant), share)]
        }
    };
    let tenants = times.into_iter().map(|(tenant, device_ns, share)| v1::TenantDeviceTime {
        tenant: name_of(tenant),
        device_ns,
        weight: share.weight,
        class: share.class.name().to_owned(),
    });
    let memory = device.memory();
    let memory = v1::DeviceMemory {
        total_bytes: memory.total_bytes,
        context_bytes: memory.context_bytes,
        stack_bytes: memory.stack_bytes,
        lease_bytes: memory.lease_bytes,
        weight_bytes: memory.weight_bytes,
        free_bytes: memory.free_bytes,
    };
    let now = device.status();
    let counts = now.weights;
    let weights = v1::DeviceWeights {
        most_bytes: Some(config.weights_bytes).filter(|most| *most != u64::MAX),
        bytes: now.weights_bytes,
        calls: counts.calls,
        hits: counts.hits,
        loads: counts.loads,
        loaded_bytes: counts.loaded_bytes,
        loads_ahead: counts.ahead,
        loads_in_place: counts.reused,
        evictions: counts.evictions,
    };
    v1::DeviceStatus {
        name: config.name.clone(),
        kind: config.kind.name().to_owned(),
        memory_bytes: settings.memory_bytes,
        largest_call_bytes: now.largest_call_bytes,
        queued: now.queued,
        running: now.running,
        completed: now.completed,
        failed: now.failed,
        workers: now.workers.into_iter().map(|one| worker(one, name_of)).collect(),
        workers_at_most: settings.workers as u32,
        description: config.description.clone(),
        arch: config.arch.clone(),
        driver: config.driver.clone(),
        lanes: settings.lanes,
        standbys: settings.standbys as u32,
        turns: config.turns,
        quantum_us: settings.quantum.as_micros() as u64,
        min_residency_us: settings.min_residency.as_micros() as u64,
        queued_bytes: now.queued_bytes,
        queue_calls_at_most: queue.queue_calls,
        queue_bytes_at_most: queue.queue_bytes,
        lost: device.is_lost(),
        scrub_calls: config.scrub_calls,
        standbys_ready: device.standbys_ready() as u32,
        memory: Some(memory),
        quarantined: quarantined.collect(),
        kept_apart: kept_apart.collect(),
        budgets: budgets.collect(),
        tenants: tenants.collect(),
        weights: ctx.operator.then_some(weights),
    }
}

fn worker(worker: WorkerStatus, name_of: impl Fn(TenantId) -> String) -> v1::WorkerStatus {
    let (state, busy_lanes) = match worker.state {
        WorkerState::Unused => (UNUSED, 0),
        WorkerState::Starting => (STARTING, 0),
        WorkerState::Idle => ("idle", 0),
        WorkerState::Busy(lanes) => ("busy", lanes),
    };
    let resident = worker.resident;
    let domain = match resident.serves {
        Some(Compartment::Of(domain)) => Some(domain),
        Some(Compartment::Shared) | None => None,
    };
    v1::WorkerStatus {
        pid: worker.pid,
        state: state.to_owned(),
        completed: worker.completed,
        restarts: worker.restarts,
        scrubs: worker.scrubs,
        busy_lanes,
        device_ns: worker.device_ns,
        sandbox: worker.sandbox.into_iter().map(str::to_owned).collect(),
        owner: domain.map(|domain| name_of(domain.owner)).unwrap_or_default(),
        caller: domain.map(|domain| name_of(domain.caller)).unwrap_or_default(),
        shared: resident.serves == Some(Compartment::Shared),
        lent_bytes: resident.lent_bytes,
        weight_bytes: worker.weight_bytes,
        context_bytes: worker.context_bytes,
        functions: resident.functions as u32,
        last_gone: resident.last_gone.map_or("", last_gone).to_owned(),
    }
}

/// Why a domain lost its process, in words that stay.
fn last_gone(why: WhyGone) -> &'static str {
    match why {
        WhyGone::SlotWanted => "slot wanted",
        WhyGone::MemoryWanted => "memory wanted",
        WhyGone::SettingsChanged => "settings changed",
        WhyGone::Killed => "killed",
        WhyGone::Ended => "ended",
    }
}

/// Adds the devices that refuse a function to the tenant that asks.
pub fn add_quarantine(ctx: &RequestCtx, functions: &mut [v1::FunctionInfo]) {
    for device in &ctx.server.devices {
        let (quarantined, _) = device.refusals();
        let caller = ctx.account.tenant;
        let mine: Vec<_> = quarantined.into_iter().filter(|one| one.used.caller == caller).collect();
        if mine.is_empty() {
            continue;
        }
        for function in functions.iter_mut() {
            let loaded = ctx.server.registry.find(&ctx.account, &function.name);
            let found = mine.iter().find(|one| loaded.as_ref().is_some_and(|f| f.id == one.used.function));
            function.quarantine.extend(found.map(|one| quarantine(ctx, device, one)));
        }
    }
}

/// Adds the devices where calls of the tenant that asks find a function ready.
pub fn add_warmth(ctx: &RequestCtx, functions: &mut [v1::FunctionInfo]) {
    let devices = ctx.server.devices.iter().map(|device| (device, device.warm_for(ctx.account.tenant)));
    let warm: Vec<_> = devices.filter(|(_, warm)| !warm.is_empty()).collect();
    if warm.is_empty() {
        return;
    }
    for function in functions {
        let Some(loaded) = ctx.server.registry.peek(&ctx.account, &function.name) else { continue };
        let needs_weights = loaded.packed_weight_bytes() > 0;
        for (device, warm) in &warm {
            if warm.get(&loaded.id).is_some_and(|has_weights| *has_weights || !needs_weights) {
                function.warm_on.push(device.config.name.clone());
            }
        }
    }
}

fn quarantine(ctx: &RequestCtx, device: &Device, one: &Quarantined) -> v1::Quarantine {
    v1::Quarantine {
        device: device.config.name.clone(),
        caller: ctx.server.registry.tenants.names().name(one.used.caller).to_string(),
        failures: one.refusal.failures,
        retry_after_ms: milliseconds(one.refusal.retry_ns),
        ..Default::default()
    }
}
