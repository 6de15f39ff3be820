//! How a call ended, as its client is told.

use std::time::Duration;

use pappus_proto::v1::response::Body;
use pappus_proto::{Code, v1};
use pappus_protocol::from_worker::Done;
use pappus_protocol::to_worker::STAGING_ARENA;
use pappus_protocol::{Fault, FaultCode};

use super::refusals;
use crate::call::{Call, Outcome, SpentBudget};
use crate::device::runtime::SubmitError;
use crate::function::Loaded;
use crate::schedule::{Ended, NotNow, quarantine};
use crate::tenants::Account;

/// The answer to a call.
pub fn to_body(call: &Call, device: &str, outcome: Outcome, now_ns: u64) -> Body {
    match outcome {
        Outcome::Done { timings, staged } => invoked(call, device, &timings, staged, now_ns),
        Outcome::Failed(fault) => failed(call, &fault),
        Outcome::HadItsPart => {
            let message = "this call had as much of a worker that tenants share as shared-limit lets, and was ended: isolation is \
                           \"shared\" for its function, its owner or its caller, so it runs in no other; split its work into more \
                           calls, or have isolation=auto";
            Body::Error(v1::Error::new(Code::Overrun, message))
        }
        Outcome::NotCleared => Body::Error(deadline(
            call,
            "after its worker ended, and its outputs could not be cleared: something keeps their arena from being \
             written, and they may hold parts of results",
        )),
        Outcome::Lost { why, process, broken } => lost(call, why, &process, broken.as_ref()),
        Outcome::Expired { budget } => expired(call, budget),
        Outcome::Quarantined(refusal) => {
            Body::Error(quarantined(call.reply.account(), &call.function, device, refusal))
        }
        Outcome::Refused(refusal) => refusals::to_body(&*refusal),
    }
}

/// Why a device does not accept a call.
pub fn not_accepted(caller: &Account, function: &Loaded, device: &str, why: SubmitError) -> Body {
    Body::Error(match why {
        SubmitError::Quota(error) => refusals::to_error(&error),
        SubmitError::TooLarge(error) => v1::Error::new(Code::OutOfMemory, error.to_string()),
        SubmitError::WeightsTooLarge(error) => v1::Error::new(Code::OutOfMemory, error.to_string()),
        SubmitError::NotShared(why) => not_shared(device, &why, u64::MAX),
        SubmitError::NotNow(why @ NotNow::NotShared { left_ns }) => not_shared(device, &why, left_ns),
        SubmitError::NotNow(NotNow::Quarantined(refusal)) => quarantined(caller, function, device, refusal),
        SubmitError::NotNow(late @ NotNow::TooLate { queue_ms, .. }) => {
            let message = format!(
                "device {device} cannot end this call in time: {late}; call again when the queue is shorter, or give \
                 it a later deadline"
            );
            v1::Error::new(Code::ResourceExhausted, message).retry(queue_ms.max(1))
        }
        SubmitError::NotNow(full) => {
            let message = format!("device {device} is full: {full}; try again later");
            v1::Error::new(Code::ResourceExhausted, message).retry(100)
        }
    })
}

/// A call runs beside strangers only, and may not for this reason, for so many nanoseconds; the largest number: whenever it is made.
fn not_shared(device: &str, why: &dyn std::fmt::Display, left_ns: u64) -> v1::Error {
    let message = format!(
        "device {device} runs no call of this function in a worker that tenants share: {why}; nor in another one, as isolation is \
         \"shared\" for the function, its owner or its caller"
    );
    match left_ns {
        u64::MAX => v1::Error::new(Code::Unsupported, message),
        ns => v1::Error::new(Code::ResourceExhausted, message).retry(ns.div_ceil(1_000_000)),
    }
}

/// A call that succeeded just now; `inline` are its staged outputs in order.
fn invoked(call: &Call, device: &str, done: &Done, inline: Vec<Vec<u8>>, now_ns: u64) -> Body {
    let blueprint = &call.function.blueprint;
    let mut inline = inline.into_iter();
    let outputs = blueprint.returned().iter().enumerate().map(|(position, id)| {
        let mut output = v1::OutputValue {
            name: blueprint.buffers()[id.index()].name.clone(),
            bytes: call.plan.buffers[id.index()].bytes,
            ..Default::default()
        };
        if call.outputs[position].arena.get() == STAGING_ARENA.get() {
            output.inline = inline.next().unwrap_or_default().into();
        }
        if let Some(shape) = &call.plan.output_shapes[position] {
            output.dtype = shape.dtype.name().to_owned();
            output.shape = shape.dims.clone();
        }
        output
    });
    let started_ns = call.started_ns.load(std::sync::atomic::Ordering::Relaxed);
    let timings = v1::Timings {
        queued_ns: started_ns.saturating_sub(call.arrived_ns),
        copy_in_ns: done.copy_in_ns.get(),
        execute_ns: done.execute_ns.get(),
        copy_out_ns: done.copy_out_ns.get(),
        clear_ns: done.clear_ns.get(),
        total_ns: now_ns.saturating_sub(call.arrived_ns),
    };
    Body::Invoked(v1::Invoked {
        outputs: outputs.collect(),
        timings: Some(timings),
        device: device.to_owned(),
        deadline_ns: call.deadline_ns.saturating_sub(call.arrived_ns),
        number: call.function.record.number,
    })
}

