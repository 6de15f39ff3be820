//! Ending processes that use a device together through MPS. A signal that kills one while its kernels run takes the
//! work of all others with it; its work has to be ended by the MPS control daemon first. Where the daemon's program is
//! missing or fails, the process is killed, and the others count as hit.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::spawner::{Program, Spawner};
use super::subreaper;

/// The daemon's own program, which also passes commands on to it.
const PROGRAM: &str = "nvidia-cuda-mps-control";
/// How long the daemon may take for one command.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a process whose work was ended has to leave by itself, which its driver notices at once.
const LEAVE: Duration = Duration::from_millis(50);
/// More than an answer ever has.
const MAX_ANSWER: u64 = 64 << 10;

/// Why the daemon did not end a process's work.
#[derive(Debug, thiserror::Error)]
pub enum MpsError {
    /// There is no way to ask it.
    #[error("{0:?} cannot be run: {1}: it comes with the driver and has to be in PATH")]
    Missing(OsString, std::io::Error),
    /// It was asked and did not do it.
    #[error("{0:?} was asked to {1:?}: {2}")]
    Failed(OsString, String, String),
    /// It does not know the process.
    #[error("no MPS server has process {0} as its client")]
    NoClient(u32),
}

/// The control daemon of the supervisor's own environment (`CUDA_MPS_PIPE_DIRECTORY`).
#[derive(Debug)]
pub struct Control {
    program: OsString,
    spawner: Spawner,
}

impl Control {
    /// The daemon that the driver's program finds. To be made before there are clients.
    pub fn new() -> std::io::Result<Self> {
        Self::of(PROGRAM.into())
    }

    fn of(program: OsString) -> std::io::Result<Self> {
        Ok(Self { program, spawner: Spawner::start()? })
    }

    /// Ends the work of one process, and of no other.
    pub fn terminate(&self, pid: u32) -> Result<(), MpsError> {
        for server in numbers(&self.ask("get_server_list")?) {
            if numbers(&self.ask(&format!("get_client_list {server}"))?).contains(&pid) {
                let command = format!("terminate_client {server} {pid}");
                let answer = self.ask(&command)?;
                // The program's own exit code is 0 after a failure, too; the last line is the daemon's.
                return match answer.lines().last().map(str::trim) {
                    Some("0") => Ok(()),
                    _ => Err(MpsError::Failed(self.program.clone(), command, answer.trim().to_owned())),
                };
            }
        }
        Err(MpsError::NoClient(pid))
    }

    /// One command's answer.
    fn ask(&self, command: &str) -> Result<String, MpsError> {
        let failed = |why: String| MpsError::Failed(self.program.clone(), command.to_owned(), why);
        let broken = |e: std::io::Error| failed(e.to_string());
        let (stdin, mut to_program) = std::io::pipe().map_err(broken)?;
        let (from_program, stdout) = std::io::pipe().map_err(broken)?;
        let asking = Program { path: self.program.clone().into(), arguments: Vec::new(), environment: None };
        let started = self.spawner.spawn(asking, &[(stdin.as_fd(), 0), (stdout.as_fd(), 1)]);
        let mut program = started.map_err(|e| MpsError::Missing(self.program.clone(), e))?;
        drop((stdin, stdout));
        let told = writeln!(to_program, "{command}");
        drop(to_program);
        let ended = wait(&mut program);
        if !matches!(ended, Ok(true)) {
            let _ = program.kill();
        }
        let status = program.wait();
        subreaper::forget(program.id());
        let status = status.map_err(broken)?;
        told.map_err(broken)?;
        if !ended.map_err(broken)? {
            return Err(failed(format!("no answer for {} s", PATIENCE.as_secs())));
        }
        let mut answer = String::new();
        from_program.take(MAX_ANSWER).read_to_string(&mut answer).map_err(broken)?;
        match status.success() {
            true => Ok(answer),
            false => Err(failed(format!("{status}: {}", answer.trim()))),
        }
    }
}

