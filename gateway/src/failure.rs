//! Why a request fails: a code as in docs/errors.md, with what both protocols call it. The one table.

use pappus_client::{Code, Error, v1};

/// What a request failed with: a supervisor's code, or one of the gateway's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// As the supervisor says.
    Supervisor(Code),
    /// No token, or one that is no tenant's.
    Unauthenticated,
    /// A body, or a part of one, that is larger than the gateway takes.
    TooLarge,
    /// There is no such route.
    NoRoute,
    /// There is such a route for another method.
    Method,
    /// The client took too long to send its request.
    SlowClient,
    /// The gateway has as many requests as it takes.
    Busy,
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Of the failure.
    pub kind: Kind,
    /// Its name.
    pub name: &'static str,
    /// Status of HTTP.
    pub http: u16,
    /// Status of gRPC.
    pub grpc: i32,
}

const fn row(kind: Kind, name: &'static str, http: u16, grpc: i32) -> Row {
    Row { kind, name, http, grpc }
}

/// Every failure with its statuses.
pub const TABLE: [Row; 22] = [
    row(Kind::Supervisor(Code::InvalidArgument), "INVALID_ARGUMENT", 400, 3),
    row(Kind::Supervisor(Code::NotFound), "NOT_FOUND", 404, 5),
    row(Kind::Supervisor(Code::AlreadyExists), "ALREADY_EXISTS", 409, 6),
    row(Kind::Supervisor(Code::PermissionDenied), "PERMISSION_DENIED", 403, 7),
    row(Kind::Supervisor(Code::ResourceExhausted), "RESOURCE_EXHAUSTED", 429, 8),
    row(Kind::Supervisor(Code::OutOfMemory), "OUT_OF_MEMORY", 507, 8),
    row(Kind::Supervisor(Code::Unsupported), "UNSUPPORTED", 501, 12),
    row(Kind::Supervisor(Code::DeadlineExceeded), "DEADLINE_EXCEEDED", 504, 4),
    row(Kind::Supervisor(Code::Cancelled), "CANCELLED", 499, 1),
    row(Kind::Supervisor(Code::KernelFault), "KERNEL_FAULT", 500, 10),
    row(Kind::Supervisor(Code::WorkerLost), "WORKER_LOST", 503, 14),
    row(Kind::Supervisor(Code::Unavailable), "UNAVAILABLE", 503, 14),
    row(Kind::Supervisor(Code::Internal), "INTERNAL", 500, 13),
    row(Kind::Supervisor(Code::Quarantined), "QUARANTINED", 503, 9),
    row(Kind::Supervisor(Code::Overrun), "OVERRUN", 500, 10),
    row(Kind::Supervisor(Code::SessionLost), "SESSION_LOST", 410, 10),
    row(Kind::Unauthenticated, "UNAUTHENTICATED", 401, 16),
    row(Kind::TooLarge, "TOO_LARGE", 413, 8),
    row(Kind::NoRoute, "NO_ROUTE", 404, 12),
    row(Kind::Method, "METHOD_NOT_ALLOWED", 405, 12),
    row(Kind::SlowClient, "SLOW_CLIENT", 408, 4),
    row(Kind::Busy, "BUSY", 503, 8),
];

/// What is told where a code has no row: of a supervisor that is newer than this gateway.
const UNKNOWN: Row = row(Kind::Supervisor(Code::Internal), "INTERNAL", 500, 13);

/// Why a request failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// Which row of the table it is.
    pub kind: Kind,
    /// What is wrong, and what to do about it.
    pub message: String,
    /// What in the request is wrong; may be empty.
    pub place: String,
    /// When to come back; none where the same request fails again.
    pub retry_after_ms: Option<u64>,
}

/// The result of a request.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// Of this kind, for good.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), place: String::new(), retry_after_ms: None }
    }

    /// The request itself is wrong.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::Supervisor(Code::InvalidArgument), message)
    }

    /// The gateway serves no such thing.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(Kind::Supervisor(Code::Unsupported), message)
    }

    /// There are too many requests.
    pub fn busy(message: impl Into<String>) -> Self {
        Self { retry_after_ms: Some(100), ..Self::new(Kind::Busy, message) }
    }

    /// Names what in the request is wrong.
    pub fn at(mut self, place: impl Into<String>) -> Self {
        self.place = place.into();
        self
    }

    /// Its row in the table.
    pub fn row(&self) -> Row {
        TABLE.into_iter().find(|row| row.kind == self.kind).unwrap_or(UNKNOWN)
    }

    /// What is wrong, behind the place.
    pub fn text(&self) -> String {
        match self.place.is_empty() {
            true => self.message.clone(),
            false => format!("{}: {}", self.place, self.message),
        }
    }

    /// True if the session that a request was in is over.
    pub fn is_session_lost(&self) -> bool {
        self.kind == Kind::Supervisor(Code::SessionLost)
    }

    /// True if a call was refused since its function was replaced, or is gone: its name may mean another one by now.
    pub fn is_replaced(&self) -> bool {
        self.place == "function_version" || self.kind == Kind::Supervisor(Code::NotFound)
    }
}

