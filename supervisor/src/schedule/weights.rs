//! Which functions' weights stay on a device: decisions only.
//!
//! GreedyDual-Size (Cao and Irani, "Cost-Aware WWW Proxy Caching Algorithms", USITS 1997): a function's
//! priority is the clock plus what a reload costs per byte; the lowest goes, and the clock moves up to
//! what it had, so that whatever is not used sinks.

use std::collections::HashMap;

use super::words::WorkerId;

/// What a reload costs however small the weights are, in nanoseconds.
const LATENCY_NS: f64 = 200_000.0;
/// What it costs for each byte: pinned copies run at about 50 GB/s.
const BYTE_NS: f64 = 0.02;

/// The weights on one device; `T` names memory of the device.
#[derive(Debug)]
pub struct Weights<T> {
    budget_bytes: u64,
    used_bytes: u64,
    clock: f64,
    uses: u64,
    entries: HashMap<u64, Entry<T>>,
}

#[derive(Debug)]
struct Entry<T> {
    bytes: u64,
    state: State<T>,
    /// Workers that loaded them for themselves, because they were not shared yet.
    copies: Vec<WorkerId>,
    /// Calls of the function that are in workers.
    calls: u32,
    /// Of equal priority, who was used longest ago goes first.
    priority: (f64, u64),
}

#[derive(Debug)]
enum State<T> {
    /// A worker loads them, and sends back what names them.
    Loading(WorkerId),
    Shared(T),
}

/// How a worker gets a function's weights.
#[derive(Debug, PartialEq, Eq)]
pub enum Source<T> {
    /// From the host, for itself.
    Host,
    /// From the host, and what names them is to be sent back.
    Export,
    /// They are on the device already.
    Device(T, u64),
}

/// No room: all others are in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRoom {
    /// Bytes that all weights of the device may take.
    pub budget_bytes: u64,
}

impl<T> Entry<T> {
    fn taken_bytes(&self) -> u64 {
        self.bytes.saturating_mul(1 + self.copies.len() as u64)
    }
}

impl<T: Clone> Weights<T> {
    /// A device without weights.
    pub fn new(budget_bytes: u64) -> Self {
        Self { budget_bytes, used_bytes: 0, clock: 0.0, uses: 0, entries: HashMap::new() }
    }

