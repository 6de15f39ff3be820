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
use std::time::Duration;

use pappus_proto::v1;

use crate::again::{Next, Patience};
use crate::client::Client;
use crate::error::Result;
use crate::invocation::Invocation;

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
        let mut steady = Self { path: path.to_owned(), token, patience, client: None };
        steady.run(|_| Ok(()))?;
        Ok(steady)
    }

    /// Makes a call whose inputs and outputs travel with it.
    pub fn invoke(&mut self, call: &Invocation) -> Result<v1::Invoked> {
        call.check_repeatable()?;
        self.run(|client| client.invoke(call))
    }

    /// Does some work on the connection, and all of it again on a new one where the supervisor went away or takes no more calls.
    /// What the work opened before is gone then.
    pub fn run<T>(&mut self, mut work: impl FnMut(&mut Client) -> Result<T>) -> Result<T> {
        let mut patience = Patience::new(self.patience);
        loop {
            let opened = match self.client.take() {
                Some(client) => Ok(client),
                None => open(&self.path, self.token.as_deref(), patience.left(), self.patience),
            };
            let done = match opened {
                Err(why) => Err(why),
                Ok(mut client) => {
                    let done = work(&mut client);
                    match patience.next(&done) {
                        Next::Over => {
                            self.client = Some(client);
                            return done;
                        }
                        Next::Again => {}
                        Next::AgainAfter(pause) => client.watch_end(pause)?,
                    }
                    done
                }
            };
            if let Err(why) = &done
                && patience.lasts_after(why)
            {
                continue;
            }
            return done;
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
    use crate::error::Error;

    #[test]
    fn nobody_is_waited_for_as_long_as_the_patience_lasts() {
        let dir = tempfile::tempdir().unwrap();
        let why = SteadyClient::connect(dir.path().join("absent"), Duration::from_millis(1)).unwrap_err();
        assert!(matches!(why, Error::Unreachable { .. }), "{why}");
    }
}
