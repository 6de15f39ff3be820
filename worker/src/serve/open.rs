//! Arenas and states of sessions are opened: mapped for calls that name them.

use std::os::fd::{AsFd, OwnedFd};

use pappus_protocol::to_worker::{Invoke, Item, StateForm};
use pappus_protocol::{ArenaId, Fault, FaultCode, FromWorker, control};
use pappus_shmem::{Mapping, MemfdError, ValidatedMemfd, memfd};

use super::Server;
use crate::Error;
use crate::device::Device;

impl<D: Device> Server<D> {
    pub(super) fn open_arena(&mut self, arena: ArenaId) -> Result<(), Error> {
        let memfd = control::recv(&self.control, arena.get(), 1)?.pop();
        if self.stays_open(arena) {
            return Ok(());
        }
        if let Some(memfd) = self.judge_arena(arena, memfd)? {
            self.take_arena(arena, memfd);
        }
        Ok(())
    }

    /// True if the arena waited to be closed, and is not closed any more: it is the same memory, which calls have that came before.
    fn stays_open(&mut self, arena: ArenaId) -> bool {
        let at = self.closing.iter().position(|closing| *closing == arena);
        at.map(|at| self.closing.swap_remove(at)).is_some()
    }

    /// The memory of an arena that is not open yet; none if it cannot be one: the arena stays unknown, so that calls that name it fail
    /// and others go on.
    fn judge_arena(&self, arena: ArenaId, memfd: Option<OwnedFd>) -> Result<Option<ValidatedMemfd>, Error> {
        if self.arenas.knows(arena) {
            return Err(Error::Unexpected("an arena's number was used twice"));
        }
        match memfd::judge_arena(memfd.ok_or(Error::Unexpected("an arena without a descriptor"))?, u64::MAX) {
            Ok(memfd) => Ok(Some(memfd)),
            Err(why @ MemfdError::System { .. }) => Err(Error::Arena(why)),
            Err(why) => {
                crate::log(format_args!("arena {arena} cannot be used: {why}"));
                Ok(None)
            }
        }
    }

    /// Each call that names an arena that is not mapped yet tries to map it again; other calls go on.
    fn take_arena(&mut self, arena: ArenaId, memfd: ValidatedMemfd) {
        if let Err(why) = self.map_arena(arena, &memfd) {
            crate::log(format_args!("{why}"));
            self.arenas.postpone(arena, memfd);
        }
    }

    /// Opens the state of a session, in memory of the device where that can be.
    pub(super) fn open_state(&mut self, arena: ArenaId, form: StateForm) -> Result<(), Error> {
        let mut given = control::recv(&self.control, arena.get(), form.descriptors())?.into_iter();
        if form == StateForm::Device && self.stays_open(arena) {
            return Ok(());
        }
        let Some(memfd) = self.judge_arena(arena, given.next())? else { return Ok(()) };
        let descriptor = given.next();
        // No kernel runs beside memory that is not zeroed yet, and strangers' none while memory is mapped.
        if descriptor.is_none() { self.drain() } else { self.pause() }?;
        let mapping = Mapping::writable(&memfd).map_err(|why| why.to_string());
        let held = mapping.and_then(|mapping| {
            let bytes = mapping.bytes();
            let held = self.device.hold_state(arena, bytes, descriptor.as_ref().map(AsFd::as_fd));
            held.map(|export| (mapping, export)).map_err(|fault| fault.message)
        });
        match held {
            Ok((mapping, export)) => {
                let bytes = mapping.bytes();
                self.arenas.insert_replaced(arena, mapping);
                if let Some(export) = export {
                    control::send(self.control.as_fd(), arena.get(), &[export.as_fd()])?;
                    self.outbox.push_from_worker(&FromWorker::State { arena, bytes });
                }
            }
            Err(why) => {
                crate::log(format_args!("a session's state is not in memory of the device: {why}"));
                match form {
                    StateForm::Make => {
                        self.take_arena(arena, memfd);
                        self.outbox.push_from_worker(&FromWorker::State { arena, bytes: 0 });
                    }
                    StateForm::Device => self.arenas.refuse(arena, why),
                }
            }
        }
        Ok(())
    }

    fn map_arena(&mut self, arena: ArenaId, memfd: &ValidatedMemfd) -> Result<(), Fault> {
        let exhausted = |why: String| {
            Fault::new(FaultCode::Exhausted, format!("an arena cannot be mapped into the worker: {why}"))
        };
        let mapping = Mapping::writable(memfd).map_err(|e| exhausted(e.to_string()))?;
        self.device.map_arena(arena, &mapping).map_err(|fault| exhausted(fault.message))?;
        self.arenas.insert(arena, mapping);
        Ok(())
    }

    /// Maps the arenas of a call that could not be mapped when they were opened.
    pub(super) fn map_postponed(&mut self, invoke: &Invoke<'_>) -> Result<(), Fault> {
        let sources = invoke.items.iter().filter(|item| item.kind.get() == Item::ARENA);
        let named = sources.map(|item| item.source.get()).chain(invoke.outputs.iter().map(|t| t.arena.get()));
        for arena in named.map(ArenaId::new) {
            let Some(memfd) = self.arenas.take_postponed(arena) else { continue };
            if let Err(fault) = self.map_arena(arena, &memfd) {
                self.arenas.postpone(arena, memfd);
                return Err(fault);
            }
        }
        Ok(())
    }
}
