//! A socket's file: bound at a path, looked at while the supervisor serves, bound anew where somebody removed it, and removed at
//! the end where it is still this supervisor's.

use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener as Listening;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::UnixListener;

use crate::limits::SOCKET_PATH_BYTES;
use crate::store::StateDir;
use crate::sync::{OrderedMutex, rank};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// A file's device and inode.
type Identity = (u64, u64);

/// The file of a socket that this supervisor accepts from.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// None where the service manager keeps the socket for the next supervisor.
    made: Option<Made>,
    identity: OrderedMutex<Option<Identity>, { rank::SOCKET_FILE }>,
}

/// How this supervisor makes a file.
#[derive(Debug)]
struct Made {
    mode: u32,
    /// Remembers the file for the next supervisor, which may replace it even if this process hangs and listens on.
    state: Arc<StateDir>,
}

impl SocketFile {
    /// Binds a path. A stale socket is replaced, and one of those that a supervisor of this state directory bound before; a file
    /// of another kind, or a socket that another process listens on, is not touched.
    pub fn bind(path: &Path, mode: u32, state: Arc<StateDir>) -> std::io::Result<(UnixListener, Self)> {
        let made = Some(Made { mode, state });
        let file = Self { path: path.to_owned(), made, identity: OrderedMutex::default() };
        Ok((file.make()?, file))
    }

    /// The file of a socket that the service manager keeps.
    pub fn kept(path: &Path) -> Self {
        let identity = OrderedMutex::new(identity(path));
        Self { path: path.to_owned(), made: None, identity }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True if this supervisor made the file.
    pub fn is_own(&self) -> bool {
        self.made.is_some()
    }

    /// True if who connects to its path reaches this supervisor.
    pub fn is_there(&self) -> bool {
        let own = *self.identity.lock();
        own.is_some() && identity(&self.path) == own
    }

    /// Why nobody can connect, and what to do.
    pub fn why_not(&self) -> Option<String> {
        if self.is_there() {
            return None;
        }
        let path = self.path.display();
        Some(match self.is_own() {
            true => format!(
                "{path} is gone or another's: it is bound anew every second, the log says why that fails"
            ),
            false => format!(
                "{path}, which the service manager listens on, is gone: start its socket anew (systemctl restart \
                 pappus-supervisor.socket)"
            ),
        })
    }

    /// Binds the path anew, if its file is gone and this supervisor made it.
    pub(super) fn bind_again(&self) -> Option<std::io::Result<UnixListener>> {
        let was_made = self.identity.lock().is_some();
        (self.is_own() && was_made && !self.is_there()).then(|| self.make())
    }

    /// Removes the file, if it is still this supervisor's.
    pub fn remove(&self) {
        if self.is_own() && self.is_there() {
            *self.identity.lock() = None;
            let _ = std::fs::remove_file(&self.path);
        }
    }

    fn make(&self) -> std::io::Result<UnixListener> {
        let path = &self.path;
        let Some(Made { mode, state }) = &self.made else {
            return Err(std::io::ErrorKind::Unsupported.into());
        };
        let bound = state.bound();
        let taken = |why: &str| {
            std::io::Error::new(std::io::ErrorKind::AddrInUse, format!("{}: {why}", path.display()))
        };
        match std::fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                return Err(taken("is a file, not a socket: give --socket another path"));
            }
            Ok(found) if bound.was_ours(&found) => std::fs::remove_file(path)?,
            Ok(_) if is_listened_on(path) => {
                return Err(taken("another process listens there: stop it, or give this one another path"));
            }
            Ok(_) => std::fs::remove_file(path)?,
            Err(_) => {}
        }
        let (listening, identity) = listen_on(path, *mode).map_err(|error| {
            let kind = std::io::Error::from(error).kind();
            std::io::Error::new(kind, format!("cannot listen on {}: {}", path.display(), why_not(error)))
        })?;
        *self.identity.lock() = Some(identity);
        if let Err(error) = bound.add(path) {
            tracing::warn!(
                "should this process be killed and hang, the next one cannot replace its socket: {error}"
            );
        }
        UnixListener::from_std(listening)
    }
}

/// A start that fails leaves no file behind.
impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

/// True if a process listens on a socket, also one that accepts nothing just now. Never waits.
fn is_listened_on(path: &Path) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let connected = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .and_then(|socket| rustix::net::connect(&socket, &SocketAddrUnix::new(path)?));
    matches!(connected, Ok(()) | Err(Errno::AGAIN))
}

