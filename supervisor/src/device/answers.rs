//! From a worker's words to a client's answer.

use pappus_proto::v1::response::Body;
use pappus_proto::{Code, v1};
use pappus_protocol::from_worker::{Done, FaultRef};
use pappus_protocol::to_worker::STAGING_ARENA;
use pappus_protocol::{Fault, FaultCode};

use crate::call::Call;
use crate::schedule::Ended;

/// A call that succeeded just now; `inline` are its staged outputs in order.
pub fn invoked(call: &Call, device: &str, done: &Done, inline: Vec<Vec<u8>>, now_ns: u64) -> Body {
    let blueprint = &call.function.blueprint;
    let mut inline = inline.into_iter();
    let outputs = blueprint.outputs().iter().enumerate().map(|(position, id)| {
        let mut output = v1::OutputValue {
            name: blueprint.buffers()[id.index()].name.clone(),
            bytes: call.plan.buffers[id.index()].bytes,
            ..Default::default()
        };
        if call.outputs[position].arena.get() == STAGING_ARENA {
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
    })
}

/// A failed call, as its worker tells it.
pub fn failed(call: &Call, fault: &FaultRef<'_>) -> Body {
    let code = match fault.code {
        FaultCode::KernelTrap => Code::KernelFault,
        FaultCode::Deadline => Code::DeadlineExceeded,
        FaultCode::OutOfMemory => Code::OutOfMemory,
        FaultCode::BadInvoke | FaultCode::BadModule => Code::InvalidArgument,
        FaultCode::Load | FaultCode::Internal | FaultCode::Device => Code::Internal,
    };
    let mut error = v1::Error::new(code, fault.message);
    let kernel = fault.kernel.and_then(|k| call.function.blueprint.kernels().get(k as usize));
    if let Some(kernel) = kernel {
        error.place = format!("kernel {}", kernel.name);
    }
    Body::Error(error)
}

/// A call that does not run again after its process ended: by `broken`, if the process said so itself.
pub fn lost(call: &Call, why: Ended, process: &str, broken: Option<&Fault>) -> Body {
    match (why, broken) {
        (Ended::Detached, _) => cancelled(),
        (Ended::Deadline, _) => Body::Error(deadline("while running; its worker was replaced")),
        (Ended::Guilty, Some(fault)) => failed(call, &fault.as_ref()),
        (Ended::Guilty, None) => {
            let message = format!(
                "the worker process {process} during this call, as one had before; this time no other call was in it; \
                 functions are pure, so it is safe to call again"
            );
            Body::Error(v1::Error::new(Code::WorkerLost, message).retry(0))
        }
    }
}

/// A call that waited too long.
pub fn expired() -> Body {
    Body::Error(deadline("while waiting for a worker").retry(0))
}

fn deadline(when: &str) -> v1::Error {
    v1::Error::new(Code::DeadlineExceeded, format!("the deadline passed {when}"))
}

/// A call that its client gave up.
pub fn cancelled() -> Body {
    Body::Error(v1::Error::new(Code::Cancelled, "cancelled by its client"))
}
