//! The worker's program as a process: the channels where it expects them, and what it writes kept.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use pappus_protocol::from_worker::CodeInfo;
use pappus_protocol::pipe::{self, Got, Inbox, Outbox};
use pappus_protocol::{Fault, FromWorker, Kind, ToWorker, control};
use pappus_shmem::{ValidatedMemfd, memfd};
use rustix::fs::MemfdFlags;

/// What a process is started with.
#[derive(Clone, Copy)]
pub struct Options {
    pub device: &'static str,
    pub lanes: u32,
    /// Calls end in the middle of a kernel when their time is over.
    pub interruptible: bool,
    /// Serves strangers beside each other: `interruptible` code only.
    pub shared: bool,
    /// Clears nothing: the control of every test for leaks. Programs built with `test-hooks` listen to it.
    pub uncleared: bool,
    /// Where the driver's library is, if not where the machine has it.
    pub library: Option<&'static Path>,
}

impl Options {
    pub const CPU: Self = Self {
        device: "cpu",
        lanes: 1,
        interruptible: false,
        shared: false,
        uncleared: false,
        library: None,
    };
    pub const CUDA: Self = Self { device: "cuda", ..Self::CPU };
    pub const SHARED_CUDA: Self = Self { interruptible: true, shared: true, ..Self::CUDA };
    pub const HIP: Self = Self { device: "hip", ..Self::CPU };
}

/// A process and the test's ends of its channels.
pub struct Started {
    pub program: Program,
    pub to: OwnedFd,
    pub from: OwnedFd,
    pub control: OwnedFd,
}

/// A running process; it ends with this.
pub struct Program {
    pub child: Child,
    stdout: OwnedFd,
    stderr: OwnedFd,
    /// Open until the shell has opened them by their paths.
    _shared: [OwnedFd; 2],
}

/// Where the program is: where the operator says, beside this test, or where cargo built it.
pub fn path() -> PathBuf {
    let here = || Some(std::env::current_exe().ok()?.parent()?.to_owned());
    let folders = [std::env::var_os("PAPPUS_BIN_DIR").map(PathBuf::from), here()];
    let mut programs = folders.into_iter().flatten().map(|folder| folder.join("pappus-worker"));
    programs.find(|path| path.is_file()).unwrap_or_else(|| env!("CARGO_BIN_EXE_pappus-worker").into())
}

/// Starts a role; a shell puts the channels where the worker expects them.
pub fn start(role: &str, options: &Options, staging: &ValidatedMemfd, turns: &ValidatedMemfd) -> Started {
    const SCRIPT: &str = r#"exec "$0" "$1" --device "$2" --lanes "$3" 3<&0 4>&1 5<&2 6<>"$4" 7<>"$5" </dev/null >>"$6" 2>>"$7" $8 $9"#;
    let (commands, to) = pipe::pipe().unwrap();
    let (from, answers) = pipe::pipe().unwrap();
    let (ours, theirs) = control::pair().unwrap();
    let shared = [staging, turns].map(|memfd| memfd.as_fd().try_clone_to_owned().unwrap());
    let own = |fd: i32| format!("/proc/{}/fd/{fd}", std::process::id());
    let log = || rustix::fs::memfd_create("log", MemfdFlags::CLOEXEC).unwrap();
    let (stdout, stderr) = (log(), log());
    let child = Command::new("/bin/sh")
        .args(["-c", SCRIPT])
        .arg(path())
        .args([role, options.device, &options.lanes.to_string()])
        .args(shared.each_ref().map(|fd| own(fd.as_raw_fd())))
        .args([own(stdout.as_raw_fd()), own(stderr.as_raw_fd())])
        .args(options.interruptible.then_some("--interruptible"))
        .args(options.shared.then_some("--shared-limit-us=10000000"))
        .env_clear()
        .envs(environment(options))
        .stdin(commands)
        .stdout(answers)
        .stderr(theirs)
        .spawn()
        .unwrap();
    Started { program: Program { child, stdout, stderr, _shared: shared }, to, from, control: ours }
}

