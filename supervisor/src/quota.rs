//! What a tenant may have at most: the limits by name, and an error that says which one is reached.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use bytesize::ByteSize;

use crate::limits;

/// Something that is limited per tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Registered functions.
    Functions,
    /// Bytes of the modules that functions and modules are made of, each counted once.
    ModuleBytes,
    /// Bytes on disk of all that was handed over: modules, configurations, weights, and what nothing refers to yet.
    BlobBytes,
    /// Files on disk that these are in.
    BlobFiles,
    /// Bytes of arenas.
    ArenaBytes,
    /// Bytes of arenas that workers map, and GPUs pin.
    PinnedBytes,
    /// Bytes of the state of sessions, twice over.
    SessionBytes,
    /// Connections.
    Connections,
    /// Invocations without an answer.
    Calls,
    /// Invocations that wait on one device.
    QueuedCalls,
    /// Their inline bytes.
    QueuedBytes,
    /// Memory for requests: what was received of them, decoded, and of calls that wait or run.
    RequestBytes,
    /// Memory for answers that were not read.
    AnswerBytes,
    /// Memory for functions and plans of calls: those that are kept, and those that calls wait with.
    PlanBytes,
    /// Memory for weights, each content once.
    WeightBytes,
    /// Descriptors of arenas and of calls that wait or run.
    Descriptors,
    /// Functions in memory.
    LoadedFunctions,
    /// Requests that are worked on by threads of their own at once: registration, lists, compilations.
    SlowRequests,
    /// Device memory of one device: leases of workers that serve the tenant's calls, weights of its functions.
    DeviceMemory,
}

impl Limit {
    /// All limits, in the order of their display.
    pub const ALL: [Self; 19] = [
        Self::Functions,
        Self::ModuleBytes,
        Self::BlobBytes,
        Self::BlobFiles,
        Self::ArenaBytes,
        Self::PinnedBytes,
        Self::SessionBytes,
        Self::Connections,
        Self::Calls,
        Self::QueuedCalls,
        Self::QueuedBytes,
        Self::RequestBytes,
        Self::AnswerBytes,
        Self::PlanBytes,
        Self::WeightBytes,
        Self::Descriptors,
        Self::LoadedFunctions,
        Self::SlowRequests,
        Self::DeviceMemory,
    ];

    /// The names of all, for messages.
    pub fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// As the configuration calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Functions => "functions",
            Self::ModuleBytes => "module-bytes",
            Self::BlobBytes => "blob-bytes",
            Self::BlobFiles => "blob-files",
            Self::ArenaBytes => "arena-bytes",
            Self::PinnedBytes => "pinned-bytes",
            Self::SessionBytes => "session-bytes",
            Self::Connections => "connections",
            Self::Calls => "calls",
            Self::QueuedCalls => "queued-calls",
            Self::QueuedBytes => "queued-bytes",
            Self::RequestBytes => "request-bytes",
            Self::AnswerBytes => "answer-bytes",
            Self::PlanBytes => "plan-bytes",
            Self::WeightBytes => "weight-bytes",
            Self::Descriptors => "descriptors",
            Self::LoadedFunctions => "loaded-functions",
            Self::SlowRequests => "slow-requests",
            Self::DeviceMemory => "device-memory",
        }
    }

    /// True if the limit counts bytes.
    pub fn is_bytes(self) -> bool {
        !matches!(
            self,
            Self::Functions
                | Self::BlobFiles
                | Self::Connections
                | Self::Calls
                | Self::QueuedCalls
                | Self::Descriptors
                | Self::LoadedFunctions
                | Self::SlowRequests
        )
    }

    /// What so many connections take of the limit as long as they are open.
    pub fn lasting(self, connections: u64) -> u64 {
        match self {
            Self::RequestBytes => connections.saturating_mul(limits::CONNECTION_BYTES),
            _ => 0,
        }
    }

    /// An amount of it as people read it.
    pub fn show(self, amount: u64) -> String {
        match self.is_bytes() {
            true if amount >= 1024 => format!("{amount} ({})", ByteSize::b(amount).display().iec()),
            _ => amount.to_string(),
        }
    }
}

