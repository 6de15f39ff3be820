//! A worker, and the supervisor's end of its channels.
//!
//! - here: a worker on a thread of this process, for any device that this process can have;
//! - [`program`]: a worker as a process, for devices that a fault takes the whole process away from;
//! - [`calls`]: calls, spelled out.

#![allow(dead_code, unused_imports, unreachable_pub, reason = "every test binary uses its own part")]

pub mod calls;
pub mod program;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use pappus_protocol::from_worker::{Done, Hello};
use pappus_protocol::pipe::{self, Got, Inbox, Outbox};
use pappus_protocol::to_worker::{Configure, Install, Load, WeightsForm};
use pappus_protocol::turn_page::{Orders, Prices, Yield, Yields};
use pappus_protocol::{ArenaId, Fault, FaultCode, FromWorker, FunctionId, ToWorker, TurnId, control};
use pappus_shmem::{Mapping, SharedWords, ValidatedMemfd, memfd};
use pappus_worker::device::Device;
use pappus_worker::device::cpu::compiler::CpuCompiler;
use pappus_worker::serve::Memory;
use pappus_worker::{Channels, Error, serve};

pub use calls::{Call, item, staged, target};
use program::{Program, Started};

pub const ARENA_BYTES: u64 = 1 << 20;
/// What a lane is lent, unless a test says otherwise.
pub const LANE_BYTES: u64 = 1 << 20;
/// The one client arena, open from the start.
pub const ARENA: u64 = 1;
/// Outputs of [`Worker::call`] start here.
pub const OUTPUTS_AT: u64 = ARENA_BYTES / 2;
/// What arenas hold where nothing was written.
pub const UNTOUCHED: u8 = 0x5a;

/// A worker that serves; it ends when this is dropped.
pub struct Worker {
    pub to: Outbox,
    pub from: Inbox,
    pub control: OwnedFd,
    pub staging: Mapping,
    pub arena: Mapping,
    turns: Arc<SharedWords>,
    orders: Orders<Arc<SharedWords>>,
    yields: Yields<Arc<SharedWords>>,
    pub hello: Hello,
    /// The lanes' memory, as the worker said last.
    pub leased: Option<u64>,
    /// How often the worker said that weights left.
    unloaded: u32,
    /// What the lane of a call is lent, unless the call says otherwise.
    pub lane_bytes: u64,
    /// True if calls of functions that are installed from now on are checked.
    pub checked: bool,
    /// Its last message, if its device failed.
    pub broken: Option<Fault>,
    settings: Configure,
    runs: Runs,
    calls: u64,
    /// What the worker said of calls, functions and weights, in short words.
    heard: Vec<String>,
}

/// A worker's thread or process.
enum Runs {
    Thread(JoinHandle<Result<(), Error>>),
    Process(Program),
}

/// The supervisor's ends.
struct Ends {
    to: OwnedFd,
    from: OwnedFd,
    control: OwnedFd,
    staging: Mapping,
    turns: Arc<SharedWords>,
}

impl Worker {
    /// On a thread.
    pub fn start<D: Device>(make: impl FnOnce() -> D + Send + 'static) -> Self {
        let (commands, to) = pipe::pipe().unwrap();
        let (from, answers) = pipe::pipe().unwrap();
        let (control, theirs) = control::pair().unwrap();
        let staging = memfd::arena("staging", ARENA_BYTES).unwrap();
        let view = Mapping::writable(&staging).unwrap();
        let (turns, page) = turn_page();
        let thread = std::thread::spawn(move || {
            let memory = Memory { staging: &staging, turns: SharedWords::open(&page).unwrap() };
            serve::run(Channels::new(commands, answers, theirs), memory, make())
        });
        Self::over(Ends { to, from, control, staging: view, turns }, Runs::Thread(thread))
    }

    /// As a process.
    pub fn process(options: &program::Options) -> Self {
        let staging = memfd::arena("staging", ARENA_BYTES).unwrap();
        let view = Mapping::writable(&staging).unwrap();
        let (turns, page) = turn_page();
        let Started { program, to, from, control } = program::start("serve", options, &staging, &page);
        let ends = Ends { to, from, control, staging: view, turns };
        Self::over(ends, Runs::Process(program))
    }

