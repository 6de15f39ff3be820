//! A real supervisor in a directory of its own, with as little memory and as few workers as a case needs.
//! It is killed with the case, and its workers with it; the log of a failed case is shown.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use pappus_client::{Client, v1};
use rustix::process::{Pid, Signal};
use tempfile::TempDir;

use crate::programs::program;

/// A folder in a supervisor's directory that is where it and its workers find libraries of drivers first.
pub(crate) const LIBRARIES: &str = "libraries";
/// Far more than anything here takes; a case that waits longer has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How much later than promised something may happen because the machine has other work. Only what would never happen, or
/// by another rule much later, comes after that.
pub(crate) const LATE: Duration = Duration::from_secs(30);
/// Between two looks at a condition.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// A running supervisor.
pub(crate) struct Supervisor {
    child: Child,
    program: PathBuf,
    flags: Vec<String>,
    dir: TempDir,
}

/// What a command printed and how it ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Supervisor {
    /// One worker with 16 MiB.
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// With further flags; `--device` replaces the usual device.
    pub(crate) fn with(flags: &[&str]) -> Self {
        let mut flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        if flags.iter().all(|flag| flag != "--device") {
            flags.extend(["--device".into(), "cpu:workers=1,memory=16MiB".into()]);
        }
        let dir = tempfile::tempdir().unwrap();
        // Clients of other users reach the socket through it.
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        Self::new(program("pappus-supervisor"), flags, dir)
    }

    /// With a configuration file, `pappus.toml` in its directory.
    pub(crate) fn configured(config: &str, flags: &[&str]) -> Self {
        let mut flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        flags.extend(["--config".into(), "pappus.toml".into()]);
        if flags.iter().all(|flag| flag != "--device") {
            flags.extend(["--device".into(), "cpu:workers=1,memory=16MiB".into()]);
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::write(dir.path().join("pappus.toml"), config).unwrap();
        Self::new(program("pappus-supervisor"), flags, dir)
    }

    /// With nothing but a configuration file, `pappus.toml` in its directory, which names its device, too.
    pub(crate) fn from_file(config: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("pappus.toml"), config).unwrap();
        let flags = ["--config", "pappus.toml"].map(str::to_owned).into();
        Self::new(program("pappus-supervisor"), flags, dir)
    }

    /// With another program in the place of its workers.
    pub(crate) fn with_worker(worker: &Path) -> Self {
        let (program, dir) = beside(worker);
        Self::new(program, vec!["--device".into(), "cpu:workers=1,memory=1MiB".into()], dir)
    }

    /// A supervisor of another place, as [`beside`] makes one.
    pub(crate) fn new(program: PathBuf, flags: Vec<String>, dir: TempDir) -> Self {
        let child = spawn(&program, dir.path(), &flags);
        let mut supervisor = Self { child, program, flags, dir };
        supervisor.answers();
        supervisor
    }

    /// A file or folder in its directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path("socket")
    }

    pub(crate) fn admin_socket(&self) -> PathBuf {
        self.path("socket.admin")
    }

    /// Where this user's things are in the state directory.
    pub(crate) fn tenant_dir(&self) -> PathBuf {
        let uid = rustix::process::geteuid().as_raw();
        self.path("state/tenants").join(uid.to_string())
    }

    /// As an update of Pappus does: starts it again without any machine code. The next call of a function makes it again, which
    /// takes a while.
    pub(crate) fn update(&mut self) {
        self.kill9();
        self.forget_code();
        self.restart();
    }

    /// Takes all machine code away. Functions that are in memory miss it.
    pub(crate) fn forget_code(&self) {
        for file in std::fs::read_dir(self.tenant_dir().join("code")).unwrap() {
            std::fs::remove_file(file.unwrap().path()).unwrap();
        }
    }

    /// Writes a file into its directory, which commands run in.
    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.socket()).unwrap()
    }

    pub(crate) fn admin(&self) -> Client {
        Client::connect(self.admin_socket()).unwrap()
    }

    /// Runs the `pappus` command in its directory, on its socket.
    pub(crate) fn pappus(&self, args: &[&str]) -> Ran {
        self.pappus_with(&[], args)
    }

    /// The same with these variables in its environment.
    pub(crate) fn pappus_with(&self, variables: &[(&str, &str)], args: &[&str]) -> Ran {
        run(Command::new(program("pappus"))
            .current_dir(self.dir.path())
            .env("PAPPUS_SOCKET", self.socket())
            .envs(variables.iter().copied())
            .args(args))
    }

    /// As [`Supervisor::pappus`], which must end with code 0; what it printed.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let ran = self.pappus(args);
        assert_eq!(ran.code, 0, "{args:?}: {}", ran.stderr);
        ran.stdout
    }

    pub(crate) fn status(&self) -> v1::Status {
        self.admin().status().unwrap()
    }

    /// The only device.
    pub(crate) fn device(&self) -> v1::DeviceStatus {
        self.status().devices.remove(0)
    }

    /// Process ids of its workers, once those that are wanted are ready.
    pub(crate) fn worker_pids(&self) -> Vec<u32> {
        let mut pids = Vec::new();
        until("workers are ready", || {
            let mut workers = self.device().workers;
            workers.retain(|worker| worker.state != "unused");
            let ready = |worker: &v1::WorkerStatus| worker.pid != 0 && worker.state != "starting";
            pids = workers.iter().map(|worker| worker.pid).collect();
            !pids.is_empty() && workers.iter().all(ready)
        });
        pids
    }

    /// Process ids of all its children that run: workers, standbys, compilers.
    pub(crate) fn children(&self) -> Vec<u32> {
        let mut children = self.all_children();
        children.retain(|pid| is_alive(*pid));
        children
    }

    /// The same, with those that ended and wait to be collected.
    pub(crate) fn all_children(&self) -> Vec<u32> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        let lists = threads.map(|thread| std::fs::read_to_string(thread.unwrap().path().join("children")));
        // A thread may end while it is looked at.
        let children = lists.flat_map(|list| {
            let list = list.unwrap_or_default();
            list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<u32>>()
        });
        let mut children: Vec<u32> = children.collect();
        children.sort_unstable();
        children
    }

    /// The only worker has a call in it.
    pub(crate) fn until_running(&self) {
        until("a call runs", || self.device().running == 1);
    }

    /// Kills the worker of a call that runs, other than `but`. It runs when it has taken processor time: the
    /// scheduler gives a call to a worker a moment before it is written, and one that was not is no suspect.
    pub(crate) fn kill_busy(&self, but: Option<u32>) -> u32 {
        let mut busy = None;
        until("a call runs", || {
            let workers = self.device().workers.into_iter();
            let other = |pid: &u32| *pid != 0 && Some(*pid) != but;
            busy = workers.filter(|worker| worker.state == "busy").map(|worker| worker.pid).find(other);
            busy.is_some()
        });
        let pid = busy.unwrap();
        let before = ticks(pid);
        until("the call takes processor time", || ticks(pid) >= before + 2);
        signal(pid, Signal::KILL);
        pid
    }

    /// Ends the workers of calls whose clients are gone, if they still run.
    pub(crate) fn end_detached(&self) {
        let busy = self.device().workers.into_iter().filter(|worker| worker.state == "busy");
        busy.for_each(|worker| signal(worker.pid, Signal::KILL));
    }

    /// Kills the worker of the only running call, and again where it runs again, as often as it takes until the call is
    /// given up.
    pub(crate) fn kill_call(&self) {
        let first = self.kill_busy(None);
        let second = self.kill_busy(Some(first));
        self.kill_busy(Some(second));
    }

    /// Its own process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How much memory it takes, in bytes.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        1024 * line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    }

    /// Asks it to end.
    pub(crate) fn terminate(&self) {
        signal(self.pid(), Signal::TERM);
    }

    /// Waits for its end.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        until("the supervisor ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// Ends it as a power cut would.
    pub(crate) fn kill9(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again on the same paths, after it ended.
    pub(crate) fn restart(&mut self) {
        assert!(self.child.try_wait().unwrap().is_some(), "it still runs");
        self.child = spawn(&self.program, self.dir.path(), &self.flags);
        self.answers();
    }

    /// Starts it again on the same paths, though the process before, which was told to end, is not gone; that process.
    pub(crate) fn restart_over(&mut self) -> Child {
        let bound = || std::fs::symlink_metadata(self.admin_socket()).and_then(|found| found.modified()).ok();
        let old = bound();
        let again = spawn(&self.program, self.dir.path(), &self.flags);
        // What the process before listened on still takes connections, which nobody serves.
        until("it has sockets of its own", || bound().is_some_and(|time| Some(time) != old));
        let before = std::mem::replace(&mut self.child, again);
        self.answers();
        before
    }

    /// What a second supervisor on the same state directory says.
    pub(crate) fn second(&self, socket: &str) -> Ran {
        let device = ["--device", "cpu:workers=1,memory=1MiB"].map(str::to_owned);
        run(&mut command(&self.program, self.dir.path(), socket, &device))
    }

    fn answers(&mut self) {
        until("the supervisor answers", || {
            if let Some(status) = self.child.try_wait().unwrap() {
                let log = self.log();
                panic!("the supervisor ended, {status}:\n{log}");
            }
            Client::connect(self.socket()).is_ok() && Client::connect(self.admin_socket()).is_ok()
        });
    }

    /// What it logged so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let log = self.log();
        if std::thread::panicking() {
            eprintln!("--- the supervisor's log\n{log}---");
        } else {
            assert!(!log.contains("panicked at"), "one of the supervisor's threads panicked:\n{log}");
        }
    }
}