/// The answer of a failed call, from the worker's fault.
fn failed(call: &Call, fault: &Fault) -> Body {
    let code = match fault.code {
        FaultCode::KernelTrap => Code::KernelFault,
        FaultCode::Deadline => Code::DeadlineExceeded,
        FaultCode::OutOfMemory => Code::OutOfMemory,
        FaultCode::BadInvoke | FaultCode::BadModule => Code::InvalidArgument,
        FaultCode::Exhausted => Code::ResourceExhausted,
        FaultCode::Load | FaultCode::Internal | FaultCode::Device => Code::Internal,
    };
    let error = match call.domain.owner == call.domain.caller {
        // Only the owner may know the names of kernels.
        false if fault.code == FaultCode::Deadline => deadline(call, "while it ran"),
        false => v1::Error::new(code, "the function failed where it ran; only its owner is told more"),
        true => {
            let mut error = match (fault.code, fault.message.strip_prefix("the deadline passed")) {
                // Workers know when it is, and nobody else how long it was.
                (FaultCode::Deadline, Some(when)) => deadline(call, when.trim_start()),
                _ => v1::Error::new(code, fault.message.as_str()),
            };
            if fault.code == FaultCode::Exhausted {
                error = error.retry(100);
            }
            let kernel = fault.kernel.and_then(|k| call.function.blueprint.kernels().get(k as usize));
            if let Some(kernel) = kernel {
                error.place = format!("kernel {}", kernel.name);
            }
            error
        }
    };
    counts(call, error)
}

/// The answer to a failure that may count towards a quarantine, which repeats what its caller is told now.
fn counts(call: &Call, error: v1::Error) -> Body {
    let place = if error.place.is_empty() { String::new() } else { format!("{}: ", error.place) };
    let told = format!("{place}{}", error.message);
    call.reply.account().last_failures.failed(call.function.id, &told);
    Body::Error(error)
}

/// A call that does not run again after its process ended: by `broken`, if the process said so itself.
fn lost(call: &Call, why: Ended, process: &str, broken: Option<&Fault>) -> Body {
    match (why, broken) {
        (Ended::Detached, _) => cancelled(),
        (Ended::Deadline, _) => counts(call, deadline(call, "while it ran, and its worker was replaced")),
        (Ended::Guilty, Some(fault)) => failed(call, fault),
        (Ended::Overran, _) => {
            let message = "this call kept others from the device for longer than its tenant's overrun-limit, and was \
                           ended: split its work into more calls, or ask the operator for a larger overrun-limit";
            Body::Error(v1::Error::new(Code::Overrun, message))
        }
        (Ended::Interrupted, _) => {
            let message = format!(
                "the worker process {process} during this call, as others had before, and neither this call nor Pappus \
                 ended it: ask the operator what does; functions are pure, so it is safe to call again"
            );
            Body::Error(v1::Error::new(Code::WorkerLost, message).retry(0))
        }
        (Ended::Guilty, None) => {
            let message = format!(
                "the worker process {process} during this call, as one had before; this time no other call was in it; \
                 functions are pure, so it is safe to call again"
            );
            counts(call, v1::Error::new(Code::WorkerLost, message).retry(0))
        }
    }
}

/// A call that waited too long: for a worker, or because its caller's fault budget was spent.
fn expired(call: &Call, budget: Option<SpentBudget>) -> Body {
    Body::Error(match budget {
        None => deadline(call, "while it waited for a worker").retry(0),
        Some(SpentBudget { left_ns, per_minute }) => {
            let when = format!(
                "while this caller's fault budget was spent: {per_minute} worker processes a minute may end \
                 under its calls before the next ones wait"
            );
            deadline(call, &when).retry(milliseconds(left_ns))
        }
    })
}

/// A call whose deadline passed before its function was in memory.
pub fn never_loaded(deadline: Duration) -> Body {
    Body::Error(passed(deadline, "while its function was being loaded, which goes on").retry(0))
}

/// A call whose deadline passed while what it brings or gets was copied.
pub fn never_copied(deadline: Duration) -> Body {
    Body::Error(passed(deadline, "while memory of the caller's was read or written"))
}

/// A composition whose deadline passed before its next step began.
pub fn between_steps(deadline: Duration) -> Body {
    Body::Error(passed(deadline, "between two steps"))
}

/// A call whose deadline passed while earlier calls of its session were there.
pub fn never_its_turn(deadline: Duration) -> Body {
    Body::Error(passed(deadline, "while calls of its session were there that came before it").retry(0))
}

/// A call of a function that keeps failing.
fn quarantined(caller: &Account, function: &Loaded, device: &str, refusal: quarantine::Refusal) -> v1::Error {
    let last =
        caller.last_failures.of(function.id).map(|told| format!(", last so: {told:?}")).unwrap_or_default();
    let message = format!(
        "function `{}` failed {} times in a row for this caller{last}; it is in quarantine on {device}: the first call \
         afterwards runs alone, and ends it if it succeeds; so does replacing the function (`pappus function add --replace`)",
        function.record.name, refusal.failures
    );
    v1::Error::new(Code::Quarantined, message).retry(milliseconds(refusal.retry_ns))
}

/// Milliseconds, rounded up: a client that tries again then is not too early.
pub fn milliseconds(ns: u64) -> u64 {
    ns.div_ceil(1_000_000)
}

/// The deadline of a call passed.
fn deadline(call: &Call, when: &str) -> v1::Error {
    passed(Duration::from_nanos(call.deadline_ns.saturating_sub(call.arrived_ns)), when)
}

/// A deadline of this length passed: how long it was, when, and what to do.
fn passed(deadline: Duration, when: &str) -> v1::Error {
    let deadline = humantime::format_duration(deadline);
    let message = format!(
        "the deadline of {deadline} passed {when}; give the call a longer one (the operator's max-deadline is the most), or \
         less work"
    );
    v1::Error::new(Code::DeadlineExceeded, message)
}

/// A call that its client gave up.
pub fn cancelled() -> Body {
    Body::Error(v1::Error::new(Code::Cancelled, "cancelled by its client"))
}
