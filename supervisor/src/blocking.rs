//! Threads for work that waits: for the disk, for a process. The runtime has a number of them for everything; tenants
//! together leave some, so that the operator's work, and whatever wakes a socket's thread, never waits behind theirs.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits::MAX_TENANTS_THREADS;
use crate::refusal::{Failure, Reason, Refusable, internal};

/// Whose work it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// A tenant's.
    Tenant,
    /// The operator's, which waits for no thread.
    Operator,
}

/// The threads that tenants may keep.
#[derive(Debug, Clone)]
pub struct BlockingThreads {
    tenants: Arc<Semaphore>,
    /// Places of threads that copy what tenants hand over.
    copying: Arc<Semaphore>,
}

/// Work did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum BrokenOff {
    /// It never began.
    #[error("the supervisor ends: ask another one, or this one once it is back")]
    Ending,
    /// It panicked.
    #[error(transparent)]
    Failure(#[from] Failure),
}

impl Refusable for BrokenOff {
    fn reason(&self) -> Reason {
        match self {
            Self::Ending => Reason::Unavailable,
            Self::Failure(failure) => failure.reason(),
        }
    }
}

impl Default for BlockingThreads {
    fn default() -> Self {
        Self::new(MAX_TENANTS_THREADS)
    }
}

impl BlockingThreads {
    /// Tenants may keep so many.
    pub fn new(tenants: usize) -> Self {
        Self { tenants: Arc::new(Semaphore::new(tenants)), copying: Arc::new(Semaphore::new(tenants / 2)) }
    }

    /// A place to copy a file that a tenant hands over, once there is one: half of the tenants' threads, so that the other half
    /// is left to work that ends sooner.
    pub async fn place_to_copy(&self, whose: Whose) -> Option<OwnedSemaphorePermit> {
        match whose {
            // Closed never.
            Whose::Tenant => self.copying.clone().acquire_owned().await.ok(),
            Whose::Operator => None,
        }
    }

    /// Runs `work` on another thread, once one is free.
    pub async fn run<T: Send + 'static>(
        &self,
        whose: Whose,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, BrokenOff> {
        let permit = match whose {
            // Closed never.
            Whose::Tenant => self.tenants.clone().acquire_owned().await.ok(),
            Whose::Operator => None,
        };
        let done = tokio::task::spawn_blocking(move || {
            let done = work();
            drop(permit);
            done
        });
        done.await.map_err(|why| match why.is_cancelled() {
            true => BrokenOff::Ending,
            false => internal("a request's work broke off", why).into(),
        })
    }

    /// Does what may take long, but mostly does not, on this thread, which gives its other tasks away: nobody has to be
    /// woken for it, nor for what comes next.
    pub async fn run_here<T>(&self, whose: Whose, work: impl FnOnce() -> T) -> T {
        let _permit = match whose {
            Whose::Tenant => self.tenants.acquire().await.ok(),
            Whose::Operator => None,
        };
        tokio::task::block_in_place(work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::{OrderedMutex, rank};

    #[tokio::test]
    async fn tenants_that_keep_their_threads_leave_one_to_the_operator() {
        let threads = BlockingThreads::new(2);
        let (release, released) = std::sync::mpsc::channel::<()>();
        let released = Arc::new(OrderedMutex::<_, { rank::UNREAD }>::new(released));
        let keep = || {
            let (threads, released) = (threads.clone(), released.clone());
            tokio::spawn(async move {
                let waits = move || released.lock().recv().is_err();
                threads.run(Whose::Tenant, waits).await
            })
        };
        let kept = [keep(), keep(), keep()];
        assert_eq!(threads.run(Whose::Operator, || 7).await.unwrap(), 7);
        drop(release);
        for one in kept {
            assert!(one.await.unwrap().unwrap());
        }
    }

    #[tokio::test]
    async fn copies_leave_threads_to_other_work() {
        let threads = BlockingThreads::new(4);
        let copies = [threads.place_to_copy(Whose::Tenant).await, threads.place_to_copy(Whose::Tenant).await];
        let third = threads.place_to_copy(Whose::Tenant);
        let moment = std::time::Duration::from_millis(10);
        assert!(tokio::time::timeout(moment, third).await.is_err());
        assert!(threads.place_to_copy(Whose::Operator).await.is_none());
        assert_eq!(threads.run(Whose::Tenant, || 7).await.unwrap(), 7);
        drop(copies);
        assert!(threads.place_to_copy(Whose::Tenant).await.is_some());
    }

    #[tokio::test]
    async fn work_that_panics_is_refused_and_gives_its_thread_back() {
        let threads = BlockingThreads::new(1);
        for _ in 0..2 {
            let broke = threads.run(Whose::Tenant, || panic!("the test's own panic")).await;
            assert_eq!(broke.unwrap_err().reason(), Reason::Internal);
        }
        assert!(threads.run(Whose::Tenant, || ()).await.is_ok());
    }
}
