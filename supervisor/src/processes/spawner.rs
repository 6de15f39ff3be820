//! The thread that starts processes. This thread has a table of descriptors of its own, without any of a client's: a
//! process forked from another thread would hold copies of all of them until it runs its program. To close a
//! descriptor of a client may take as long as the client likes, and the process would not start before.

use std::cmp::Ordering;
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use pappus_shmem::fds::{self, MAX_FDS};
use pappus_shmem::table;
use rustix::io::{Errno, FdFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::subreaper;
use crate::sync::{OrderedMutex, rank};

/// Above the numbers of descriptors that processes are given.
const ABOVE: RawFd = 64;

/// What is to run.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) arguments: Vec<OsString>,
    /// None: that of the supervisor.
    pub(super) environment: Option<Vec<(OsString, OsString)>>,
}

#[derive(Debug)]
struct Job {
    /// The number that its descriptors were sent with.
    number: u64,
    program: Program,
    /// True if the program's file was sent behind the other descriptors.
    is_open: bool,
    /// Numbers in the process for the descriptors that were sent, in their order.
    numbers: Vec<RawFd>,
    answer: SyncSender<std::io::Result<Child>>,
}

/// The thread. Dropping the spawner ends it, and the processes that are to end with their starter.
#[derive(Debug)]
pub(super) struct Spawner {
    to_thread: OrderedMutex<ToThread, { rank::SPAWNER }>,
}

#[derive(Debug)]
struct ToThread {
    jobs: Sender<Job>,
    /// Descriptors of each job, sent before it with its number.
    socket: OwnedFd,
    /// Jobs so far.
    number: u64,
}

