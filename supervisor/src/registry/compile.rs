//! One-shot compiling workers: a hostile module is parsed in a process of its own, never here.

use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use pappus_blueprint::kernel_info::CodeInfo;
use pappus_protocol::from_worker::Hello;
use pappus_protocol::pipe::Got;
use pappus_protocol::{FaultCode, FromWorker, Kind, ProtocolError, ToWorker, control};
use pappus_shmem::{MemfdError, ValidatedMemfd, memfd};
use rustix::process::Signal;

use crate::blocking::BrokenOff;
use crate::function::CodeTarget;
use crate::function::code_target::GreetingError;
use crate::limits::COMPILE_S;
use crate::processes::launcher::{Launcher, Role, Started};
use crate::processes::process;
use crate::processes::process_table::{ProcessReservation, ProcessTable};
use crate::processes::target::DeviceTarget;
use crate::refusal::{Failure, Reason, Refusable, failed, is_lack};

/// Machine code larger than this is refused.
const MAX_CODE_BYTES: u64 = 1 << 30;
/// A worker that ends sooner may have been hit by chance.
const SHORT: Duration = Duration::from_secs(2);
/// How long a device may fail before the request that waits fails: under MPS, a kernel that faults costs every process its
/// context, and a new one can be had 0.3 to 0.7 s later on an H200.
const RECOVERY: Duration = Duration::from_secs(5);
/// Between two attempts meanwhile.
const PAUSE: Duration = Duration::from_millis(50);
/// How long one that takes no job may take to say why.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// Compiling workers handle one job, so its number does not matter.
const JOB: u64 = 1;

/// What came out of a compilation.
#[derive(Debug)]
pub struct Compiled {
    /// The machine code.
    pub code: ValidatedMemfd,
    /// The target of the code: for another one, the module must be compiled anew.
    pub fingerprint: String,
    /// What is in it.
    pub info: CodeInfo,
}

/// Why a module is not compiled.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CompileError {
    /// The compiler's verdict on it.
    #[error("{0}")]
    Rejected(String),
    /// The compiling worker ended or misbehaved; where that may have been chance, twice.
    #[error("the module could not be compiled: {why} (the compiling worker {ended})")]
    Ended {
        /// What was seen of it.
        why: Arc<WorkerFault>,
        /// How its process ended.
        ended: String,
    },
    /// Something else failed, for longer than that should last.
    #[error("the module could not be compiled now: {0}")]
    NotNow(Passing),
    /// There is no time left for it.
    #[error("the supervisor is about to end")]
    Closing,
    /// The work did not come to its end.
    #[error(transparent)]
    BrokenOff(Arc<BrokenOff>),
    /// No compiling worker could be had.
    #[error(transparent)]
    Failure(#[from] Failure),
}

impl CompileError {
    /// True if another attempt would end the same way.
    pub(super) fn is_of_the_module(&self) -> bool {
        matches!(self, Self::Rejected(_) | Self::Ended { .. })
    }
}

impl Refusable for CompileError {
    fn reason(&self) -> Reason {
        match self {
            Self::Rejected(_) | Self::Ended { .. } => Reason::InvalidArgument,
            Self::NotNow(_) | Self::Closing => Reason::Unavailable,
            Self::BrokenOff(why) => why.reason(),
            Self::Failure(failure) => failure.reason(),
        }
    }

    fn retry_after_ms(&self) -> Option<u64> {
        match self {
            Self::Failure(failure) => failure.retry_after_ms(),
            _ => None,
        }
    }
}

