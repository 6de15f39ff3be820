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
    /// Bytes handed over in all: modules, configurations, weights, and what nothing refers to yet.
    BlobBytes,
    /// Bytes of arenas.
    ArenaBytes,
    /// Of these, bytes that workers map, which GPUs pin.
    PinnedBytes,
    /// Invocations without an answer.
    Calls,
    /// Device memory of one device: leases of workers that serve the tenant's calls, weights of its functions.
    DeviceMemory,
}

impl Limit {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Self; 7] = [
        Self::Functions,
        Self::ModuleBytes,
        Self::BlobBytes,
        Self::ArenaBytes,
        Self::PinnedBytes,
        Self::Calls,
        Self::DeviceMemory,
    ];

    /// As the configuration calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Functions => "functions",
            Self::ModuleBytes => "module-bytes",
            Self::BlobBytes => "blob-bytes",
            Self::ArenaBytes => "arena-bytes",
            Self::PinnedBytes => "pinned-bytes",
            Self::Calls => "calls",
            Self::DeviceMemory => "device-memory",
        }
    }

    /// Whether it counts bytes.
    pub fn is_bytes(self) -> bool {
        !matches!(self, Self::Functions | Self::Calls)
    }

    /// An amount of it as people read it.
    pub fn show(self, amount: u64) -> String {
        match self.is_bytes() {
            true if amount >= 1024 => format!("{amount} ({})", ByteSize::b(amount).display().iec()),
            _ => amount.to_string(),
        }
    }
}

/// Something does not fit into what a tenant may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaError {
    /// What is limited.
    pub limit: Limit,
    /// The tenant's name.
    pub tenant: Arc<str>,
    /// What it may have.
    pub most: u64,
    /// What it has.
    pub used: u64,
    /// What it would need besides.
    pub more: u64,
}

impl QuotaError {
    /// When there may be room again, where that is soon.
    pub fn retry_after_ms(&self) -> Option<u64> {
        (self.limit == Limit::Calls).then_some(10)
    }

    /// What the tenant itself can do, if anything helps.
    fn advice(&self) -> Option<&'static str> {
        match self.limit {
            Limit::Functions => Some("remove functions"),
            Limit::ModuleBytes | Limit::BlobBytes => Some("remove functions and modules"),
            Limit::ArenaBytes | Limit::PinnedBytes => Some("close arenas"),
            Limit::Calls => Some("wait for answers"),
            // Only less weights, or a call that needs less than a whole device, make room for a lease.
            Limit::DeviceMemory if self.used > 0 => Some("remove functions with weights"),
            Limit::DeviceMemory => None,
        }
    }
}

impl std::error::Error for QuotaError {}

impl fmt::Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, tenant, .. } = self;
        let [most, used, needs] = [self.most, self.used, self.more].map(|amount| limit.show(amount));
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
#[error("no such quota; there are {}", Limit::ALL.map(Limit::name).join(", "))]
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
        quota.set(Limit::Calls, limits::DEFAULT_CALLS);
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
        QuotaError { limit, tenant: "acme".into(), most, used, more }
    }

    #[test]
    fn an_error_names_the_limit_its_value_and_what_to_do() {
        let why = error(Limit::ArenaBytes, 4096, 1000, 8192).to_string();
        for part in
            ["arena-bytes", "acme", "4096 (4.0 KiB)", "1000 in use", "8192", "close arenas", "operator"]
        {
            assert!(why.contains(part), "{why}");
        }
        assert_eq!(error(Limit::Calls, 1, 1, 1).retry_after_ms(), Some(10));
        assert_eq!(error(Limit::Functions, 1, 1, 1).retry_after_ms(), None);
    }

    #[test]
    fn advice_for_device_memory_is_something_that_helps() {
        // The lease of a worker has one size, whatever a call brings.
        let lease = error(Limit::DeviceMemory, 4096, 0, 8192).to_string();
        assert!(
            lease.ends_with("8192 (8.0 KiB) more needed; ask the operator for a larger quota"),
            "{lease}"
        );
        let weights = error(Limit::DeviceMemory, 8192, 4096, 8192).to_string();
        assert!(weights.contains("remove functions with weights"), "{weights}");
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