/// True if the program ended in time.
fn wait(program: &mut Child) -> std::io::Result<bool> {
    let pidfd = rustix::process::pidfd_open(Pid::from_child(program), PidfdFlags::empty())?;
    Ok(has_ended(pidfd.as_fd(), PATIENCE))
}

fn has_ended(pidfd: BorrowedFd<'_>, within: Duration) -> bool {
    let timeout = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: i64::from(within.subsec_nanos()) };
    let mut polled = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    rustix::event::poll(&mut polled, Some(&timeout)).is_ok_and(|ready| ready > 0)
}

/// One process id a line; other words are for people.
fn numbers(answer: &str) -> Vec<u32> {
    answer.lines().filter_map(|line| line.trim().parse().ok()).collect()
}

/// Ends processes one after the other, on a thread of its own, since the daemon takes its time.
#[derive(Debug)]
pub struct MpsTerminator(Sender<Case>);

/// A process that is to end.
#[derive(Debug)]
struct Case {
    pid: u32,
    pidfd: OwnedFd,
    mps: Arc<MpsTermination>,
}

impl MpsTerminator {
    /// With its thread, which ends with it.
    pub fn start(control: Control) -> std::io::Result<Arc<Self>> {
        let (sender, cases) = channel();
        std::thread::Builder::new().name("mps".to_owned()).spawn(move || run(&control, cases))?;
        Ok(Arc::new(Self(sender)))
    }
}

fn run(control: &Control, cases: Receiver<Case>) {
    for Case { pid, pidfd, mps } in cases {
        if has_ended(pidfd.as_fd(), Duration::ZERO) {
            continue;
        }
        mps.alone.store(true, Ordering::Release);
        match control.terminate(pid) {
            Ok(()) if has_ended(pidfd.as_fd(), LEAVE) => continue,
            Ok(()) => {}
            Err(why) => {
                // Its neighbours are hit as well.
                mps.alone.store(false, Ordering::Release);
                tracing::warn!(pid, "a process is killed while others use the device through MPS: {why}");
            }
        }
        let _ = rustix::process::pidfd_send_signal(&pidfd, Signal::KILL);
    }
}

/// How a process under MPS ends.
#[derive(Debug)]
pub struct MpsTermination {
    terminator: Arc<MpsTerminator>,
    asked: AtomicBool,
    /// True if the daemon ends the process's work, so that other processes go on.
    alone: AtomicBool,
}

impl MpsTermination {
    /// Through this thread.
    pub fn new(terminator: &Arc<MpsTerminator>) -> Arc<Self> {
        Arc::new(Self {
            terminator: terminator.clone(),
            asked: AtomicBool::new(false),
            alone: AtomicBool::new(false),
        })
    }

    /// Has the process ended, soon; once.
    pub fn end(self: &Arc<Self>, pid: u32, pidfd: BorrowedFd<'_>) {
        if self.asked.swap(true, Ordering::AcqRel) {
            return;
        }
        let case = pidfd.try_clone_to_owned().map(|pidfd| Case { pid, pidfd, mps: self.clone() });
        if case.map_or(true, |case| self.terminator.0.send(case).is_err()) {
            let _ = rustix::process::pidfd_send_signal(pidfd, Signal::KILL);
        }
    }

    /// The process is killed otherwise: the daemon need not be asked.
    pub fn give_up(&self) {
        self.asked.store(true, Ordering::Release);
    }

