//! Why the registry refuses a request.

use std::borrow::Cow;
use std::fmt;

use pappus_proto::limits::is_valid_name;

use super::admission::AdmissionError;
use super::codes::CodeError;
use crate::blocking::BrokenOff;
use crate::limits::{
    MAX_ALIASES, MAX_DECLINED, MAX_GRANTS, MAX_GRANTS_TO_ONE, MAX_LINKED_AGAIN, MAX_MODULES,
    MAX_SIGNATURE_BYTES,
};
use crate::refusal::{Failure, Reason, Refusable, failed};
use crate::store::StateError;
use crate::tenants::{Limit, QuotaError};

/// What has a name here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thing {
    /// A module.
    Module,
    /// A function.
    Function,
}

impl fmt::Display for Thing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Module => "module",
            Self::Function => "function",
        })
    }
}

impl Thing {
    /// What to do where the name is taken.
    fn make_room(self) -> &'static str {
        match self {
            Self::Module => "remove it first or use another name",
            Self::Function => "remove it first, replace it (`function add --replace`), or use another name",
        }
    }

    /// Checks that a name is valid for such a thing.
    pub(super) fn check_name(self, name: &str) -> Result<(), RegistryError> {
        match is_valid_name(name) {
            true => Ok(()),
            false => Err(RegistryError::BadName { thing: self, name: name.to_owned() }),
        }
    }
}

