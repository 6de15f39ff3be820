//! Why the state directory cannot be used.

use std::path::{Path, PathBuf};

/// What `VERSION` says in a state directory of this version.
pub(super) const VERSION: &str = "pappus-state 1\n";

/// Why the state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A file operation failed.
    #[error("cannot {what} {path}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which path.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The directory is another user's, may be, or holds other files.
    #[error("{} {why}", path.display())]
    Unfit {
        /// The directory.
        path: PathBuf,
        /// What is wrong with the directory, and what to do.
        why: Unfit,
    },
    /// Another supervisor runs on it.
    #[error("{0} is in use by another supervisor: stop it first or use another --state-dir")]
    Locked(PathBuf),
    /// The file's bytes are not those that were stored.
    #[error("{} is damaged: its bytes are not those that were stored", .0.display())]
    Damaged(PathBuf),
    /// Written by another version of Pappus, or damaged.
    #[error(
        "{path}/VERSION says {found:?}, and this version of Pappus needs {VERSION:?}: another version wrote the directory, or the \
         file is damaged. Run that version, or give an empty --state-dir; if it was this version, write the file again: \
         printf '{}' > {path}/VERSION", VERSION.escape_default()
    )]
    Version {
        /// The directory.
        path: PathBuf,
        /// What its VERSION says.
        found: String,
    },
}

impl StateError {
    /// Says in the log that stored bytes are damaged, which nothing here can make again.
    pub fn log_damage(&self, what: &str) {
        tracing::error!("{what}: {self}; its owner has to register it again");
    }
}

/// Names what was tried on which path.
pub(super) fn failed(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> StateError {
    let path = path.to_owned();
    move |source| StateError::Io { what, path, source }
}

/// Why a directory cannot be the state directory, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    /// A file, a socket, …
    #[error("is no directory: name another --state-dir")]
    NoDirectory,
    /// Whoever made the link could change where it leads.
    #[error("is a symbolic link: name the directory that it leads to as --state-dir")]
    Link,
    /// Another user could put a different directory in the same place.
    #[error(
        "lies below {}, which belongs to uid {owner}, and this supervisor runs as uid {own}: name a --state-dir below \
         directories of root or of its own user", above.display()
    )]
    OwnerAbove {
        /// The directory above.
        above: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Whose this process is.
        own: u32,
    },
    /// Likewise any user.
    #[error(
        "lies below {}, where any user can replace it (mode {mode:04o}): name another --state-dir", above.display()
    )]
    SharedAbove {
        /// The directory above.
        above: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// Another user's, who could read and replace everything in it.
    #[error(
        "belongs to uid {owner}, and this supervisor runs as uid {own}: name another --state-dir, or \
         `chown {own}` it"
    )]
    Owner {
        /// Whose it is.
        owner: u32,
        /// Whose this process is.
        own: u32,
    },
    /// Users share it, such as `/tmp`.
    #[error(
        "can be written by other users (mode {mode:04o}): name a --state-dir for Pappus alone; one that is not there is made"
    )]
    Shared {
        /// Its mode.
        mode: u32,
    },
    /// It has a content, which is no supervisor's.
    #[error(
        "holds files that are no supervisor's, such as {file:?}: name an empty or a new directory as --state-dir"
    )]
    Foreign {
        /// One of them.
        file: String,
    },
}
