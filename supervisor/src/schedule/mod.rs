//! Which call runs where, and when: decisions only, no effects.
//!
//! - [`words`]: what goes in and what comes out.
//! - [`scheduler`]: the state machine of one device.
//! - [`deadlines`]: calls by the moment at which something must happen to them.

pub mod deadlines;
pub mod scheduler;
pub mod words;

pub use scheduler::Scheduler;
pub use words::{Action, CallId, Domain, Full, Limits, Terms, WorkerId};