    fn over(ends: Ends, runs: Runs) -> Self {
        let memfd = memfd::arena("arena", ARENA_BYTES).unwrap();
        let arena = Mapping::writable(&memfd).unwrap();
        arena.fill(0, ARENA_BYTES, UNTOUCHED).unwrap();
        let mut worker = Self {
            to: Outbox::new(ends.to),
            from: Inbox::new(ends.from),
            control: ends.control,
            staging: ends.staging,
            arena,
            orders: Orders::new(ends.turns.clone()),
            yields: Yields::new(ends.turns.clone()),
            turns: ends.turns,
            hello: Hello::new("", ""),
            leased: None,
            unloaded: 0,
            lane_bytes: LANE_BYTES,
            checked: false,
            broken: None,
            settings: Configure { poll_us: 50, turns: false, scrub_calls: false, scrub_switch: false },
            runs,
            calls: 0,
            heard: Vec::new(),
        };
        let hello = worker.answer(|message| match message {
            FromWorker::Hello(hello) => hello,
            other => panic!("{other:?}"),
        });
        worker.hello = hello.expect("the worker ended before it greeted");
        worker.open_arena(ARENA, &memfd);
        worker
    }

    /// Grants the worker a turn, with changes at 140 µs; true if the worker slept. Calls that were pushed before
    /// are written before.
    pub fn grant(&mut self, turn: TurnId, quantum_us: u32) -> bool {
        self.write();
        let sleeps = self.orders.grant(turn, Prices { quantum_us, change_us: 140 });
        self.wake(sleeps)
    }

    /// Tells the worker that others wait; true if the worker slept. Calls that were pushed before are written
    /// before.
    pub fn revoke(&mut self, turn: TurnId) -> bool {
        self.write();
        let sleeps = self.orders.revoke(turn);
        self.wake(sleeps)
    }

    fn wake(&mut self, sleeps: bool) -> bool {
        if sleeps {
            self.to.push_to_worker(&ToWorker::Order);
            self.write();
        }
        sleeps
    }

    fn write(&mut self) {
        // A worker that ended takes nothing.
        let _ = self.to.flush_blocking();
    }

    /// Waits until it sleeps, having read all that was pushed.
    pub fn until_asleep(&mut self) {
        self.to.flush_blocking().unwrap();
        let sleeps = || self.turns.words()[0].load(Ordering::Acquire) & 1 == 1;
        while rustix::io::ioctl_fionread(self.to.as_fd()).unwrap() > 0 || !sleeps() {
            std::thread::yield_now();
        }
    }

    /// True if the worker said something about its turn.
    pub fn has_yielded(&self) -> bool {
        self.yields.has_news()
    }

    /// The worker's next word about its turn.
    pub fn yields(&mut self) -> Yield {
        loop {
            if let Some(said) = self.yields.look() {
                return said;
            }
            let got = self.from.wait_beside(Duration::ZERO, None, None, &self.yields).unwrap();
            assert_ne!(got, Got::Closed, "the worker ended");
        }
    }

    /// Has lanes give their memory back; what all have then.
    pub fn give_back(&mut self, lanes: u64) -> u64 {
        self.send(&ToWorker::GiveBack { lanes });
        self.until_leased()
    }

    pub fn configure(&mut self, change: impl FnOnce(&mut Configure)) {
        change(&mut self.settings);
        self.send(&ToWorker::Configure(self.settings.clone()));
    }

    /// Waits until the worker says what its lanes have, behind settings or memory that is given back.
    pub fn until_leased(&mut self) -> u64 {
        self.leased = None;
        while self.leased.is_none() {
            assert!(self.receive(), "the worker ended");
        }
        self.leased.unwrap()
    }

