//! What comes before requests: who may enter, the greeting, and for whom a gateway acts.
//!
//! ```text
//! peer's uid ──► refused, with words      no tenant, and no gateway
//!            ──► greeting ──► requests    its own tenant's
//!            ──► greeting ──► status      the supervisor's own user, which is no tenant
//!            ──► greeting ──► ActFor ──► requests of that tenant          from a gateway
//!            ──► greeting ──► requests, each with a token or its own      from a gateway
//! ```
//!
//! A connection is one tenant's, from its first request to its last, unless it is a gateway's that began without ActFor.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use pappus_proto::handshake::{GREETING_BYTES, Greeting};
use pappus_proto::v1::{self, request::Body as Request, response::Body as Response};
use rustix::net::SendFlags;

use super::connection_slots::ConnectionSlot;
use super::intake::{Frame, Holder, Incoming, Intake, Received};
use super::reader::Reader;
use super::refusals;
use super::replies::{self, Replies};
use super::state::Server;
use super::violation::{GatewayError, Violation};
use crate::limits::HANDSHAKE_MS;
use crate::refusal::Refusable;
use crate::tenants::{Account, PeerRights};

/// A peer that connected.
#[derive(Debug)]
pub struct ConnectedPeer {
    /// The peer's uid.
    pub uid: u32,
    /// What it is.
    pub rights: PeerRights,
    /// Its tenant's account, or its own as a gateway.
    pub account: Arc<Account>,
    /// True if the client came through the admin socket.
    pub admin: bool,
    /// Its place.
    pub slot: Arc<ConnectionSlot>,
}

impl ConnectedPeer {
    /// True if the client would still be admitted.
    pub(super) fn is_welcome(&self, server: &Server) -> bool {
        self.slot.entry().is_some_and(|entry| server.is_welcome(&entry))
    }
}

/// Tells a peer why it is not served; nothing is read from it, and nothing kept of it.
pub(super) fn turn_away(socket: impl AsFd, why: &dyn Refusable) {
    // A fresh socket takes that much; if it does not, its peer finds it closed.
    let frames = replies::turned_away(why);
    let _ = rustix::net::send(socket, &frames, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

/// Whose requests follow.
#[derive(Debug)]
pub struct Entered {
    /// The account of the tenant, or of a gateway that has none of its own.
    pub account: Arc<Account>,
    /// True if requests may be from other tenants, each by its token.
    pub of_many: bool,
}

/// Returns whose requests follow; none if the client left, and an error if it broke a rule.
pub(super) async fn enter(
    server: &Server,
    reader: &mut Reader,
    replies: &Arc<Replies>,
    arrival: &ConnectedPeer,
    incoming: &mut Incoming,
) -> Result<Option<Entered>, Violation> {
    let in_time = Duration::from_millis(HANDSHAKE_MS);
    let greeted = tokio::time::timeout(in_time, greet(reader, incoming)).await;
    if !greeted.map_err(|_| Violation::NoGreeting)?? {
        return Ok(None);
    }
    let own = match arrival.rights.looks_on {
        true => Some(arrival.account.clone()),
        false => arrival.rights.tenant.clone(),
    };
    if !arrival.rights.gateway {
        return Ok(own.map(|account| Entered { account, of_many: false }));
    }
    let first = tokio::time::timeout(in_time, first(reader, incoming));
    let Some(first) = first.await.map_err(|_| Violation::NoFirstRequest)?? else { return Ok(None) };
    let of_many = Entered { account: arrival.account.clone(), of_many: true };
    let refuse = |id: u64, why: GatewayError| {
        replies.send(id, refusals::to_body(&why));
        Err(why.into())
    };
    let whole = match first {
        Frame::Whole(whole) => whole,
        Frame::Refused(id, _) if own.is_none() => return refuse(id, GatewayError::NoTenant),
        Frame::Refused(id, why) => {
            replies.send(id, refusals::to_body(&why));
            return Ok(Some(of_many));
        }
    };
    if !whole.acts_for() || whole.tenant_token().is_some() {
        if own.is_none() && whole.tenant_token().is_none() && !whole.asks_status() {
            return refuse(whole.id(), GatewayError::NoTenant);
        }
        incoming.put_back(whole);
        return Ok(Some(of_many));
    }
    let holder = Holder { account: arrival.account.clone(), operator: arrival.admin };
    let (request, act) = match incoming.decode(whole, &holder)? {
        Intake::Refused(id, why) => {
            replies.send(id, refusals::to_body(&why));
            return Ok(None);
        }
        Intake::Request(Received { request, .. }) => match request.body {
            Some(Request::ActFor(act)) => (request.id, act),
            _ => return Err(Violation::NotRequest),
        },
    };
    let Some((account, grounds)) = server.registry.tenants.of_token(arrival.uid, &act.token) else {
        refused(arrival, replies, "its token is no tenant's");
        return refuse(request, GatewayError::UnknownToken);
    };
    let holder = Holder { account: account.clone(), operator: arrival.admin };
    let charged = arrival.slot.act_for(&account, grounds).and_then(|()| incoming.charge(holder.clone()));
    if let Err(why) = charged {
        refused(arrival, replies, &why.to_string());
        return refuse(request, why.into());
    }
    // The tenants may have been read again between the look at the token and the entry in the book.
    if !arrival.is_welcome(server) {
        return Ok(None);
    }
    replies.charge(holder);
    replies.send(request, Response::Done(v1::Done {}));
    Ok(Some(Entered { account, of_many: false }))
}

/// Says in the log which gateway acts for nobody, and why.
fn refused(arrival: &ConnectedPeer, replies: &Replies, why: &str) {
    let peer = replies.peer().map(|process| process.to_string());
    tracing::warn!(uid = arrival.uid, peer, "refusing a gateway: {why}");
}

/// Exchanges greetings; false when the client left before it said anything.
async fn greet(reader: &mut Reader, incoming: &Incoming) -> Result<bool, Violation> {
    let mut greeting = [0; GREETING_BYTES];
    let mut got = 0;
    while got < GREETING_BYTES {
        let received = reader.receive(&mut greeting[got..], Duration::ZERO).await;
        match received? {
            None if got == 0 => return Ok(false),
            None => return Err(Violation::HalfGreeting),
            Some((bytes, passed)) if passed.is_empty() => got += bytes,
            Some((_, passed)) => {
                incoming.refuse(passed);
                return Err(Violation::GreetingDescriptors);
            }
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

/// The first frame; none when the client left.
async fn first(reader: &mut Reader, incoming: &mut Incoming) -> Result<Option<Frame>, Violation> {
    loop {
        if let Some(frame) = incoming.next_frame()? {
            return Ok(Some(frame));
        }
        if !incoming.receive(reader, Duration::ZERO).await? {
            return Ok(None);
        }
    }
}
