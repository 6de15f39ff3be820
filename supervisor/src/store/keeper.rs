//! The lock on the state directory, and the threads that change names in it.
//!
//! ```text
//! keeper ──a table of descriptors of its own: the lock's file, and none that any other thread has──► waits
//!   ├── change ──► a thread that has the keeper's table, for this one change
//!   └── the keeper is dropped, or the process is killed ──► the table goes, and the lock with it
//! ```
//!
//! A lock lasts until the last table that has its file is gone. A tenant can keep a thread of this process in a system call
//! for as long as it likes (`client_io`), and such a thread outlives SIGKILL with everything in its table. So the lock is in
//! none that such a thread has: the next supervisor has it as soon as this process is told to end, whatever hangs.
//!
//! No process that lost the lock changes what the next supervisor reads. A name in the state directory is made, moved and
//! removed by threads with the keeper's table only, whose system calls end before the table goes. What other threads of
//! a killed process still write are files that nothing looks for (`*.tmp`), which the next start removes. Those that a change means
//! (`record_changes`) are complete before it is written down.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::thread::{Builder, JoinHandle};

use pappus_shmem::table;
use rustix::fs::FlockOperation;

type Change = Box<dyn FnOnce() + Send>;

/// Keeps the lock until it is dropped.
#[derive(Debug)]
pub(super) struct Keeper {
    /// None only while this is dropped.
    thread: Option<(Sender<Change>, JoinHandle<()>)>,
}

impl Keeper {
    /// Takes the lock; none if another supervisor has it. Must be called before clients connect.
    pub(super) fn lock(file: File) -> io::Result<Option<Self>> {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let (changes, received) = channel::<Change>();
        let thread = table::spawn_apart("state-lock", file.into(), move |lock| {
            for change in received {
                // The new thread shares the keeper's table of descriptors. If it cannot start, the keeper
                // makes the change itself, and later changes wait.
                let (give, given) = sync_channel::<Change>(1);
                let thread = Builder::new()
                    .name("state-change".to_owned())
                    .spawn(move || given.into_iter().for_each(|change| change()));
                match thread {
                    Ok(_) => drop(give.send(change)),
                    Err(_) => change(),
                }
            }
            drop(lock);
        })?;
        Ok(Some(Self { thread: Some((changes, thread)) }))
    }

    /// Changes names in the state directory, and returns when that is done.
    pub(super) fn change<T: Send + 'static>(
        &self,
        change: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let (changes, _) = self.thread.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        let (say, said) = sync_channel(1);
        // Who asked waits for it.
        let sent = changes.send(Box::new(move || drop(say.send(change()))));
        sent.map_err(|_| io::ErrorKind::BrokenPipe)?;
        said.recv().map_err(io::Error::other)?
    }

    /// Removes files, as far as they are there and can be.
    pub(super) fn remove(&self, files: Vec<PathBuf>) {
        let _ = self.change(move || {
            files.iter().for_each(|file| drop(std::fs::remove_file(file)));
            Ok(())
        });
    }
}

impl Drop for Keeper {
    /// The lock is free once this is over.
    fn drop(&mut self) {
        if let Some((changes, thread)) = self.thread.take() {
            drop(changes);
            let _ = thread.join();
        }
    }
}