/// Whose limit it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// One tenant's quota.
    Tenant,
    /// What all tenants together may have of the supervisor's own memory, descriptors and threads.
    AllTenants,
}

/// Something does not fit into what a tenant may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaError {
    /// What is limited.
    pub limit: Limit,
    /// The tenant's name.
    pub tenant: Arc<str>,
    /// Whose limit is reached.
    pub scope: Scope,
    /// How much it may use.
    pub most: u64,
    /// How much the tenant uses.
    pub used: u64,
    /// What it would need besides.
    pub more: u64,
    /// Of what is used, so much becomes free without the tenant's doing: once calls end, answers are read, content is stored.
    pub freeing: u64,
}

impl QuotaError {
    /// Of what is used, so much belongs to the same request or to its connection, and stays while it waits: the error
    /// speaks of all that it would be.
    pub fn with_own(self, own: u64) -> Self {
        let own = own.min(self.used);
        let freeing = self.freeing.saturating_sub(own.saturating_sub(self.limit.lasting(1)));
        Self { used: self.used - own, more: self.more + own, freeing, ..self }
    }

    /// True if the request is too large even alone. (A call does not wait in the queue of a free device.)
    fn is_alone(&self) -> bool {
        self.more > self.most && !matches!(self.limit, Limit::QueuedCalls | Limit::QueuedBytes)
    }

    /// When there may be room again, where that is soon.
    pub fn retry_after_ms(&self) -> Option<u64> {
        match (self.scope, self.limit) {
            _ if self.is_alone() => None,
            (Scope::AllTenants, _) => Some(1000),
            (_, Limit::Calls | Limit::AnswerBytes) => Some(10),
            (_, Limit::RequestBytes | Limit::Descriptors) => (self.freeing > 0).then_some(10),
            (_, Limit::DeviceMemory) => (self.freeing > 0).then_some(100),
            (_, Limit::LoadedFunctions | Limit::WeightBytes) => Some(100),
            (_, Limit::QueuedCalls | Limit::QueuedBytes) => Some(100),
            (_, Limit::PlanBytes | Limit::SlowRequests | Limit::Connections) => Some(100),
            _ => None,
        }
    }

    /// What the tenant itself can do, if anything helps.
    fn advice(&self) -> Option<&'static str> {
        match self.limit {
            // One of something cannot be less.
            _ if self.is_alone() => {
                (self.more > 1).then_some("it is more than all of the quota: ask for less")
            }
            Limit::Functions => Some("remove functions"),
            Limit::ModuleBytes | Limit::BlobBytes | Limit::BlobFiles => Some("remove functions and modules"),
            Limit::ArenaBytes | Limit::PinnedBytes => Some("close arenas"),
            Limit::SessionBytes => Some("close sessions"),
            Limit::Connections => Some("close connections"),
            Limit::Calls | Limit::QueuedCalls | Limit::QueuedBytes => Some("wait for answers"),
            Limit::RequestBytes if self.freeing == 0 => Some("close connections"),
            Limit::RequestBytes | Limit::PlanBytes | Limit::SlowRequests => Some("wait for answers"),
            Limit::AnswerBytes => Some("read answers"),
            Limit::WeightBytes | Limit::LoadedFunctions => {
                Some("calls use all that are in memory, yours or of tenants with grants: wait for answers")
            }
            Limit::Descriptors if self.freeing > 0 => Some("close arenas or wait for answers"),
            Limit::Descriptors => Some("close arenas"),
            Limit::DeviceMemory if self.freeing > 0 => Some("wait for answers"),
            Limit::DeviceMemory => Some("remove functions with weights"),
        }
    }
}

impl std::error::Error for QuotaError {}

