//! What one tenant registered: a snapshot that everyone reads, and a lock under which the tenant's own requests change it.
//!
//! ```text
//! readers ──────────────────────► published        a copy of the snapshot: no reader waits for a file
//! changes ──► Change (the lock) ──► files ──► published ──► files that nothing needs any more go
//!                                                └── dropped: the tenant is charged for what is registered now
//! ```
//!
//! The lock is held while files are written and removed: it is the queue of one tenant's changes, each on a thread that
//! may wait. No other tenant and no reader takes it.

use std::collections::HashSet;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::blob_table::{BlobTable, OnDisk, Unneeded};
use super::snapshot::{FunctionEntry, ModuleEntry, Snapshot};
use crate::function::Loaded;
use crate::ids::TenantId;
use crate::store::StateDir;
use crate::store::records::{FunctionRecord, Kind};
use crate::sync::{OrderedGuard, OrderedMutex, OrderedRwLock, rank};
use crate::tenants::{Account, Limit, QuotaError, Taken};

/// Functions and modules of all tenants.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) functions: AtomicU64,
    pub(super) modules: AtomicU64,
}

/// What one tenant registered.
#[derive(Debug)]
pub(super) struct TenantRegistry {
    tenant: TenantId,
    state: Arc<StateDir>,
    counts: Arc<Counts>,
    writer: OrderedMutex<Writer, { rank::TENANT_CHANGES }>,
    published: OrderedRwLock<Snapshot, { rank::PUBLISHED }>,
}

/// What only changes see.
#[derive(Debug, Default)]
pub(super) struct Writer {
    pub(super) blobs: BlobTable,
    /// Removed functions that calls still hold: their memory goes with the last of these calls, their files at the tenant's next change.
    pub(super) leaving: Vec<(Weak<Loaded>, Arc<FunctionRecord>)>,
    /// Records of grants and aliases whose function, since its own record is damaged, is not there.
    pub(super) alone: HashSet<(Kind, String)>,
    /// What the records take on disk.
    records: OnDisk,
    /// What the snapshot takes in memory, roughly.
    memory_bytes: u64,
    charges: Charges,
}

/// Charges for everything that the tenant registered.
#[derive(Debug, Default)]
struct Charges {
    functions: Option<Taken>,
    module_bytes: Option<Taken>,
    blob_bytes: Option<Taken>,
    blob_files: Option<Taken>,
    plan_bytes: Option<Taken>,
}

impl TenantRegistry {
    /// Of a tenant that has nothing yet.
    pub(super) fn new(tenant: TenantId, state: Arc<StateDir>, counts: Arc<Counts>) -> Self {
        Self { tenant, state, counts, writer: OrderedMutex::default(), published: OrderedRwLock::default() }
    }

    /// What is registered now.
    pub(super) fn published(&self) -> Snapshot {
        self.published.read().clone()
    }

    /// What a look at the snapshot tells, without a copy of it.
    pub(super) fn look<T>(&self, look: impl FnOnce(&Snapshot) -> T) -> T {
        look(&self.published.read())
    }

    /// Begins a change, once the tenant's earlier ones are over.
    pub(super) fn change(&self, account: Arc<Account>) -> Change<'_> {
        Change { writer: self.writer.lock(), mine: self, account }
    }
}

/// A change of what a tenant registered. When it is dropped, the tenant is charged for what is registered then.
#[derive(Debug)]
pub(super) struct Change<'a> {
    writer: OrderedGuard<'a, Writer, { rank::TENANT_CHANGES }>,
    mine: &'a TenantRegistry,
    pub(super) account: Arc<Account>,
}

