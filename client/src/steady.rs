//! A client that outlives restarts of its supervisor. What was not accepted, and what has no answer since the connection broke, is
//! done again on a new connection, as long as the client's patience lasts.
//!
//! ```text
//! work ─► done ─────────────────────────────────────────────────────► the result
//!      ├► UNAVAILABLE: it drains ─► until its connection ends ─┐
//!      └► the connection broke ────────────────────────────────┴─► connect, work again │ out of patience: the error
//! ```
//!
//! A call whose connection broke may have run. To run it again does no harm: calls leave nothing behind. What else is asked for may
//! have been done, and is then answered as for anyone who asks twice: registering is `unchanged`, removing `NOT_FOUND`.
//!
//! ```no_run
//! use std::time::Duration;
//! use pappus_client::{Invocation, steady::SteadyClient};
//!
//! # fn main() -> pappus_client::Result<()> {
//! let mut client = SteadyClient::connect("/run/pappus/pappus.sock", Duration::from_secs(60))?;
//! // Small inputs and outputs travel with the call.
//! client.invoke(&Invocation::new("double").input("A", vec![1, 2]).output("B"))?;
//! // An arena ends with its connection: it is opened where it is used, and a repetition opens another one.
//! let doubled = client.run(|client| {
//!     let mut arena = client.open_arena(2 << 20)?;
//!     let input = arena.store(&[1; 1 << 20])?;
//!     let output = arena.alloc(1 << 20)?;
//!     client.invoke(&Invocation::new("double").input("A", input).output_to("B", output))?;
//!     let doubled = arena.load(output)?;
//!     client.close_arena(arena)?;
//!     Ok(doubled)
//! })?;
//! # drop(doubled);
//! # Ok(())
//! # }
//! ```

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pappus_proto::{Code, v1};

use crate::client::Client;
use crate::error::{Error, Result};
use crate::invocation::Invocation;

/// How long a connection that refused something is watched at least before the next one.
const PAUSE: Duration = Duration::from_millis(10);
/// The same at most, where the supervisor names no time.
const LONG_PAUSE: Duration = Duration::from_secs(1);
/// More patience is as good as this: the clock goes no further than some centuries.
const FOR_EVER: Duration = Duration::from_secs(1 << 30);

/// A connection to a supervisor, made again when that is started again.
#[derive(Debug)]
pub struct SteadyClient {
    path: PathBuf,
    token: Option<Vec<u8>>,
    patience: Duration,
    client: Option<Client>,
}

impl SteadyClient {
    /// Connects. A supervisor that is not there, now or later, is waited for as long as this; a supervisor that is there may take
    /// as long to answer what it does at once.
    pub fn connect(path: impl AsRef<Path>, patience: Duration) -> Result<Self> {
        Self::start(path.as_ref(), None, patience)
    }

    /// The same for the tenant of a token, where this user is a gateway.
    pub fn connect_for(path: impl AsRef<Path>, token: &[u8], patience: Duration) -> Result<Self> {
        Self::start(path.as_ref(), Some(token.to_vec()), patience)
    }

    fn start(path: &Path, token: Option<Vec<u8>>, patience: Duration) -> Result<Self> {
        let patience = patience.min(FOR_EVER);
        let mut steady = Self { path: path.to_owned(), token, patience, client: None };
        steady.run(|_| Ok(()))?;
        Ok(steady)
    }

    /// Makes a call whose inputs and outputs travel with it.
    pub fn invoke(&mut self, call: &Invocation) -> Result<v1::Invoked> {
        if call.names_regions() {
            let message = "a region or session belongs to one connection: open it and make the call in `SteadyClient::run`";
            return Err(Error::Invalid(message.into()));
        }
        self.run(|client| client.invoke(call))
    }

    /// Does some work on the connection, and all of it again on a new one where the supervisor went away or takes no more calls.
    /// What the work opened before is gone then.
    pub fn run<T>(&mut self, mut work: impl FnMut(&mut Client) -> Result<T>) -> Result<T> {
        // From the first failure on.
        let mut end = None;
        loop {
            let left = |end: &mut Option<Instant>| {
                let end = *end.get_or_insert_with(|| Instant::now() + self.patience);
                end.saturating_duration_since(Instant::now())
            };
            let done = match self.client.take() {
                Some(client) => Ok(client),
                None => open(&self.path, self.token.as_deref(), left(&mut end), self.patience),
            };
            let why = match done {
                Err(why) => why,
                Ok(mut client) => match work(&mut client) {
                    Err(Error::Refused(why)) if why.code() == Code::Unavailable => {
                        let pause = match why.retry_after_ms {
                            0 => LONG_PAUSE,
                            ms => Duration::from_millis(ms).clamp(PAUSE, LONG_PAUSE),
                        };
                        client.watch_end(pause.min(left(&mut end)))?;
                        Error::Refused(why)
                    }
                    Err(Error::Lost) => Error::Lost,
                    other => {
                        self.client = Some(client);
                        return other;
                    }
                },
            };
            let comes_again = match &why {
                Error::Lost => true,
                Error::Refused(why) => why.code() == Code::Unavailable,
                _ => false,
            };
            if !comes_again || left(&mut end).is_zero() {
                return Err(why);
            }
        }
    }
}

/// A connection, within the time that is left; later its supervisor may take longer to answer.
fn open(path: &Path, token: Option<&[u8]>, left: Duration, patience: Duration) -> Result<Client> {
    let mut client = Client::connect_within(path, left)?;
    client.set_patience(patience);
    if let Some(token) = token {
        client.act_for(token)?;
    }
    Ok(client)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_waited_for_as_long_as_the_patience_lasts() {
        let dir = tempfile::tempdir().unwrap();
        let why = SteadyClient::connect(dir.path().join("absent"), Duration::from_millis(1)).unwrap_err();
        assert!(matches!(why, Error::Unreachable { .. }), "{why}");
    }

    #[test]
    fn regions_belong_to_a_connection() {
        let region = v1::Region { arena: 1, offset: 0, bytes: 8 };
        let calls = [Invocation::new("f").input("A", region), Invocation::new("f").output_to("B", region)];
        assert!(calls.iter().all(Invocation::names_regions));
        assert!(!Invocation::new("f").input("A", vec![1]).output("B").names_regions());
    }
}