/// The supervisor's program in a directory where its worker is another one.
pub(crate) fn beside(worker: &Path) -> (PathBuf, TempDir) {
    // A supervisor finds its worker beside itself. A link, since a file that was just written cannot always be
    // executed: a process forked meanwhile may still hold it open.
    let original = program("pappus-supervisor");
    let dir = tempfile::tempdir_in(original.parent().unwrap()).unwrap();
    let linked = dir.path().join("pappus-supervisor");
    std::fs::hard_link(original, &linked).unwrap();
    std::os::unix::fs::symlink(worker, dir.path().join("pappus-worker")).unwrap();
    (linked, dir)
}

/// A supervisor that is to start in `dir`. A script that starts one, `*.sh`, is read by the shell: a file that was just
/// written cannot always be executed.
pub(crate) fn command(program: &Path, dir: &Path, socket: &str, flags: &[String]) -> Command {
    let mut command = if program.extension().is_some_and(|extension| extension == "sh") {
        let mut shell = Command::new("/bin/sh");
        shell.arg(program);
        shell
    } else {
        Command::new(program)
    };
    command.current_dir(dir).args(["--socket", socket, "--state-dir", "state"]).args(flags);
    if dir.join(LIBRARIES).is_dir() {
        command.env("LD_LIBRARY_PATH", dir.join(LIBRARIES));
    }
    command
}

fn spawn(program: &Path, dir: &Path, flags: &[String]) -> Child {
    let log = File::options().create(true).append(true).open(dir.join("log")).unwrap();
    command(program, dir, "socket", flags)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}

/// Runs a command to its end.
pub(crate) fn run(command: &mut Command) -> Ran {
    let output = command.stdin(Stdio::null()).output().unwrap();
    Ran {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Waits until a condition holds; fails when that takes far too long.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "waited in vain until {what}");
        std::thread::park_timeout(LOOK_AGAIN);
    }
}

/// Processor time that a process took, in hundredths of a second; none if it is gone.
pub(crate) fn ticks(pid: u32) -> u64 {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return 0 };
    // Behind the name, which may have spaces: the state is the first word, user time the twelfth.
    stat.rsplit(')').next().unwrap().split_whitespace().nth(11).unwrap().parse().unwrap()
}

/// Sends a signal.
pub(crate) fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// True if a process runs; one that only waits to be collected does not.
pub(crate) fn is_alive(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    // PID (NAME) STATE …, where the name may hold anything.
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    !matches!(state, Some('Z' | 'X') | None)
}
