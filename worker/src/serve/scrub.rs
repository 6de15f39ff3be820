//! Handing the worker on to another domain without another process: everything of the old domain is cleared.

use pappus_protocol::FromWorker;
use pappus_protocol::to_worker::STAGING_ARENA;

use super::Server;
use super::lane::Lane;
use super::weights::OnTheirWay;
use crate::Error;
use crate::device::Device;

impl<D: Device> Server<D> {
    /// Clears everything of the domain served so far, then confirms: functions with their weights and graphs, arenas,
    /// staging, the lanes' memory, on-chip memory, and measured times. The turn is given back, too, so that the old domain is
    /// charged for it.
    pub(super) fn scrub(&mut self, handover: u64) -> Result<(), Error> {
        self.drain()?;
        if self.lanes.iter().any(Lane::is_prepared) {
            return Err(Error::Unexpected("a scrub while calls wait"));
        }
        // Nothing has to wait any more: the supervisor counts on being told.
        self.go_on()?;
        self.on_their_way = OnTheirWay::default();
        for function in self.functions.drain() {
            self.device.unload(function)?;
        }
        self.lanes.iter_mut().for_each(|lane| *lane = Lane::default());
        self.device.forget()?;
        self.device.scrub()?;
        self.dirty = false;
        if let Some(turn) = self.turn.held() {
            // The rest needs nothing but the host, and others have the device meanwhile.
            self.give_back(turn)?;
            self.outbox.flush_blocking()?;
        }
        for arena in self.arenas.of_clients() {
            self.device.unmap_arena(arena);
            self.arenas.remove(arena);
        }
        self.arenas.drop_all_unmapped();
        self.arenas.zero_all(STAGING_ARENA);
        self.turn.forget();
        self.page.forget();
        self.outbox.push_from_worker(&FromWorker::Scrubbed { handover });
        Ok(())
    }
}
