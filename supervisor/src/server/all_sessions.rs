//! Sessions of all tenants: for the operator, and for a drain that waits for sessions.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use pappus_proto::v1;
use tokio::sync::Notify;

use crate::ids::{Serials, TenantId};
use crate::limits::MAX_SESSIONS_SHOWN;
use crate::session::Session;
use crate::sync::{OrderedMutex, rank};

/// Sessions of all tenants, and whether their calls go on while the supervisor drains.
#[derive(Debug, Default)]
pub struct Sessions {
    numbers: Serials,
    open: OrderedMutex<BTreeMap<u64, Weak<Session>>, { rank::ALL_SESSIONS }>,
    /// True once a drain waits for sessions no more.
    ended: AtomicBool,
    closed: Notify,
}

impl Sessions {
    /// A number for a session, never used twice, and never 0.
    pub fn next(&self) -> u64 {
        loop {
            match self.numbers.next() {
                0 => {}
                number => return number,
            }
        }
    }

    /// One was opened.
    pub fn insert(&self, session: &Arc<Session>) {
        self.open.lock().insert(session.id, Arc::downgrade(session));
    }

    /// One is over.
    pub fn remove(&self, id: u64) {
        self.open.lock().remove(&id);
        self.closed.notify_waiters();
    }

    /// How many are open.
    pub fn count(&self) -> usize {
        self.open.lock().len()
    }

    /// All of them, those opened last first.
    pub fn all(&self) -> Vec<Arc<Session>> {
        self.open.lock().values().rev().filter_map(Weak::upgrade).collect()
    }

    /// One tenant's, or all; those opened last first.
    pub fn status(&self, whose: Option<TenantId>) -> Vec<v1::SessionStatus> {
        let open = self.all();
        let open = open.iter().filter(|session| whose.is_none_or(|whose| session.account.tenant == whose));
        let shown = open.filter_map(|session| {
            let view = session.view()?;
            Some(v1::SessionStatus {
                session: session.id,
                tenant: session.account.name.to_string(),
                function: session.function.clone(),
                bytes: view.bytes,
                calls: view.calls,
                open_calls: view.open_calls,
                age_ms: view.age.as_millis() as u64,
                idle_ms: view.idle.as_millis() as u64,
                device: view.device.unwrap_or_default(),
            })
        });
        shown.take(MAX_SESSIONS_SHOWN).collect()
    }

    /// True if calls of sessions are accepted although the supervisor drains.
    pub fn go_on(&self) -> bool {
        !self.ended.load(Ordering::Acquire)
    }

    /// Waits until all sessions are over, or so long; from then on their calls are refused, too.
    pub async fn drain(&self, grace: Duration) {
        if !self.go_on() {
            return;
        }
        let open = self.count();
        if open > 0 {
            tracing::info!(
                "draining: {open} sessions are waited for, for at most {}",
                humantime::format_duration(grace)
            );
        }
        let all_over = async {
            loop {
                // Made before the look: one that ends in between is noticed.
                let closed = self.closed.notified();
                if self.count() == 0 {
                    return;
                }
                closed.await;
            }
        };
        let waited = tokio::time::timeout(grace, all_over).await;
        if !self.ended.swap(true, Ordering::AcqRel) && waited.is_err() {
            let left = self.count();
            tracing::warn!(
                "draining: {left} sessions are open after session-grace, and end with their state"
            );
        }
    }
}
