//! What is to happen in virtual time, in the order of time and, at one moment, in the order in which it was found out.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use pappus_supervisor::ids::{Generation, WorkerId};
use pappus_supervisor::schedule::CallId;

use super::worker::Told;

/// Names a call of the simulation.
pub type CallIndex = usize;

/// Something that is to happen.
#[derive(Debug, Clone, Copy)]
pub enum Event {
    /// A caller sends a call.
    Send {
        /// Who.
        caller: usize,
    },
    /// A trace's next call is sent.
    Trace,
    /// A call comes to the supervisor.
    Submit {
        /// Which.
        call: CallIndex,
    },
    /// Its client has the answer.
    Answer {
        /// Which call.
        call: CallIndex,
        /// How long it was on the chip, if it ended well.
        ran_ns: Option<u64>,
    },
    /// Something on a device.
    Device {
        /// Which.
        device: usize,
        /// What.
        what: OnDevice,
    },
    /// Device time is counted.
    Window,
}

/// Something that is to happen on a device.
#[derive(Debug, Clone, Copy)]
pub enum OnDevice {
    /// Its scheduler's clock.
    Tick,
    /// The chip.
    Chip,
    /// A frame comes to the process in a slot.
    Frame {
        /// The slot.
        worker: WorkerId,
        /// The process.
        generation: Generation,
        /// What it is told.
        told: Told,
    },
    /// A process looks at its clock.
    Look {
        /// The slot.
        worker: WorkerId,
        /// The process.
        generation: Generation,
    },
    /// What a process says comes to the supervisor.
    Said {
        /// The slot.
        worker: WorkerId,
        /// The process.
        generation: Generation,
        /// What it says.
        says: Says,
    },
    /// A process wants memory for its context, again.
    Reserve {
        /// For whom it is made.
        maker: Maker,
    },
    /// A process begins to make its context.
    ContextBegins,
    /// Its context is there.
    ContextMade {
        /// For whom it was made.
        maker: Maker,
    },
    /// A process has forgotten its domain: the device goes on.
    ScrubEnds,
    /// A process is ready in a slot.
    Attached {
        /// The slot.
        worker: WorkerId,
    },
    /// Time to think about a standby.
    Keeper {
        /// Which.
        standby: usize,
    },
    /// The process in a slot was killed, and is gone now.
    Killed {
        /// The slot.
        worker: WorkerId,
        /// The process.
        generation: Generation,
    },
    /// A process that served is reaped.
    Reaped {
        /// Where it served.
        worker: WorkerId,
        /// The process.
        generation: Generation,
    },
}

/// For whom a process is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Maker {
    /// A slot waits for it.
    Slot(WorkerId),
    /// It is kept ready.
    Standby(usize),
}

/// What a process says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Says {
    /// A call ended well, after so long on the chip.
    Done {
        /// The call.
        id: CallId,
        /// Nanoseconds.
        device_ns: u64,
    },
    /// Its lanes run empty.
    Yielding {
        /// Its turn.
        turn: u64,
    },
    /// It gives its turn back.
    Yielded {
        /// Its turn.
        turn: u64,
        /// Device time that it used.
        used_ns: u64,
    },
    /// It gave memory back.
    GaveBack {
        /// What its lanes have left.
        left_bytes: u64,
    },
    /// It forgot its domain.
    Scrubbed,
}

/// An entry: when, which in the order of insertion, what.
#[derive(Debug)]
struct Entry(u64, u64, Event);

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

/// All that is to happen.
#[derive(Debug, Default)]
pub struct Events {
    heap: BinaryHeap<Reverse<Entry>>,
    next: u64,
}

impl Events {
    /// Something is to happen at a moment.
    pub fn at(&mut self, at_ns: u64, event: Event) {
        self.heap.push(Reverse(Entry(at_ns, self.next, event)));
        self.next += 1;
    }

    /// The next moment and what happens then.
    pub fn pop(&mut self) -> Option<(u64, Event)> {
        self.heap.pop().map(|Reverse(Entry(at_ns, _, event))| (at_ns, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_one_moment_keep_their_order() {
        let mut events = Events::default();
        for (at_ns, caller) in [(5, 0), (3, 1), (5, 2), (3, 3)] {
            events.at(at_ns, Event::Send { caller });
        }
        let mut order = Vec::new();
        while let Some((at_ns, Event::Send { caller })) = events.pop() {
            order.push((at_ns, caller));
        }
        assert_eq!(order, [(3, 1), (3, 3), (5, 0), (5, 2)]);
    }
}
