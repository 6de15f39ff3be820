//! Functions are installed, functions and arenas are forgotten: behind the calls that the worker already has, which keep
//! what they use. Calls of other functions and in other arenas are not waited for.

use pappus_protocol::to_worker::{Install, STAGING_ARENA};
use pappus_protocol::{ArenaId, FromWorker, FunctionId, LaneId, control};

use super::Server;
use super::behind::Step;
use super::installed::Installation;
use super::lane::Lane;
use crate::Error;
use crate::device::Device;

impl<D: Device> Server<D> {
    /// Installs a function, without its weights.
    pub(super) fn install(&mut self, function: FunctionId, install: &Install) -> Result<(), Error> {
        let parts = control::recv(&self.control, function.get(), install.descriptors())?;
        self.pause()?;
        // An id in use is replaced.
        if let Some(before) = self.functions.retire(function) {
            self.drain()?;
            self.behind.push(before, Step::Forget(false));
            // First: two may not fit side by side.
            self.go_on()?;
        }
        let (installation, is_loaded) = self.functions.install(&mut self.device, function, install, parts);
        if !is_loaded {
            self.behind.push(installation, Step::Refuse);
            self.go_on()?;
        }
        Ok(())
    }

    /// Forgets a function, behind the calls of it that are here.
    pub(super) fn uninstall(&mut self, function: FunctionId) -> Result<(), Error> {
        match self.functions.retire(function) {
            Some(retired) => self.behind.push(retired, Step::Forget(true)),
            None => self.outbox.push_from_worker(&FromWorker::Uninstalled { function }),
        }
        self.go_on().map(drop)
    }

    /// Forgets an arena, behind the calls here that have regions in it.
    pub(super) fn close_arena(&mut self, arena: ArenaId) -> Result<(), Error> {
        if arena == STAGING_ARENA {
            return Err(Error::Unexpected("the staging arena cannot be closed"));
        }
        self.arenas.drop_unmapped(arena);
        if self.arenas.contains(arena) && !self.closing.contains(&arena) {
            self.closing.push(arena);
            self.close_unused()?;
        }
        Ok(())
    }

    /// Does what waited for calls that are over by now; true if that was anything which calls wait for in turn.
    pub(super) fn go_on(&mut self) -> Result<bool, Error> {
        self.close_unused()?;
        let mut any = false;
        while let Some((function, step)) = self.behind.take_next(&self.lanes) {
            any = true;
            self.take_step(function, step)?;
        }
        Ok(any)
    }

    fn close_unused(&mut self) -> Result<(), Error> {
        let is_used = |lanes: &[Lane], arena: &ArenaId| lanes.iter().any(|lane| lane.has_regions_in(*arena));
        if self.closing.iter().all(|arena| is_used(&self.lanes, arena)) {
            return Ok(());
        }
        self.pause()?;
        let Self { closing, lanes, device, arenas, .. } = self;
        closing.retain(|arena| {
            let stays = is_used(lanes, arena);
            if !stays {
                device.unmap_arena(*arena);
                arenas.remove(*arena);
            }
            stays
        });
        Ok(())
    }

    fn take_step(&mut self, which: Installation, step: Step) -> Result<(), Error> {
        let function = which.function;
        match step {
            Step::Load { form, descriptor, instead_of } => {
                self.begin_load(which, form, descriptor, instead_of)?;
                instead_of.map_or(Ok(()), |other| self.start_waiting(other))
            }
            Step::Unload => {
                self.let_go(which, false)?;
                self.outbox.push_from_worker(&FromWorker::Unloaded { function });
                self.start_waiting(which)
            }
            Step::Forget(is_told) => {
                self.pause()?;
                self.on_their_way.forget(which);
                self.functions.remove(&mut self.device, which)?;
                if is_told {
                    self.outbox.push_from_worker(&FromWorker::Uninstalled { function });
                }
                Ok(())
            }
            Step::Refuse => {
                self.outbox.push_from_worker(&FromWorker::NotInstalled { function });
                Ok(())
            }
        }
    }

    /// Calls of a function start that waited for what was done to its weights, or fail without them.
    fn start_waiting(&mut self, function: Installation) -> Result<(), Error> {
        for lane in LaneId::first(self.lanes.len()) {
            if self.waits(lane, function) {
                self.start_if_ready(lane)?;
            }
        }
        Ok(())
    }
}
