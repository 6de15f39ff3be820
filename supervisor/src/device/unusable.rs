//! Why a worker's process is not used: before it served, and since.

use pappus_protocol::{Kind, ProtocolError};

use super::panics::Panicked;
use crate::function::code_target::GreetingError;
use crate::processes::confinement::LayerMissing;

/// Why a process did not get ready to serve.
#[derive(Debug, thiserror::Error)]
pub(super) enum BringUpError {
    /// No process starts any more.
    #[error("the device closes")]
    Closing,
    /// The kernel refused it, or it did not come through its sandbox.
    #[error("it cannot be started: {0}")]
    Start(std::io::Error),
    /// A fault ended its epoch.
    #[error("another process failed meanwhile, and all with it")]
    EpochOver,
    /// It runs and sent no greeting.
    #[error("it did not get ready in time")]
    Late,
    /// It is gone and sent no greeting.
    #[error("it ended before its greeting")]
    Ended,
    /// Its greeting came, and it is gone.
    #[error("it ended when it greeted")]
    EndedGreeting,
    /// It said something else first.
    #[error("it sent {0} before its greeting")]
    Unexpected(String),
    /// Its greeting does not say for what it needs machine code.
    #[error(transparent)]
    Greeting(#[from] GreetingError),
    /// It greeted for another device.
    #[error("it is for {kind} {arch}")]
    WrongDevice {
        /// Of this kind.
        kind: Kind,
        /// Of this architecture.
        arch: String,
    },
    /// It is not confined as it must be.
    #[error(transparent)]
    Confinement(#[from] LayerMissing),
    /// What it sent does not read.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// Its pipe cannot be read, or its end cannot be watched.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// Its start panicked.
    #[error(transparent)]
    Panicked(#[from] Panicked),
}

/// Why a process that served is not used any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unusable {
    /// A fault ended its epoch.
    #[error("another process failed, and all with it")]
    EpochOver,
    /// The device was set up otherwise while it started.
    #[error("it was made for settings of before")]
    Outdated,
    /// A process that tenants share was made otherwise.
    #[error("it was made for a slot of another kind")]
    WrongSlot,
    /// The device was closed before it was ready.
    #[error("it came too late")]
    TooLate,
    /// A message that a serving worker does not send.
    #[error("it sent {0}")]
    Unexpected(String),
    /// An answer without a call.
    #[error("it answered a call that it does not have")]
    UnknownCall,
    /// Outputs cannot be read from the memory that it shares with the supervisor.
    #[error("its staging memory does not read")]
    Staging,
    /// The turn is over, or never was.
    #[error("it yielded a turn that it does not have")]
    NotItsTurn,
    /// The worker announced something on its turn page, where nothing was.
    #[error("it has its turn page looked at for nothing")]
    NothingToSee,
    /// It confirmed settings more often than it was sent some.
    #[error("it confirmed settings that it was not sent")]
    SettingsNotSent,
    /// It was told to give memory back and has more than it may.
    #[error("it keeps memory that it was told to give back")]
    MemoryKept,
    /// The device shares no weights.
    #[error("it sent weights that it was not asked for")]
    WeightsNotAsked,
    /// Another worker was asked to share these weights.
    #[error("it sent weights that another worker loads")]
    WeightsOfAnother,
    /// It says that weights take more memory than it was asked to load.
    #[error("its weights are larger than what it was asked to load")]
    WeightsTooLarge,
    /// A scrub without a request.
    #[error("it confirmed a scrub that it was not asked for")]
    ScrubNotAsked,
    /// A function that it still should have.
    #[error("it forgot a function that it was not told to")]
    UninstallNotAsked,
    /// What it sent does not read.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// Its pipe cannot be read, or no handle that kills it can be had.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// What followed from what it said panicked.
    #[error(transparent)]
    Panicked(#[from] Panicked),
}