impl From<v1::Error> for Failure {
    fn from(error: v1::Error) -> Self {
        // The place by which the supervisor names a token that is no tenant's.
        let kind = match (error.code(), &*error.place) {
            (Code::PermissionDenied, "token") => Kind::Unauthenticated,
            (code, _) => Kind::Supervisor(code),
        };
        let retry_after_ms = error.retryable.then_some(error.retry_after_ms);
        Self { kind, message: error.message, place: error.place, retry_after_ms }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Refused(error) => error.into(),
            // The paths in these are the operator's.
            Error::Unreachable { .. } | Error::Lost | Error::Silent { .. } | Error::Protocol(_) => {
                tracing::warn!("the supervisor: {error}");
                let told = "the gateway cannot reach its supervisor: try again, or tell the operator";
                Self { retry_after_ms: Some(1000), ..Self::new(Kind::Supervisor(Code::Unavailable), told) }
            }
            Error::Invalid(message) => Self::invalid(message),
            other => {
                tracing::error!("cannot serve a request: {other}");
                Self::new(Kind::Supervisor(Code::Internal), "the gateway failed; its log says why")
            }
        }
    }
}

/// Why an inference failed, as Triton names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// It was not taken: a limit, a quarantine, or a supervisor that drains.
    Rejected,
    /// Its client gave it up.
    Cancelled,
    /// It was taken, and failed where it ran.
    Backend,
    /// The request was wrong.
    Other,
}

impl Reason {
    /// All, at the places of their numbers.
    pub const ALL: [Self; 4] = [Self::Rejected, Self::Cancelled, Self::Backend, Self::Other];

    /// Triton's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rejected => "REJECTED",
            Self::Cancelled => "CANCELED",
            Self::Backend => "BACKEND",
            Self::Other => "OTHER",
        }
    }

    /// The reason of a failure.
    pub fn of(kind: Kind) -> Self {
        match kind {
            Kind::Supervisor(Code::Cancelled) => Self::Cancelled,
            Kind::Busy
            | Kind::Supervisor(Code::ResourceExhausted | Code::Quarantined | Code::Unavailable) => {
                Self::Rejected
            }
            Kind::Supervisor(
                Code::OutOfMemory
                | Code::DeadlineExceeded
                | Code::KernelFault
                | Code::WorkerLost
                | Code::Overrun
                | Code::Internal,
            ) => Self::Backend,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_one_row() {
        for code in (1..).map_while(|number| Code::try_from(number).ok()) {
            let kind = Kind::Supervisor(code);
            assert_eq!(TABLE.iter().filter(|row| row.kind == kind).count(), 1, "{code:?}");
            assert_eq!(Failure::new(kind, "").row().name, code.as_str_name());
        }
        for row in TABLE {
            assert!((400..600).contains(&row.http) && (1..=16).contains(&row.grpc), "{row:?}");
        }
    }

    #[test]
    fn the_page_for_users_has_the_same_table() {
        let page = include_str!("../../docs/gateway.md");
        let (_, errors) = page.split_once("## Errors").unwrap();
        let (errors, _) = errors.split_once("\n## ").unwrap();
        let rows = errors.lines().filter_map(|line| line.strip_prefix("| `"));
        // The name of gRPC's status, behind its number, is for people.
        let told: Vec<_> =
            rows.map(|row| row.rsplit_once(' ').unwrap().0.rsplit_once(' ').unwrap().0).collect();
        let table = TABLE.map(|row| format!("{}` | {} | {}", row.name, row.http, row.grpc));
        assert_eq!(told, table);
    }

    #[test]
    fn a_wrong_token_is_told_apart_from_a_missing_right() {
        let error = v1::Error::new(Code::PermissionDenied, "no");
        assert_eq!(Failure::from(error.clone()).row().http, 403);
        assert_eq!(Failure::from(error.at("token")).row().http, 401);
    }

    #[test]
    fn nothing_of_the_operators_machine_is_told() {
        let path = std::path::PathBuf::from("/run/secret.sock");
        let lost = Error::Unreachable { path, source: std::io::ErrorKind::NotFound.into() };
        let failure = Failure::from(lost);
        assert!(!failure.text().contains("secret") && failure.row().http == 503);
        assert_eq!(failure.retry_after_ms, Some(1000));
    }
}
