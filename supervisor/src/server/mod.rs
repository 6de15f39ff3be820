//! The sockets: from bytes of a stranger to calls and registrations.
//!
//! - [`state`]: what all connections share; what requests are asked with.
//! - [`socket_file`]: the file of a socket; [`listen`]: accepting.
//! - [`connection_slots`]: how many connections each tenant may have; [`connection_pace`]: how fast a user may open them.
//! - [`handshake`]: greeting; which tenant a gateway acts for.
//! - [`intake`]: what a connection receives, counted for its tenant until it is a request.
//! - [`peer`]: the process at the other end.
//! - [`connection`]: one client: its frames; [`seats`]: which tenant a request is from; [`seat`]: one tenant at a connection: dispatch.
//! - [`fair_turns`]: processor time of the socket threads, shared among tenants.
//! - [`reader`]: its reading side, which asks for a while before it sleeps.
//! - `half_close`: a client that will send nothing more.
//! - [`replies`]: answers to it, from any thread.
//! - [`reply_handle`]: the one answer to an invocation; answers of one client in one write.
//! - [`sessions`]: sessions that the requests of one tenant opened; [`all_sessions`]: those of all tenants.
//! - [`responses`]: how a call ended, as its client is told.
//! - [`invoke`]: an `Invoke` becomes a call: checked, sized, planned; [`invoke_error`]: why it cannot.
//! - `consecutive`: compositions that are not linked: their steps run as consecutive calls.
//! - [`slow_work`]: each tenant's permits for slow work.
//! - `async_fd`: a socket watched for one kind of event.
//! - [`requests`]: everything else; `from_proto`, `to_proto`: what the registry is asked and answers, as messages.
//! - `refusals`: why a request is refused, as its client is told; [`request_error`]: by the server itself;
//!   [`violation`]: what ends a connection.
//! - [`health`]: what is watched to tell how the supervisor is; [`readiness`]: what it tells.
//! - [`gauges`]: what is exported once a second.
//! - [`status`]: what `status` answers.
//! - [`tenants`]: what each tenant has.
//! - [`reload`]: the configuration read again; settings of devices; `reload_tenants`: rules about tenants.
//! - [`moving`]: calls of a device that is lost go to others.

pub mod all_sessions;
mod async_fd;
pub mod connection;
pub mod connection_pace;
pub mod connection_slots;
mod consecutive;
pub mod fair_turns;
mod from_proto;
pub mod gauges;
mod half_close;
pub mod handshake;
pub mod health;
pub mod intake;
pub mod invoke;
pub mod invoke_error;
pub mod listen;
pub mod moving;
pub mod peer;
pub mod reader;
pub mod readiness;
mod refusals;
pub mod reload;
mod reload_tenants;
pub mod replies;
pub mod reply_handle;
pub mod request_error;
pub mod requests;
pub mod responses;
pub mod seat;
pub mod seats;
pub mod sessions;
pub mod slow_work;
pub mod socket_file;
pub mod state;
pub mod status;
pub mod tenants;
mod to_proto;
pub mod violation;

pub use state::Server;