impl Spawner {
    /// To be started before there are clients: what is open now is closed in its table.
    pub(super) fn start() -> std::io::Result<Self> {
        let (socket, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let (jobs, received) = channel();
        table::spawn_apart("spawner", out_of_the_way(theirs)?, move |theirs| run(&theirs, &received))?;
        Ok(Self { to_thread: OrderedMutex::new(ToThread { jobs, socket, number: 0 }) })
    }

    /// Starts a process that has these descriptors at these numbers.
    pub(super) fn spawn(
        &self,
        program: Program,
        descriptors: &[(BorrowedFd<'_>, RawFd)],
    ) -> std::io::Result<Child> {
        self.give(None, program, descriptors)
    }

    /// The same with a program that is open already, whatever lies at its path now.
    pub(super) fn spawn_file(
        &self,
        file: BorrowedFd<'_>,
        program: Program,
        descriptors: &[(BorrowedFd<'_>, RawFd)],
    ) -> std::io::Result<Child> {
        self.give(Some(file), program, descriptors)
    }

    fn give(
        &self,
        file: Option<BorrowedFd<'_>>,
        program: Program,
        descriptors: &[(BorrowedFd<'_>, RawFd)],
    ) -> std::io::Result<Child> {
        let ended = || std::io::Error::other("the thread that starts processes ended");
        let (mut passed, numbers): (Vec<_>, Vec<_>) = descriptors.iter().copied().unzip();
        passed.extend(file);
        let (answer, answered) = sync_channel(1);
        {
            let mut to_thread = self.to_thread.lock();
            to_thread.number += 1;
            let number = to_thread.number;
            fds::send(to_thread.socket.as_fd(), &number.to_le_bytes(), &passed)?;
            to_thread
                .jobs
                .send(Job { number, program, is_open: file.is_some(), numbers, answer })
                .map_err(|_| ended())?;
        }
        answered.recv().map_err(|_| ended())?
    }
}

fn run(socket: &OwnedFd, jobs: &Receiver<Job>) {
    for Job { number, program, is_open, numbers, answer } in jobs {
        let passed = receive(socket, number, numbers.len() + usize::from(is_open));
        let started = passed.and_then(|passed| start(program, &numbers, passed));
        if let Err(unheard) = answer.send(started)
            && let Ok(mut child) = unheard.0
        {
            let _ = child.kill();
            let _ = child.wait();
            subreaper::forget(child.id());
        }
    }
}

/// The descriptors of a job. What an earlier one did not take, because it failed, is closed.
fn receive(socket: &OwnedFd, number: u64, count: usize) -> std::io::Result<Vec<OwnedFd>> {
    loop {
        let (mut sent, mut passed) = ([0; size_of::<u64>()], Vec::with_capacity(MAX_FDS));
        let received = fds::recv(socket.as_fd(), &mut sent, &mut passed)?;
        if received.bytes != sent.len() {
            return Err(std::io::Error::other("the socket of the thread that starts processes is closed"));
        }
        match u64::from_le_bytes(sent).cmp(&number) {
            Ordering::Less => {}
            Ordering::Equal if !received.lost && passed.len() == count => return Ok(passed),
            Ordering::Equal | Ordering::Greater => return Err(rustix::io::Errno::MFILE.into()),
        }
    }
}

/// A descriptor above those that processes are given.
fn out_of_the_way(fd: OwnedFd) -> std::io::Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(fd, ABOVE).map_err(|why| match why {
        // The number is above the limit, which was lowered: the same shortage as when all below it are in use.
        Errno::INVAL => Errno::MFILE.into(),
        why => why.into(),
    })
}

/// Starts a process. Its descriptors get their numbers in this thread's own table before: nothing is to be done between
/// fork and program, so that the process needs no copy of the supervisor's memory (`posix_spawn`), which takes the
/// longer the more tenants have in it.
fn start(program: Program, numbers: &[RawFd], passed: Vec<OwnedFd>) -> std::io::Result<Child> {
    let mut passed = passed.into_iter().map(out_of_the_way).collect::<Result<Vec<_>, _>>()?;
    // Opened by its number in the process, which has it until the program runs.
    let file = if passed.len() > numbers.len() { passed.pop() } else { None };
    let path = file.as_ref().map(|file| format!("/proc/self/fd/{}", file.as_raw_fd()).into());
    let mut command = Command::new(path.as_ref().unwrap_or(&program.path));
    command.arg0(&program.path);
    command.args(program.arguments).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if let Some(environment) = program.environment {
        command.env_clear().envs(environment);
    }
    let mut placed = Vec::with_capacity(passed.len());
    for (fd, number) in passed.into_iter().zip(numbers) {
        match *number {
            0 => drop(command.stdin(fd)),
            1 => drop(command.stdout(fd)),
            2 => drop(command.stderr(fd)),
            number => {
                let at = rustix::io::fcntl_dupfd_cloexec(&fd, number)?;
                if at.as_raw_fd() != number {
                    return Err(std::io::Error::other("two descriptors of a process have one number"));
                }
                rustix::io::fcntl_setfd(&at, FdFlags::empty())?;
                placed.push(at);
            }
        }
    }
    // They are closed here with the command: an end of a pipe that the process closes is noticed.
    subreaper::spawn(&mut command)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn shell(words: &str) -> Program {
        Program {
            path: "/bin/sh".into(),
            arguments: vec!["-c".into(), words.into()],
            environment: Some(Vec::new()),
        }
    }

    #[test]
    fn a_process_has_the_descriptors_that_it_was_given_and_no_other() {
        let spawner = Spawner::start().unwrap();
        // Not closed when a program runs, so that the program can list it.
        let (others, _write) = rustix::pipe::pipe().unwrap();
        // At a number that a program does not give to what it opens itself.
        let others = rustix::io::fcntl_dupfd_cloexec(&others, 100).unwrap();
        rustix::io::fcntl_setfd(&others, rustix::io::FdFlags::empty()).unwrap();
        let (read, write) = std::io::pipe().unwrap();
        let listed = |spawn: &dyn Fn(&str) -> Child, mut read: std::io::PipeReader| {
            let mut child = spawn("echo /proc/self/fd/* >&9");
            assert!(child.wait().unwrap().success());
            subreaper::forget(child.id());
            let mut buffer = [0; 4096];
            let bytes = read.read(&mut buffer).unwrap();
            let listed = String::from_utf8_lossy(&buffer[..bytes]).into_owned();
            let other = format!("/proc/self/fd/{}", rustix::fd::AsRawFd::as_raw_fd(&others));
            listed.split_whitespace().any(|one| one == other)
        };
        let given = |words: &str| spawner.spawn(shell(words), &[(write.as_fd(), 9)]).unwrap();
        assert!(!listed(&given, read.try_clone().unwrap()));
        // The control: a process that this thread forks has it.
        let forked = |words: &str| {
            let own = words.replace(">&9", "");
            Command::new("/bin/sh").args(["-c", &own]).stdout(write.try_clone().unwrap()).spawn().unwrap()
        };
        assert!(listed(&forked, read));
    }

    #[test]
    fn descriptors_that_an_earlier_job_did_not_take_are_not_the_next_ones() {
        let spawner = Spawner::start().unwrap();
        let (stray, _other) = std::io::pipe().unwrap();
        let (mut read, write) = std::io::pipe().unwrap();
        {
            let mut to_thread = spawner.to_thread.lock();
            to_thread.number += 1;
            fds::send(to_thread.socket.as_fd(), &to_thread.number.to_le_bytes(), &[stray.as_fd()]).unwrap();
        }
        let mut child = spawner.spawn(shell("echo >&9"), &[(write.as_fd(), 9)]).unwrap();
        assert!(child.wait().unwrap().success());
        subreaper::forget(child.id());
        drop(write);
        assert_eq!(read.read(&mut [0; 2]).unwrap(), 1);
    }

    #[test]
    fn a_program_that_is_open_runs_also_when_another_one_lies_at_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        std::os::unix::fs::symlink("/bin/sh", &path).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "another one").unwrap();
        let (mut read, write) = std::io::pipe().unwrap();
        let program = |words| Program { path: path.clone(), ..shell(words) };
        let spawner = Spawner::start().unwrap();
        let mut child =
            spawner.spawn_file(file.as_fd(), program("echo $0 >&9"), &[(write.as_fd(), 9)]).unwrap();
        assert!(child.wait().unwrap().success());
        subreaper::forget(child.id());
        drop(write);
        let mut said = String::new();
        read.read_to_string(&mut said).unwrap();
        assert_eq!(said.trim(), path.to_str().unwrap());
        // The control.
        assert!(spawner.spawn(program("exit 0"), &[]).is_err());
    }

    #[test]
    fn a_program_that_cannot_be_started_is_an_error() {
        let spawner = Spawner::start().unwrap();
        let program = Program { path: "/nonexistent".into(), ..shell("") };
        let why = spawner.spawn(program, &[]).unwrap_err();
        assert_eq!(why.kind(), std::io::ErrorKind::NotFound);
        assert!(spawner.spawn(shell("exit 0"), &[]).unwrap().wait().unwrap().success());
    }
}