/// Which file a path names, links of whoever made the path followed.
fn identity(path: &Path) -> Option<Identity> {
    std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Why a socket cannot be bound, and what to do about it.
fn why_not(error: Errno) -> String {
    match error {
        Errno::NOENT => "the folder does not exist: create it or give --socket another path".to_owned(),
        Errno::NAMETOOLONG => format!("a socket's path may have {SOCKET_PATH_BYTES} bytes"),
        error => std::io::Error::from(error).to_string(),
    }
}

/// A socket whose file has this mode from the moment it is there, under every umask: no other user connects before.
fn listen_on(path: &Path, mode: u32) -> rustix::io::Result<(Listening, Identity)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The file gets the mode that the socket has, less the umask's bits.
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode & 0o600))?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    // By a descriptor: a link that another process puts in its place meanwhile is not followed.
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let found = rustix::fs::fstat(&file)?;
    if mode & !0o600 != 0 {
        let by_descriptor = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::chmod(by_descriptor, Mode::from_raw_mode(mode))?;
    }
    rustix::net::listen(&socket, BACKLOG)?;
    Ok((socket.into(), (found.st_dev, found.st_ino)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(dir: &tempfile::TempDir) -> Arc<StateDir> {
        Arc::new(StateDir::open(&dir.path().join("state")).unwrap())
    }

    #[tokio::test]
    async fn a_path_that_cannot_be_bound_is_refused_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let state = state(&dir);
        let why = |name: &str| {
            SocketFile::bind(&dir.path().join(name), 0o600, state.clone()).unwrap_err().to_string()
        };
        std::fs::write(dir.path().join("file"), "kept").unwrap();
        for (name, words) in [
            ("file", "is a file, not a socket: give --socket another path"),
            ("absent/socket", "the folder does not exist: create it or give --socket another path"),
            (&"x".repeat(SOCKET_PATH_BYTES), "a socket's path may have 107 bytes"),
        ] {
            assert!(why(name).ends_with(words), "{}", why(name));
        }
        assert_eq!(std::fs::read(dir.path().join("file")).unwrap(), b"kept");
    }

    #[tokio::test]
    async fn a_file_that_is_gone_is_noticed_and_bound_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let (listening, file) = SocketFile::bind(&path, 0o600, state(&dir)).unwrap();
        assert!(file.why_not().is_none() && file.bind_again().is_none());
        std::fs::remove_file(&path).unwrap();
        assert!(file.why_not().is_some_and(|why| why.contains("is gone")));
        let again = file.bind_again().unwrap().unwrap();
        assert!(file.why_not().is_none() && std::os::unix::net::UnixStream::connect(&path).is_ok());
        // Another one took its place, and is left alone: also at the end.
        std::fs::remove_file(&path).unwrap();
        let other = Listening::bind(&path).unwrap();
        let why = file.bind_again().unwrap().unwrap_err().to_string();
        assert!(why.contains("another process listens there"), "{why}");
        drop((listening, again, file));
        assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
        drop(other);
    }

    #[tokio::test]
    async fn the_service_managers_file_is_watched_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let _manager = Listening::bind(&path).unwrap();
        let file = SocketFile::kept(&path);
        assert!(file.why_not().is_none());
        drop(file);
        assert!(path.exists());
        let file = SocketFile::kept(&path);
        std::fs::remove_file(&path).unwrap();
        assert!(file.why_not().is_some_and(|why| why.contains("pappus-supervisor.socket")));
        assert!(file.bind_again().is_none());
    }

    #[tokio::test]
    async fn a_socket_of_a_process_that_accepts_nothing_is_listened_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        assert!(!is_listened_on(&path));
        rustix::net::listen(&socket, 0).unwrap();
        let _first = std::os::unix::net::UnixStream::connect(&path).unwrap();
        assert!(is_listened_on(&path), "as many wait as may");
    }

    #[tokio::test]
    async fn a_start_that_fails_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        drop(SocketFile::bind(&path, 0o666, state(&dir)).unwrap());
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_socket_that_a_supervisor_of_the_same_state_directory_bound_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (root, path) = (dir.path().join("state"), dir.path().join("socket"));
        let bind_again = || SocketFile::bind(&path, 0o600, Arc::new(StateDir::open(&root).unwrap()));
        // As of a process that was killed: the socket stays, the lock does not.
        let (hangs, file) = bind_again().unwrap();
        let kept = std::fs::hard_link(&path, dir.path().join("kept"));
        drop(file);
        std::fs::rename(dir.path().join("kept"), &path).unwrap();
        kept.unwrap();
        let (second, file) = bind_again().unwrap();
        drop(hangs);
        std::os::unix::net::UnixStream::connect(&path).unwrap();
        drop((second, file));
        // The control: another process's.
        let _other = Listening::bind(&path).unwrap();
        let why = bind_again().unwrap_err().to_string();
        assert!(
            why.ends_with("another process listens there: stop it, or give this one another path"),
            "{why}"
        );
    }
}
