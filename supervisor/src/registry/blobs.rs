//! Bytes that connections hand over for what they register next. Blocking: callers run it off the socket's threads.

use std::io::Read;

use super::error::RegistryError;
use super::state::Registry;
use crate::ids::TenantId;
use crate::refusal::failed;
use crate::store::records::Hash;
use crate::sync::{OrderedMutex, rank};
use crate::tenants::{Account, Limit};

/// Blobs that one connection handed over and nothing refers to yet; released when it ends.
#[derive(Debug, Default)]
pub struct Handed(OrderedMutex<Vec<Hash>, { rank::HANDED_BLOBS }>);

impl Handed {
    /// Whether there is nothing to release.
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

impl Registry {
    /// Stores bytes for later use by this connection.
    pub fn put_blob(
        &self,
        account: &Account,
        handed: &Handed,
        bytes: u64,
        content: impl Read,
    ) -> Result<(Hash, u64), RegistryError> {
        let tenant = account.tenant;
        {
            let mut index = self.index();
            let mine = index.tenant_mut(tenant);
            account.check(Limit::BlobBytes, mine.blob_bytes(), bytes)?;
            mine.incoming_bytes += bytes;
        }
        // Stored before it is needed: the lock is only held for the bookkeeping. Garbage collection
        // runs at start, and a release in between removes at most a file that is written again below.
        let stored = self.state.put_blob(tenant, content);
        let mut index = self.index();
        let mine = index.tenant_mut(tenant);
        mine.incoming_bytes -= bytes;
        let stored = stored.map_err(|e| failed("cannot store the bytes", &e))?;
        mine.need(stored.0);
        mine.measured(stored.0, stored.1);
        if let Err(e) = self.state.open_blob(tenant, stored.0) {
            self.release(&mut index, tenant, stored.0);
            return Err(failed("cannot store the bytes", &e).into());
        }
        handed.0.lock().push(stored.0);
        Ok(stored)
    }

    /// A connection ended: what it handed over and nothing refers to goes.
    pub fn release_handed(&self, tenant: TenantId, handed: &Handed) {
        let hashes = std::mem::take(&mut *handed.0.lock());
        let mut index = self.index();
        self.sweep(&mut index);
        hashes.into_iter().for_each(|hash| self.release(&mut index, tenant, hash));
    }
}
