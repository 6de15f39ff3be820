//! The sockets: from bytes of a stranger to calls and registrations.
//!
//! - [`listen`]: sockets, accepting, draining.
//! - [`connection`]: one client: greeting, frames, dispatch.
//! - [`replies`]: answers to it, from any thread.
//! - [`invoke`]: an `Invoke` becomes a call: checked, sized, planned.
//! - [`requests`]: everything else.

pub mod connection;
pub mod invoke;
pub mod listen;
pub mod replies;
pub mod requests;

pub use listen::Server;
