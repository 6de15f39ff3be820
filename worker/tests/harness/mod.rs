//! A worker on a thread of this process, and the supervisor's end of its channels.

#![allow(dead_code, unreachable_pub, reason = "every test binary uses its own part")]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::JoinHandle;
use std::time::Duration;

use pappus_protocol::pipe::{self, Got, Inbox, Outbox};
use pappus_protocol::to_worker::{Configure, Install, Invoke, Item, STAGING_ARENA, Target, WeightsForm};
use pappus_protocol::{Fault, FromWorker, ToWorker, control};
use pappus_shmem::{Judged, Mapping, memfd};
use pappus_worker::device::Device;
use pappus_worker::device::cpu::compiler::CpuCompiler;
use pappus_worker::{Channels, Error, serve};

pub const ARENA_BYTES: u64 = 1 << 20;
pub const LEASE_BYTES: u64 = 1 << 20;
/// The one client arena, open from the start.
pub const ARENA: u64 = 1;
/// Outputs of [`Worker::call`] start here.
pub const OUTPUTS_AT: u64 = ARENA_BYTES / 2;
/// What arenas hold where nothing was written.
pub const UNTOUCHED: u8 = 0x5a;

/// A worker that serves on a thread; it ends when this is dropped.
pub struct Worker {
    pub to: Outbox,
    pub from: Inbox,
    pub control: OwnedFd,
    pub staging: Mapping,
    pub arena: Mapping,
    thread: JoinHandle<Result<(), Error>>,
    calls: u64,
}

/// A call, spelled out.
pub struct Call<'a> {
    pub function: u64,
    pub items: Vec<Item>,
    pub outputs: Vec<Target>,
    pub words: Vec<u64>,
    pub descriptors: Vec<BorrowedFd<'a>>,
    pub deadline_ns: u64,
}

impl Worker {
    pub fn start<D: Device>(make: impl FnOnce() -> D + Send + 'static) -> Self {
        let (commands, to) = pipe::pipe().unwrap();
        let (from, answers) = pipe::pipe().unwrap();
        let (ours, theirs) = control::pair().unwrap();
        let staging = memfd::arena("staging", ARENA_BYTES).unwrap();
        let view = Mapping::writable(&staging).unwrap();
        let thread = std::thread::spawn(move || {
            serve::run(Channels::new(commands, answers, theirs), &staging, make())
        });
        let memfd = memfd::arena("arena", ARENA_BYTES).unwrap();
        let arena = Mapping::writable(&memfd).unwrap();
        arena.fill(0, ARENA_BYTES, UNTOUCHED).unwrap();
        let mut worker = Self {
            to: Outbox::new(to),
            from: Inbox::new(from),
            control: ours,
            staging: view,
            arena,
            thread,
            calls: 0,
        };
        assert!(matches!(worker.answer(|m| matches!(m, FromWorker::Hello(_))), Some(true)));
        worker.lease(LEASE_BYTES);
        worker.open_arena(ARENA, &memfd);
        worker
    }

    pub fn lease(&mut self, lease_bytes: u64) {
        self.send(&ToWorker::Configure(Configure {
            lease_bytes,
            poll_us: 50,
            turns: false,
            scrub_calls: false,
        }));
    }

    pub fn open_arena(&mut self, arena: u64, memfd: &Judged) {
        control::send(self.control.as_fd(), arena, &[memfd.as_fd()]).unwrap();
        self.send(&ToWorker::OpenArena { arena });
    }

    pub fn install(&mut self, function: u64, json: &str, code: &[u8], weights: &[&[u8]]) {
        self.install_modules(function, json, &[code], weights);
    }

    pub fn install_modules(&mut self, function: u64, json: &str, codes: &[&[u8]], weights: &[&[u8]]) {
        let json = memfd::sealed("json", json.as_bytes()).unwrap();
        let codes: Vec<_> = codes.iter().map(|code| memfd::sealed("code", code).unwrap()).collect();
        let weight_bytes: Vec<u64> = weights.iter().map(|w| w.len() as u64).collect();
        let mut packed = Vec::new();
        for weight in weights {
            packed.extend_from_slice(weight);
            packed.resize(packed.len().next_multiple_of(256), 0);
        }
        let packed = memfd::sealed("weights", &packed).unwrap();
        let mut fds = vec![json.as_fd()];
        if !weights.is_empty() {
            fds.push(packed.as_fd());
        }
        fds.extend(codes.iter().map(AsFd::as_fd));
        control::send(self.control.as_fd(), function, &fds).unwrap();
        let modules = codes.len() as u32;
        self.send(&ToWorker::Install {
            function,
            install: Install { modules, weight_bytes, weights: WeightsForm::Host },
        });
    }

