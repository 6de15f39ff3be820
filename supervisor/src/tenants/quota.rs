//! What a tenant may have at most: the limits by name, and a refusal that says which one is reached.

use std::fmt;
use std::str::FromStr;

use bytesize::ByteSize;
use pappus_proto::{Code, v1};

use crate::limits;
use crate::refusal::Refusal;

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

    fn advice(self) -> &'static str {
        match self {
            Self::Functions => "remove functions",
            Self::ModuleBytes | Self::BlobBytes => "remove functions and modules",
            Self::ArenaBytes | Self::PinnedBytes => "close arenas",
            Self::Calls => "wait for answers",
            Self::DeviceMemory => "call with less data",
        }
    }

    /// An amount of it as people read it.
    pub fn show(self, amount: u64) -> String {
        match self.is_bytes() {
            true if amount >= 1024 => format!("{amount} ({})", ByteSize::b(amount).display().iec()),
            _ => amount.to_string(),
        }
    }

    /// The refusal of something that does not fit.
    pub fn refusal(self, tenant: &str, most: u64, used: u64, more: u64) -> Refusal {
        let (most, used, needs) = (self.show(most), self.show(used), self.show(more));
        let (name, advice) = (self.name(), self.advice());
        let why = format!(
            "the quota {name} of tenant {tenant} is {most}: {used} in use, {needs} more needed; {advice}, or ask the \
             operator for a larger quota"
        );
        let error = v1::Error::new(Code::ResourceExhausted, why);
        Box::new(if self == Self::Calls { error.retry(10) } else { error })
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|limit| limit.name() == text).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.map(Self::name).into();
            format!("no such quota; there are {}", names.join(", "))
        })
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

    #[test]
    fn a_refusal_names_the_limit_its_value_and_what_to_do() {
        let why = Limit::ArenaBytes.refusal("acme", 4096, 1000, 8192).message;
        for part in
            ["arena-bytes", "acme", "4096 (4.0 KiB)", "1000 in use", "8192", "close arenas", "operator"]
        {
            assert!(why.contains(part), "{why}");
        }
        assert!(Limit::Calls.refusal("1000", 1, 1, 1).retryable);
        assert!(!Limit::Functions.refusal("1000", 1, 1, 1).retryable);
    }

    #[test]
    fn every_limit_has_a_name_of_its_own() {
        for (nth, limit) in Limit::ALL.into_iter().enumerate() {
            assert_eq!((limit as usize, limit.name().parse()), (nth, Ok(limit)));
        }
        assert!("bytes".parse::<Limit>().unwrap_err().contains("functions, module-bytes"));
    }
}
