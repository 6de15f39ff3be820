//! The asynchronous client, for programs on tokio: any number of tasks share one connection, each awaits its own answer, and a
//! call whose future is dropped is cancelled. What travels is what the blocking client sends, by the same code.
//!
//! ```no_run
//! use pappus_client::{Invocation, aio::Client};
//!
//! # async fn example() -> pappus_client::Result<()> {
//! let client = Client::connect("/run/pappus/pappus.sock").await?;
//! // A gateway says with each request whom it acts for.
//! let acme = client.acting_for(&b"the token of acme"[..]);
//! let answer = acme.invoke(Invocation::new("double").input("A", vec![1, 2]).output("B")).await?;
//! println!("{:?}", answer.outputs[0].inline);
//! # Ok(())
//! # }
//! ```
//!
//! - [`SteadyClient`]: outlives restarts of the supervisor.
//! - `connection`: the socket's two directions, each with a task that sleeps while the other end is slow.
//! - `outgoing`: frames that the socket did not take yet.
//! - `waiting`: who waits for which answer.

mod connection;
mod outgoing;
mod steady;
mod waiting;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pappus_proto::v1::{self, request, response};
use pappus_shmem::{ValidatedMemfd, memfd};

use self::connection::Connection;
pub use self::steady::SteadyClient;
use crate::arena::Arena;
use crate::client;
use crate::error::{Error, Result};
use crate::invocation::Invocation;
use crate::requests::{answer, unexpected};

/// How long a supervisor may take to answer what it does at once, where nothing else is said.
const PATIENCE: Duration = Duration::from_secs(30);

/// A connection to a supervisor, for one tenant. Clones share the connection; it ends with the last of them.
#[derive(Debug, Clone)]
pub struct Client {
    connection: Arc<Connection>,
    /// Of the tenant that the requests are from; empty where the connection itself says that.
    token: Bytes,
    patience: Duration,
}

impl Client {
    /// Connects and agrees on a protocol version. Who listens and does not answer for 30 s is an error.
    pub async fn connect(path: impl AsRef<Path>) -> Result<Self> {
        Self::connect_once(path, PATIENCE).await
    }

    /// Connects to a supervisor that listens, which may take so long to answer: now, and to each later request that it does
    /// at once.
    pub async fn connect_once(path: impl AsRef<Path>, patience: Duration) -> Result<Self> {
        let path: PathBuf = path.as_ref().to_owned();
        let connecting =
            move || client::Client::connect_once(path, patience).map(client::Client::into_socket);
        let socket = match tokio::task::spawn_blocking(connecting).await {
            Ok(socket) => socket?,
            // The runtime ends.
            Err(_) => return Err(Error::Lost),
        };
        let connection = Connection::start(socket).map_err(Error::io("epoll_ctl"))?;
        Ok(Self { connection: Arc::new(connection), token: Bytes::new(), patience })
    }

    /// The same connection for requests of the tenant that has this token. For a gateway's user, on a connection that no
    /// `act_for` began.
    pub fn acting_for(&self, token: impl Into<Bytes>) -> Self {
        Self { token: token.into(), ..self.clone() }
    }

    /// True if the connection is over: every further request fails.
    pub fn is_over(&self) -> bool {
        self.connection.is_over()
    }

