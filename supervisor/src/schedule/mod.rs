//! Which call runs where, and when: decisions only, no effects.
//!
//! - [`types`]: what goes in and what comes out.
//! - [`scheduler`]: the state machine of one device: its events.
//! - [`placing`]: which call gets which worker.
//! - [`exclusive`]: calls that need the whole device.
//! - [`retry`]: calls whose process ended are run again.
//! - [`penalties`]: what follows for whose calls fail: [`budget`] and [`quarantine`].
//! - `quota`: how many workers one caller may have.
//! - [`turns`]: who may submit to the device.
//! - [`weights`]: which functions' weights stay on a device.
//! - [`table`]: the calls there are.
//! - [`deadlines`]: calls by the moment at which something must happen to them.

pub mod budget;
pub mod deadlines;
mod exclusive;
mod penalties;
mod placing;
pub mod quarantine;
mod quota;
mod retry;
pub mod scheduler;
mod table;
pub mod turns;
pub mod types;
pub mod weights;

pub use scheduler::Scheduler;
pub use types::{
    Action, CallId, Domain, Ended, Limits, NotNow, Order, Policy, Shape, Size, Terms, Verdict, WorkerId,
};
