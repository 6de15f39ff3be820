//! One inference as it is counted: for its caller, for whoever watches, and as a trace. It is counted once, where it ends; one that is
//! dropped before was given up by its client.

use std::sync::Arc;
use std::time::Instant;

use pappus_client::v1::Timings;

use crate::callers::Caller;
use crate::failure::{Failure, Reason};
use crate::metrics::Pending;
use crate::model::Model;
use crate::statistics::Statistics;
use crate::traces::{Origin, Traced};

/// An inference that is under way.
#[derive(Debug)]
pub struct Counted {
    began: Instant,
    own: Arc<Statistics>,
    pending: Pending,
    traced: Traced,
    has_ended: bool,
}

impl Counted {
    /// Of a request that arrived at `began`.
    pub fn new(caller: &Caller, origin: &Origin, model: &Model, began: Instant) -> Self {
        let (own, pending) = (caller.statistics(model), caller.metrics().begins(model));
        Self { began, own, pending, traced: caller.traces().begins(origin, &model.name), has_ended: false }
    }

    /// From now on the inference counts for this model: the function was replaced meanwhile.
    pub fn counts_for(&mut self, caller: &Caller, model: &Model) {
        (self.own, self.pending) = (caller.statistics(model), caller.metrics().begins(model));
    }

    /// The inference ended so: with the timings of its call, or with a failure.
    pub fn ended(mut self, outcome: Result<&Timings, &Failure>) {
        self.has_ended = true;
        match outcome {
            Ok(timings) => {
                let took = self.began.elapsed();
                self.all().into_iter().for_each(|counts| counts.succeeded(took, timings));
                self.traced.succeeded(timings);
            }
            Err(failure) => {
                self.failed(Reason::of(failure.kind));
                self.traced.failed(failure);
            }
        }
    }

    fn failed(&self, reason: Reason) {
        let took = self.began.elapsed();
        self.all().into_iter().for_each(|counts| counts.failed(took, reason));
    }

    fn all(&self) -> [&Statistics; 2] {
        [&self.own, self.pending.statistics()]
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if !self.has_ended {
            self.failed(Reason::Cancelled);
        }
    }
}
