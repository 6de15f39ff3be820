//! Which call runs where, and when: decisions only, no effects.
//!
//! - [`limits`]: what was chosen by hand, with reasons. [`types`]: what goes in and what comes out; [`events`]: what may happen.
//! - [`scheduler`]: the state machine of one device: puts the policies together; `starting`: calls get lanes; `feeding`: who waits gets
//!   lanes and workers; `jobs`: calls that run together in one lane, and those that wait for company;
//!   `endings`: calls leave their lanes; `overdue`: calls that do not end, or are in the way of others for too long; `processes`:
//!   workers' processes come and go; `whole_device`: calls that need all of it get it; `judging`: what ends of calls mean for callers;
//!   `charging`: what sharing a device takes from the events of calls; `reclaim`: what follows where calls wait for memory;
//!   `resizing`: what follows where the device is set up otherwise; `queries`: what may be asked at any time.
//! - `calls`, `workers`: the state that policies look at.
//!
//! Policies, each with its own state:
//! - `queues`: which call gets which worker; `domain_queue`: whose turn it is within a queue, and calls that wait for company.
//! - `asks`: who gets a worker, a lane, memory or the whole device next, in one line.
//! - [`turns`]: who may submit to the device; `turn_cost`: what a change costs; `turn_fines`: who has to stand behind others;
//!   `share_line`: who is next, by classes and weights (`fair_line`: start-time fair queueing).
//! - `book`: who has what of the device's memory, and whose calls wait for some.
//! - `residency`: which resident gives way to another domain, and when.
//! - `device_time`: how long calls take at least, what each tenant used, and who pays for turns of shared workers.
//! - `retry`: calls whose process ended are run again; `apart`: calls that failed together are not put together again soon.
//! - For callers whose calls fail: [`budget`], [`quarantine`] and `mps_suspicion`.
//! - [`weights`]: which functions' weights stay on a device; `loading`: how calls get them.

mod apart;
mod asks;
mod book;
pub mod budget;
mod calls;
mod charging;
mod device_time;
mod domain_queue;
mod endings;
pub mod events;
mod fair_line;
mod feeding;
mod jobs;
mod judging;
pub mod limits;
mod loading;
mod mps_suspicion;
mod overdue;
mod processes;
pub mod quarantine;
mod queries;
mod queues;
mod reclaim;
mod residency;
mod resizing;
mod retry;
pub mod scheduler;
mod share_line;
mod starting;
mod turn_cost;
mod turn_fines;
pub mod turns;
pub mod types;
pub mod weights;
mod whole_device;
mod workers;

pub use endings::Outlast;
pub use limits::{Limits, Policy};
pub use retry::{Attempts, Withdrawn};
pub use scheduler::Scheduler;
pub use types::{
    Action, Address, Batch, Call, CallId, CallSpec, Class, Command, Compartment, Domain, Ended, Job,
    KillReason, Loss, MemorySnapshot, NotNow, Order, Resident, ResidentPrice, Shape, Sharing, TenantShare,
    Verdict, WhyGone,
};
