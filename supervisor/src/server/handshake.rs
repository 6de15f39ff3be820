//! What comes before requests: who may enter, the greeting, and for whom a gateway acts.
//!
//! ```text
//! peer's uid ──► refused, with words      no tenant, and no gateway
//!            ──► greeting ──► requests    its own tenant's
//!            ──► greeting ──► ActFor ──► requests of that tenant          from a gateway
//! ```
//!
//! A connection is one tenant's, from its first request to its last.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use pappus_proto::frame;
use pappus_proto::handshake::{GREETING_BYTES, Greeting};
use pappus_proto::v1::{self, request::Body as Request, response::Body as Response};
use prost::Message;
use rustix::net::SendFlags;

use super::connection_slots::ConnectionSlot;
use super::reader::Reader;
use super::refusals;
use super::replies::{self, Replies};
use super::state::Server;
use super::violation::{GatewayError, Violation};
use crate::limits::HANDSHAKE_MS;
use crate::tenants::{Account, NoTenant, Standing};

/// Somebody who connected.
#[derive(Debug)]
pub struct Arrival {
    /// The peer's uid.
    pub uid: u32,
    /// What it is.
    pub standing: Standing,
    /// Whether it came through the admin socket.
    pub admin: bool,
    /// Its place.
    pub slot: ConnectionSlot,
}

impl Arrival {
    /// Whether it would be admitted still.
    pub(super) fn is_welcome(&self, server: &Server) -> bool {
        self.slot.entry().is_some_and(|entry| server.is_welcome(&entry))
    }
}

/// A request and the descriptors that came with it.
pub type Passed = (v1::Request, Vec<OwnedFd>);

/// What arrives on a connection.
#[derive(Debug)]
pub struct Incoming {
    /// Frames of it.
    pub decoder: frame::Decoder<OwnedFd>,
    /// Scratch for the socket.
    pub buffer: Vec<u8>,
    /// The first request, if it had to be looked at.
    pub first: Option<Passed>,
}

/// Tells somebody why it is not served; nothing is read, and nothing kept of it.
pub(super) fn turn_away(socket: impl AsFd, why: &NoTenant) {
    let mut frames = Greeting::OURS.encode().to_vec();
    replies::append(&mut frames, 0, refusals::to_body(why));
    // A fresh socket takes that much; if it does not, its peer finds it closed.
    let _ = rustix::net::send(socket, &frames, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

/// Returns whose requests follow; none if the client left, and an error if it broke a rule.
pub(super) async fn enter(
    server: &Server,
    reader: &mut Reader,
    replies: &Arc<Replies>,
    arrival: &Arrival,
    incoming: &mut Incoming,
) -> Result<Option<Arc<Account>>, Violation> {
    let greeted = tokio::time::timeout(Duration::from_millis(HANDSHAKE_MS), greet(reader));
    if !greeted.await.map_err(|_| Violation::NoGreeting)?? {
        return Ok(None);
    }
    let own = arrival.standing.tenant.clone();
    if !arrival.standing.gateway {
        return Ok(own);
    }
    let Some((request, passed)) = first(reader, incoming).await? else { return Ok(None) };
    let refuse = |why: GatewayError| {
        replies.send(request.id, refusals::to_body(&why));
        Err(why.into())
    };
    let Some(Request::ActFor(act)) = &request.body else {
        if own.is_none() {
            return refuse(GatewayError::NoTenant);
        }
        incoming.first = Some((request, passed));
        return Ok(own);
    };
    let Some((account, grounds)) = server.registry.tenants.of_token(arrival.uid, &act.token) else {
        tracing::warn!(uid = arrival.uid, peer = ?replies.peer(), "refusing a gateway whose token is no tenant's");
        return refuse(GatewayError::UnknownToken);
    };
    if !arrival.slot.act_for(account.tenant, grounds) {
        return refuse(GatewayError::TooManyConnections);
    }
    // The tenants may have been read again between the look at the token and the entry in the book.
    if !arrival.is_welcome(server) {
        return Ok(None);
    }
    replies.send(request.id, Response::Done(v1::Done {}));
    Ok(Some(account))
}

/// Exchanges greetings; false when the client left before it said anything.
async fn greet(reader: &mut Reader) -> Result<bool, Violation> {
    let mut greeting = [0; GREETING_BYTES];
    let mut got = 0;
    while got < GREETING_BYTES {
        let received = reader.receive(&mut greeting[got..], Duration::ZERO).await;
        match received? {
            None if got == 0 => return Ok(false),
            None => return Err(Violation::HalfGreeting),
            Some((bytes, passed)) if passed.is_empty() => got += bytes,
            Some(_) => return Err(Violation::GreetingDescriptors),
        }
    }
    let theirs = Greeting::decode(&greeting).ok_or(Violation::NotPappus)?;
    let answer = theirs.answer();
    if !reader.answer(&answer.encode()) {
        return Err(Violation::TakesNoGreeting);
    }
    match answer == Greeting::NONE {
        true => Err(Violation::Versions { lowest: theirs.lowest, highest: theirs.highest }),
        false => Ok(true),
    }
}

/// The first request; none when the client left.
async fn first(reader: &mut Reader, incoming: &mut Incoming) -> Result<Option<Passed>, Violation> {
    loop {
        if let Some((message, passed)) = incoming.decoder.next_frame()? {
            return Ok(Some((v1::Request::decode(message)?, passed)));
        }
        let received = reader.receive(&mut incoming.buffer, Duration::ZERO).await;
        let Some((bytes, passed)) = received? else { return Ok(None) };
        incoming.decoder.feed(&incoming.buffer[..bytes], passed)?;
    }
}
