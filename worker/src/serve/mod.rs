//! The serving role: one loop over the pipes, whatever the device.
//!
//! Frames are handled as they lie in the inbox, in batches. A call that is over is answered at once and
//! cleared behind its answer; [`Server::settle`] is the only way out of a lane, so nothing skips it.

mod installed;
mod lane;

use std::os::fd::OwnedFd;
use std::time::Duration;

use pappus_protocol::from_worker::Done;
use pappus_protocol::pipe::{Got, Outbox};
use pappus_protocol::to_worker::{Configure, Invoke, STAGING_ARENA};
use pappus_protocol::{Fault, FromWorker, ToWorker, control};
use pappus_shmem::{Judged, Mapping, memfd};

use self::installed::Functions;
use self::lane::Lane;
use crate::arenas::Arenas;
use crate::device::{Call, Device};
use crate::{Channels, Error};

/// Serves until the supervisor closes its pipe.
pub fn run<D: Device>(channels: Channels, staging: &Judged, device: D) -> Result<(), Error> {
    let staging = Mapping::writable(staging).map_err(|e| Error::Staging(e.to_string()))?;
    let Channels { mut inbox, outbox, control } = channels;
    let mut server = Server {
        lanes: std::iter::repeat_with(Lane::default).take(device.lanes()).collect(),
        device,
        outbox,
        control,
        functions: Functions::default(),
        arenas: Arenas::new(staging),
        lease_bytes: 0,
        spin: Duration::ZERO,
        turn_ns: 0,
    };
    server.send(&FromWorker::Hello(server.device.hello()))?;
    loop {
        while let Some(frame) = inbox.frame()? {
            server.handle(ToWorker::decode(frame)?)?;
        }
        let busy = server.settle()?;
        let got = if busy { inbox.fill()? } else { inbox.wait(server.spin, None, None)? };
        if got == Got::Closed {
            return Ok(());
        }
    }
}

struct Server<D: Device> {
    device: D,
    outbox: Outbox,
    control: OwnedFd,
    functions: Functions<D>,
    arenas: Arenas,
    lanes: Vec<Lane>,
    lease_bytes: u64,
    spin: Duration,
    /// Device time used since the last `Yielded`.
    turn_ns: u64,
}

impl<D: Device> Server<D> {
    fn handle(&mut self, message: ToWorker<'_>) -> Result<(), Error> {
        match message {
            ToWorker::Invoke { call, invoke } => self.invoke(call, &invoke),
            ToWorker::Configure(configure) => self.configure(&configure),
            ToWorker::Install { function, install } => {
                let parts = control::recv(&self.control, function, install.descriptors())?;
                // An id in use is replaced: what it named must not be running.
                self.drain()?;
                self.functions.install(&mut self.device, function, &install, parts);
                Ok(())
            }
            ToWorker::Uninstall { function } => {
                self.drain()?;
                self.functions.remove(function);
                Ok(())
            }
            ToWorker::OpenArena { arena } => self.open_arena(arena),
            ToWorker::CloseArena { arena } => {
                if arena == STAGING_ARENA {
                    return Err(Error::Unexpected("the staging arena cannot be closed"));
                }
                self.drain()?;
                if self.arenas.remove(arena) {
                    self.device.unmap_arena(arena);
                }
                Ok(())
            }
            // Whoever is sent calls has its turn; grants only matter for charging it.
            ToWorker::Grant { .. } => Ok(()),
            ToWorker::Revoke { turn } => {
                self.drain()?;
                let used_ns = std::mem::take(&mut self.turn_ns);
                self.send(&FromWorker::Yielded { turn, used_ns })
            }
            ToWorker::Soon => Ok(()),
            ToWorker::Compile { .. } => Err(Error::Unexpected("a serving worker does not compile")),
        }
    }

    fn configure(&mut self, configure: &Configure) -> Result<(), Error> {
        self.spin = Duration::from_micros(configure.poll_us.into());
        if configure.lease_bytes != self.lease_bytes {
            self.drain()?;
            self.device.lease(configure.lease_bytes)?;
            self.lease_bytes = configure.lease_bytes;
        }
        Ok(())
    }

