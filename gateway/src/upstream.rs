//! Connections to the supervisor. A few serve all tenants: each request says whose it is. One that is lost is opened again with
//! the next request, by one task at a time.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use bytes::Bytes;
use pappus_client::aio::Client;
use tokio::sync::Mutex;

use crate::failure::Result;
use crate::limits::{RECONNECT_AFTER, UPSTREAM_PATIENCE};

/// The way to one supervisor.
#[derive(Debug)]
pub struct Upstream {
    socket: PathBuf,
    slots: Vec<Mutex<Slot>>,
    next: AtomicUsize,
}

/// A place for one connection.
#[derive(Debug, Default)]
struct Slot {
    client: Option<Client>,
    /// When it could not be opened last.
    failed: Option<Instant>,
}

impl Upstream {
    /// So many connections to the supervisor behind this socket, each opened when it is needed.
    pub fn new(socket: PathBuf, connections: usize) -> Self {
        let slots = std::iter::repeat_with(Mutex::default).take(connections.max(1)).collect();
        Self { socket, slots, next: AtomicUsize::new(0) }
    }

    /// A connection for requests of whoever has this token; without one, of this program's own user.
    pub async fn client(&self, token: Option<&Bytes>) -> Result<Client> {
        let at = self.next.fetch_add(1, Ordering::Relaxed) % self.slots.len();
        let client = self.open(&self.slots[at]).await?;
        Ok(match token {
            Some(token) => client.acting_for(token.clone()),
            None => client,
        })
    }

    async fn open(&self, slot: &Mutex<Slot>) -> Result<Client> {
        let mut slot = slot.lock().await;
        if let Some(client) = slot.client.as_ref().filter(|client| !client.is_over()) {
            return Ok(client.clone());
        }
        if slot.failed.is_some_and(|failed| failed.elapsed() < RECONNECT_AFTER) {
            return Err(pappus_client::Error::Lost.into());
        }
        match Client::connect_once(&self.socket, UPSTREAM_PATIENCE).await {
            Ok(client) => {
                *slot = Slot { client: Some(client.clone()), failed: None };
                Ok(client)
            }
            Err(error) => {
                *slot = Slot { client: None, failed: Some(Instant::now()) };
                Err(error.into())
            }
        }
    }
}