    /// Hands it on to another domain, which has a client arena of the same number; waits until it says that it is
    /// ready.
    pub fn scrub(&mut self) {
        self.send(&ToWorker::Scrub { handover: 7 });
        let said = self.answer(|message| match message {
            FromWorker::Scrubbed { handover } => handover,
            other => panic!("{other:?}"),
        });
        assert_eq!(said, Some(7), "the worker ended");
        let memfd = memfd::arena("arena", ARENA_BYTES).unwrap();
        self.arena = Mapping::writable(&memfd).unwrap();
        self.arena.fill(0, ARENA_BYTES, UNTOUCHED).unwrap();
        self.open_arena(ARENA, &memfd);
    }

    pub fn open_arena(&mut self, arena: u64, memfd: &ValidatedMemfd) {
        control::send(self.control.as_fd(), arena, &[memfd.as_fd()]).unwrap();
        self.send(&ToWorker::OpenArena { arena: ArenaId::new(arena) });
    }

    pub fn install(&mut self, function: u64, json: &str, code: &[u8], weights: &[&[u8]]) {
        self.install_modules(function, json, &[code], weights);
    }

    pub fn install_modules(&mut self, function: u64, json: &str, codes: &[&[u8]], weights: &[&[u8]]) {
        let mut packed = Vec::new();
        for weight in weights {
            packed.extend_from_slice(weight);
            let guard = if self.checked { pappus_blueprint::GUARD_BYTES as usize } else { 0 };
            packed.resize(packed.len().next_multiple_of(256) + guard, 0);
        }
        let packed = memfd::sealed("weights", &packed).unwrap();
        let weight_bytes = weights.iter().map(|w| w.len() as u64).collect();
        self.install_with(function, json, codes, weight_bytes, WeightsForm::Host, packed.as_fd());
    }

    /// With weights as they come.
    pub fn install_with(
        &mut self,
        function: u64,
        json: &str,
        codes: &[&[u8]],
        weight_bytes: Vec<u64>,
        weights: WeightsForm,
        packed: BorrowedFd<'_>,
    ) {
        let json = memfd::sealed("json", json.as_bytes()).unwrap();
        let codes: Vec<_> = codes.iter().map(|code| memfd::sealed("code", code).unwrap()).collect();
        let has_weights = weight_bytes.iter().any(|bytes| *bytes > 0);
        let mut fds = vec![json.as_fd()];
        fds.extend(codes.iter().map(AsFd::as_fd));
        control::send(self.control.as_fd(), function, &fds).unwrap();
        let modules = codes.len() as u32;
        let install = Install { modules, weight_bytes, checked: self.checked };
        self.send(&ToWorker::Install { function: FunctionId::new(function), install });
        if has_weights {
            self.load(function, Load { weights, instead_of: None }, packed);
        }
    }

    /// Installs a function without its weights, which have so many bytes.
    pub fn install_without_weights(
        &mut self,
        function: u64,
        json: &str,
        code: &[u8],
        weight_bytes: Vec<u64>,
    ) {
        let [json, code] = [json.as_bytes(), code].map(|part| memfd::sealed("part", part).unwrap());
        control::send(self.control.as_fd(), function, &[json.as_fd(), code.as_fd()]).unwrap();
        let install = Install { modules: 1, weight_bytes, checked: self.checked };
        self.send(&ToWorker::Install { function: FunctionId::new(function), install });
    }

    /// Waits until the worker says that weights left.
    pub fn until_unloaded(&mut self) {
        while self.unloaded == 0 {
            assert!(self.receive(), "the worker ended");
        }
        self.unloaded -= 1;
    }

    /// Has a function's weights loaded, which come like this.
    pub fn load(&mut self, function: u64, load: Load, weights: BorrowedFd<'_>) {
        control::send(self.control.as_fd(), function, &[weights]).unwrap();
        self.send(&ToWorker::Load { function: FunctionId::new(function), load });
    }

    /// Reads until the worker said this of a function or its weights; it says nothing else first.
    pub fn until(&mut self, words: &str) {
        while !self.heard.iter().any(|heard| heard == words) {
            assert!(self.receive(), "the worker ended");
        }
    }

