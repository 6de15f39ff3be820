//! Who waits for which answer. Every request that was sent has its place here until its answer came, also where nobody waits for it
//! any more: what is in flight stays bounded, whoever gives up.
//!
//! ```text
//! expect ──► somebody waits ──answer──► told
//!                │ gave up
//!                └──► nobody waits ──answer──► an arena that was opened is to be closed
//! ```

use std::collections::HashMap;

use bytes::Bytes;
use pappus_proto::v1::{self, request, response};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::error::{Error, Result};

/// Why a connection ended, as each request on it is told.
#[derive(Debug, Clone)]
pub(super) enum End {
    /// It broke.
    Lost,
    /// The supervisor said why.
    Refused(v1::Error),
    /// The supervisor does not speak the protocol correctly.
    Protocol(String),
}

impl From<End> for Error {
    fn from(end: End) -> Self {
        match end {
            End::Lost => Self::Lost,
            End::Refused(error) => Self::Refused(error),
            End::Protocol(why) => Self::Protocol(why),
        }
    }
}

/// One request without an answer.
#[derive(Debug)]
struct Expected {
    /// Who waits; none where nobody does any more.
    caller: Option<oneshot::Sender<Result<response::Body>>>,
    /// Whose request it is.
    token: Bytes,
    /// Its place among those in flight.
    _place: Option<OwnedSemaphorePermit>,
}

/// The requests without answers.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    expected: HashMap<u64, Expected>,
    end: Option<End>,
}

/// What follows from an answer.
#[derive(Debug, PartialEq)]
pub(super) enum Then {
    /// Nothing.
    Nothing,
    /// Something was opened that nobody wants any more: it is to be closed, for this tenant.
    Tell(request::Body, Bytes),
}

/// The request that closes what an answer opened; none where the answer opened nothing.
pub(super) fn undo(answer: &response::Body) -> Option<request::Body> {
    match answer {
        response::Body::Arena(opened) => {
            Some(request::Body::CloseArena(v1::CloseArena { arena: opened.arena }))
        }
        response::Body::Session(opened) => {
            Some(request::Body::CloseSession(v1::CloseSession { session: opened.session }))
        }
        _ => None,
    }
}

impl Waiting {
    /// A request is about to be sent. An error if the connection is over.
    pub(super) fn expect(
        &mut self,
        id: u64,
        caller: Option<oneshot::Sender<Result<response::Body>>>,
        token: Bytes,
        place: Option<OwnedSemaphorePermit>,
    ) -> Result<()> {
        match &self.end {
            Some(end) => Err(end.clone().into()),
            None => {
                self.expected.insert(id, Expected { caller, token, _place: place });
                Ok(())
            }
        }
    }

    /// Nobody waits for the answer any more; true if it did not come yet.
    pub(super) fn give_up(&mut self, id: u64) -> bool {
        let expected = self.expected.get_mut(&id);
        expected.is_some_and(|expected| expected.caller.take().is_some())
    }

    /// An answer came. An error ends the connection.
    pub(super) fn answered(&mut self, answer: v1::Response) -> std::result::Result<Then, End> {
        let (id, Some(body)) = (answer.id, answer.body) else {
            return Err(End::Protocol("the supervisor sent an empty answer".into()));
        };
        let Some(expected) = self.expected.remove(&id) else {
            return Err(match body {
                // An error of the connection, not of one request.
                response::Body::Error(error) if id == 0 => End::Refused(error),
                _ => End::Protocol(format!(
                    "the supervisor answered request {id}, which was not sent or is answered already"
                )),
            });
        };
        let unheard = match (expected.caller, body) {
            (Some(caller), response::Body::Error(error)) => {
                let _ = caller.send(Err(Error::Refused(error)));
                None
            }
            (Some(caller), body) => caller.send(Ok(body)).err().and_then(std::result::Result::ok),
            (None, body) => Some(body),
        };
        Ok(match unheard {
            Some(body) => undo(&body).map_or(Then::Nothing, |undo| Then::Tell(undo, expected.token)),
            None => Then::Nothing,
        })
    }

    /// The connection is over; whoever waits is told.
    pub(super) fn end(&mut self, end: End) {
        for (_, expected) in self.expected.drain() {
            if let Some(caller) = expected.caller {
                let _ = caller.send(Err(end.clone().into()));
            }
        }
        self.end.get_or_insert(end);
    }

    pub(super) fn is_over(&self) -> bool {
        self.end.is_some()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.expected.len()
    }
}