    /// True if both are the same connection, for whichever tenant.
    fn shares_connection_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.connection, &other.connection)
    }

    /// Requests on the connection, of whichever tenant, whose answers did not come yet.
    pub fn in_flight(&self) -> usize {
        self.connection.in_flight()
    }

    /// Calls a function. To drop the future is to cancel the call. A call with a deadline that is not answered by then, and within
    /// the client's patience behind it, fails: the supervisor is silent.
    pub async fn invoke(&self, invocation: Invocation) -> Result<v1::Invoked> {
        let (message, memfds) = invocation.into_parts();
        let limit = match message.deadline_ns {
            0 => None,
            ns => Some(Duration::from_nanos(ns).saturating_add(self.patience)),
        };
        let body = request::Body::Invoke(message);
        answer!(self.exchange(body, memfds, limit).await?, Invoked)
    }

    /// One registered function with its configuration; of a granted one its inputs and outputs.
    pub async fn show_function(&self, name: &str) -> Result<v1::FunctionInfo> {
        let body = request::Body::ShowFunction(v1::Name { name: name.into() });
        answer!(self.call(body, Vec::new()).await?, Function)
    }

    /// Makes a version of a function, NAME@NUMBER or NAME:ALIAS, the current one.
    pub async fn use_version(&self, version: &str) -> Result<v1::FunctionInfo> {
        let body = request::Body::UseVersion(v1::Name { name: version.into() });
        answer!(self.call(body, Vec::new()).await?, Function)
    }

    /// From now on FUNCTION:ALIAS means the version of this number; none for the number 0.
    pub async fn set_alias(&self, function: &str, alias: &str, number: u32) -> Result<()> {
        let body = v1::SetAlias { function: function.into(), alias: alias.into(), number };
        answer!(self.call(request::Body::SetAlias(body), Vec::new()).await?, Done).map(drop)
    }

    /// A page of the registered functions behind the one of this name, followed by granted ones.
    pub async fn list_functions(&self, after: &str) -> Result<v1::FunctionList> {
        let body = request::Body::ListFunctions(v1::Page { after: after.into() });
        answer!(self.call(body, Vec::new()).await?, Functions)
    }

    /// The tenant's usage and quotas.
    pub async fn quota(&self) -> Result<v1::TenantInfo> {
        answer!(self.call(request::Body::Quota(v1::Empty {}), Vec::new()).await?, Tenant)
    }

    /// What the supervisor and its devices are doing.
    pub async fn status(&self) -> Result<v1::Status> {
        answer!(self.call(request::Body::Status(v1::Empty {}), Vec::new()).await?, Status)
    }

    /// Begins a session of a function that has state, which is zero. Calls are made in it with [`Invocation::session`]; it ends with
    /// the connection.
    pub async fn open_session(&self, function: &str) -> Result<v1::SessionOpened> {
        let body = request::Body::OpenSession(v1::OpenSession { function: function.into() });
        answer!(self.call(body, Vec::new()).await?, Session)
    }

    /// Ends a session. Calls of it that were accepted end as ever.
    pub async fn close_session(&self, session: u64) -> Result<()> {
        let body = request::Body::CloseSession(v1::CloseSession { session });
        answer!(self.call(body, Vec::new()).await?, Done).map(drop)
    }

    /// Creates an arena of `bytes` zeros and shares it with the supervisor.
    pub async fn open_arena(&self, bytes: u64) -> Result<Arena> {
        let memfd = Arc::new(memfd::arena("pappus-arena", bytes)?);
        let body = request::Body::OpenArena(v1::OpenArena {});
        let opened = answer!(self.call(body, vec![memfd.clone()]).await?, Arena)?;
        let mapped = Arena::map(opened.arena, &memfd);
        if mapped.is_err() {
            self.connection.close_arena(opened.arena, &self.token);
        }
        mapped
    }

    /// Stops sharing an arena; nobody has to wait until that is done.
    pub fn close_arena(&self, arena: Arena) {
        self.connection.close_arena(arena.id(), &self.token);
    }

    /// Sends any request, with the memfds that belong to it, and waits for its answer.
    pub async fn call(
        &self,
        body: request::Body,
        memfds: Vec<Arc<ValidatedMemfd>>,
    ) -> Result<response::Body> {
        let limit = (!client::is_slow(&body)).then_some(self.patience);
        self.exchange(body, memfds, limit).await
    }

    async fn exchange(
        &self,
        body: request::Body,
        memfds: Vec<Arc<ValidatedMemfd>>,
        limit: Option<Duration>,
    ) -> Result<response::Body> {
        let exchange = self.connection.exchange(body, memfds, &self.token);
        match limit {
            None => exchange.await,
            Some(patience) => match tokio::time::timeout(patience, exchange).await {
                Ok(answer) => answer,
                Err(_) => Err(Error::Silent { patience }),
            },
        }
    }
}

#[cfg(test)]
mod tests;
