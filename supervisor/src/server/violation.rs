//! What ends a connection: its client broke a rule of the protocol, or its tenant has as much as it may.

use std::borrow::Cow;

use pappus_proto::frame::FrameError;

use crate::quota::{Limit, QuotaError};
use crate::refusal::{Reason, Refusable};

/// Why a connection is closed.
#[derive(Debug, thiserror::Error)]
pub enum Violation {
    /// Nothing to begin with.
    #[error("no greeting in time")]
    NoGreeting,
    /// Half a greeting.
    #[error("left in the middle of its greeting")]
    HalfGreeting,
    /// A greeting passes no descriptors.
    #[error("descriptors with a greeting")]
    GreetingDescriptors,
    /// Something else than a greeting.
    #[error("no Pappus greeting")]
    NotPappus,
    /// A socket that is full from the beginning.
    #[error("does not take a greeting")]
    TakesNoGreeting,
    /// No version in common.
    #[error("speaks versions {lowest} to {highest} only")]
    Versions {
        /// Its oldest.
        lowest: u16,
        /// Its newest.
        highest: u16,
    },
    /// A gateway that may not go on.
    #[error("a gateway: {0}")]
    Gateway(#[from] GatewayError),
    /// No frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A gateway that does not say for whom it acts.
    #[error("a gateway: no request in time")]
    NoFirstRequest,
    /// A frame that holds something else.
    #[error("a frame holds no request")]
    NotRequest,
    /// As much as its tenant may have already.
    #[error(transparent)]
    Quota(#[from] QuotaError),
    /// Half a frame.
    #[error("a frame was never completed")]
    HalfFrame,
    /// Its socket failed.
    #[error(transparent)]
    Socket(#[from] std::io::Error),
}

/// Why a gateway may not act for a tenant.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// It must name one, and did not.
    #[error(
        "this uid is a gateway and no tenant: say first whom it acts for, with a tenant's token (of `pappus`: --token-file)"
    )]
    NoTenant,
    /// No tenant has this token.
    #[error("this token is no tenant's: `pappus token` makes one, the operator enters its hash")]
    UnknownToken,
    /// The tenant has as many connections, or as much memory for them, as it may.
    #[error(transparent)]
    Quota(#[from] QuotaError),
}

impl Refusable for GatewayError {
    fn reason(&self) -> Reason {
        match self {
            Self::NoTenant | Self::UnknownToken => Reason::PermissionDenied,
            Self::Quota(error) => error.reason(),
        }
    }

    fn place(&self) -> Cow<'_, str> {
        match self {
            Self::UnknownToken => "token".into(),
            Self::NoTenant | Self::Quota(_) => "".into(),
        }
    }

    fn retry_after_ms(&self) -> Option<u64> {
        match self {
            Self::NoTenant | Self::UnknownToken => None,
            Self::Quota(error) => error.retry_after_ms(),
        }
    }

    fn quota(&self) -> Option<Limit> {
        match self {
            Self::NoTenant | Self::UnknownToken => None,
            Self::Quota(error) => Some(error.limit),
        }
    }
}