    /// What the worker said of calls, functions and weights so far, in its order.
    pub fn heard(&self) -> Vec<&str> {
        self.heard.iter().map(String::as_str).collect()
    }

    /// Has a function's weights leave.
    pub fn unload(&mut self, function: u64) {
        self.send(&ToWorker::Unload { function: FunctionId::new(function) });
    }

    pub fn send(&mut self, message: &ToWorker<'_>) {
        self.to.push_to_worker(message);
        self.to.flush_blocking().unwrap();
    }

    /// The next message that is not about the lease, or nothing if the worker ended.
    pub fn answer<R>(&mut self, read: impl FnOnce(FromWorker<'_>) -> R) -> Option<R> {
        loop {
            if let Some(frame) = self.from.frame().unwrap() {
                let message = FromWorker::decode(frame).unwrap();
                note(&mut self.heard, &message);
                match message {
                    FromWorker::Leased { bytes } => self.leased = Some(bytes),
                    FromWorker::Uninstalled { .. }
                    | FromWorker::Yield
                    | FromWorker::Loaded { .. }
                    | FromWorker::NotLoaded { .. }
                    | FromWorker::NotInstalled { .. } => {}
                    FromWorker::Unloaded { .. } => self.unloaded += 1,
                    other => return Some(read(other)),
                }
            } else if self.from.wait(Duration::ZERO, None, None).unwrap() == Got::Closed {
                return None;
            }
        }
    }

    /// Reads a message about the lease; false if the worker ended before.
    fn receive(&mut self) -> bool {
        loop {
            if let Some(frame) = self.from.frame().unwrap() {
                let message = FromWorker::decode(frame).unwrap();
                note(&mut self.heard, &message);
                match message {
                    FromWorker::Leased { bytes } => self.leased = Some(bytes),
                    FromWorker::Uninstalled { .. }
                    | FromWorker::Yield
                    | FromWorker::Loaded { .. }
                    | FromWorker::NotLoaded { .. }
                    | FromWorker::NotInstalled { .. } => {}
                    FromWorker::Unloaded { .. } => self.unloaded += 1,
                    other => panic!("{other:?}"),
                }
                return true;
            }
            if self.from.wait(Duration::ZERO, None, None).unwrap() == Got::Closed {
                return false;
            }
        }
    }

    /// Sends a call; returns the id of its answer.
    pub fn begin(&mut self, call: &Call<'_>) -> u64 {
        self.calls += 1;
        let id = self.calls;
        if !call.descriptors.is_empty() {
            control::send(self.control.as_fd(), id, &call.descriptors).unwrap();
        }
        call.push(id, self.lane_bytes, &mut self.to);
        self.to.flush_blocking().unwrap();
        id
    }

    /// The next answer to a call; nothing if the device failed first.
    pub fn finished(&mut self) -> Option<(u64, Result<Done, Fault>)> {
        let got = self.answer(|message| match message {
            FromWorker::Done { call, timings } => Ok((call, Ok(timings))),
            FromWorker::Failed { call, fault } => Ok((call, Err(fault.to_fault()))),
            FromWorker::Broken { fault } => Err(fault.to_fault()),
            other => panic!("{other:?}"),
        });
        match got.expect("the worker ended") {
            Ok(answer) => Some(answer),
            Err(fault) => {
                self.broken = Some(fault);
                None
            }
        }
    }

    /// Sends a call and waits for its answer; where the device failed, what that was.
    pub fn invoke(&mut self, call: &Call<'_>) -> Result<(), Fault> {
        let id = self.begin(call);
        match self.finished() {
            Some((call, result)) if call == id => result.map(drop),
            Some(other) => panic!("{other:?}"),
            None => Err(self.broken.clone().unwrap()),
        }
    }

    /// Calls with inputs written to the arena's start and outputs of these sizes from [`OUTPUTS_AT`] on.
    pub fn call(&mut self, function: u64, inputs: &[&[u8]], outputs: &[u64]) -> Result<Vec<Vec<u8>>, Fault> {
        let call = self.arena_call(function, inputs, outputs);
        self.invoke(&call)?;
        Ok(self.outputs(&call))
    }

    /// As [`Worker::call`], for a suspect.
    pub fn call_alone(
        &mut self,
        function: u64,
        inputs: &[&[u8]],
        outputs: &[u64],
    ) -> Result<Vec<Vec<u8>>, Fault> {
        let call = Call { alone: true, ..self.arena_call(function, inputs, outputs) };
        self.invoke(&call)?;
        Ok(self.outputs(&call))
    }

    /// What the arena holds where the call's outputs went.
    pub fn outputs(&self, call: &Call<'_>) -> Vec<Vec<u8>> {
        call.outputs.iter().map(|target| self.read_arena(target.offset.get(), target.bytes.get())).collect()
    }

    pub fn arena_call<'a>(&self, function: u64, inputs: &[&[u8]], outputs: &[u64]) -> Call<'a> {
        let mut at = 0;
        for bytes in inputs {
            self.arena.write(at, bytes).unwrap();
            at += bytes.len() as u64;
        }
        let inputs: Vec<_> = inputs.iter().map(|bytes| bytes.len() as u64).collect();
        Call::on(function, 0, &inputs, OUTPUTS_AT, outputs)
    }

    pub fn read_arena(&self, offset: u64, bytes: u64) -> Vec<u8> {
        let mut out = vec![0; bytes as usize];
        self.arena.read(offset, &mut out).unwrap();
        out
    }

    /// Waits for the worker's last words, after a fault that its device does not survive, and for its end.
    pub fn breaks(mut self) -> Fault {
        while self.broken.is_none() {
            assert!(self.finished().is_none(), "an answer where the device failed");
        }
        assert_eq!(self.answer(|message| format!("{message:?}")), None, "nothing follows");
        let fault = self.broken.take().unwrap();
        let _ = self.end();
        fault
    }

    /// Closes the pipes and returns how the worker ended.
    pub fn end(self) -> Result<(), Error> {
        drop(self.to);
        drop(self.control);
        match self.runs {
            Runs::Thread(thread) => thread.join().expect("the worker panicked"),
            Runs::Process(mut program) => program.end().map_err(|how| {
                Error::Device(Fault::new(FaultCode::Device, format!("{how}\n{}", program.said())))
            }),
        }
    }

    /// Ends as [`Worker::end`], well; everything it wrote to its standard streams.
    pub fn end_and_said(self) -> String {
        drop(self.to);
        drop(self.control);
        let Runs::Process(mut program) = self.runs else { panic!("a thread of this process") };
        program.end().unwrap();
        program.said()
    }

    /// SIGKILL, and nothing is left of the process when this returns.
    pub fn kill(mut self) {
        self.program().kill();
    }

    /// The process that it is.
    pub fn program(&mut self) -> &mut Program {
        match &mut self.runs {
            Runs::Process(program) => program,
            Runs::Thread(_) => panic!("a thread of this process"),
        }
    }
}

/// Keeps what a worker said, if it is about a call, a function or weights.
fn note(heard: &mut Vec<String>, message: &FromWorker<'_>) {
    let (tag, id) = message.head();
    if id != 0 {
        heard.push(format!("{tag:?} {id}"));
    }
}

/// The supervisor's side of a turn page, and what the worker opens it by.
fn turn_page() -> (Arc<SharedWords>, ValidatedMemfd) {
    let (turns, page) = SharedWords::create("turns").unwrap();
    (Arc::new(turns), page)
}

/// Compiles a module for the CPU.
pub fn compile_cpu(module: &[u8]) -> Vec<u8> {
    use pappus_worker::device::Compiler;
    CpuCompiler::new(false).unwrap().compile(module).unwrap().0
}

/// The same with checks.
pub fn compile_cpu_checked(module: &[u8]) -> Vec<u8> {
    use pappus_worker::device::Compiler;
    CpuCompiler::new(false).unwrap().compile_checked(module).unwrap().0
}
