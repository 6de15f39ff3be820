//! Which socket files the supervisor of a state directory bound: written into the lock's file, and read by the next one.
//!
//! A supervisor that was killed may stay in the process table, kept by a thread that hangs, and what it listens on takes
//! connections that nobody serves. The next supervisor has the lock, so whoever bound those files for the same directory is
//! gone: it replaces them without a try to connect. A file with the same path that anyone else bound is another file.

use std::fs::{self, File, Metadata};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::error::{StateError, failed};
use crate::sync::{OrderedMutex, rank};

/// What is written, always as long: written again in its place, it takes no room on a full disk.
const RECORD_BYTES: usize = 512;

/// Socket files of supervisors of this directory.
#[derive(Debug)]
pub struct Bound {
    lock: PathBuf,
    /// Of the one before.
    before: Vec<String>,
    /// Of this one.
    own: OrderedMutex<Vec<String>, { rank::BOUND }>,
}

impl Bound {
    /// What the supervisor before this one wrote into the lock's file, if it did.
    pub(super) fn read(lock: PathBuf) -> Self {
        let text = fs::read(&lock).unwrap_or_default();
        let before = String::from_utf8_lossy(&text).lines().map(|line| line.trim().to_owned()).collect();
        Self { lock, before, own: OrderedMutex::default() }
    }

    /// True if the supervisor before this one bound this file.
    pub fn was_ours(&self, found: &Metadata) -> bool {
        self.before.contains(&identity(found))
    }

    /// This supervisor bound a socket file.
    pub fn add(&self, path: &Path) -> Result<(), StateError> {
        let found = fs::symlink_metadata(path).map_err(failed("look at", path))?;
        let mut own = self.own.lock();
        own.push(identity(&found));
        // Sockets of an earlier run stay listed: this supervisor may be killed before it has bound its own.
        let mut text = String::with_capacity(RECORD_BYTES);
        for line in own.iter().chain(&self.before).filter(|line| !line.is_empty()) {
            if text.len() + line.len() < RECORD_BYTES {
                text.push_str(line);
                text.push('\n');
            }
        }
        let text = format!("{text:RECORD_BYTES$}");
        let written = File::options()
            .write(true)
            .open(&self.lock)
            .and_then(|file| file.write_all_at(text.as_bytes(), 0));
        written.map_err(failed("write", &self.lock))
    }
}

/// What no other file has: a number that is given again comes with another time.
fn identity(found: &Metadata) -> String {
    format!("{} {} {} {}", found.dev(), found.ino(), found.mtime(), found.mtime_nsec())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn the_next_one_knows_what_was_bound_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (lock, socket, admin) = (dir.path().join("lock"), dir.path().join("s"), dir.path().join("a"));
        fs::write(&lock, "").unwrap();
        let found = |path: &Path| fs::symlink_metadata(path).unwrap();
        let listeners = [&socket, &admin].map(|path| UnixListener::bind(path).unwrap());
        let first = Bound::read(lock.clone());
        assert!(!first.was_ours(&found(&socket)), "the control");
        first.add(&socket).unwrap();
        first.add(&admin).unwrap();
        let bytes = fs::metadata(&lock).unwrap().len();
        let next = Bound::read(lock.clone());
        assert!(next.was_ours(&found(&socket)) && next.was_ours(&found(&admin)));
        // Another one took the path meanwhile.
        fs::remove_file(&socket).unwrap();
        drop(listeners);
        let _other = UnixListener::bind(&socket).unwrap();
        assert!(!next.was_ours(&found(&socket)));
        next.add(&socket).unwrap();
        assert_eq!(fs::metadata(&lock).unwrap().len(), bytes, "it takes no more room");
        let third = Bound::read(lock);
        assert!(third.was_ours(&found(&socket)) && third.was_ours(&found(&admin)));
    }
}
