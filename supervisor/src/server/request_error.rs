//! Refusals by the server itself, before any other module sees the request.

use pappus_proto::limits::MAX_REQUEST_ID_BYTES;
use pappus_shmem::MemfdError;

use crate::config::ConfigError;
use crate::device::setup::ChangeError;
use crate::limits::{MAX_ARENAS_PER_CONNECTION, MAX_CALLS_PER_CONNECTION, MAX_COLD_REQUESTS, MAX_SEATS};
use crate::refusal::{Reason, Refusable};

/// Why the server itself refuses a request.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// No request that this version has.
    #[error("an empty request, or one that this version does not know")]
    Unknown,
    /// Descriptors came with a request that has no use for any.
    #[error("this request takes no such descriptors")]
    Descriptors,
    /// An arena without its memory.
    #[error("the arena's memfd did not come with the request")]
    NoMemfd,
    /// A descriptor that cannot be used.
    #[error(transparent)]
    Memfd(#[from] MemfdError),
    /// Bytes in two ways.
    #[error("bytes and a descriptor: give one of them")]
    TwoContents,
    /// As many arenas as there may be.
    #[error("this connection has {MAX_ARENAS_PER_CONNECTION} arenas, the most that is allowed: close one")]
    TooManyArenas,
    /// An arena that is not this connection's.
    #[error("this connection has no arena {0}")]
    NoArena(u64),
    /// As many invocations as there may be.
    #[error("{MAX_CALLS_PER_CONNECTION} invocations of this connection are not answered yet")]
    TooManyCalls,
    /// Two invocations of one name.
    #[error("an invocation with this request id is not answered yet: use another id")]
    IdInUse,
    /// A name of a request that is none.
    #[error("request_id: at most {MAX_REQUEST_ID_BYTES} bytes of visible ASCII, without spaces")]
    RequestId,
    /// No invocation is accepted any more.
    #[error("the supervisor is draining: call another one")]
    Draining,
    /// Too late, or from a client that is no gateway.
    #[error(
        "only a gateway can say whom it acts for, in the first request of a connection: leave the token out, or ask the operator to \
         list your uid as a gateway's; if it is one, open another connection"
    )]
    NoGateway,
    /// A token with a request on a connection of one tenant.
    #[error(
        "only a gateway can say with each request whom it acts for, on a connection that no act_for began: leave the token out, or ask \
         the operator to list your uid as a gateway's"
    )]
    OneTenant,
    /// As many tenants as a gateway's connection can have.
    #[error(
        "{MAX_SEATS} tenants have something open on this connection, the most that is allowed: open another one for the others"
    )]
    TooManySeats,
    /// As many slow requests as one tenant may have on a gateway's connection.
    #[error(
        "{MAX_COLD_REQUESTS} requests of this tenant that take long are worked on for this connection, the most that is allowed"
    )]
    TooManySlow,
    /// A token where it means nothing.
    #[error(
        "the admin socket is the operator's and acts for no tenant: leave the token out (of `pappus`: --token-file or \
         PAPPUS_TOKEN_FILE), or use the other socket"
    )]
    AdminActsForNone,
    /// The supervisor's own user, where that is no tenant.
    #[error(
        "uid {0} is the supervisor's own user and no tenant here: it can ask for the status; use the admin socket (by default the \
         socket's path + \".admin\"), or name it in the configuration, [tenants.NAME] uid = {0}"
    )]
    LooksOn(u32),
    /// For the operator.
    #[error("this is for the admin socket (by default the socket's path + \".admin\")")]
    AdminOnly,
    /// A setting that cannot be.
    #[error(transparent)]
    Settings(ConfigError),
    /// Nothing to read again.
    #[error("there is no configuration file: start the supervisor with --config FILE")]
    NoConfigFile,
    /// The configuration file is wrong.
    #[error("{0}; everything stays as it was")]
    Reload(ConfigError),
    /// A device cannot be set up as the configuration file says.
    #[error("{0}; it stays as it was")]
    ReloadDevice(ChangeError),
    /// No such device.
    #[error("there is no such device here; there are {0}")]
    NoDevice(String),
    /// A device cannot be set up so.
    #[error(transparent)]
    Device(ChangeError),
}

impl Refusable for RequestError {
    fn reason(&self) -> Reason {
        match self {
            Self::Unknown
            | Self::Descriptors
            | Self::NoMemfd
            | Self::Memfd(_)
            | Self::TwoContents
            | Self::IdInUse
            | Self::RequestId
            | Self::Settings(_)
            | Self::NoConfigFile
            | Self::Reload(_)
            | Self::ReloadDevice(ChangeError::Config(_))
            | Self::Device(ChangeError::Config(_)) => Reason::InvalidArgument,
            Self::ReloadDevice(_) | Self::Device(_) => Reason::ResourceExhausted,
            Self::NoArena(_) | Self::NoDevice(_) => Reason::NotFound,
            Self::NoGateway
            | Self::OneTenant
            | Self::AdminActsForNone
            | Self::LooksOn(_)
            | Self::AdminOnly => Reason::PermissionDenied,
            Self::TooManyArenas | Self::TooManyCalls | Self::TooManySeats | Self::TooManySlow => {
                Reason::ResourceExhausted
            }
            Self::Draining => Reason::Unavailable,
        }
    }

    fn retry_after_ms(&self) -> Option<u64> {
        match self {
            Self::TooManyCalls | Self::TooManySlow => Some(10),
            Self::TooManySeats => Some(1000),
            Self::Draining => Some(1000),
            _ => None,
        }
    }
}