impl fmt::Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, tenant, .. } = self;
        let [most, used, needs] = [self.most, self.used, self.more].map(|amount| limit.show(amount));
        if self.scope == Scope::AllTenants {
            // How much others have is not said.
            return match self.is_alone() {
                true => write!(
                    f,
                    "this supervisor has {most} {limit} for all tenants together, tenant {tenant} needs {needs}: ask for less"
                ),
                false => write!(
                    f,
                    "all tenants together have nearly all of the {most} {limit} that this supervisor has for them, {needs} \
                     more needed by tenant {tenant}; try again later"
                ),
            };
        }
        write!(f, "the quota {limit} of tenant {tenant} is {most}: {used} in use, {needs} more needed; ")?;
        match self.advice() {
            Some(advice) => write!(f, "{advice}, or ask the operator for a larger quota"),
            None => f.write_str("ask the operator for a larger quota"),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No limit has that name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no such quota; there are {}", Limit::names())]
pub struct UnknownLimit;

impl FromStr for Limit {
    type Err = UnknownLimit;

    fn from_str(text: &str) -> Result<Self, UnknownLimit> {
        Self::ALL.into_iter().find(|limit| limit.name() == text).ok_or(UnknownLimit)
    }
}

/// How much a tenant may have of everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota([u64; Limit::ALL.len()]);

impl Default for Quota {
    fn default() -> Self {
        let mut quota = Self([u64::MAX; Limit::ALL.len()]);
        quota.set(Limit::Functions, limits::DEFAULT_FUNCTIONS);
        quota.set(Limit::ModuleBytes, limits::DEFAULT_MODULE_BYTES);
        quota.set(Limit::BlobBytes, limits::DEFAULT_BLOB_BYTES);
        quota.set(Limit::ArenaBytes, limits::DEFAULT_ARENA_BYTES);
        quota.set(Limit::PinnedBytes, limits::DEFAULT_PINNED_BYTES);
        quota.set(Limit::SessionBytes, limits::DEFAULT_SESSION_BYTES);
        quota.set(Limit::BlobFiles, limits::DEFAULT_BLOB_FILES);
        quota.set(Limit::Connections, limits::MAX_CONNECTIONS_PER_TENANT as u64);
        quota.set(Limit::Calls, limits::DEFAULT_CALLS);
        quota.set(Limit::QueuedCalls, limits::DEFAULT_QUEUED_CALLS);
        quota.set(Limit::QueuedBytes, limits::DEFAULT_QUEUED_BYTES);
        quota.set(Limit::RequestBytes, limits::DEFAULT_REQUEST_BYTES);
        quota.set(Limit::AnswerBytes, limits::DEFAULT_ANSWER_BYTES);
        quota.set(Limit::PlanBytes, limits::DEFAULT_PLAN_BYTES);
        quota.set(Limit::WeightBytes, limits::DEFAULT_WEIGHT_BYTES);
        quota.set(Limit::Descriptors, limits::DEFAULT_DESCRIPTORS);
        quota.set(Limit::LoadedFunctions, limits::DEFAULT_LOADED);
        quota.set(Limit::SlowRequests, limits::MAX_SLOW_REQUESTS_PER_TENANT as u64);
        quota
    }
}

impl Quota {
    /// The most of one thing; the largest number where there is no limit.
    pub fn get(&self, limit: Limit) -> u64 {
        self.0[limit as usize]
    }

    /// Sets the most of one thing.
    pub fn set(&mut self, limit: Limit, most: u64) {
        self.0[limit as usize] = most;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(limit: Limit, most: u64, used: u64, more: u64) -> QuotaError {
        QuotaError { limit, tenant: "acme".into(), scope: Scope::Tenant, most, used, more, freeing: 0 }
    }

    #[test]
    fn an_error_names_the_limit_its_value_and_what_to_do() {
        let why = error(Limit::ArenaBytes, 4096, 1000, 3500).to_string();
        let parts =
            ["arena-bytes", "acme", "4096 (4.0 KiB)", "1000 in use", "3500 (", "close arenas", "operator"];
        for part in parts {
            assert!(why.contains(part), "{why}");
        }
        assert_eq!(error(Limit::Calls, 1, 1, 1).retry_after_ms(), Some(10));
        assert_eq!(error(Limit::QueuedCalls, 1, 1, 1).retry_after_ms(), Some(100));
        assert_eq!(error(Limit::Functions, 1, 1, 1).retry_after_ms(), None);
    }

    #[test]
    fn nobody_is_told_to_wait_for_what_never_fits() {
        for limit in [Limit::ArenaBytes, Limit::RequestBytes, Limit::PlanBytes, Limit::DeviceMemory] {
            let error = error(limit, 4096, 1000, 8192);
            let why = error.to_string();
            assert!(
                why.contains("; it is more than all of the quota: ask for less, or ask the operator"),
                "{why}"
            );
            assert_eq!(error.retry_after_ms(), None);
        }
        let none = error(Limit::Calls, 0, 0, 1);
        assert!(none.to_string().ends_with("1 more needed; ask the operator for a larger quota"), "{none}");
        assert_eq!(none.retry_after_ms(), None);
        let all = QuotaError { scope: Scope::AllTenants, ..error(Limit::PlanBytes, 10, 0, 11) };
        assert!(all.to_string().ends_with("tenant acme needs 11: ask for less"), "{all}");
        assert_eq!(all.retry_after_ms(), None);
        // What others have is theirs to know.
        let all =
            QuotaError { scope: Scope::AllTenants, ..error(Limit::Descriptors, 1000, 997, 5) }.to_string();
        assert!(all.contains("all of the 1000 descriptors") && !all.contains("997"), "{all}");
    }

    #[test]
    fn nobody_is_told_to_wait_for_what_is_its_own() {
        // A frame of 200 of 256 that a request is decoded from is there until it is answered.
        let decoded = QuotaError { freeing: 200, ..error(Limit::RequestBytes, 256, 200, 200) };
        assert_eq!(decoded.retry_after_ms(), Some(10));
        let decoded = decoded.with_own(200);
        assert_eq!((decoded.used, decoded.more, decoded.retry_after_ms()), (0, 400, None));
        assert!(decoded.to_string().contains("more than all of the quota"), "{decoded}");
        let beside = QuotaError { freeing: 150, ..error(Limit::RequestBytes, 256, 200, 57) };
        assert_eq!(beside.clone().with_own(50).retry_after_ms(), Some(10));
        // Idle connections of its own take the rest.
        let connections = QuotaError { freeing: 0, ..beside };
        assert_eq!(connections.retry_after_ms(), None);
        assert!(connections.to_string().contains("close connections"), "{connections}");
        // Functions that no call uses give way by themselves.
        assert_eq!(error(Limit::LoadedFunctions, 1, 1, 1).retry_after_ms(), Some(100));
        assert_eq!(error(Limit::WeightBytes, 10, 5, 11).retry_after_ms(), None);
        // Arenas are open until they are closed; calls end.
        for (limit, others) in [(Limit::Descriptors, 1), (Limit::DeviceMemory, 2)] {
            let alone = error(limit, 4, 4, 1);
            assert!(!alone.to_string().contains("wait"), "{alone}");
            assert_eq!(alone.retry_after_ms(), None, "{alone}");
            let beside = QuotaError { freeing: others, ..alone };
            assert!(beside.to_string().contains("wait for answers"), "{beside}");
            assert!(beside.retry_after_ms().is_some(), "{beside}");
        }
        // Where no call may wait, one still runs on a device that is free.
        for error in [error(Limit::QueuedCalls, 0, 0, 1), error(Limit::QueuedBytes, 10, 0, 11)] {
            assert!(error.to_string().contains("wait for answers"), "{error}");
            assert_eq!(error.retry_after_ms(), Some(100));
        }
    }

    #[test]
    fn every_limit_has_a_name_of_its_own() {
        for (nth, limit) in Limit::ALL.into_iter().enumerate() {
            assert_eq!((limit as usize, limit.name().parse()), (nth, Ok(limit)));
        }
        let why = "bytes".parse::<Limit>().unwrap_err().to_string();
        assert!(why.contains("functions, module-bytes"), "{why}");
    }
}
