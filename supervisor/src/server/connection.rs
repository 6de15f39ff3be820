//! One client: its frames, each handed to the seat of the tenant that it is from.
//!
//! ```text
//! entry ──► frames ──► closed        anything that is no frame closes the connection
//! ```

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use super::handshake::{ConnectedPeer, Entered, enter};
use super::intake::{Frame, Holder, Incoming, Intake};
use super::reader::{Reader, patience};
use super::replies::Replies;
use super::seat::Seat;
use super::seats::Seats;
use super::state::{RequestCtx, Server};
use super::violation::{GatewayError, Violation};
use super::{half_close, refusals};
use crate::client_fd::ClientSocket;
use crate::device::burst::Burst;
use crate::registry::Handed;
use crate::tenants::own_uid;

/// How long the rest of a started frame may take between two pieces.
const STALLED: Duration = Duration::from_secs(30);
/// How long one connection may keep a socket thread while others wait.
const TURN: Duration = Duration::from_micros(200);

/// Serves one client until it leaves or breaks the protocol.
pub async fn serve(server: Arc<Server>, socket: OwnedFd, arrival: ConnectedPeer) -> std::io::Result<()> {
    let holder = Holder { account: arrival.account.clone(), operator: arrival.admin };
    let (slot, io) = (arrival.slot.clone(), server.client_io.clone());
    let for_replies = match socket.try_clone() {
        Ok(once_more) => once_more,
        Err(error) => {
            // Descriptors in the socket's queue are closed together with the socket, and not on this thread.
            drop(ClientSocket::new(socket, slot, holder.account.tenant, io));
            return Err(error);
        }
    };
    let replies = Replies::new(for_replies, slot, holder.clone(), io);
    arrival.slot.answers(&replies);
    // It goes before `replies`, which closes the socket last.
    let mut reader = Reader::new(socket, server.polling.clone())?;
    // From here on a reload finds it; one that came just before did not.
    if !arrival.is_welcome(&server) {
        return Ok(());
    }
    let broke = |why: Violation| {
        match why {
            Violation::Gateway(GatewayError::UnknownToken) => server.metrics.wrong_tokens.increment(1),
            _ => server.metrics.violations.increment(1),
        }
        tracing::debug!(uid = arrival.uid, "closing a connection: {why}");
    };
    let mut incoming = match Incoming::new(holder, server.client_io.clone()) {
        Ok(incoming) => incoming,
        Err(why) => {
            replies.turn_away(&why);
            broke(why.into());
            return Ok(());
        }
    };
    let Entered { account, of_many } =
        match enter(&server, &mut reader, &replies, &arrival, &mut incoming).await {
            Ok(Some(entered)) => entered,
            Ok(None) => return Ok(()),
            Err(why) => {
                broke(why);
                return Ok(());
            }
        };
    let looks_on = arrival.rights.looks_on;
    let itself = arrival.rights.tenant.as_ref().is_some_and(|own| own.tenant == account.tenant);
    let ctx = RequestCtx {
        server: server.clone(),
        account,
        uid: arrival.uid,
        admin: arrival.admin,
        operator: arrival.admin || looks_on || itself && arrival.uid == own_uid(),
        looks_on,
        nobody: of_many && arrival.rights.tenant.is_none(),
        handed: Handed::default(),
    };
    let own = Seat::new(ctx, replies, of_many);
    let mut seats = Seats::new(own, of_many);
    if let Err(why) = run(&mut seats, reader, incoming).await {
        broke(why);
    }
    seats.clean_up();
    Ok(())
}

/// Returns when the client is gone; an error says which rule it broke.
async fn run(seats: &mut Seats, mut reader: Reader, mut incoming: Incoming) -> Result<(), Violation> {
    let own = seats.own().clone();
    let (server, replies, sharer) = (&own.ctx.server, &own.replies, own.ctx.sharer());
    let mut burst = Burst::default();
    loop {
        let mut turn = server.fair_turns.begin(sharer).await;
        while let Some(frame) = incoming.next_frame()? {
            burst.more = incoming.has_part();
            let slow = match frame {
                Frame::Refused(id, why) => {
                    replies.send(id, refusals::to_body(&why));
                    None
                }
                Frame::Whole(whole) => match seats.of(whole.tenant_token()) {
                    Err(why) => {
                        replies.send(whole.id(), refusals::to_body(&*why));
                        None
                    }
                    Ok(seat) => match incoming.decode(whole, &seat.holder())? {
                        Intake::Refused(id, why) => {
                            replies.send(id, refusals::to_body(&why));
                            None
                        }
                        Intake::Request(received) => {
                            seat.dispatch(received, &mut burst).map(|slow| (seat, slow))
                        }
                    },
                },
            };
            if let Some((seat, slow)) = slow {
                burst.release();
                // Others go on while this connection waits for a place of its own.
                drop(turn);
                if reader.is_gone() {
                    // The client is gone: drop this request and later ones.
                    return Ok(());
                }
                seat.start_slow(slow).await;
                turn = server.fair_turns.begin(sharer).await;
            }
            // However many requests one read brought, other connections get their turn.
            if turn.exceeds(TURN) {
                burst.release();
                drop(turn);
                tokio::task::yield_now().await;
                turn = server.fair_turns.begin(sharer).await;
            }
        }
        burst.release();
        drop(turn);
        let received = incoming.has_part().then_some(STALLED);
        let patience = patience(server.settings().poll_us);
        let receive = incoming.receive(&mut reader, patience);
        // A client that stops in the middle of a frame does not keep its place for ever.
        let goes_on = match received {
            None => receive.await?,
            Some(stalled) => {
                tokio::time::timeout(stalled, receive).await.map_err(|_| Violation::HalfFrame)??
            }
        };
        if !goes_on {
            half_close::see_off(replies, &seats.places()).await;
            return Ok(());
        }
    }
}
