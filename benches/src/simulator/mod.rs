//! The simulator: the supervisor's own scheduler and router against virtual devices in virtual time, with costs that were
//! measured on GPUs. Policies are compared here first; `docs/simulator.md` says how, and how far it is off.
//!
//! In reading order:
//! - [`cli`]: what may be asked for, and what is printed.
//! - [`scenarios`]: what is simulated, and the numbers that it must reach. [`rules`]: settings of devices.
//! - [`world`]: callers and the router, in front of devices. [`traces`]: calls that come by themselves. [`random`]: seeds.
//! - [`device`]: the scheduler, its actions carried out, its events. [`processes`]: processes that come and go.
//! - [`worker`]: a process with its lanes and its turn.
//! - [`chip`]: what runs on the device. [`costs`]: what things cost.
//! - [`events`]: what is to happen. [`outcome`]: what came of it.

pub mod chip;
pub mod cli;
pub mod costs;
pub mod device;
pub mod events;
pub mod outcome;
mod processes;
pub mod random;
pub mod rules;
pub mod scenarios;
#[cfg(test)]
mod tests;
pub mod traces;
pub mod worker;
pub mod world;