    /// Device memory that is taken.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    fn priority(&mut self, bytes: u64) -> (f64, u64) {
        self.uses += 1;
        let bytes = bytes.max(1) as f64;
        (self.clock + (LATENCY_NS + bytes * BYTE_NS) / bytes, self.uses)
    }

    /// A worker installs a function whose weights take `bytes`. Functions that are to be uninstalled
    /// everywhere are added to `evicted`.
    pub fn claim(
        &mut self,
        function: u64,
        worker: WorkerId,
        bytes: u64,
        evicted: &mut Vec<u64>,
    ) -> Result<Source<T>, NoRoom> {
        match self.entries.get(&function).map(|entry| &entry.state) {
            Some(State::Shared(device)) => {
                let device = device.clone();
                self.touch(function);
                Ok(Source::Device(device, self.entries.get(&function).map_or(bytes, |e| e.bytes)))
            }
            // It was told to forget them before it could send them.
            Some(State::Loading(loader)) if *loader == worker => Ok(Source::Export),
            Some(State::Loading(_)) => {
                self.make_room(bytes, function, evicted)?;
                if let Some(entry) = self.entries.get_mut(&function) {
                    entry.copies.push(worker);
                    self.used_bytes += entry.bytes;
                }
                Ok(Source::Host)
            }
            None => {
                self.make_room(bytes, function, evicted)?;
                let priority = self.priority(bytes);
                let state = State::Loading(worker);
                self.entries.insert(function, Entry { bytes, state, copies: Vec::new(), calls: 0, priority });
                self.used_bytes += bytes;
                Ok(Source::Export)
            }
        }
    }

    /// Evicts until `bytes` fit beside the rest; nothing if they never would.
    fn make_room(&mut self, bytes: u64, keep: u64, evicted: &mut Vec<u64>) -> Result<(), NoRoom> {
        let may_go = |(function, entry): &(&u64, &Entry<T>)| **function != keep && entry.calls == 0;
        let free: u64 = self.entries.iter().filter(may_go).map(|(_, entry)| entry.taken_bytes()).sum();
        if (self.used_bytes - free).saturating_add(bytes) > self.budget_bytes {
            return Err(NoRoom { budget_bytes: self.budget_bytes });
        }
        while self.used_bytes + bytes > self.budget_bytes {
            let candidates = self.entries.iter().filter(may_go);
            let lowest = candidates.min_by(|(_, a), (_, b)| {
                a.priority.0.total_cmp(&b.priority.0).then(a.priority.1.cmp(&b.priority.1))
            });
            let Some((function, priority)) = lowest.map(|(f, entry)| (*f, entry.priority)) else { break };
            self.clock = priority.0;
            self.forget(function);
            evicted.push(function);
        }
        Ok(())
    }

    fn touch(&mut self, function: u64) {
        let Some(bytes) = self.entries.get(&function).map(|entry| entry.bytes) else { return };
        let priority = self.priority(bytes);
        if let Some(entry) = self.entries.get_mut(&function) {
            entry.priority = priority;
        }
    }

    /// What a worker loaded can be shared now. False if nobody asked that worker for it; if it was
    /// evicted meanwhile, nothing happens.
    pub fn exported(&mut self, function: u64, worker: WorkerId, device: T, bytes: u64) -> bool {
        let Some(entry) = self.entries.get_mut(&function) else { return true };
        match entry.state {
            State::Loading(loader) if loader == worker => {
                entry.state = State::Shared(device);
                self.used_bytes = self.used_bytes - entry.bytes + bytes;
                entry.bytes = bytes;
                true
            }
            State::Shared(_) => true,
            State::Loading(_) => false,
        }
    }

    /// A call of the function is in a worker.
    pub fn begin(&mut self, function: u64) {
        self.touch(function);
        if let Some(entry) = self.entries.get_mut(&function) {
            entry.calls += 1;
        }
    }

    /// It is not any more.
    pub fn end(&mut self, function: u64) {
        if let Some(entry) = self.entries.get_mut(&function) {
            entry.calls = entry.calls.saturating_sub(1);
        }
    }

    /// The function is gone, or its weights do not load: whoever wants them next loads them afresh.
    pub fn forget(&mut self, function: u64) {
        if let Some(entry) = self.entries.remove(&function) {
            self.used_bytes -= entry.taken_bytes();
        }
    }

    /// A worker forgot one function.
    pub fn uninstalled(&mut self, function: u64, worker: WorkerId) {
        if let Some(entry) = self.entries.get_mut(&function) {
            let before = entry.taken_bytes();
            entry.copies.retain(|copy| *copy != worker);
            self.used_bytes -= before - entry.taken_bytes();
        }
    }

    /// A worker's process is gone, with what it had for itself and what it did not send.
    pub fn worker_gone(&mut self, worker: WorkerId) {
        let functions: Vec<u64> = self.entries.keys().copied().collect();
        for function in functions {
            self.uninstalled(function, worker);
            let Some(entry) = self.entries.get_mut(&function) else { continue };
            match entry.state {
                State::Loading(loader) if loader == worker => match entry.copies.pop() {
                    None => self.forget(function),
                    // Another worker's own copy is the one that counts; it cannot be shared.
                    Some(other) => {
                        self.used_bytes -= entry.bytes;
                        entry.state = State::Loading(other);
                    }
                },
                _ => {}
            }
        }
    }
}

#[cfg(test)]
#[path = "weights_tests.rs"]
mod tests;
