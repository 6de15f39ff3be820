//! No byte of a call is found by another on a GPU: between two calls of one worker, and between two workers.
//! Controls run the same probes where nothing is cleared. A place where even they find nothing is reported as
//! "not observed", and its probe is kept.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "suite/leaks_between_calls.rs"]
mod between_calls;
mod harness;
#[path = "suite/leaks_on_chip.rs"]
mod on_chip;
mod suite;
