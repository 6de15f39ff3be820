//! Which call runs where, and when: decisions only, no effects.
//!
//! - [`scheduler`]: the state machine of one device.
//! - [`deadlines`]: calls by the moment at which something must happen to them.

pub mod deadlines;
pub mod scheduler;

pub use scheduler::{Action, CallId, Domain, Full, Limits, Scheduler, Terms, WorkerId};