    /// True if the process ended, or is about to end, without harm to others.
    pub fn was_alone(&self) -> bool {
        self.alone.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::process::{Command, Stdio};

    use super::*;

    /// A control program that knows the server 7 with one client, and writes down what it is told.
    fn daemon(dir: &Path, client: u32) -> Control {
        with_client(dir, client, client)
    }

    /// A daemon that has one client and accepts the end of `ends`.
    fn with_client(dir: &Path, client: u32, ends: u32) -> Control {
        let program = dir.join(PROGRAM);
        let script = format!(
            "#!/bin/sh\nread -r line\necho \"$line\" >> {dir}/said\ncase $line in\n\
             get_server_list) echo 6; echo 7 ;;\n\
             'get_client_list 6') echo 'no clients' ;;\n\
             'get_client_list 7') echo 1; echo {client} ;;\n\
             'terminate_client 7 {ends}') echo 0 ;;\n\
             terminate_client*) echo 'Invalid process!'; echo 1 ;;\n\
             *) echo 'what?'; exit 1 ;;\nesac\n",
            dir = dir.display(),
        );
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        // A file that was just written may not be executable yet: another thread may have forked with it open.
        while std::fs::File::options().write(true).open(&program).is_ok()
            && Command::new(&program).stdin(Stdio::null()).output().is_err()
        {}
        std::fs::write(dir.join("said"), "").unwrap();
        Control::of(program.into()).unwrap()
    }

    fn said(dir: &Path) -> String {
        std::fs::read_to_string(dir.join("said")).unwrap()
    }

    fn sleeper() -> (Child, OwnedFd) {
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pidfd = rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        (child, pidfd)
    }

    #[test]
    fn work_is_ended_by_the_daemon_before_the_process_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let (mut child, pidfd) = sleeper();
        let terminator = MpsTerminator::start(daemon(dir.path(), child.id())).unwrap();
        let mps = MpsTermination::new(&terminator);
        for _ in 0..3 {
            mps.end(child.id(), pidfd.as_fd());
        }
        assert!(!child.wait().unwrap().success());
        assert!(mps.was_alone());
        let all = format!(
            "get_server_list\nget_client_list 6\nget_client_list 7\nterminate_client 7 {}\n",
            child.id()
        );
        assert_eq!(said(dir.path()), all, "asked once");
    }

    #[test]
    fn a_process_that_ended_is_none_to_ask_about() {
        let dir = tempfile::tempdir().unwrap();
        let (mut first, first_fd) = sleeper();
        let (mut second, second_fd) = sleeper();
        first.kill().unwrap();
        let terminator = MpsTerminator::start(daemon(dir.path(), second.id())).unwrap();
        has_ended(first_fd.as_fd(), PATIENCE);
        let gone = MpsTermination::new(&terminator);
        gone.end(first.id(), first_fd.as_fd());
        MpsTermination::new(&terminator).end(second.id(), second_fd.as_fd());
        assert!(!second.wait().unwrap().success());
        assert!(
            !said(dir.path()).contains(&format!("terminate_client 7 {}", first.id())) && !gone.was_alone()
        );
        first.wait().unwrap();
    }

    #[test]
    fn without_the_daemons_help_the_process_is_killed_and_others_count_as_hit() {
        for known in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let control = match known {
                // Its client is another process.
                true => daemon(dir.path(), 1),
                false => Control::of(dir.path().join("absent").into()).unwrap(),
            };
            let (mut child, pidfd) = sleeper();
            let words = control.terminate(child.id()).unwrap_err().to_string();
            let expected = if known { "no MPS server has process" } else { "has to be in PATH" };
            assert!(words.contains(expected), "{words}");
            let mps = MpsTermination::new(&MpsTerminator::start(control).unwrap());
            mps.end(child.id(), pidfd.as_fd());
            assert!(!child.wait().unwrap().success());
            assert!(!mps.was_alone());
        }
    }

    #[test]
    fn what_the_daemon_refuses_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let words = daemon(dir.path(), 1).ask("dance").unwrap_err().to_string();
        assert!(words.contains("\"dance\"") && words.contains("what?"), "{words}");
        let words = with_client(dir.path(), 5, 6).terminate(5).unwrap_err().to_string();
        assert!(words.contains("terminate_client 7 5") && words.contains("Invalid process"), "{words}");
    }
}