/// What a compiling worker did wrong.
#[derive(Debug, thiserror::Error)]
pub enum WorkerFault {
    /// It broke the protocol.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// Its pipes broke.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// Its machine code came in something that is no memfd for it.
    #[error(transparent)]
    Code(#[from] MemfdError),
    /// Its greeting is wrong.
    #[error(transparent)]
    Greeting(#[from] GreetingError),
    /// It is another device's.
    #[error("it compiles for {0}")]
    OtherKind(Kind),
    /// Its answer came before its greeting.
    #[error("it compiled before it said hello")]
    NoHello,
    /// It sent what no compiling worker sends.
    #[error("it sent {0}")]
    Unexpected(String),
    /// It needed more time than there is.
    #[error("it took longer than {COMPILE_S} s")]
    Late,
    /// It said nothing.
    #[error("it ended without an answer")]
    Silent,
}

/// Why a compilation fails that may succeed in a moment.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Passing {
    /// Its device failed, as its worker says.
    #[error("{0}")]
    Device(String),
    /// This process lacks something that it needs to read the answer.
    #[error("{0}")]
    Lack(Arc<ProtocolError>),
    /// Processes that share faults with it ended.
    #[error("another process failed, and all with it")]
    SharedFault,
}

/// Starts compiling workers for one device kind.
#[derive(Debug, Clone)]
pub struct Compiler {
    /// Starts its workers.
    pub launcher: Arc<Launcher>,
    /// Which device it compiles for.
    pub target: DeviceTarget,
    /// The device's memory, once it is known.
    processes: Arc<OnceLock<Arc<ProcessTable>>>,
}

impl Compiler {
    /// Of a device kind, with nothing to processes for.
    pub fn new(launcher: Arc<Launcher>, target: DeviceTarget) -> Self {
        Self { launcher, target, processes: Arc::default() }
    }

    /// From here on, compilations take their context's memory from this processes.
    pub fn charge(&self, processes: &Arc<ProcessTable>) {
        let _ = self.processes.set(processes.clone());
    }

    /// For modules of devices that are not here: what it starts only reads them.
    pub fn of_no_device(launcher: Arc<Launcher>) -> Self {
        Self::new(launcher, DeviceTarget::any(Kind::BUILT_IN))
    }

    /// What a module declares that no device here runs: its kernels and their parameters, without machine code.
    pub fn describe(&self, module: &[u8]) -> Result<CodeInfo, CompileError> {
        self.ask(module, |job| ToWorker::Describe { job }).map(|described| described.info)
    }

    /// Compiles a module's bytes. Blocks until there is memory for it, and then for as long as it takes, at most
    /// [`COMPILE_S`].
    pub fn compile(&self, module: &[u8]) -> Result<Compiled, CompileError> {
        self.ask(module, |job| ToWorker::Compile { job })
    }

    /// As [`Compiler::compile`], with checks of every access to memory.
    pub fn compile_checked(&self, module: &[u8]) -> Result<Compiled, CompileError> {
        self.ask(module, |job| ToWorker::CompileChecked { job })
    }

    fn ask(&self, module: &[u8], ask: Ask) -> Result<Compiled, CompileError> {
        let module =
            memfd::sealed("pappus-module", module).map_err(|e| failed("cannot hold the module", &e))?;
        let until = Instant::now() + RECOVERY;
        let mut killed = false;
        loop {
            match self.attempt(&module, ask)? {
                Attempt::Over(outcome) => return outcome,
                // Once may be an accident, as with calls: the system kills processes without asking what they do.
                Attempt::Killed { .. } if !killed => killed = true,
                Attempt::Killed { why, ended } => return Err(CompileError::Ended { why, ended }),
                Attempt::Failed(_) if Instant::now() < until && self.pause() => {}
                Attempt::Failed(why) => return Err(CompileError::NotNow(why)),
            }
        }
    }

    /// Waits before the next attempt; false if there is no device to wait for, or if it closes.
    fn pause(&self) -> bool {
        self.processes.get().is_some_and(|processes| processes.pause(PAUSE))
    }

