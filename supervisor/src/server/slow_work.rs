//! Permits for slow work: registration, reading from disk, compiling. Each tenant has a few (`slow-requests`), so that a
//! tenant with a thousand requests delays itself and no other tenant.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{Notify, Semaphore};

use crate::ids::TenantId;
use crate::quota::Limit;
use crate::sync::{OrderedMutex, rank};
use crate::tenants::{Account, Taken};

/// The permits of all tenants.
#[derive(Debug, Default)]
pub struct SlowWork(OrderedMutex<HashMap<TenantId, Arc<Queue>>, { rank::SLOW_WORK }>);

/// Requests of one tenant that wait for a permit.
#[derive(Debug)]
struct Queue {
    /// The first one's; the others wait for it in the order of the requests.
    first: Semaphore,
    freed: Notify,
}

impl Default for Queue {
    fn default() -> Self {
        Self { first: Semaphore::new(1), freed: Notify::new() }
    }
}

/// A permit for one piece of slow work, given back when dropped.
#[derive(Debug, Default)]
pub struct SlowWorkPermit {
    /// None for the operator, who needs no permit; none once it is given back.
    held: Option<(Taken, Arc<Queue>)>,
}

impl SlowWork {
    /// Waits for a permit of this tenant; permits go out in the order of the requests.
    pub async fn acquire(&self, account: &Arc<Account>) -> SlowWorkPermit {
        let queue = self.0.lock().entry(account.tenant).or_default().clone();
        let taken = {
            // Closed never.
            let _first = queue.first.acquire().await;
            loop {
                match account.take(Limit::SlowRequests, 1) {
                    Ok(taken) => break taken,
                    // A tenant whose quota was lowered to nothing finishes what it began, one at a time.
                    Err(_) if account.used(Limit::SlowRequests) == 0 => {
                        break account.charge(Limit::SlowRequests, 1);
                    }
                    Err(_) => queue.freed.notified().await,
                }
            }
        };
        SlowWorkPermit { held: Some((taken, queue)) }
    }
}

impl Drop for SlowWorkPermit {
    fn drop(&mut self) {
        if let Some((taken, queue)) = self.held.take() {
            drop(taken);
            queue.freed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;
    use crate::quota::Quota;
    use crate::tenants::Tenants;

    #[test]
    fn a_tenant_has_as_many_permits_as_its_quota_says_and_others_have_their_own() {
        let (work, tenants) = (SlowWork::default(), Tenants::default());
        let (one, two) = (tenants.account(TenantId::new(1)), tenants.account(TenantId::new(2)));
        let mut quota = Quota::default();
        quota.set(Limit::SlowRequests, 2);
        one.allow(quota);
        let mut context = Context::from_waker(Waker::noop());
        let mut now = |account: &Arc<Account>| match pin!(work.acquire(account)).poll(&mut context) {
            std::task::Poll::Ready(permit) => Some(permit),
            std::task::Poll::Pending => None,
        };
        let (first, second) = (now(&one).unwrap(), now(&one).unwrap());
        assert!(now(&one).is_none());
        assert!(now(&two).is_some());
        assert_eq!(one.used(Limit::SlowRequests), 2);
        drop(first);
        let third = now(&one);
        assert!(third.is_some());
        drop((second, third));
        assert_eq!(one.used(Limit::SlowRequests), 0);
        // None at all: one at a time.
        quota.set(Limit::SlowRequests, 0);
        one.allow(quota);
        let only = now(&one);
        assert!(only.is_some() && now(&one).is_none());
    }
}
