//! Calls that wait on a lost device go to other devices, like new calls: the router says where. A call keeps its deadline,
//! order, account and attempts. Calls that no other device can run go on waiting.

use std::sync::Arc;

use super::consecutive::StepReply;
use super::reply_handle::{DevicePlace, ReplyHandle};
use super::responses;
use super::state::Server;
use crate::call::{Call, Outcome};
use crate::device::Device;
use crate::refusal::internal;
use crate::routing::{Destination, Router};
use crate::schedule::CallId;

/// A call on its way from one device to another. The call is answered whatever happens there.
struct OnTheWay {
    call: Arc<Call>,
    device: Arc<Device>,
    arrived: bool,
}

impl Drop for OnTheWay {
    fn drop(&mut self) {
        if !self.arrived {
            let why = internal("cannot move the call to another device", "a panic");
            self.call.reply.complete(&self.call, &self.device.config.name, Outcome::Refused(why.into()));
        }
    }
}

impl Server {
    /// Moves calls for as long as the supervisor runs, whenever there may be some.
    pub async fn run_moves(self: Arc<Self>) {
        loop {
            self.stranded.notified().await;
            let server = self.clone();
            let moving = move || move_stranded(&server.router, &server.devices);
            if let Err(why) = tokio::task::spawn_blocking(moving).await {
                tracing::error!("not all calls are moved from a device that is lost: {why}");
            }
        }
    }
}

/// Moves what waits on devices that are lost.
pub(crate) fn move_stranded(router: &Router<Device>, devices: &[Arc<Device>]) {
    for (at, device) in devices.iter().enumerate().filter(|(_, device)| device.is_lost()) {
        let waiting = device.waiting();
        let moved = waiting.iter().filter(|(id, call)| move_call(router, (at, device), *id, call)).count();
        if moved > 0 {
            let left = waiting.len() - moved;
            tracing::warn!(device = device.config.name, moved, left, "calls that waited go to other devices");
        }
    }
}

/// Moves a call that waits on a device; true if it went. One whose state is there stays.
fn move_call(
    router: &Router<Device>,
    (at, device): (usize, &Arc<Device>),
    id: CallId,
    call: &Arc<Call>,
) -> bool {
    let (function, needs) = (&call.function, call.plan.pool_bytes);
    let stays = || call.turn.as_ref().is_some_and(|turn| turn.memory.device_memory().is_some());
    if stays() || !router.has_other(at, function, needs) {
        return false;
    }
    // It may have started, ended, or been cancelled meanwhile.
    let Some(withdrawn) = device.withdraw(id) else { return false };
    let mut way = OnTheWay { call: call.clone(), device: device.clone(), arrived: false };
    // Its state may be there by now, if it started.
    let elsewhere = if stays() { None } else { router.elsewhere(at, call.domain, function, needs) };
    let elsewhere = elsewhere.map(|(to, routed)| {
        // It counts there from now on; what is left of it counts where the call was.
        call.routed.iter().for_each(|own| own.swap(&routed));
        to
    });
    // Where the last one that could is lost as well by now, it goes on waiting.
    let to = elsewhere.unwrap_or(device).clone();
    let adopted = to.adopt(withdrawn);
    way.arrived = true;
    let (handle, step) = (ReplyHandle::of(call), StepReply::of(call));
    match adopted {
        Ok(id) => {
            let place: DevicePlace = (to, id);
            let ended = match (handle, step) {
                (Some(handle), _) => handle.moved(place),
                (None, Some(step)) => step.placed(place),
                (None, None) => None,
            };
            if let Some((device, id)) = ended {
                // Cancelled, or its client gone, while it was on its way.
                device.cancel(id);
            }
        }
        Err(why) => {
            let caller = call.reply.account();
            let body = responses::not_accepted(caller, &call.function, &to.config.name, why);
            match (handle, step) {
                (Some(handle), _) => handle.answer(body),
                (None, Some(step)) => step.answer(body),
                (None, None) => {}
            }
        }
    }
    true
}
