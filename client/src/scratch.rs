//! A folder for what other programs must find as files: only this user can look into it, and it is gone when the command ends,
//! also where a signal ends the command.
//!
//! The one place that deals with signals, but for `pappus top`, which has no such folder. No handler runs: the signals are blocked and a thread takes them. It kills the
//! process that works in the folder, on which whoever waits for that one comes to the end; the last thing to end is the folder,
//! and then the command ends by the signal, as it would have without all this.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::sys::signal::{SigSet, Signal};
use rustix::process::{Pid, WaitId, WaitIdOptions, kill_process_group, waitid};
use tempfile::TempDir;

/// Signals that ask a command to end.
pub(crate) const ENDING: [Signal; 3] = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM];

/// What the thread has to know.
#[derive(Default)]
struct State {
    /// Folders that there are.
    folders: usize,
    /// The process that works in one, and leads a group of its own. It is not reaped as long as it is here.
    child: Option<Pid>,
    /// The signal that came.
    ended: Option<Signal>,
}

static STATE: Mutex<State> = Mutex::new(State { folders: 0, child: None, ended: None });

fn state() -> MutexGuard<'static, State> {
    // Each change is one assignment: a panic leaves nothing half done.
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The folder.
pub(crate) struct Scratch {
    folder: Option<TempDir>,
}

impl Scratch {
    /// Makes it where temporary files are made, before the command has other threads.
    pub(crate) fn new(prefix: &str) -> std::io::Result<Self> {
        watch()?;
        state().folders += 1;
        let mut made = Self { folder: None };
        let only_ours = std::fs::Permissions::from_mode(0o700);
        made.folder = Some(tempfile::Builder::new().prefix(prefix).permissions(only_ours).tempdir()?);
        Ok(made)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.folder.as_ref().map_or(Path::new(""), TempDir::path)
    }

    /// Starts the process that works in it, whose own temporary files are in it, too.
    pub(crate) fn spawn(&self, command: &mut Command) -> std::io::Result<Child> {
        let mut state = state();
        if state.ended.is_some() {
            return Err(std::io::ErrorKind::Interrupted.into());
        }
        let child = command.env("TMPDIR", self.path()).process_group(0).spawn()?;
        state.child = Some(Pid::from_child(&child));
        Ok(child)
    }

    /// Waits until the process has ended, and reaps it.
    pub(crate) fn wait(&self, child: &mut Child) -> std::io::Result<ExitStatus> {
        loop {
            let id = WaitId::Pid(Pid::from_child(child));
            match waitid(id, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
                Ok(_) => break,
            }
        }
        self.try_wait(child)?.ok_or_else(|| std::io::ErrorKind::WouldBlock.into())
    }

    /// Reaps the process if it has ended.
    pub(crate) fn try_wait(&self, child: &mut Child) -> std::io::Result<Option<ExitStatus>> {
        let mut state = state();
        let ended = child.try_wait()?;
        if ended.is_some() {
            state.child = None;
        }
        Ok(ended)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(self.folder.take());
        let mut state = state();
        state.folders -= 1;
        if let (0, Some(signal)) = (state.folders, state.ended) {
            end_by(signal);
        }
    }
}

/// Lets a thread take the signals from now on.
fn watch() -> std::io::Result<()> {
    let mut signals = SigSet::empty();
    ENDING.into_iter().for_each(|signal| signals.add(signal));
    signals.thread_block()?;
    let watching = move || {
        while let Ok(signal) = signals.wait() {
            let mut state = state();
            if let Some(child) = state.child {
                // All of its group: a compiler has a linker.
                let _ = kill_process_group(child, rustix::process::Signal::KILL);
            }
            state.ended = Some(signal);
            if state.folders == 0 {
                end_by(signal);
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(watching)?;
    Ok(())
}

/// Ends the command by a signal, unless the command was started with that signal ignored.
fn end_by(signal: Signal) {
    let mut only = SigSet::empty();
    only.add(signal);
    // Both can fail only for signals that there are not.
    let _ = only.thread_unblock();
    let _ = nix::sys::signal::raise(signal);
}
