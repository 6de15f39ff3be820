//! A client that outlives restarts of its supervisor, for programs on tokio: what the [blocking one](crate::steady) does, by the same
//! rule, for any number of tasks at once. They share one connection; one task makes the next.
//!
//! ```no_run
//! use std::time::Duration;
//! use pappus_client::{Invocation, aio::SteadyClient};
//!
//! # async fn example() -> pappus_client::Result<()> {
//! let client = SteadyClient::connect("/run/pappus/pappus.sock", Duration::from_secs(60)).await?;
//! client.invoke(Invocation::new("double").input("A", vec![1, 2]).output("B")).await?;
//! // What belongs to a connection is made where it is used; a repetition makes it anew.
//! let names = client.run(|client| async move { client.list_functions("").await }).await?;
//! # drop(names);
//! # Ok(())
//! # }
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pappus_proto::v1;
use tokio::sync::Mutex;

use super::Client;
use crate::again::{Next, Patience, RETRY_EVERY, nobody_listens};
use crate::error::{Error, Result};
use crate::invocation::Invocation;

/// A connection to a supervisor, made again when that is started again. Clones share the connection.
#[derive(Debug, Clone)]
pub struct SteadyClient {
    shared: Arc<Shared>,
    /// As in [`Client`].
    token: Bytes,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    patience: Duration,
    /// Held while one is made.
    client: Mutex<Option<Client>>,
}

impl SteadyClient {
    /// Connects. A supervisor that is not there, now or later, is waited for as long as this; a supervisor that is there may take
    /// as long to answer what it does at once.
    pub async fn connect(path: impl AsRef<Path>, patience: Duration) -> Result<Self> {
        let shared = Shared { path: path.as_ref().to_owned(), patience, client: Mutex::default() };
        let steady = Self { shared: Arc::new(shared), token: Bytes::new() };
        steady.run(|_| async { Ok(()) }).await?;
        Ok(steady)
    }

    /// The same for requests of the tenant that has this token, as [`Client::acting_for`].
    pub fn acting_for(&self, token: impl Into<Bytes>) -> Self {
        Self { token: token.into(), ..self.clone() }
    }

    /// Makes a call whose inputs and outputs travel with it. To drop the future is to cancel the call.
    pub async fn invoke(&self, call: Invocation) -> Result<v1::Invoked> {
        call.check_repeatable()?;
        self.run(|client| {
            let call = call.clone();
            async move { client.invoke(call).await }
        })
        .await
    }

    /// Does some work on the connection, and all of it again on a new one where the supervisor went away or takes no more calls.
    /// What the work opened before is gone then.
    pub async fn run<T, W>(&self, mut work: impl FnMut(Client) -> W) -> Result<T>
    where
        W: Future<Output = Result<T>>,
    {
        let mut patience = Patience::new(self.shared.patience);
        loop {
            let done = match self.shared.client(&mut patience).await {
                Err(why) => Err(why),
                Ok(client) => {
                    let done = work(client.acting_for(self.token.clone())).await;
                    match patience.next(&done) {
                        Next::Over => return done,
                        Next::Again => {}
                        Next::AgainAfter(pause) => {
                            let _ended = tokio::time::timeout(pause, client.connection.ended()).await;
                        }
                    }
                    let leave = self.shared.leave(&client);
                    let _elsewhere = tokio::time::timeout(patience.left(), leave).await;
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

impl Shared {
    /// The connection, which is made where there is none.
    async fn client(&self, patience: &mut Patience) -> Result<Client> {
        // Whoever has the place may wait for a supervisor with more patience than this caller has left.
        let looked = tokio::time::timeout(patience.remaining(), self.client.lock()).await;
        let mut place = looked.map_err(|_| Error::Silent { patience: self.patience })?;
        if let Some(client) = place.as_ref().filter(|client| !client.is_over()) {
            return Ok(client.clone());
        }
        loop {
            match Client::connect_once(&self.path, patience.left()).await {
                Err(Error::Unreachable { source, .. })
                    if nobody_listens(&source) && !patience.left().is_zero() =>
                {
                    tokio::time::sleep(RETRY_EVERY).await;
                }
                opened => {
                    // It is made within the time that is left; later its supervisor may take longer to answer.
                    let client = Client { patience: self.patience, ..opened? };
                    return Ok(place.insert(client).clone());
                }
            }
        }
    }

    /// The connection is used no more for what comes next, unless there is another one already.
    async fn leave(&self, client: &Client) {
        self.client.lock().await.take_if(|now| now.shares_connection_with(client));
    }
}
