//! Which call runs where, and when: decisions only, no effects.
//!
//! - [`types`]: what goes in and what comes out; [`events`]: what may happen.
//! - [`scheduler`]: the state machine of one device: puts the policies together; `follow_up`: what their verdicts lead
//!   to; `gathering`: the same where calls wait for memory.
//! - `calls`, `workers`: the state that policies look at.
//!
//! Policies, each with its own state:
//! - `placing`: which call gets which worker.
//! - [`turns`]: who may submit to the device.
//! - `lending`: who has what of the device's memory, and whose calls wait for some.
//! - `residency`: which resident gives way to another domain, and when.
//! - `exclusive`: calls that need the whole device; `fair_line`: whose is next.
//! - `retry`: calls whose process ended are run again.
//! - `penalties`: for callers whose calls fail: [`budget`] and [`quarantine`].
//! - [`deadlines`]: calls by the moment at which something must happen to them.
//! - [`weights`]: which functions' weights stay on a device.

pub mod budget;
mod calls;
pub mod deadlines;
pub mod events;
mod exclusive;
mod fair_line;
mod follow_up;
mod gathering;
mod lending;
mod penalties;
mod placing;
pub mod quarantine;
mod residency;
mod retry;
pub mod scheduler;
pub mod turns;
pub mod types;
pub mod weights;
mod workers;

pub use scheduler::Scheduler;
pub use types::{
    Action, Address, CallId, Command, Domain, Ended, KillReason, Limits, Loss, NotNow, Policy, Resident,
    Shape, Terms, Verdict, WhyGone,
};
