//! Which device a call goes to.
//!
//! - `load`: how busy devices are; `speeds`: how long calls take on each.
//! - [`homes`]: the rules by which a domain has a home among several devices; pure.
//! - [`routed`]: calls that count where they were routed to.
//! - [`router`]: the devices that can run a call, and the one that it goes to.

pub mod homes;
mod load;
pub mod routed;
pub mod router;
mod speeds;

pub use homes::Candidate;
pub use routed::{Routed, SharedHomes};
pub use router::{Destination, RouteError, Router};
