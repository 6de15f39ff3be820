//! Sessions that the requests of one tenant opened at one connection: opened, found by calls, closed. A session ends with the
//! connection, too, and after an idle limit.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use pappus_proto::v1::{self, response::Body as Response};

use super::request_error::RequestError;
use super::state::{RequestCtx, Server};
use crate::arena::Arena;
use crate::client_memfd::ClientMemfd;
use crate::function::Loaded;
use crate::limits::MAX_SESSIONS_PER_CONNECTION;
use crate::refusal::Refusal;
use crate::session::{Place, Session, SessionError, StateShape, WhyOver};
use crate::sync::{OrderedMutex, rank};

/// Between two looks which sessions are idle.
const LOOK: Duration = Duration::from_secs(1);

/// Sessions of one tenant at one connection, by number. Those that are over stay until they are closed, to say why they are.
#[derive(Debug, Default)]
pub struct OpenSessions(OrderedMutex<Opened, { rank::SESSIONS }>);

#[derive(Debug, Default)]
struct Opened {
    by_number: HashMap<u64, Arc<Session>>,
    /// True once the connection has ended: what is opened from then on would stay.
    ended: bool,
}

impl OpenSessions {
    /// True if none is open.
    pub fn is_empty(&self) -> bool {
        self.0.lock().by_number.values().all(|session| session.is_over())
    }

    /// Opens a session of a function that is not in memory.
    pub async fn load(&self, ctx: &Arc<RequestCtx>, function: &str) -> Result<Response, Refusal> {
        let loaded = ctx.server.registry.load(ctx.whose(), &ctx.account, function).await?;
        self.open(ctx, &loaded)
    }

    /// Opens a session of a function.
    pub fn open(&self, ctx: &Arc<RequestCtx>, loaded: &Loaded) -> Result<Response, Refusal> {
        let (server, account) = (&ctx.server, &ctx.account);
        if server.is_draining() {
            return Err(RequestError::Draining.into());
        }
        let shape = StateShape::of(loaded.owner, &loaded.blueprint).ok_or(SessionError::Stateless)?;
        let bytes = Session::memory_bytes(&shape)?;
        let memory = ClientMemfd::own("session", bytes, account, &server.client_io)?;
        let memory = Arc::new(Arena::state(server.next_arena(), memory, account)?);
        let name = format!("{}/{}", loaded.account.name, loaded.record.name);
        let id = server.sessions.next();
        let session = Session::new(id, account, name, shape, memory)?;
        {
            let mut open = self.0.lock();
            if open.ended {
                return Err(SessionError::None(id).into());
            }
            if open.by_number.len() >= MAX_SESSIONS_PER_CONNECTION {
                // Those that are over say so no more.
                open.by_number.retain(|_, session| !session.is_over());
            }
            if open.by_number.len() >= MAX_SESSIONS_PER_CONNECTION {
                return Err(SessionError::TooMany.into());
            }
            open.by_number.insert(id, session.clone());
            // Under the lock: whoever closes all of them finds it among those of all tenants.
            server.sessions.insert(&session);
        }
        Ok(Response::Session(v1::SessionOpened { session: id, state_bytes: session.state_bytes() }))
    }

    /// The place of a call that names this session; none where the number is 0.
    pub fn line_up(&self, id: u64) -> Result<Option<Place>, SessionError> {
        if id == 0 {
            return Ok(None);
        }
        let session = self.0.lock().by_number.get(&id).cloned().ok_or(SessionError::None(id))?;
        session.line_up().map(Some)
    }

    /// Closes one, or forgets one that is over. A drain that waits for sessions goes on once what comes back is dropped.
    pub fn close<'s>(&self, server: &'s Server, id: u64) -> Result<Option<Closed<'s>>, SessionError> {
        let session = self.0.lock().by_number.remove(&id).ok_or(SessionError::None(id))?;
        Ok(over(server, id, session.end(WhyOver::Closed)))
    }

    /// The connection has ended: closes all of them.
    pub fn close_all(&self, server: &Server) {
        let all = {
            let mut open = self.0.lock();
            open.ended = true;
            std::mem::take(&mut open.by_number)
        };
        all.values().for_each(|session| drop(over(server, session.id, session.end(WhyOver::Closed))));
    }
}

/// A session that is over, and counts among the open ones until this is dropped.
#[derive(Debug)]
pub struct Closed<'s> {
    server: &'s Server,
    id: u64,
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.server.sessions.remove(self.id);
    }
}

/// A session may be over, whose memory this was: workers forget it.
fn over(server: &Server, id: u64, memory: Option<Arc<Arena>>) -> Option<Closed<'_>> {
    let memory = memory?;
    server.forget_arena(&memory);
    Some(Closed { server, id })
}

impl Server {
    /// Ends sessions that were idle for too long, for as long as the supervisor runs.
    pub async fn run_idle_sessions(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK).await;
            let most = self.settings().session_idle;
            for session in self.sessions.all() {
                if over(&self, session.id, session.look(most)).is_some() {
                    let (session, caller) = (session.id, &*session.account.name);
                    tracing::debug!(session, caller, "a session was idle for too long");
                }
            }
        }
    }
}