/// As the supervisor sets it for the device that `PAPPUS_TEST_DEVICE` names, or for the first one that is there.
fn environment(options: &Options) -> Vec<(&'static str, OsString)> {
    let mut environment = Vec::new();
    let kind: Kind = options.device.parse().unwrap();
    if let Some(driver) = &kind.traits().environment {
        let inherited = driver.passed.iter().chain([&driver.visible, &driver.positions]);
        environment.extend(inherited.filter_map(|name| Some((*name, std::env::var_os(name)?))));
        environment.extend(driver.fixed.iter().map(|(name, value)| (*name, value.into())));
        environment.push((driver.queues, "32".into()));
        let named = std::env::var("PAPPUS_TEST_DEVICE").unwrap_or_default();
        if let Some(device) = named.strip_prefix(kind.name()).and_then(|rest| rest.strip_prefix(':')) {
            // A position is one among the devices that are shown.
            let position = device.parse::<usize>().ok();
            let shown = std::env::var(driver.positions).unwrap_or_default();
            let nth = position.and_then(|nth| shown.split(',').nth(nth)).filter(|device| !device.is_empty());
            let variable = if position.is_some() { driver.positions } else { driver.visible };
            environment.retain(|(name, _)| *name != variable);
            environment.push((variable, nth.unwrap_or(device).into()));
        }
    }
    if let Some(library) = options.library {
        environment.retain(|(name, _)| *name != "LD_LIBRARY_PATH");
        environment.push(("LD_LIBRARY_PATH", library.into()));
    }
    if options.uncleared {
        environment.push(("PAPPUS_TEST_UNCLEARED", "1".into()));
    }
    environment
}

impl Program {
    /// Waits for its end, which must be one without an error.
    pub fn end(&mut self) -> Result<(), String> {
        match self.child.wait().unwrap() {
            status if status.success() => Ok(()),
            status => Err(status.to_string()),
        }
    }

    /// SIGKILL.
    pub fn kill(&mut self) -> ExitStatus {
        self.child.kill().unwrap();
        self.child.wait().unwrap()
    }

    /// Everything that the program wrote to both streams so far.
    pub fn said(&self) -> String {
        let read = |fd: &OwnedFd| std::fs::read(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
        String::from_utf8_lossy(&[read(&self.stdout), read(&self.stderr)].concat()).into_owned()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- the worker's log\n{}---", self.said());
        }
    }
}

/// Has a module judged and compiled by a process of its own.
pub fn compile(options: &Options, module: &[u8]) -> Result<(Vec<u8>, CodeInfo), Fault> {
    // Compiling needs no shared memory: any descriptor does.
    let none = memfd::arena("none", 4096).unwrap();
    let started = start("compile", options, &none, &none);
    let (mut to, mut from) = (Outbox::new(started.to), Inbox::new(started.from));
    let memfd = memfd::sealed("module", module).unwrap();
    control::send(started.control.as_fd(), 1, &[memfd.as_fd()]).unwrap();
    to.push_to_worker(&ToWorker::Compile { job: 1 });
    to.flush_blocking().unwrap();
    let found = loop {
        if let Some(frame) = from.frame().unwrap() {
            match FromWorker::decode(frame).unwrap() {
                FromWorker::Hello(_) => {}
                FromWorker::Compiled { job: 1, module } => break module,
                FromWorker::Refused { job: 1, fault } => return Err(fault.to_fault()),
                other => panic!("{other:?}"),
            }
        } else {
            let got = from.wait(Duration::ZERO, None, None).unwrap();
            assert_ne!(got, Got::Closed, "the compiler ended: {}", started.program.said());
        }
    };
    let code = control::recv(&started.control, 1, 1).unwrap().remove(0);
    let code = memfd::judge_sealed(code, 1 << 30).unwrap();
    let mut bytes = vec![0; code.bytes() as usize];
    code.read_at(0, &mut bytes).unwrap();
    Ok((bytes, found))
}
