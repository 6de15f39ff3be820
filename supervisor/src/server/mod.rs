//! The sockets: from bytes of a stranger to calls and registrations.
//!
//! - [`listen`]: sockets, accepting, draining.
//! - [`guests`]: who may connect how often.
//! - [`entry`]: who may enter; greeting; for whom a gateway acts.
//! - [`peer`]: the process at the other end.
//! - [`connection`]: one client: frames, dispatch.
//! - [`reader`]: its reading side, which asks for a while before it sleeps.
//! - `leaving`: a client that will send nothing more.
//! - [`replies`]: answers to it, from any thread.
//! - [`invoke`]: an `Invoke` becomes a call: checked, sized, planned.
//! - [`turns`]: each tenant's turns at what takes long.
//! - `watched`: a socket watched for one kind of event.
//! - [`requests`]: everything else.
//! - [`status`]: what `status` answers.
//! - [`tenants`]: what each tenant has; tenants read again.

pub mod connection;
pub mod entry;
pub mod guests;
pub mod invoke;
mod leaving;
pub mod listen;
pub mod peer;
pub mod reader;
pub mod replies;
pub mod requests;
pub mod status;
pub mod tenants;
pub mod turns;
mod watched;

pub use listen::Server;
