//! The machine code that one request needs: what was made, what must still be made, and why it was not, as the request is
//! told.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use pappus_blueprint::kernel_info::CodeInfo;
use pappus_protocol::from_worker::KernelInfo;

use super::compile::CompileError;
use super::failures::Job;
use super::layout::LayoutError;
use crate::limits::MAX_FUNCTION_DETAILS;
use crate::refusal::{Failure, Reason, Refusable};
use crate::store::records::Variant;
use crate::tenants::{Limit, QuotaError};

/// What a request wants of a compilation that failed before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    /// Another attempt: a tenant registers the module.
    Afresh,
    /// The known outcome.
    Known,
}

/// Machine code for one request: what was made or failed, and what must still be made.
#[derive(Debug)]
pub(super) struct Codes {
    pub(super) wish: Wish,
    pub(super) outcomes: HashMap<Job, Result<Arc<CodeInfo>, NotMade>>,
    /// Kernels and parameters in all of them.
    pub(super) details: usize,
    pub(super) missing: Vec<Job>,
}

impl Codes {
    /// Nothing was made yet.
    pub(super) fn new(wish: Wish) -> Self {
        Self { wish, outcomes: HashMap::new(), details: 0, missing: Vec::new() }
    }

    /// What became of a job; refused where all of them together tell too much.
    pub(super) fn made(
        &mut self,
        job: Job,
        outcome: Result<Arc<CodeInfo>, NotMade>,
    ) -> Result<(), CodeError> {
        let kernels = outcome.iter().flat_map(|info| &info.kernels);
        self.details += kernels.map(KernelInfo::details).sum::<usize>();
        self.outcomes.insert(job, outcome);
        if self.details > MAX_FUNCTION_DETAILS { Err(CodeError::TooManyDetails) } else { Ok(()) }
    }

    /// The work goes on once everything is made.
    pub(super) fn all_made(&self) -> Result<(), CodeError> {
        if self.missing.is_empty() { Ok(()) } else { Err(CodeError::NotMade) }
    }

    /// A job that was made, whatever became of its machine code.
    #[cfg(test)]
    pub(super) fn put_made(&mut self, job: Job) {
        let info = CodeInfo::default();
        self.made(job, Ok(info.into())).unwrap();
    }

    /// What has to be made before the work is tried again; none if its outcome is final. Each is there once.
    pub(super) fn take_missing(&mut self) -> Vec<Job> {
        std::mem::take(&mut self.missing)
    }
}

/// Why machine code was not made, without the names by which a request calls it.
#[derive(Debug, Clone)]
pub(super) enum NotMade {
    Compile(CompileError),
    Vanished,
    Damaged,
    Quota(QuotaError),
    Failure(Failure),
}

impl<E: Into<Failure>> From<E> for NotMade {
    fn from(error: E) -> Self {
        Self::Failure(error.into())
    }
}

impl NotMade {
    /// As the request is told.
    pub(super) fn named(self, module: &str, variant: &Variant) -> CodeError {
        match self {
            Self::Compile(why) => {
                CodeError::Compile { module: module.to_owned(), variant: variant.label(), why }
            }
            Self::Vanished => CodeError::Vanished,
            Self::Damaged => CodeError::Damaged { module: module.to_owned(), variant: variant.label() },
            Self::Quota(error) => error.into(),
            Self::Failure(failure) => failure.into(),
        }
    }
}

/// Why there is no machine code for a function or a module.
#[derive(Debug, thiserror::Error)]
pub enum CodeError {
    /// No device here runs a module.
    #[error("{}, but there is only {}", needs.join("; "), there.join(", "))]
    NoVariant {
        /// The module.
        module: Box<str>,
        /// What the devices need.
        needs: Vec<String>,
        /// Variants that it has.
        there: Vec<String>,
    },
    /// A variant does not compile, or cannot be read.
    #[error("module {module} ({variant}): {why}")]
    Compile {
        /// The module.
        module: String,
        /// Format and architecture.
        variant: String,
        /// Why.
        why: CompileError,
    },
    /// The blueprint does something else than a variant declares that no device here runs.
    #[error("module {module} ({variant}): {why}")]
    Declared {
        /// The module.
        module: String,
        /// Format and architecture.
        variant: String,
        /// What is wrong.
        why: Box<LayoutError>,
    },
    /// A variant is not what it is called.
    #[error("module {module} ({variant}): {}", made_for(targets))]
    Mislabelled {
        /// The module.
        module: String,
        /// Format and architecture, as it is called.
        variant: String,
        /// What it is made for.
        targets: Vec<String>,
    },
    /// The blueprint does something else than its machine code.
    #[error(transparent)]
    Layout(Box<LayoutError>),
    /// Together they tell so much that an answer about them would take too much memory.
    #[error(
        "its modules have more than {MAX_FUNCTION_DETAILS} kernels and parameters together: make several functions of it"
    )]
    TooManyDetails,
    /// It has to be made before the work goes on: no request ends with this.
    #[error("machine code is not made yet")]
    NotMade,
    /// The module was removed while it was compiled.
    #[error("bytes that it needs were removed meanwhile: add it again")]
    Vanished,
    /// The stored bytes are not those that were registered.
    #[error(
        "module {module} ({variant}): what is stored of it is damaged: register what needs it again (`pappus function add \
         --replace`)"
    )]
    Damaged {
        /// The module.
        module: String,
        /// Format and architecture.
        variant: String,
    },
    /// More than the tenant may have.
    #[error(transparent)]
    Quota(#[from] QuotaError),
    /// The supervisor failed.
    #[error(transparent)]
    Failure(#[from] Failure),
}

impl Refusable for CodeError {
    fn reason(&self) -> Reason {
        match self {
            Self::NoVariant { .. } => Reason::Unsupported,
            Self::Mislabelled { .. } | Self::TooManyDetails => Reason::InvalidArgument,
            Self::Compile { why, .. } => why.reason(),
            Self::Declared { why, .. } | Self::Layout(why) => why.reason(),
            Self::Vanished => Reason::NotFound,
            Self::NotMade | Self::Damaged { .. } => Reason::Internal,
            Self::Quota(error) => error.reason(),
            Self::Failure(failure) => failure.reason(),
        }
    }

    fn place(&self) -> Cow<'_, str> {
        match self {
            Self::NoVariant { module, .. } => format!("module {module}").into(),
            Self::Damaged { module, .. } => format!("module {module}").into(),
            Self::Declared { why, .. } | Self::Layout(why) => why.place(),
            _ => "".into(),
        }
    }

    fn retry_after_ms(&self) -> Option<u64> {
        match self {
            Self::Compile { why, .. } => why.retry_after_ms(),
            Self::Quota(error) => Refusable::retry_after_ms(error),
            Self::Failure(failure) => failure.retry_after_ms(),
            _ => None,
        }
    }

    fn quota(&self) -> Option<Limit> {
        match self {
            Self::Quota(error) => Some(error.limit),
            _ => None,
        }
    }
}

/// `it is made for gfx90a`.
fn made_for(targets: &[String]) -> String {
    match targets {
        [] => "it is PTX".to_owned(),
        targets => format!("it is made for {}", targets.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variant_that_is_called_wrong_is_told_what_it_is() {
        let (module, variant) = ("m".to_owned(), "hsaco gfx90a".to_owned());
        let why = CodeError::Mislabelled { module, variant, targets: vec!["gfx942".to_owned()] };
        assert_eq!(why.to_string(), "module m (hsaco gfx90a): it is made for gfx942");
        assert_eq!(why.reason(), Reason::InvalidArgument);
    }
}
