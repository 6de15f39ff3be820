//! A device that does what a test tells it to, and says in which order things were asked of it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use pappus_protocol::from_worker::{Done, Hello};
use pappus_protocol::{ArenaId, Fault, FaultCode, LaneId};
use pappus_shmem::Mapping;
use pappus_worker::device::{
    self, Device, FunctionImage, Functions, Hygiene, Lanes, LoadedWeights, Loading, Memory, Weights,
};

/// What the device did, in order, and how often a lane is polled before its call is over.
#[derive(Default)]
pub(super) struct Script {
    pub(super) events: Vec<String>,
    pub(super) polls: [VecDeque<u32>; 2],
    pub(super) lent: [u64; 2],
    /// How often each load is polled before it is over; one that is missing fails.
    pub(super) loads: VecDeque<u32>,
    /// No load is over before this is false.
    pub(super) holds_loads: bool,
    /// Other processes leave something on its chip.
    pub(super) finds_others: bool,
    /// Calls go on.
    pub(super) goes_on: bool,
    /// Strangers share the lanes.
    pub(super) are_shared: bool,
    /// Calls that run.
    pub(super) busy: usize,
    /// What was done meanwhile that a driver does behind all kernels.
    pub(super) beside: Vec<&'static str>,
}

impl Script {
    fn waits_for_kernels(&mut self, what: &'static str) {
        if self.busy > 0 {
            self.beside.push(what);
        }
    }
}

/// Two lanes; nothing is executed.
pub(super) struct Scripted(pub(super) Arc<Mutex<Script>>);

impl Scripted {
    fn note(&self, event: String) {
        self.0.lock().unwrap().events.push(event);
    }
}

/// A function that says when it is dropped.
pub(super) struct Loaded(Arc<Mutex<Script>>);

impl Drop for Loaded {
    fn drop(&mut self) {
        let mut script = self.0.lock().unwrap();
        script.waits_for_kernels("unload");
        script.events.push("unload".into());
    }
}

impl Device for Scripted {
    fn hello(&self) -> Hello {
        Hello::new("scripted", "")
    }
}

impl Functions for Scripted {
    type Function = Loaded;

    fn load(&mut self, _: FunctionImage<'_>) -> Result<Loaded, Fault> {
        self.0.lock().unwrap().waits_for_kernels("load");
        Ok(Loaded(self.0.clone()))
    }
    fn load_weights(&mut self, _: &mut Loaded, _: Weights) {
        self.note("load".into());
    }
    fn poll_weights(&mut self, _: &mut Loaded) -> Loading {
        let script = &mut *self.0.lock().unwrap();
        if script.holds_loads {
            return Loading::Copying;
        }
        let loads = &mut script.loads;
        match loads.front_mut() {
            Some(0) => {
                loads.pop_front();
                Loading::Over(Ok(LoadedWeights { bytes: 4096, export: None }))
            }
            Some(polls) => {
                *polls -= 1;
                if *polls > 9 { Loading::Submitting } else { Loading::Copying }
            }
            None => Loading::Over(Err(Fault::new(FaultCode::Device, "no such load"))),
        }
    }
    fn unload_weights(&mut self, _: &mut Loaded, keep: bool) -> Result<(), Fault> {
        if keep {
            self.note("keep".into());
        }
        Ok(())
    }
}

impl Memory for Scripted {
    fn lane_bytes(&self, lane: LaneId) -> u64 {
        self.0.lock().unwrap().lent[lane.index()]
    }
    fn grow(&mut self, lane: LaneId, bytes: u64) -> Result<(), Fault> {
        self.note(format!("grow {lane} to {bytes}"));
        self.0.lock().unwrap().lent[lane.index()] = bytes;
        Ok(())
    }
    fn give_back(&mut self, lane: LaneId) -> Result<(), Fault> {
        self.note(format!("take {lane}"));
        self.0.lock().unwrap().lent[lane.index()] = 0;
        Ok(())
    }
    fn map_arena(&mut self, _: ArenaId, _: &Mapping) -> Result<(), Fault> {
        Ok(())
    }
    fn unmap_arena(&mut self, _: ArenaId) {
        self.0.lock().unwrap().waits_for_kernels("unmap");
        self.note("unmap".into());
    }
}

impl Lanes for Scripted {
    fn lanes(&self) -> usize {
        2
    }
    fn are_shared(&self) -> bool {
        self.0.lock().unwrap().are_shared
    }
    fn start(&mut self, lane: LaneId, _: &mut Loaded, call: &device::Call<'_>) {
        for output in call.outputs {
            assert!(call.arenas.contains(output.arena), "an arena of a call is closed");
        }
        self.note(format!("start {lane}"));
        self.0.lock().unwrap().busy += 1;
    }
    fn poll(&mut self, lane: LaneId) -> Option<Result<Done, Fault>> {
        let script = &mut self.0.lock().unwrap();
        if script.goes_on {
            return None;
        }
        let left = &mut script.polls[lane.index()];
        match left.front_mut() {
            Some(0) | None => {
                left.pop_front();
                script.busy -= 1;
                Some(Ok(Done::default()))
            }
            Some(polls) => {
                *polls -= 1;
                None
            }
        }
    }
    fn clear(&mut self, lane: LaneId, _: &mut Loaded) -> Result<(), Fault> {
        self.note(format!("clear {lane}"));
        Ok(())
    }
}

impl Hygiene for Scripted {
    fn settle(&mut self) -> Result<(), Fault> {
        self.note("settle".into());
        Ok(())
    }
    fn forget(&mut self) -> Result<(), Fault> {
        self.note("forget".into());
        Ok(())
    }
    fn scrub(&mut self) -> Result<(), Fault> {
        self.note("scrub".into());
        Ok(())
    }
    fn finds_others(&self) -> bool {
        self.0.lock().unwrap().finds_others
    }
}
