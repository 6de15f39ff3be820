//! Sequences of requests: each is a session of the supervisor's, on the connection that it was opened on. A sequence is named by the
//! client, apart from those of all other tokens, and begins with the request that says so.
//!
//! ```text
//! sequence_start ──► a session is opened; one of the same name is closed
//!                ──► requests by its name ──► calls of the session ──sequence_end, and no error──► it is closed behind the answer
//!                                                └──► lost with the supervisor, or idle for too long: SESSION_LOST
//! ```

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pappus_client::Code;
use pappus_client::aio::Client;

use crate::failure::{Failure, Kind, Result};
use crate::limits::{MAX_ID_BYTES, MAX_SEQUENCES, UNUSED_SEQUENCE};

/// What a client calls a sequence.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SequenceId {
    /// A number, which is not 0.
    Number(u64),
    /// A text, which is not empty.
    Text(String),
}

impl SequenceId {
    /// By a number; none for 0.
    pub fn of_number(number: u64) -> Option<Self> {
        (number != 0).then_some(Self::Number(number))
    }

    /// By a text; none for an empty one.
    pub fn of_text(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| Self::Text(text.to_owned()))
    }
}

/// What a request says of its sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InSequence {
    /// Which one.
    pub id: SequenceId,
    /// True if the request is the first one.
    pub start: bool,
    /// True if the request is the last one.
    pub end: bool,
}

impl InSequence {
    /// Checks what a request says; none where it is in no sequence.
    pub fn new(id: Option<SequenceId>, start: bool, end: bool) -> Result<Option<Self>> {
        match id {
            Some(SequenceId::Text(text)) if text.len() > MAX_ID_BYTES => {
                Err(Failure::invalid(format!("it has more than {MAX_ID_BYTES} bytes")).at("sequence_id"))
            }
            Some(id) => Ok(Some(Self { id, start, end })),
            None if start || end => {
                Err(Failure::invalid("sequence_start and sequence_end need a sequence_id").at("sequence_id"))
            }
            None => Ok(None),
        }
    }
}

/// An open sequence.
#[derive(Debug)]
struct Sequence {
    client: Client,
    session: u64,
    /// When a request of it came or was answered last.
    used: Instant,
    /// Requests of it that are not answered.
    running: u32,
}

impl Sequence {
    /// True if it may give way to another one.
    fn is_unused(&self) -> bool {
        self.running == 0 && self.used.elapsed() >= UNUSED_SEQUENCE
    }
}

type Open = HashMap<(String, SequenceId), Sequence>;

/// The sequences of one token, by function and name.
#[derive(Debug, Default)]
pub struct Sequences(Mutex<Open>);

impl Sequences {
    fn lock(&self) -> MutexGuard<'_, Open> {
        // The map is whole after every step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if every one may give way: none has a request under way, or was used lately.
    pub fn are_unused(&self) -> bool {
        self.lock().values().all(Sequence::is_unused)
    }

    /// The sequence that a request is in: a new one where the request begins it.
    pub async fn of(&self, client: &Client, function: &str, asked: &InSequence) -> Result<Within<'_>> {
        let key = (function.to_owned(), asked.id.clone());
        if !asked.start {
            let mut all = self.lock();
            let open = all.get_mut(&key).ok_or_else(|| {
                let why = "this sequence is not open, or no more: begin it with sequence_start, from a state of zeroes";
                Failure::new(Kind::Supervisor(Code::SessionLost), why).at("sequence_id")
            })?;
            (open.used, open.running) = (Instant::now(), open.running + 1);
            let (client, session) = (open.client.clone(), open.session);
            return Ok(Within { all: self, key, client, session });
        }
        let session = client.open_session(function).await?.session;
        let open = Sequence { client: client.clone(), session, used: Instant::now(), running: 1 };
        let (gone, began) = insert(&mut self.lock(), key.clone(), open);
        // Before anything is waited for: who leaves meanwhile leaves no request behind that runs.
        let within = began.then(|| Within { all: self, key, client: client.clone(), session });
        if let Some(gone) = gone {
            close(gone).await;
        }
        within.ok_or_else(|| Failure::busy("this token has as many sequences open as it may have: end one"))
    }
}

/// A request in its sequence, until that is dropped.
#[derive(Debug)]
pub struct Within<'s> {
    all: &'s Sequences,
    key: (String, SequenceId),
    /// The connection that the session is of.
    pub client: Client,
    /// The session's number there.
    pub session: u64,
}

impl Within<'_> {
    /// The sequence is over by this request.
    pub async fn end(self) {
        let over = {
            let mut all = self.all.lock();
            // Another one may have the name by now: this one was closed then.
            let is_it = all.get(&self.key).is_some_and(|open| open.session == self.session);
            if is_it { all.remove(&self.key) } else { None }
        };
        if let Some(over) = over {
            close(over).await;
        }
    }
}

impl Drop for Within<'_> {
    fn drop(&mut self) {
        if let Some(open) = self.all.lock().get_mut(&self.key).filter(|open| open.session == self.session) {
            (open.used, open.running) = (Instant::now(), open.running.saturating_sub(1));
        }
    }
}

/// Adds a sequence. What is to be closed: the one that had the name, or the one that was unused for longest, where there are as many
/// as there may be; or the new one, which has no place then.
fn insert(all: &mut Open, key: (String, SequenceId), new: Sequence) -> (Option<Sequence>, bool) {
    if all.len() < MAX_SEQUENCES || all.contains_key(&key) {
        return (all.insert(key, new), true);
    }
    let unused = all.iter().filter(|(_, open)| open.is_unused());
    match unused.min_by_key(|(_, open)| open.used).map(|(key, _)| key.clone()) {
        None => (Some(new), false),
        Some(unused) => {
            let gone = all.remove(&unused);
            all.insert(key, new);
            (gone, true)
        }
    }
}

/// Closes a session, which may be over, or its connection.
async fn close(sequence: Sequence) {
    if let Err(why) = sequence.client.close_session(sequence.session).await {
        tracing::debug!(session = sequence.session, "a sequence was over before it was closed: {why}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_says_which_sequence_or_none() {
        let of = |id, start| InSequence::new(id, start, false);
        assert_eq!(of(None, false).unwrap(), None);
        assert_eq!(of(None, true).unwrap_err().row().http, 400);
        let long = SequenceId::of_text(&"x".repeat(MAX_ID_BYTES + 1));
        assert_eq!(of(long, true).unwrap_err().row().http, 400);
        assert_eq!((SequenceId::of_number(0), SequenceId::of_text("")), (None, None));
        let five = of(SequenceId::of_number(5), true).unwrap().unwrap();
        assert_eq!(five, InSequence { id: SequenceId::Number(5), start: true, end: false });
    }
}
