//! Readiness for calls and registrations, and the answers that tell it: `status`, `/readyz`, `/healthz`.

use std::time::Duration;

use super::health::NotReady;
use super::state::Server;
use crate::device::Device;
use crate::device::status::WorkerState;

/// True if a device has a process that takes calls at once.
fn is_up(device: &Device) -> bool {
    let takes_calls = |state| !matches!(state, WorkerState::Unused | WorkerState::Starting);
    device.standbys_ready() > 0 || device.status().workers.iter().any(|worker| takes_calls(worker.state))
}

impl Server {
    /// True if calls can be made: it does not drain, a worker or a standby is up, and who connects reaches this supervisor.
    pub fn is_ready(&self) -> bool {
        !self.is_draining()
            && self.devices.iter().any(|device| is_up(device))
            && self.sockets.iter().all(|socket| socket.is_there())
    }

    /// Why it is not ready; nothing if it is. May wait a second for the disk of the state directory.
    pub async fn why_not_ready(&self) -> Vec<NotReady> {
        let mut reasons = Vec::new();
        if self.is_draining() {
            reasons.push(NotReady::Draining);
        }
        if !self.devices.iter().any(|device| is_up(device)) {
            reasons.push(NotReady::NoWorker);
        }
        reasons.extend(self.sockets.iter().filter_map(|socket| socket.why_not()).map(NotReady::Socket));
        reasons.extend(self.state_check.why_not().await.map(NotReady::State));
        reasons
    }

    /// How long nothing has been decided on some device, if that is so long that only another start helps.
    pub fn stuck_for(&self) -> Option<Duration> {
        self.heartbeat.missed()
    }
}
