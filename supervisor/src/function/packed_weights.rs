//! Weights in the host's memory, packed as workers map them: one copy of each content of an owner, however many functions
//! have it. Two owners never share one: how soon a function loads would tell one what the other has.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};

use pappus_shmem::ValidatedMemfd;
use sha2::{Digest, Sha256};

use crate::client_io::ClientIo;
use crate::defences::Defence;
use crate::ids::TenantId;
use crate::store::records::{Hash, Weight};
use crate::sync::{OrderedMutex, rank};
use crate::tenants::Taken;

/// Weights in one sealed memfd. They go with the last function or call that has them.
#[derive(Debug)]
pub struct PackedWeights {
    bytes: u64,
    /// None once they are being dropped.
    memfd: Option<ValidatedMemfd>,
    _taken: Taken,
    owner: TenantId,
    io: ClientIo,
}

impl PackedWeights {
    /// Weights that their owner is charged for. Their memory is given back on a thread of the owner's: gigabytes take a
    /// while, wherever the last call ends.
    pub fn new(memfd: ValidatedMemfd, taken: Taken, owner: TenantId, io: ClientIo) -> Self {
        Self { bytes: memfd.bytes(), memfd: Some(memfd), _taken: taken, owner, io }
    }

    /// How many bytes they have as they are packed.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Their memory.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.memfd.as_ref().map(AsFd::as_fd)
    }
}

impl Drop for PackedWeights {
    fn drop(&mut self) {
        let memfd = self.memfd.take();
        self.io.drop_there(self.owner, memfd);
    }
}

/// What was packed, in this order.
type Content = (TenantId, Hash);

/// One content: nothing, or what was packed of it as long as anything has it.
type Slot = OrderedMutex<Weak<PackedWeights>, { rank::PACKING }>;

/// All weights that functions in memory have.
#[derive(Debug, Default)]
pub struct WeightsCache(OrderedMutex<HashMap<Content, Arc<Slot>>, { rank::PACKED_WEIGHTS }>);

impl WeightsCache {
    /// The packed form of an owner's weights; made if nothing has it. Who needs the same content meanwhile waits for it.
    pub fn get<E>(
        &self,
        owner: TenantId,
        weights: &[Weight],
        pack: impl FnOnce() -> Result<PackedWeights, E>,
    ) -> Result<Arc<PackedWeights>, E> {
        if Defence::WeightSharing.is_off() {
            return pack().map(Arc::new);
        }
        let slot = self.slot((owner, content(weights)));
        let mut packed = slot.lock();
        if let Some(packed) = packed.upgrade() {
            return Ok(packed);
        }
        let made = Arc::new(pack()?);
        *packed = Arc::downgrade(&made);
        Ok(made)
    }

    fn slot(&self, content: Content) -> Arc<Slot> {
        let mut slots = self.0.lock();
        // What is left of others goes now and then.
        if slots.len() >= 16 && slots.len().is_power_of_two() {
            slots.retain(|_, slot| Arc::strong_count(slot) > 1 || slot.lock().strong_count() > 0);
        }
        slots.entry(content).or_default().clone()
    }
}

/// What is packed depends on the contents in their order alone.
fn content(weights: &[Weight]) -> Hash {
    let mut hasher = Sha256::new();
    weights.iter().for_each(|weight| hasher.update(weight.sha256.0));
    Hash(hasher.finalize().into())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use pappus_shmem::memfd;

    use super::*;
    use crate::tenants::{Account, Limit, Tenants};

    fn weights(contents: &[u8]) -> Vec<Weight> {
        let weight = |n: &u8| Weight { name: "w".into(), sha256: Hash([*n; 32]), bytes: 3 };
        contents.iter().map(weight).collect()
    }

    fn pack(account: &Arc<Account>) -> Result<PackedWeights, Infallible> {
        let taken = account.charge(Limit::WeightBytes, 3);
        Ok(PackedWeights::new(
            memfd::sealed("w", b"abc").unwrap(),
            taken,
            account.tenant,
            ClientIo::default(),
        ))
    }

    #[test]
    fn one_content_of_one_owner_is_packed_once() {
        let (tenants, cache) = (Tenants::default(), WeightsCache::default());
        let (one, two) = (tenants.account(TenantId::new(1)), tenants.account(TenantId::new(2)));
        let get = |account: &Arc<Account>, contents: &[u8]| {
            cache.get(account.tenant, &weights(contents), || pack(account)).unwrap()
        };
        let first = get(&one, &[1, 2]);
        assert!(Arc::ptr_eq(&first, &get(&one, &[1, 2])));
        assert_eq!(one.used(Limit::WeightBytes), 3);
        // The same weights in another order lie elsewhere, and another owner has a copy of its own.
        assert!(!Arc::ptr_eq(&first, &get(&one, &[2, 1])));
        let theirs = get(&two, &[1, 2]);
        assert!(!Arc::ptr_eq(&first, &theirs));
        assert_eq!(two.used(Limit::WeightBytes), 3);
    }

    #[test]
    fn contents_that_nothing_has_are_forgotten() {
        let (tenants, cache) = (Tenants::default(), WeightsCache::default());
        let account = tenants.account(TenantId::new(1));
        let kept = cache.get(account.tenant, &weights(&[200]), || pack(&account)).unwrap();
        for n in 0..200 {
            cache.get(account.tenant, &weights(&[n]), || Err::<PackedWeights, _>(())).unwrap_err();
        }
        assert!(cache.0.lock().len() < 100);
        let again = cache.get(account.tenant, &weights(&[200]), || Err(())).unwrap();
        assert!(Arc::ptr_eq(&kept, &again));
    }
}
