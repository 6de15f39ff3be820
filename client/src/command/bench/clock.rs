//! The time of a run, by a timer of the kernel: tokio's own go by whole milliseconds, which is longer than many a call.

use std::cell::RefCell;
use std::io::{ErrorKind, Result};
use std::time::{Duration, Instant};

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use tokio::net::unix::pipe::Receiver;

use super::drive::Clock;

/// A clock that begins at 0. One task at a time waits for it.
#[derive(Debug)]
pub(super) struct Real {
    began: Instant,
    timer: RefCell<Option<Receiver>>,
}

impl Real {
    /// Begins now.
    pub(super) fn new() -> Self {
        Self { began: Instant::now(), timer: RefCell::new(None) }
    }

    /// Waits so long.
    async fn wait(&self, time: Duration) -> Result<()> {
        let timer = match self.timer.take() {
            Some(timer) => timer,
            None => {
                let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
                let made = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
                // A timer is waited for and read as a pipe is; tokio has no safe type for descriptors of any kind.
                Receiver::from_owned_fd_unchecked(made)?
            }
        };
        let once = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() },
        };
        rustix::time::timerfd_settime(&timer, TimerfdTimerFlags::empty(), &once)?;
        let mut expirations = [0; 8];
        loop {
            timer.readable().await?;
            match timer.try_read(&mut expirations) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => {
                    self.timer.replace(Some(timer));
                    return read.map(drop);
                }
            }
        }
    }
}

impl Clock for Real {
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    async fn until(&self, moment: Duration) {
        loop {
            let left = moment.saturating_sub(self.now());
            if left.is_zero() {
                return;
            }
            if self.wait(left).await.is_err() {
                tokio::time::sleep(left).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_wait_ends_early_and_each_of_them_ends() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let clock = Real::new();
            for us in [0u64, 1, 100, 150, 5_000, 5_001] {
                let moment = Duration::from_micros(us);
                clock.until(moment).await;
                assert!(clock.now() >= moment);
            }
        });
    }
}
