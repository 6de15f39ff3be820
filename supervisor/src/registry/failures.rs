//! Compilations that failed: a function whose module does not compile is not compiled again at every call.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::compile::CompileError;
use crate::ids::TenantId;
use crate::store::records::Hash;
use crate::sync::{OrderedMutex, rank};

/// How long a failure is remembered: it may have been the machine's, which had no time or memory.
const REMEMBERED: Duration = Duration::from_secs(300);
/// Failures remembered; when there are more, all are forgotten.
const MAX_FAILURES: usize = 1024;

/// Whose module, for which devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Job {
    pub(super) tenant: TenantId,
    pub(super) module: Hash,
    /// The class of devices that it is compiled for; none if no device here runs it, and it is only described.
    pub(super) class: Option<usize>,
}

/// What failed lately.
#[derive(Debug, Default)]
pub(super) struct Failures(OrderedMutex<HashMap<Job, (Instant, CompileError)>, { rank::FAILURES }>);

impl Failures {
    /// Why it would fail again.
    pub(super) fn known(&self, job: &Job, now: Instant) -> Option<CompileError> {
        let all = self.0.lock();
        let (since, why) = all.get(job)?;
        (now.saturating_duration_since(*since) < REMEMBERED).then(|| why.clone())
    }

    /// It failed, or not.
    pub(super) fn note<T>(&self, job: Job, now: Instant, outcome: &Result<T, CompileError>) {
        let mut all = self.0.lock();
        match outcome {
            Err(why) if why.is_of_the_module() => {
                if all.len() >= MAX_FAILURES {
                    all.clear();
                }
                all.insert(job, (now, why.clone()));
            }
            _ => drop(all.remove(&job)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusal::Failure;

    const TENANT: TenantId = TenantId::new(1);

    #[test]
    fn what_failed_is_known_until_it_succeeds_or_is_long_ago() {
        let failures = Failures::default();
        let job = |tenant| Job { tenant, module: Hash([0; 32]), class: None };
        let now = Instant::now();
        let bad: Result<(), _> = Err(CompileError::Rejected("bad".to_owned()));
        failures.note(job(TENANT), now, &bad);
        assert_eq!(failures.known(&job(TENANT), now).unwrap().to_string(), "bad");
        assert!(failures.known(&job(TenantId::new(2)), now).is_none());
        assert!(failures.known(&job(TENANT), now + REMEMBERED).is_none());
        failures.note(job(TENANT), now, &Ok(()));
        assert!(failures.known(&job(TENANT), now).is_none());
        failures.note(job(TENANT), now, &Err::<(), _>(Failure::Internal("no process").into()));
        assert!(failures.known(&job(TENANT), now).is_none(), "that is not the module's fault");
        for tenant in 0..=MAX_FAILURES as u32 {
            failures.note(job(TenantId::new(tenant)), now, &bad);
        }
        assert!(failures.0.lock().len() <= MAX_FAILURES);
    }
}