    pub fn send(&mut self, message: &ToWorker<'_>) {
        self.to.push_to_worker(message);
        self.to.flush_blocking().unwrap();
    }

    /// The next message, or nothing if the worker ended.
    pub fn answer<R>(&mut self, read: impl FnOnce(FromWorker<'_>) -> R) -> Option<R> {
        loop {
            if let Some(frame) = self.from.frame().unwrap() {
                return Some(read(FromWorker::decode(frame).unwrap()));
            }
            if self.from.wait(Duration::ZERO, None, None).unwrap() == Got::Closed {
                return None;
            }
        }
    }

    /// Sends a call and waits for its answer.
    pub fn invoke(&mut self, call: &Call<'_>) -> Result<(), Fault> {
        self.calls += 1;
        let id = self.calls;
        if !call.descriptors.is_empty() {
            control::send(self.control.as_fd(), id, &call.descriptors).unwrap();
        }
        let words: Vec<_> = call.words.iter().map(|&word| word.into()).collect();
        let invoke = Invoke {
            function: call.function,
            deadline_ns: call.deadline_ns,
            lane: 0,
            descriptors: call.descriptors.len() as u32,
            flags: 0,
            items: &call.items,
            outputs: &call.outputs,
            words: &words,
        };
        self.send(&ToWorker::Invoke { call: id, invoke });
        self.answer(|message| match message {
            FromWorker::Done { call, .. } if call == id => Ok(()),
            FromWorker::Failed { call, fault } if call == id => Err(fault.to_fault()),
            other => panic!("{other:?}"),
        })
        .expect("the worker ended")
    }

    /// Calls with inputs written to the arena's start and outputs of these sizes from [`OUTPUTS_AT`] on.
    pub fn call(&mut self, function: u64, inputs: &[&[u8]], outputs: &[u64]) -> Result<Vec<Vec<u8>>, Fault> {
        let call = self.arena_call(function, inputs, outputs);
        self.invoke(&call)?;
        Ok(call
            .outputs
            .iter()
            .map(|target| self.read_arena(target.offset.get(), target.bytes.get()))
            .collect())
    }

    pub fn arena_call<'a>(&self, function: u64, inputs: &[&[u8]], outputs: &[u64]) -> Call<'a> {
        let mut at = 0;
        let items = (0..).zip(inputs).map(|(input, bytes)| {
            self.arena.write(at, bytes).unwrap();
            let item = item(input, Item::ARENA, ARENA, at, bytes.len() as u64);
            at += bytes.len() as u64;
            item
        });
        let items = items.collect();
        let mut at = OUTPUTS_AT;
        let outputs = outputs.iter().map(|&bytes| {
            let target = target(ARENA, at, bytes);
            at += bytes;
            target
        });
        let outputs = outputs.collect();
        Call { function, items, outputs, words: vec![], descriptors: vec![], deadline_ns: u64::MAX }
    }

    pub fn read_arena(&self, offset: u64, bytes: u64) -> Vec<u8> {
        let mut out = vec![0; bytes as usize];
        self.arena.read(offset, &mut out).unwrap();
        out
    }

    /// Closes the pipes and returns how the worker ended.
    pub fn end(self) -> Result<(), Error> {
        drop(self.to);
        drop(self.control);
        self.thread.join().expect("the worker panicked")
    }
}

pub fn item(input: u32, kind: u32, source: u64, offset: u64, bytes: u64) -> Item {
    Item {
        input: input.into(),
        kind: kind.into(),
        source: source.into(),
        offset: offset.into(),
        bytes: bytes.into(),
    }
}

pub fn target(arena: u64, offset: u64, bytes: u64) -> Target {
    Target { arena: arena.into(), offset: offset.into(), bytes: bytes.into() }
}

pub fn staged(input: u32, offset: u64, bytes: u64) -> Item {
    item(input, Item::ARENA, STAGING_ARENA, offset, bytes)
}

/// Compiles a module for the CPU.
pub fn compile_cpu(module: &[u8]) -> Vec<u8> {
    use pappus_worker::device::Compiler;
    CpuCompiler::new().unwrap().compile(module).unwrap().0
}
