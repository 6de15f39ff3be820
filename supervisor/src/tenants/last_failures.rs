//! How a tenant's calls failed last, as it was told: what a refusal for failing too often repeats.

use crate::ids::FunctionId;
use crate::sync::{OrderedMutex, rank};

/// Functions that are remembered of a tenant: those that failed last.
const MAX_FUNCTIONS: usize = 32;
/// Bytes of a failure that are kept.
const MAX_BYTES: usize = 300;

/// Failures by function, the last one at the end.
#[derive(Debug, Default)]
pub struct LastFailures(OrderedMutex<Vec<(FunctionId, String)>, { rank::LAST_FAILURES }>);

impl LastFailures {
    /// The tenant is told this of a call of a function.
    pub fn failed(&self, function: FunctionId, told: &str) {
        let told = told[..told.floor_char_boundary(MAX_BYTES)].to_owned();
        let mut failures = self.0.lock();
        failures.retain(|(other, _)| *other != function);
        if failures.len() >= MAX_FUNCTIONS {
            failures.remove(0);
        }
        failures.push((function, told));
    }

    /// What it was told last of a function.
    pub fn of(&self, function: FunctionId) -> Option<String> {
        self.0.lock().iter().find(|(other, _)| *other == function).map(|(_, told)| told.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_short_failures_are_remembered() {
        let (failures, function) = (LastFailures::default(), FunctionId::new);
        failures.failed(function(1), "first");
        failures.failed(function(1), &"é".repeat(MAX_BYTES));
        assert_eq!(failures.of(function(1)), Some("é".repeat(MAX_BYTES / 2)));
        (2..=MAX_FUNCTIONS as u64 + 1).for_each(|id| failures.failed(function(id), "other"));
        assert_eq!((failures.of(function(1)), failures.of(function(2))), (None, Some("other".to_owned())));
    }
}