    fn attempt(&self, module: &ValidatedMemfd, ask: Ask) -> Result<Attempt, CompileError> {
        let mut reservation = match self.processes.get() {
            Some(processes) => Some(processes.reserve_compiler().ok_or(CompileError::Closing)?),
            None => None,
        };
        // Declared behind the reservation, and therefore dropped before it.
        let mut worker = self
            .launcher
            .start(Role::Compile, &self.target, None)
            .map_err(|e| failed("cannot start a compiling worker", &e))?;
        let since = Instant::now();
        let why = match converse(&mut worker, self.target.kind, module, ask, reservation.as_mut()) {
            Ok(outcome) => return Ok(Attempt::Over(outcome)),
            Err(Trouble::Passing(why)) => {
                tracing::warn!("a compiling worker cannot work now: {why}");
                return Ok(Attempt::Failed(why));
            }
            Err(Trouble::Worker(why)) => Arc::new(why),
        };
        let by_itself = worker.process.ends_soon();
        let end = worker.process.end();
        let killed = by_itself && end.as_ref().is_ok_and(|end| end.signal() == Some(Signal::KILL.as_raw()));
        let ended = process::describe_exit(end);
        tracing::warn!("a compiling worker {ended}: {why}");
        match killed && since.elapsed() < SHORT {
            true => Ok(Attempt::Killed { why, ended }),
            // Its own doing, or it had its time: another attempt would take as long.
            false => Ok(Attempt::Over(Err(CompileError::Ended { why, ended }))),
        }
    }
}

/// What a compiling worker is told to do with a module.
type Ask = fn(u64) -> ToWorker<'static>;

/// How one compiling worker did.
enum Attempt {
    /// It answered.
    Over(Result<Compiled, CompileError>),
    /// A process other than Pappus and the compiler ended it.
    Killed { why: Arc<WorkerFault>, ended: String },
    /// Not for its own fault, nor the module's.
    Failed(Passing),
}

/// Why a compiling worker came to no verdict.
enum Trouble {
    /// It misbehaved or ended.
    Worker(WorkerFault),
    /// Its device failed, or this process lacks something: that may be over in a moment.
    Passing(Passing),
}

impl<E: Into<WorkerFault>> From<E> for Trouble {
    fn from(why: E) -> Self {
        Self::Worker(why.into())
    }
}

fn fingerprint_for(kind: Kind, hello: &Hello) -> Result<String, WorkerFault> {
    let target = CodeTarget::greeted(hello)?;
    match target.kind == kind {
        true => Ok(target.fingerprint),
        false => Err(WorkerFault::OtherKind(target.kind)),
    }
}

/// The outer error means that there is no verdict on the module.
fn converse(
    worker: &mut Started,
    kind: Kind,
    module: &ValidatedMemfd,
    ask: Ask,
    mut reservation: Option<&mut ProcessReservation>,
) -> Result<Result<Compiled, CompileError>, Trouble> {
    let sent = control::send(worker.control.as_fd(), JOB, &[module.as_fd()]).map_err(WorkerFault::from);
    let sent = sent.and_then(|()| {
        worker.outbox.push_to_worker(&ask(JOB));
        worker.outbox.flush_blocking().map_err(WorkerFault::from)
    });
    // A process that ended before may have said why.
    let patience = if sent.is_ok() { Duration::from_secs(COMPILE_S) } else { LAST_WORDS };
    let until = Instant::now() + patience;
    let missed = |e: ProtocolError| match &e {
        ProtocolError::Io(io) if is_lack(io) => Trouble::Passing(Passing::Lack(e.into())),
        _ => Trouble::Worker(e.into()),
    };
    let mut fingerprint = None;
    loop {
        while let Some(frame) = worker.inbox.frame()? {
            match FromWorker::decode(frame)? {
                FromWorker::Hello(hello) if fingerprint.is_none() => {
                    if let Some(reservation) = &mut reservation {
                        reservation.measured(hello.context_bytes);
                    }
                    fingerprint = Some(fingerprint_for(kind, &hello)?);
                }
                FromWorker::Refused { job, fault } if job != JOB || fault.code == FaultCode::Device => {
                    return Err(Trouble::Passing(Passing::Device(fault.message.to_owned())));
                }
                FromWorker::Refused { fault, .. } => {
                    return Ok(Err(CompileError::Rejected(fault.message.to_owned())));
                }
                FromWorker::Compiled { job: JOB, module: info } => {
                    let fingerprint = fingerprint.ok_or(WorkerFault::NoHello)?;
                    let fd = control::recv(&worker.control, JOB, 1).map_err(missed)?.remove(0);
                    let code = memfd::judge_sealed(fd, MAX_CODE_BYTES)?;
                    return Ok(Ok(Compiled { code, fingerprint, info }));
                }
                other => return Err(WorkerFault::Unexpected(format!("{other:?}")).into()),
            }
        }
        if reservation.as_ref().is_some_and(|reservation| reservation.is_over()) {
            return Err(Trouble::Passing(Passing::SharedFault));
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            sent?;
            return Err(WorkerFault::Late.into());
        }
        let look = reservation
            .as_ref()
            .and_then(|reservation| reservation.looks_every())
            .map_or(left, |every| left.min(every));
        match worker.inbox.wait(Duration::ZERO, Some(look), None) {
            Ok(Got::Closed) => {
                sent?;
                return Err(WorkerFault::Silent.into());
            }
            Ok(_) => {}
            Err(e) => return Err(e.into()),
        }
    }
}
