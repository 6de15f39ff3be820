//! Why an invocation cannot become a call.

use std::borrow::Cow;

use pappus_blueprint::Misfit;
use pappus_proto::limits::{MAX_INLINE_BYTES, MAX_ITEMS};
use pappus_shmem::MemfdError;

use crate::refusal::{Reason, Refusable};
use crate::routing::RouteError;
use crate::session::SessionError;
use crate::tenants::{Limit, QuotaError};

/// Why an invocation cannot become a call.
#[derive(Debug, thiserror::Error)]
pub enum InvokeError {
    /// It can, once it has a plan, which takes longer than a socket thread has.
    #[error("the plan of this call takes long")]
    PlanTakesLong,
    /// The call was made for an earlier function of this name.
    #[error("the function was replaced since this call was made for it: ask what it takes and gives now")]
    Replaced,
    /// A descriptor that cannot be used.
    #[error(transparent)]
    Memfd(#[from] MemfdError),
    /// A name that the function does not have.
    #[error("`{name}` is no {what} of this function; it has {there}")]
    NoSuch {
        /// `input` or `output`.
        what: &'static str,
        /// The name.
        name: String,
        /// Names that it has.
        there: String,
    },
    /// One name, two values.
    #[error("{what} `{name}` is given twice")]
    Twice {
        /// `input` or `output`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// An input without a value.
    #[error("input `{0}` is missing")]
    Missing(String),
    /// An input that cannot be taken.
    #[error("{why}")]
    Input {
        /// Its name.
        name: String,
        /// Why.
        why: ValueError,
    },
    /// An input whose array is not what the function declares.
    #[error("{why}")]
    Misfit {
        /// Its name.
        name: String,
        /// Why.
        why: Misfit,
    },
    /// An output that has no place.
    #[error("{why}")]
    Output {
        /// Its name.
        name: String,
        /// Why.
        why: ValueError,
    },
    /// An input is too short for the bytes that sizes depend on.
    #[error("an input is shorter than it said")]
    Short,
    /// Bytes that sizes depend on cannot be read.
    #[error("an input does not read: {0}")]
    Unreadable(std::io::Error),
    /// No plan for these sizes.
    #[error("{}", .0.message)]
    Plan(pappus_blueprint::Error),
    /// Likewise, for a caller who may not know the blueprint.
    #[error("this function does not take inputs of these sizes and words; its owner can see why")]
    GrantedPlan,
    /// Two outputs in one place.
    #[error("two output regions overlap")]
    OutputsOverlap,
    /// An output over an input.
    #[error("an output region overlaps an input region of the same call")]
    InputOverlaps,
    /// Inputs and state in too many pieces.
    #[error("inputs and state have more than {MAX_ITEMS} items in one call: join some")]
    StateItems,
    /// A session that the call cannot be in.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// More than the tenant may have.
    #[error(transparent)]
    Quota(#[from] QuotaError),
    /// No device for it.
    #[error(transparent)]
    Route(#[from] RouteError),
}

impl Refusable for InvokeError {
    fn reason(&self) -> Reason {
        match self {
            Self::Quota(error) => error.reason(),
            Self::Route(error) => error.reason(),
            Self::Session(error) => error.reason(),
            _ => Reason::InvalidArgument,
        }
    }

    fn place(&self) -> Cow<'_, str> {
        match self {
            Self::Input { name, .. } | Self::Misfit { name, .. } => format!("input {name}").into(),
            Self::Output { name, .. } => format!("output {name}").into(),
            Self::Plan(error) => Cow::Borrowed(&error.path),
            Self::Replaced => "function_version".into(),
            Self::Session(error) => error.place(),
            _ => "".into(),
        }
    }

    fn retry_after_ms(&self) -> Option<u64> {
        match self {
            Self::Quota(error) => error.retry_after_ms(),
            _ => None,
        }
    }

    fn quota(&self) -> Option<Limit> {
        match self {
            Self::Quota(error) => Some(error.limit),
            _ => None,
        }
    }

    fn output_bytes(&self) -> u64 {
        match self {
            Self::Output {
                why: ValueError::InlineOutput { bytes } | ValueError::RegionTooSmall { bytes, .. },
                ..
            } => *bytes,
            _ => 0,
        }
    }
}

/// What is wrong with the value of an input, or with the region of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// A name of no element type.
    #[error(
        "its element type has an unknown name, expected u8, i8, u16, i16, u32, i32, u64, i64, f16, bf16, f8e4m3fn, f8e5m2, \
         f32, f64 or bool"
    )]
    ElementType,
    /// In too many pieces.
    #[error("more than {MAX_ITEMS} items in one call: join some")]
    Items,
    /// A piece without a source.
    #[error("an item has neither bytes nor a region nor a descriptor")]
    NoSource,
    /// A descriptor that was not passed.
    #[error("descriptor {0} did not come with this message")]
    NoDescriptor(u32),
    /// A sum of sizes that no machine has.
    #[error("its items are larger than memory")]
    TooLarge,
    /// More inside messages than there may be.
    #[error("more than {MAX_INLINE_BYTES} inline bytes in one call: use an arena or a memfd")]
    Inline,
    /// The same, for an output that would come with the answer.
    #[error(
        "it has {bytes} bytes, and that makes more than {MAX_INLINE_BYTES} inline bytes in one call: use an arena"
    )]
    InlineOutput {
        /// The output's bytes.
        bytes: u64,
    },
    /// An arena that is not open.
    #[error("this connection has no arena {0}: open one first")]
    NoArena(u64),
    /// A range that is not all there.
    #[error("range {offset}+{bytes} lies outside its {size} bytes")]
    Outside {
        /// Where it begins.
        offset: u64,
        /// Its length.
        bytes: u64,
        /// Bytes that are there.
        size: u64,
    },
    /// A region that an output does not fit into.
    #[error("it has {bytes} bytes, its region only {region}")]
    RegionTooSmall {
        /// The output's bytes.
        bytes: u64,
        /// The region's.
        region: u64,
    },
}
