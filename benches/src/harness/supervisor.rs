//! A supervisor of one's own: everything it owns lies in a temporary folder, and it is ended and
//! reaped on drop.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pappus_client::Client;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, Uid, kill_process, pidfd_open, pidfd_send_signal};
use tempfile::TempDir;

use crate::Result;

const PROGRAM: &str = "pappus-supervisor";
/// How long it may take to be ready, and to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a supervisor that is dropped may take to end by itself before it is killed.
const GRACE: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// What supervisors leave between their lives: the state directory, and their sockets and logs.
#[derive(Debug)]
pub struct Home(TempDir);

/// Resident memory of a process.
#[derive(Debug, Clone, Copy)]
pub struct Resident {
    /// All of it, in bytes.
    pub all: f64,
    /// Without what is backed by files (its program), in bytes.
    pub anonymous: f64,
}

/// A running supervisor.
#[derive(Debug)]
pub struct Supervisor {
    child: Child,
    socket: PathBuf,
    /// From its start to its first answer, in nanoseconds.
    pub start_ns: u64,
}

/// Kills the worker that has done the most, and returns when it is gone.
pub fn kill_worker(admin: &mut Client) -> Result<()> {
    let status = admin.status()?;
    let workers = status.devices.iter().flat_map(|device| &device.workers);
    let worker = workers.filter(|worker| worker.state == "idle" || worker.state == "busy");
    let worker = worker.max_by_key(|worker| worker.completed).ok_or("no worker to kill")?;
    let pid = Pid::from_raw(worker.pid.try_into()?).ok_or("a worker without a process")?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    pidfd_send_signal(&pidfd, Signal::KILL)?;
    let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&patience))? {
        0 => Err(format!("a killed worker was not gone after {} s", PATIENCE.as_secs()).into()),
        _ => Ok(()),
    }
}

impl Home {
    /// An empty one.
    pub fn new() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("pappus-bench-").tempdir()?;
        // Tenants with other uids reach the socket through it.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        Ok(Self(folder))
    }

    /// Supervisors that are started from now on have this configuration.
    pub fn configure(&self, toml: &str) -> Result<()> {
        Ok(fs::write(self.configuration(), toml)?)
    }

    fn configuration(&self) -> PathBuf {
        self.0.path().join("pappus.toml")
    }

    /// Starts a supervisor and waits until all its workers are ready. Several devices are separated by spaces.
    pub fn start(&self, device: &str) -> Result<Supervisor> {
        self.start_with(device, &self.0.path().join("log"))
    }

    /// As [`Home::start`], with its log in a file that may outlast this.
    pub fn start_with(&self, device: &str, log: &Path) -> Result<Supervisor> {
        self.start_program(&mut Command::new(std::env::current_exe()?.with_file_name(PROGRAM)), device, log)
    }

    /// As [`Home::start_with`], with workers that clear nothing: those of the tests, where they are built.
    pub fn start_uncleared(&self, device: &str, log: &Path) -> Result<Supervisor> {
        let program = std::env::current_exe()?.with_file_name("tests").join(PROGRAM);
        self.start_program(Command::new(program).env("PAPPUS_TEST_UNCLEARED", "1"), device, log)
    }

    fn start_program(&self, command: &mut Command, device: &str, log: &Path) -> Result<Supervisor> {
        let folder = self.0.path();
        let socket = folder.join("pappus.sock");
        if self.configuration().exists() {
            command.arg("--config").arg(self.configuration());
        }
        let begin = Instant::now();
        let child = command
            .arg("--socket")
            .arg(&socket)
            .arg("--state-dir")
            .arg(folder.join("state"))
            .args(device.split_whitespace().flat_map(|device| ["--device", device]))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(log)?)
            .spawn()
            .map_err(|e| {
                let program = command.get_program().display();
                format!("cannot start {program}: {e}; build it with `cargo build --release --bins`")
            })?;
        let mut supervisor = Supervisor { child, socket, start_ns: 0 };
        supervisor.wait_ready(begin, log)?;
        Ok(supervisor)
    }
}

impl Supervisor {
    fn wait_ready(&mut self, begin: Instant, log: &Path) -> Result<()> {
        while begin.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait()? {
                let log = fs::read_to_string(log).unwrap_or_default();
                return Err(format!("{PROGRAM} ended ({status}); its log:\n{log}").into());
            }
            if let Ok(mut client) = Client::connect(&self.socket) {
                let status = client.status()?;
                if self.start_ns == 0 {
                    self.start_ns = super::sampling::nanoseconds(begin);
                }
                let mut workers = status.devices.iter().flat_map(|device| &device.workers);
                if workers.all(|worker| worker.state != "starting") {
                    return Ok(());
                }
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Err(format!("{PROGRAM} was not ready after {} s", PATIENCE.as_secs()).into())
    }

    /// A fresh connection.
    pub fn connect(&self) -> Result<Client> {
        Ok(Client::connect(&self.socket)?)
    }

    /// A fresh connection of a tenant with another uid, which only root can make.
    pub fn connect_as(&self, uid: u32) -> Result<Client> {
        // The kernel tells the supervisor the uid of the thread that connects: a thread changes its uid, connects and ends.
        let connect = || -> Result<Client, String> {
            rustix::thread::set_thread_uid(Uid::from_raw(uid))
                .map_err(|e| format!("cannot become uid {uid}: {e}; run this as root"))?;
            Client::connect(&self.socket).map_err(|e| e.to_string())
        };
        let joined = std::thread::scope(|scope| scope.spawn(connect).join());
        Ok(joined.unwrap_or_else(|_| Err("the thread that connects panicked".into()))?)
    }

    /// Its socket for clients.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// A fresh connection to the admin socket.
    pub fn admin(&self) -> Result<Client> {
        let mut admin = self.socket.clone().into_os_string();
        admin.push(".admin");
        Ok(Client::connect(PathBuf::from(admin))?)
    }

    /// Changes a setting.
    pub fn set(&self, name: &str, value: impl ToString) -> Result<()> {
        let change = HashMap::from([(name.to_owned(), value.to_string())]);
        self.admin()?.settings(change)?;
        Ok(())
    }

    /// The supervisor's resident memory, without its workers'.
    pub fn resident(&self) -> Result<Resident> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let bytes = |key: &str| -> Result<f64> {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
            Ok(kib.ok_or_else(|| format!("/proc says nothing about {key}"))? * 1024.0)
        };
        Ok(Resident { all: bytes("VmRSS:")?, anonymous: bytes("RssAnon:")? })
    }

    /// Asks it to end, as an orchestrator would, and waits until it has.
    pub fn stop(mut self) -> Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("{PROGRAM} ended: {status}").into()),
                None => std::thread::sleep(LOOK_EVERY),
            }
        }
        Err(format!("{PROGRAM} did not end within {} s of SIGTERM", PATIENCE.as_secs()).into())
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        // Asked first: what its workers hold of a device is then given back before anything else is measured.
        // Another process may have the number of one that was reaped.
        let begin = Instant::now();
        if matches!(self.child.try_wait(), Ok(None)) {
            // It fails only where it has just ended.
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        }
        while begin.elapsed() < GRACE && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(LOOK_EVERY);
        }
        // Both fail only where it has ended and been reaped already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
