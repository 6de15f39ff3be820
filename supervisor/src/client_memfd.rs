//! A memfd that a client passed and that was checked, or that was made for calls of a client. The kernel may take long to give its pages back, and its client
//! can keep it from being written: both is done on the client's own threads.

use std::ops::Deref;
use std::sync::Arc;

use pappus_shmem::{ValidatedMemfd, memfd};

use crate::client_io::ClientIo;
use crate::ids::TenantId;
use crate::quota::Limit;
use crate::refusal::{Refusal, internal};
use crate::tenants::{Account, Taken};

/// Bytes from which on a memfd is closed on its tenant's threads. To give back fewer takes microseconds on any thread.
const LARGE_BYTES: u64 = 1 << 20;

/// A checked memfd of one tenant, and what the tenant is charged for it until it is closed.
#[derive(Debug)]
pub struct ClientMemfd {
    /// None only while this is dropped.
    open: Option<Open>,
    tenant: TenantId,
    io: ClientIo,
}

/// Dropped from the first field to the last.
#[derive(Debug)]
struct Open {
    memfd: ValidatedMemfd,
    /// The descriptor's place, and an arena's bytes.
    charges: [Option<Taken>; 2],
}

impl ClientMemfd {
    /// A memfd of this tenant's, for whose descriptors these threads are.
    pub fn new(memfd: ValidatedMemfd, tenant: TenantId, io: &ClientIo) -> Self {
        let open = Some(Open { memfd, charges: [None, None] });
        Self { open, tenant, io: io.clone() }
    }

    /// Memory of the supervisor's for calls of a tenant, who is charged for the descriptor.
    pub fn own(name: &str, bytes: u64, account: &Arc<Account>, io: &ClientIo) -> Result<Self, Refusal> {
        // Its place, and then the memory.
        let descriptor = account.take(Limit::Descriptors, 1)?;
        let memory =
            memfd::arena(name, bytes).map_err(|why| internal("cannot make memory for calls", why))?;
        let mut memory = Self::new(memory, account.tenant, io);
        memory.charge(descriptor);
        Ok(memory)
    }

    /// The tenant is charged for this, too, until the memfd is closed.
    pub fn charge(&mut self, taken: Taken) {
        let free = self.open.as_mut().and_then(|open| open.charges.iter_mut().find(|place| place.is_none()));
        match free {
            Some(place) => *place = Some(taken),
            None => debug_assert!(false, "a memfd is charged for twice at most"),
        }
    }

    /// Does something that the tenant can make slow, on a thread of the tenant's. Never waits.
    pub fn on_thread(&self, job: impl FnOnce() + Send + 'static) {
        self.io.run(self.tenant, job);
    }
}

impl Deref for ClientMemfd {
    type Target = ValidatedMemfd;

    fn deref(&self) -> &ValidatedMemfd {
        match &self.open {
            Some(open) => &open.memfd,
            None => unreachable!("a memfd is open until it is dropped"),
        }
    }
}

impl Drop for ClientMemfd {
    fn drop(&mut self) {
        if let Some(open) = self.open.take().filter(|open| open.memfd.bytes() >= LARGE_BYTES) {
            self.io.drop_there(self.tenant, open);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_io::tests::Kept;
    use crate::tenants::Tenants;

    const TENANT: TenantId = TenantId::new(1);

    #[test]
    fn a_large_one_is_closed_on_its_tenants_threads_and_charged_until_then() {
        let (io, account) = (ClientIo::default(), Tenants::default().account(TENANT));
        let kept = Kept::all_threads(&io, TENANT);
        let open = |bytes: u64| {
            let mut memfd = ClientMemfd::new(memfd::arena("a", bytes).unwrap(), TENANT, &io);
            memfd.charge(account.take(Limit::ArenaBytes, bytes).unwrap());
            memfd
        };
        let used = || account.used(Limit::ArenaBytes);
        // The control: a small one is closed by the thread that drops it.
        drop(open(LARGE_BYTES - 1));
        assert_eq!(used(), 0);
        drop(open(LARGE_BYTES));
        assert_eq!(used(), LARGE_BYTES, "its tenant's threads are kept");
        drop(kept);
        while used() > 0 {
            std::thread::yield_now();
        }
    }
}