impl Change<'_> {
    /// What is registered now.
    pub(super) fn published(&self) -> Snapshot {
        self.mine.published()
    }

    /// Makes the next snapshot from this one; readers have it from now on.
    pub(super) fn publish(&mut self, change: impl FnOnce(&mut Snapshot)) {
        let mut next = self.published();
        let before = (next.functions.size() as u64, next.modules.size() as u64);
        change(&mut next);
        let after = (next.functions.size() as u64, next.modules.size() as u64);
        let previous = std::mem::replace(&mut *self.mine.published.write(), next);
        drop(previous);
        let Counts { functions, modules } = &*self.mine.counts;
        functions.fetch_add(after.0.wrapping_sub(before.0), Ordering::Relaxed);
        modules.fetch_add(after.1.wrapping_sub(before.1), Ordering::Relaxed);
    }

    /// Checks that the tenant may have so many more files that take so much on disk.
    pub(super) fn check_disk(&self, bytes: u64, files: u64) -> Result<(), QuotaError> {
        for (limit, more) in [(Limit::BlobBytes, bytes), (Limit::BlobFiles, files)] {
            self.account.check(limit, self.account.used(limit), more)?;
        }
        Ok(())
    }

    /// What was taken before the change is the tenant's from now on.
    pub(super) fn keep(&mut self, bytes: Taken, files: Taken) {
        let charges = &mut self.writer.charges;
        absorb(&mut charges.blob_bytes, bytes);
        absorb(&mut charges.blob_files, files);
    }

    /// Checks that the tenant may have so much more in memory; cached plans without calls make way.
    pub(super) fn check_memory(&self, bytes: u64) -> Result<(), QuotaError> {
        let limit = Limit::PlanBytes;
        loop {
            match self.account.check(limit, self.account.used(limit), bytes) {
                Err(why) if bytes <= why.most && self.account.plans.give_up_one() => {}
                outcome => return outcome,
            }
        }
    }

    /// A function's records are as `now` says, where they were as `before`: counts what they take, on disk and in memory.
    pub(super) fn function_written(&mut self, before: Option<&FunctionEntry>, now: Option<&FunctionEntry>) {
        let files =
            |entry: &FunctionEntry| [entry.disk_bytes, entry.grant_disk_bytes, entry.alias_disk_bytes];
        let memory = |entry: &FunctionEntry| {
            FunctionEntry::memory_bytes(&entry.record, &entry.callers, &entry.aliases)
        };
        self.written(before.map(|e| (files(e), memory(e))), now.map(|e| (files(e), memory(e))));
    }

    /// Likewise a module's record.
    pub(super) fn module_written(&mut self, before: Option<&ModuleEntry>, now: Option<&ModuleEntry>) {
        let of = |entry: &ModuleEntry| ([entry.disk_bytes, 0, 0], ModuleEntry::memory_bytes(&entry.record));
        self.written(before.map(of), now.map(of));
    }

    /// Likewise the record that an owner is declined, by what it takes on disk.
    pub(super) fn declined_written(&mut self, owner: &str, before: Option<u64>, now: Option<u64>) {
        let of = |disk_bytes: u64| ([disk_bytes, 0, 0], Snapshot::declined_bytes(owner));
        self.written(before.map(of), now.map(of));
    }

    fn written(&mut self, before: Option<([u64; 3], u64)>, now: Option<([u64; 3], u64)>) {
        let ((before, memory_before), (now, memory)) = (before.unwrap_or_default(), now.unwrap_or_default());
        let count = |files: [u64; 3]| files.iter().filter(|bytes| **bytes > 0).count() as u64;
        let Writer { records, memory_bytes, .. } = &mut *self.writer;
        records.bytes = records.bytes - before.iter().sum::<u64>() + now.iter().sum::<u64>();
        records.files = records.files - count(before) + count(now);
        *memory_bytes = *memory_bytes - memory_before + memory;
    }

    /// Removes the files of blobs that nothing needs any more.
    pub(super) fn remove(&self, unneeded: impl IntoIterator<Item = Unneeded>) {
        for Unneeded { hash, code } in unneeded {
            self.mine.state.remove_blob(self.mine.tenant, hash, &code);
        }
    }

    /// Removes the bytes of removed functions whose last call is over.
    pub(super) fn sweep(&mut self) {
        let over = |(function, _): &mut (Weak<Loaded>, _)| function.strong_count() == 0;
        let gone: Vec<_> = self.writer.leaving.extract_if(.., over).collect();
        for (_, record) in gone {
            let unneeded = self.writer.blobs.release_function(&record);
            self.remove(unneeded);
        }
    }

    /// Charges what there is now: limits were checked before.
    fn settle(&mut self) {
        let functions = self.mine.look(|now| now.functions.size() as u64);
        let Writer { blobs, records, memory_bytes, charges, .. } = &mut *self.writer;
        let on_disk = blobs.on_disk();
        let all = [
            (Limit::Functions, &mut charges.functions, functions),
            (Limit::ModuleBytes, &mut charges.module_bytes, blobs.module_bytes()),
            (Limit::BlobBytes, &mut charges.blob_bytes, on_disk.bytes + records.bytes),
            (Limit::BlobFiles, &mut charges.blob_files, on_disk.files + records.files),
            (Limit::PlanBytes, &mut charges.plan_bytes, *memory_bytes),
        ];
        for (limit, taken, amount) in all {
            let has = taken.as_ref().map_or(0, Taken::amount);
            match taken {
                _ if amount == has => {}
                Some(taken) if amount < has => drop(taken.resize(amount)),
                _ => absorb(taken, self.account.charge(limit, amount - has)),
            }
            // A tenant that has nothing is not kept in memory for it.
            if amount == 0 {
                *taken = None;
            }
        }
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.settle();
    }
}

impl Deref for Change<'_> {
    type Target = Writer;

    fn deref(&self) -> &Writer {
        &self.writer
    }
}

impl DerefMut for Change<'_> {
    fn deref_mut(&mut self) -> &mut Writer {
        &mut self.writer
    }
}

fn absorb(held: &mut Option<Taken>, more: Taken) {
    match held {
        Some(held) => held.absorb(more),
        None => *held = Some(more),
    }
}