/// Why the registry refuses a request.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// Something cannot be called so.
    #[error("{name:?} cannot name a {thing}: use 1 to 128 letters, digits, '.', '_' or '-', no leading dot")]
    BadName {
        /// What was to be named.
        thing: Thing,
        /// The name.
        name: String,
    },
    /// There is nothing of this name, or nothing that the tenant may know of.
    #[error("there is no {thing} `{name}`: `pappus {thing} list` shows what there is")]
    Unknown {
        /// What was asked for.
        thing: Thing,
        /// Its name, or OWNER/NAME.
        name: String,
    },
    /// The name is taken.
    #[error("there is another {thing} `{name}`: {}", .thing.make_room())]
    Exists {
        /// What was to be added.
        thing: Thing,
        /// Its name.
        name: String,
    },
    /// As many modules as there may be.
    #[error("you have {MAX_MODULES} modules, the most that is allowed: remove some")]
    TooManyModules,
    /// Bytes that were there at first are gone.
    #[error("bytes that it needs were removed meanwhile: add it again")]
    Vanished,
    /// Other requests changed again and again what a request had read.
    #[error("other requests change the same functions all the time: send this one again")]
    Changed,
    /// Names of inputs and outputs that no record has room for.
    #[error(
        "names of inputs and outputs have {0} bytes together, {MAX_SIGNATURE_BYTES} are allowed: shorten them"
    )]
    LongNames(usize),
    /// A composition that would run itself.
    #[error("`{0}` would run itself: a composition runs functions that do not run the composition")]
    StepOfItself(String),
    /// A step that would change with an alias.
    #[error(
        "`{0}` is an alias, which may name another version tomorrow: a step names a function, or a version as NAME@NUMBER"
    )]
    StepByAlias(String),
    /// A step that is no single call.
    #[error(
        "`{0}` runs as consecutive calls itself, so that no step can run it: write its steps here instead"
    )]
    StepOfCalls(String),
    /// A step that needs a session.
    #[error("`{0}` has state, which calls of its own session keep: a step runs a function without")]
    StepWithState(String),
    /// No alias can be called so.
    #[error("{0:?} cannot be an alias: use 1 to 128 letters, digits, '.', '_' or '-', no leading dot")]
    BadAlias(String),
    /// A function without a version, where one is needed.
    #[error(
        "`{0}` names no version: write NAME@NUMBER or NAME:ALIAS; `pappus function show {0}` lists its versions"
    )]
    NoVersion(String),
    /// A version that is current is not to be removed.
    #[error(
        "`{0}` is the current version: make another one current first (`pappus function use`), or remove the function"
    )]
    IsCurrent(String),
    /// A version that has an alias is not to be removed.
    #[error("`{version}` has the alias {alias}: remove or move that first (`pappus function alias`)")]
    IsAliased {
        /// The version.
        version: String,
        /// One of its aliases.
        alias: String,
    },
    /// No version can make way for a replacement.
    #[error(
        "{most} older versions of `{name}` are kept, and all that there would be are named by aliases or steps of \
         compositions: remove an alias, or ask the operator for a larger kept-versions"
    )]
    VersionsNamed {
        /// The function.
        name: String,
        /// How many older ones are kept.
        most: usize,
    },
    /// As many aliases as there may be.
    #[error("{0} has {MAX_ALIASES} aliases, the most that is allowed: remove some")]
    TooManyAliases(String),
    /// A grant of one version.
    #[error("{0} is a version: grants are for all versions of a function, which is named without one")]
    GrantOfVersion(String),
    /// A function that compositions run is not to be removed.
    #[error("`{function}` is a step of {}: remove that first", users.join(", "))]
    IsStep {
        /// The function.
        function: String,
        /// The compositions.
        users: Vec<String>,
    },
    /// Compositions do not fit what is to take a function's place.
    #[error(
        "compositions run `{function}` and no longer fit, so that it stays as it is; remove or correct them first:\n{}",
        misfits.join("\n")
    )]
    NoLongerFit {
        /// The function.
        function: String,
        /// Each composition, and why.
        misfits: Vec<String>,
    },
    /// More compositions run a function than are linked again for one request.
    #[error(
        "{count} compositions run `{function}`, at most {MAX_LINKED_AGAIN} are linked again at once: remove some"
    )]
    TooManyCompositions {
        /// The function.
        function: String,
        /// How many.
        count: usize,
    },
    /// The configuration is no blueprint.
    #[error("{}", told(.0))]
    Blueprint(#[from] pappus_blueprint::Mistakes),
    /// Bytes of a function are not those that were registered, or cannot be read. The log says which file.
    #[error("what is stored of it is damaged: register the function again (`pappus function add --replace`)")]
    Damaged {
        /// Which part of the function.
        place: String,
    },
    /// What was handed over does not do.
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    /// No machine code.
    #[error(transparent)]
    Code(#[from] CodeError),
    /// More than the tenant may have.
    #[error(transparent)]
    Quota(#[from] QuotaError),
    /// Only the owner may do that.
    #[error("{0} is another tenant's: you may call it, not read or change it")]
    NotOwner(String),
    /// Only the owner may call it checked.
    #[error("{0} is another tenant's: only its owner may call it checked, which tells what its kernels do")]
    CheckedByOthers(String),
    /// No device here checks its calls.
    #[error(
        "checked calls run on a cpu device, and {0} cannot run on one here: that takes a cpu device, and a .wasm of every module"
    )]
    CheckedNowhere(String),
    /// A function that another tenant granted does not load.
    #[error("{reference} cannot be loaded here: its owner can see why")]
    GrantedDoesNotLoad {
        /// OWNER/NAME.
        reference: String,
        /// Why, as far as a caller may know.
        reason: Reason,
        /// When it may load, if it does not just now.
        retry_after_ms: Option<u64>,
    },
    /// No tenant can be called so.
    #[error("{0:?} is no tenant: expected a name such as acme, or a uid such as 1000")]
    BadTenant(String),
    /// To its owner.
    #[error("it is yours: a grant is for another tenant")]
    GrantToOwner,
    /// As many grants as there may be.
    #[error("{0} is granted to {MAX_GRANTS} tenants, the most that is allowed: revoke some")]
    TooManyGrants(String),
    /// As many as one tenant may grant to one other.
    #[error(
        "{MAX_GRANTS_TO_ONE} functions are granted to {0}, the most that one tenant may grant to another: revoke some"
    )]
    TooManyGrantsTo(String),
    /// The tenant's own.
    #[error("these functions are yours: remove what you do not want")]
    DeclinedOwn,
    /// As many declined owners as there may be.
    #[error(
        "you declined {MAX_DECLINED} owners, the most that can be: accept some again, `pappus quota` lists them"
    )]
    TooManyDeclined,
    /// This owner was not declined.
    #[error("you did not decline {0:?}: `pappus quota` lists whom you did")]
    NotDeclined(String),
    /// There is no such grant.
    #[error("{name} is not granted to {caller}: `pappus function grants {name}` shows to whom it is")]
    NotGranted {
        /// The function.
        name: String,
        /// The other tenant.
        caller: String,
    },
    /// The work did not come to its end.
    #[error(transparent)]
    BrokenOff(#[from] BrokenOff),
    /// The supervisor failed.
    #[error(transparent)]
    Failure(#[from] Failure),
}

/// All mistakes, each with its line and column; the place of the first is the refusal's.
fn told(mistakes: &pappus_blueprint::Mistakes) -> String {
    let all = mistakes.to_string();
    match &*mistakes.first().path {
        "" => all,
        path => all.replacen(&format!("at {path}: "), "", 1),
    }
}

impl RegistryError {
    /// There is no function of this name, or none that the tenant may know of.
    pub(super) fn unknown_function(name: &str) -> Self {
        Self::Unknown { thing: Thing::Function, name: name.to_owned() }
    }

    /// There is no module of this name.
    pub(super) fn unknown_module(name: &str) -> Self {
        Self::Unknown { thing: Thing::Module, name: name.to_owned() }
    }

    /// Stored bytes do not read: those of this part of a function.
    pub(super) fn unread(what: &'static str, place: impl Into<String>, error: &StateError) -> Self {
        match error {
            StateError::Damaged(_) => {
                error.log_damage(what);
                Self::Damaged { place: place.into() }
            }
            error => failed(what, error).into(),
        }
    }

    /// The error of another module that is passed on.
    fn cause(&self) -> Option<&dyn Refusable> {
        match self {
            Self::Admission(error) => Some(error),
            Self::Code(error) => Some(error),
            Self::Quota(error) => Some(error),
            Self::BrokenOff(error) => Some(error),
            Self::Failure(error) => Some(error),
            _ => None,
        }
    }
}

impl Refusable for RegistryError {
    fn reason(&self) -> Reason {
        match self {
            Self::BadName { .. }
            | Self::Blueprint(_)
            | Self::LongNames(_)
            | Self::StepOfItself(_)
            | Self::StepByAlias(_)
            | Self::StepOfCalls(_)
            | Self::StepWithState(_)
            | Self::BadAlias(_)
            | Self::NoVersion(_)
            | Self::IsCurrent(_)
            | Self::IsAliased { .. }
            | Self::GrantOfVersion(_)
            | Self::IsStep { .. }
            | Self::NoLongerFit { .. }
            | Self::BadTenant(_)
            | Self::GrantToOwner
            | Self::DeclinedOwn => Reason::InvalidArgument,
            Self::Unknown { .. } | Self::Vanished | Self::NotGranted { .. } | Self::NotDeclined(_) => {
                Reason::NotFound
            }
            Self::Exists { .. } => Reason::AlreadyExists,
            Self::TooManyModules
            | Self::Changed
            | Self::TooManyCompositions { .. }
            | Self::VersionsNamed { .. }
            | Self::TooManyAliases(_)
            | Self::TooManyGrants(_)
            | Self::TooManyGrantsTo(_)
            | Self::TooManyDeclined => Reason::ResourceExhausted,
            Self::NotOwner(_) | Self::CheckedByOthers(_) => Reason::PermissionDenied,
            Self::CheckedNowhere(_) => Reason::Unsupported,
            Self::Damaged { .. } => Reason::Internal,
            Self::GrantedDoesNotLoad { reason, .. } => *reason,
            Self::Admission(error) => error.reason(),
            Self::Code(error) => error.reason(),
            Self::Quota(error) => error.reason(),
            Self::BrokenOff(error) => error.reason(),
            Self::Failure(error) => error.reason(),
        }
    }

    fn place(&self) -> Cow<'_, str> {
        match self {
            Self::Blueprint(mistakes) => Cow::Borrowed(&mistakes.first().path),
            Self::Damaged { place } => Cow::Borrowed(place),
            _ => self.cause().map_or(Cow::Borrowed(""), Refusable::place),
        }
    }

    fn retry_after_ms(&self) -> Option<u64> {
        match self {
            Self::GrantedDoesNotLoad { retry_after_ms, .. } => *retry_after_ms,
            Self::Changed => Some(10),
            _ => self.cause().and_then(Refusable::retry_after_ms),
        }
    }

    fn quota(&self) -> Option<Limit> {
        self.cause().and_then(Refusable::quota)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_taken_says_what_can_be_done() {
        let why = |thing| RegistryError::Exists { thing, name: "f".into() }.to_string();
        assert!(why(Thing::Function).contains("another function `f`: remove it first, replace it"));
        assert!(!why(Thing::Module).contains("replace"));
    }

    #[test]
    fn an_error_that_is_passed_on_keeps_its_reason_place_and_time() {
        let of = |error: RegistryError| (error.reason(), error.place().into_owned(), error.retry_after_ms());
        let admission = AdmissionError::NoModule { module: "m".into() };
        assert_eq!(of(admission.into()), (Reason::InvalidArgument, "module m".into(), None));
        let quota = QuotaError {
            limit: Limit::Calls,
            scope: crate::quota::Scope::Tenant,
            tenant: "acme".into(),
            most: 1,
            used: 1,
            more: 1,
            freeing: 0,
        };
        assert_eq!(of(quota.into()), (Reason::ResourceExhausted, String::new(), Some(10)));
        let blueprint = pappus_blueprint::parse(b"{").unwrap_err();
        let words = format!("1:2: {}", blueprint.first().message);
        let error = RegistryError::from(blueprint);
        assert_eq!((error.to_string(), error.place().into_owned()), (words, String::new()));
        let json = br#"{"module_path": "m", "kernels": 5,
            "blueprint": {"inputs": [], "buffers": {"B": "x"}, "outputs": [], "control_flow": []}}"#;
        let error = RegistryError::from(pappus_blueprint::parse(json).unwrap_err());
        let told = error.to_string();
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(lines.len(), 2, "{told}");
        assert!(lines[0].starts_with("1:33: found the number 5"), "{told}");
        assert!(lines[1].starts_with("2:58: at blueprint.buffers.B: found the text"), "{told}");
        assert_eq!(error.place(), "kernels");
    }
}
