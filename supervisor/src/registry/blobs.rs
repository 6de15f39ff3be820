//! Bytes that connections hand over for what they register next. Blocking: callers run it off the socket's threads.

use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;

use super::error::RegistryError;
use super::state::Registry;
use crate::refusal::failed;
use crate::store::records::Hash;
use crate::store::staged::disk_bytes;
use crate::sync::{OrderedMutex, rank};
use crate::tenants::{Account, Limit};

/// Blobs that are removed before the tenant's next change has its turn.
const REMOVED_AT_ONCE: usize = 256;

/// Blobs that one connection handed over, and how often, for what it registers next; released when that has them, or when the
/// connection ends. None once that is over.
#[derive(Debug)]
pub struct Handed(OrderedMutex<Option<HashMap<Hash, u32>>, { rank::HANDED_BLOBS }>);

impl Default for Handed {
    fn default() -> Self {
        Self(OrderedMutex::new(Some(HashMap::new())))
    }
}

impl Handed {
    /// The connection ended; what it handed over.
    pub(super) fn end(&self) -> Vec<Hash> {
        self.0.lock().take().into_iter().flatten().map(|(hash, _)| hash).collect()
    }

    /// True if nothing waits to be referred to.
    pub fn is_empty(&self) -> bool {
        self.0.lock().as_ref().is_none_or(HashMap::is_empty)
    }

    fn is_over(&self) -> bool {
        self.0.lock().is_none()
    }

    /// A blob was handed over. True for the first time; none once the connection ended.
    fn add(&self, hash: Hash) -> Option<bool> {
        let mut hashes = self.0.lock();
        let times = hashes.as_mut()?.entry(hash).or_default();
        *times += 1;
        Some(*times == 1)
    }

    /// Something that was registered has these blobs. Those of them that the connection handed over for nothing else.
    fn used(&self, blobs: impl Iterator<Item = Hash>) -> Vec<Hash> {
        let mut hashes = self.0.lock();
        let Some(hashes) = hashes.as_mut() else { return Vec::new() };
        let mut used = Vec::new();
        for hash in blobs {
            let Some(times) = hashes.get_mut(&hash) else { continue };
            *times -= 1;
            if *times == 0 {
                hashes.remove(&hash);
                used.push(hash);
            }
        }
        used
    }
}

/// Content that somebody still waits for: it ends with an error once the connection that hands it over did.
struct Awaited<'a, R> {
    content: R,
    handed: &'a Handed,
}

impl<R: Read> Read for Awaited<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        match self.handed.is_over() {
            true => Err(std::io::ErrorKind::ConnectionAborted.into()),
            false => self.content.read(out),
        }
    }
}

impl Registry {
    /// Stores bytes for later use by this connection.
    pub fn put_blob(
        &self,
        account: &Arc<Account>,
        handed: &Handed,
        bytes: u64,
        content: impl Read,
    ) -> Result<(Hash, u64), RegistryError> {
        let tenant = account.tenant;
        let mine = self.registry_of(tenant);
        mine.change(account.clone()).sweep();
        let files = account.take(Limit::BlobFiles, 1)?;
        let mut taken = account.take(Limit::BlobBytes, disk_bytes(bytes))?;
        // Complete before the tenant's next change: that waits for no content.
        let failed = |e: &(dyn std::error::Error + 'static)| failed("cannot store the bytes", e);
        let staged = self.state.stage_blob(tenant, Awaited { content, handed });
        let (hash, staged) = staged.map_err(|e| match handed.is_over() {
            true => RegistryError::Vanished,
            false => failed(&e).into(),
        })?;
        taken.resize(staged.disk_bytes)?;
        let (bytes, disk_bytes) = (staged.bytes, staged.disk_bytes);
        let mut change = mine.change(account.clone());
        // In the place of the file that is there, which may be damaged.
        self.state.publish_blob(tenant, hash, staged).map_err(|e| failed(&e))?;
        let is_new = change.blobs.bytes_of(hash) != Some(bytes);
        if is_new {
            change.keep(taken, files);
        }
        change.blobs.need(hash);
        if is_new {
            change.blobs.measured(hash, bytes, disk_bytes);
        }
        // A connection needs the blob once, however often it hands the blob over; a connection that ended
        // meanwhile needs nothing.
        let is_first = handed.add(hash);
        if is_first != Some(true) {
            let unneeded = change.blobs.release(hash);
            change.remove(unneeded);
        }
        match is_first {
            Some(_) => Ok((hash, bytes)),
            None => Err(RegistryError::Vanished),
        }
    }

    /// A connection registered something of these blobs: what has them keeps them from now on, and no longer than that.
    pub fn registered(&self, account: &Arc<Account>, handed: &Handed, blobs: impl Iterator<Item = Hash>) {
        let used = handed.used(blobs);
        if !used.is_empty() {
            self.release_handed(account, &used);
        }
    }

    /// A connection ended: what it handed over and nothing refers to goes, on a thread of its tenant's. Never waits.
    pub fn connection_ended(self: &Arc<Self>, account: &Arc<Account>, handed: &Handed) {
        let hashes = handed.end();
        if !hashes.is_empty() {
            let (this, account) = (self.clone(), account.clone());
            self.io.run(account.tenant, move || this.release_handed(&account, &hashes));
        }
    }

    /// Removes what nothing needs any more, of removed functions whose last call is over and of these.
    pub(super) fn release_handed(&self, account: &Arc<Account>, hashes: &[Hash]) {
        let mine = self.registry_of(account.tenant);
        mine.change(account.clone()).sweep();
        for some in hashes.chunks(REMOVED_AT_ONCE) {
            let mut change = mine.change(account.clone());
            let unneeded: Vec<_> = some.iter().filter_map(|hash| change.blobs.release(*hash)).collect();
            change.remove(unneeded);
        }
    }
}