    fn open_arena(&mut self, arena: u64) -> Result<(), Error> {
        let memfd = control::recv(&self.control, arena, 1)?.pop();
        if self.arenas.contains(arena) {
            return Err(Error::Unexpected("an arena's number was used twice"));
        }
        let memfd = memfd.ok_or(Error::Unexpected("an arena without a descriptor"))?;
        // What cannot be mapped stays unknown: calls that name it fail, others go on.
        let opened = memfd::judge_arena(memfd, u64::MAX)
            .map_err(|e| e.to_string())
            .and_then(|memfd| Mapping::writable(&memfd).map_err(|e| format!("mapping it: {e}")))
            .and_then(|mapping| {
                let pinned = self.device.map_arena(arena, &mapping);
                pinned.map_err(|fault| fault.message).map(|()| mapping)
            });
        match opened {
            Ok(mapping) => self.arenas.insert(arena, mapping),
            Err(why) => crate::log(format_args!("arena {arena} cannot be used: {why}")),
        }
        Ok(())
    }

    fn invoke(&mut self, call: u64, invoke: &Invoke<'_>) -> Result<(), Error> {
        let descriptors = control::recv(&self.control, call, invoke.descriptors as usize)?;
        let index = invoke.lane as usize;
        if index >= self.lanes.len() {
            return Err(Error::Unexpected("a lane that this device does not have"));
        }
        while self.lanes[index].is_busy() {
            self.settle()?;
        }
        let lane = &mut self.lanes[index];
        lane.begin(call, invoke.function, descriptors);
        let accepted = lane.regions(invoke, &self.arenas).and_then(|()| {
            let installed = self.functions.get(invoke.function)?;
            let plan = lane.plan(invoke, installed, self.lease_bytes)?;
            let call = Call {
                plan: &plan,
                inputs: &lane.inputs,
                outputs: &lane.outputs,
                arenas: &self.arenas,
                descriptors: &lane.descriptors,
                deadline_ns: invoke.deadline_ns,
                alone: invoke.flags & Invoke::ALONE != 0,
            };
            self.device.start(index, &mut installed.function, &call);
            Ok(())
        });
        match accepted {
            Ok(()) => {
                self.lanes[index].started = true;
                self.settle()?;
                Ok(())
            }
            Err(fault) => self.answer(index, Err(fault)),
        }
    }

    /// Answers and clears every lane whose call is over; says whether one is still running.
    fn settle(&mut self) -> Result<bool, Error> {
        let mut busy = false;
        for index in 0..self.lanes.len() {
            if !self.lanes[index].started {
                continue;
            }
            let Some(result) = self.device.poll(index) else {
                busy = true;
                continue;
            };
            self.lanes[index].started = false;
            let function = self.lanes[index].function;
            self.answer(index, result)?;
            let installed = self.functions.get(function)?;
            self.device.clear(index, &mut installed.function)?;
        }
        Ok(busy)
    }

    /// Waits until no lane is running.
    fn drain(&mut self) -> Result<(), Error> {
        while self.settle()? {
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// The end of a call, good or bad: inputs leave staging, outputs of a failure are zeroed, and only
    /// then the caller hears of it.
    fn answer(&mut self, index: usize, result: Result<Done, Fault>) -> Result<(), Error> {
        let lane = &mut self.lanes[index];
        let Some(call) = lane.end(&self.arenas, result.is_ok()) else {
            return Ok(());
        };
        match result {
            Ok(timings) => {
                self.turn_ns += timings.execute_ns.get();
                self.send(&FromWorker::Done { call, timings })
            }
            Err(fault) => self.send(&FromWorker::Failed { call, fault: fault.as_ref() }),
        }
    }

    fn send(&mut self, message: &FromWorker<'_>) -> Result<(), Error> {
        self.outbox.push_from_worker(message);
        self.outbox.flush_blocking()?;
        Ok(())
    }
}
