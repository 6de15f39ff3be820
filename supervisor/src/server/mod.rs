//! The sockets: from bytes of a stranger to calls and registrations.
//!
//! - [`listen`]: sockets, accepting, draining.
//! - [`guests`]: who may connect how often.
//! - [`connection`]: one client: greeting, frames, dispatch.
//! - [`replies`]: answers to it, from any thread.
//! - [`invoke`]: an `Invoke` becomes a call: checked, sized, planned.
//! - [`turns`]: each tenant's turns at what takes long.
//! - `watched`: a socket watched for one kind of event.
//! - [`requests`]: everything else.
//! - [`status`]: what `status` answers.

pub mod connection;
pub mod guests;
pub mod invoke;
pub mod listen;
pub mod replies;
pub mod requests;
pub mod status;
pub mod turns;
mod watched;

pub use listen::Server;
