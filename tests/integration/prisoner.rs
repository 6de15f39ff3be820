//! A worker that runs an attacker's machine code cannot leave its sandbox (ATTACKS 33). A prisoner goes into the
//! real sandbox, started as a worker is, and makes one attempt after the other, each in a fresh process: under the
//! policy of every kind of device; as root, as another user, and as a plain container lets workers be started.
//! Controls: the same attempts with the sandbox off, and with its outermost layer off.

use std::collections::BTreeMap;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::time::Duration;

use pappus_client::Client;
use pappus_protocol::pipe::Got;
use pappus_protocol::{FromWorker, Kind, Layer, Layers, ToWorker};
use pappus_supervisor::config::SandboxSettings;
use pappus_supervisor::processes::confinement::Confinement;
use pappus_supervisor::processes::launcher::{Launcher, Role, Started};
use pappus_supervisor::processes::process::describe_exit;
use pappus_supervisor::processes::target::DeviceTarget;
use rustix::process::Signal;
use rustix::thread::CapabilitySet;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use crate::fixture::{Supervisor, is_alive, signal, until};
use crate::kit::{self, as_stranger};

/// What the prisoner tries, by its number there, and which layer besides seccomp stands in its way.
const ATTEMPTS: [(&str, &[Layer]); 38] = [
    ("open an internet socket", &[]),
    ("connect to an abstract socket", &[Layer::NetNs, Layer::Landlock]),
    ("read a file", &[Layer::MountNs, Layer::Landlock]),
    ("write a file", &[Layer::MountNs, Layer::Landlock]),
    ("write its own memory through /proc", &[Layer::MountNs, Layer::Landlock]),
    ("open the core pattern", &[Layer::Landlock]),
    ("open another's descriptor", &[Layer::PidNs, Layer::Landlock]),
    ("open another's memory", &[Layer::PidNs, Layer::Landlock]),
    ("change its root", &[Layer::Uid, Layer::UserNs]),
    ("mount", &[Layer::Uid, Layer::UserNs, Layer::Landlock]),
    ("fork", &[]),
    ("execute a program", &[Layer::MountNs, Layer::Landlock]),
    ("execute a memfd", &[]),
    ("trace another", &[Layer::PidNs, Layer::Landlock]),
    ("signal another", &[Layer::PidNs, Layer::Landlock]),
    ("signal another's thread", &[Layer::PidNs, Layer::Landlock]),
    ("read another's memory", &[Layer::PidNs, Layer::Landlock]),
    ("open another's pidfd", &[Layer::PidNs]),
    ("leave its user namespace", &[]),
    ("leave its network namespace", &[Layer::Uid, Layer::UserNs]),
    ("become root", &[Layer::Uid]),
    ("take precedence", &[Layer::Uid, Layer::UserNs]),
    ("raise a limit", &[Layer::Uid, Layer::UserNs]),
    ("io_uring", &[]),
    ("bpf", &[]),
    ("userfaultfd", &[]),
    ("perf", &[]),
    ("keyrings", &[]),
    ("shared memory of System V", &[]),
    ("rename the host", &[Layer::Uid, Layer::UserNs]),
    ("type into the terminal", &[]),
    ("cut the log", &[]),
    ("own a descriptor's signals", &[]),
    ("map memory writable and executable", &[]),
    ("make a pipe in /tmp", &[Layer::MountNs, Layer::Landlock]),
    ("let itself be looked into", &[]),
    ("make a memfd of huge pages", &[]),
    ("map huge pages", &[]),
];
/// Attempts that succeed for any user on any machine with the sandbox off.
const EVERYWHERE: [usize; 8] = [0, 1, 2, 10, 11, 12, 31, 33];
/// What drivers of GPUs may do, and may not be kept from.
const DRIVERS_MAY: [usize; 2] = [33, 37];
/// Enough of them for a second look at every layer.
const SOME: [usize; 12] = [0, 1, 2, 6, 9, 10, 12, 13, 14, 18, 23, 35];

/// How much of the sandbox is left off, as the prisoner is told.
#[derive(Clone, Copy, PartialEq)]
enum Off {
    Nothing = 1,
    Seccomp,
    Landlock,
    Everything,
}

/// The prisoner where every user can execute it: in one place, which every run takes again.
fn prisoner() -> &'static Path {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    PLACE.get_or_init(|| {
        let built = Path::new(env!("CARGO_BIN_EXE_pappus-prisoner"));
        let user = rustix::process::geteuid().as_raw();
        let dir = std::env::temp_dir().join(format!("pappus-prisoner-{user}"));
        if let Err(e) = std::fs::create_dir(&dir) {
            assert_eq!(e.kind(), std::io::ErrorKind::AlreadyExists, "{}: {e}", dir.display());
        }
        std::fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let (place, copy) = (dir.join("prisoner"), dir.join(format!("copy-{}", std::process::id())));
        // Copied by another process: a child of this one, forked meanwhile, would have the file open for
        // writing.
        assert!(Command::new("cp").arg(built).arg(&copy).status().unwrap().success());
        std::fs::rename(&copy, &place).unwrap();
        place
    })
}

/// Someone else's process, and someone else's socket.
struct Neighbour(Child, #[allow(dead_code, reason = "held open")] Option<UnixListener>);

impl Neighbour {
    fn new() -> Self {
        use std::os::linux::net::SocketAddrExt;
        let name = std::os::unix::net::SocketAddr::from_abstract_name("pappus-prisoner").unwrap();
        // Another case may have it already, which does as well.
        Self(Command::new("sleep").arg("600").spawn().unwrap(), UnixListener::bind_addr(&name).ok())
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn started(kind: Kind, off: Off) -> (Started, Layers) {
    // What starts processes is confined like the thread that made it, and must outlive them.
    thread_local! {
        static LAUNCHER: &'static Launcher =
            Box::leak(Box::new(Launcher::new(prisoner(), Confinement::decide(SandboxSettings::default())).unwrap()));
    }
    let target = DeviceTarget { lanes: off as u32, ..DeviceTarget::any(kind) };
    let mut started = LAUNCHER.with(|launcher| launcher.start(Role::Compile, &target, None)).unwrap();
    let layers = heard(&mut started, |message| match message {
        FromWorker::Hello(hello) => hello.layers,
        other => panic!("{other:?}"),
    });
    (started, layers.expect("it ended before its greeting"))
}

fn heard<R>(started: &mut Started, read: impl FnOnce(FromWorker<'_>) -> R) -> Option<R> {
    loop {
        if let Some(frame) = started.inbox.frame().unwrap() {
            return Some(read(FromWorker::decode(frame).unwrap()));
        }
        if started.inbox.wait(Duration::ZERO, None, None).unwrap() == Got::Closed {
            return None;
        }
    }
}

/// What came of an attempt: `did it`, an error, or how the process ended. Also the layers it ran into.
fn attempt(kind: Kind, off: Off, number: usize, neighbour: &Neighbour) -> (String, Layers) {
    let (mut started, layers) = started(kind, off);
    let job = number as u64 | u64::from(neighbour.0.id()) << 32;
    started.outbox.push_to_worker(&ToWorker::Compile { job });
    started.outbox.flush_blocking().unwrap();
    let said = heard(&mut started, |message| match message {
        FromWorker::Refused { fault, .. } => fault.message.to_owned(),
        other => panic!("{other:?}"),
    });
    let came = said.unwrap_or_else(|| describe_exit(started.process.end()));
    // Another program in its place ends with this code, without a word.
    (if came == "exited with code 1" { "did it".to_owned() } else { came }, layers)
}

/// No attempt succeeds; the layers.
fn nothing_works(kind: Kind, attempts: &[usize]) -> Layers {
    let neighbour = Neighbour::new();
    let mut all = Layers::default();
    for &number in attempts {
        let (came, layers) = attempt(kind, Off::Nothing, number, &neighbour);
        let (what, _) = ATTEMPTS[number];
        assert!(layers.has(Layer::Seccomp));
        if !(kind.traits().has_driver && DRIVERS_MAY.contains(&number)) {
            assert_ne!(came, "did it", "{kind}: {what}, in {layers}");
        }
        // A driver still opens files, as far as Landlock permits.
        let by_filter = came.contains("signal 31");
        assert!(by_filter || kind.traits().has_driver, "{kind}: {what}: {came}");
        all = layers;
    }
    all
}

/// What works with the sandbox off, and what still does with seccomp off, or also Landlock.
fn controls(kind: Kind) {
    let neighbour = Neighbour::new();
    let mut not_observed = Vec::new();
    for (number, (what, behind)) in ATTEMPTS.iter().enumerate() {
        let (bare, _) = attempt(kind, Off::Everything, number, &neighbour);
        if bare != "did it" {
            assert!(!EVERYWHERE.contains(&number), "the control of `{what}`: {bare}");
            not_observed.push(format!("{what} ({bare})"));
            continue;
        }
        for off in [Off::Seccomp, Off::Landlock] {
            let (came, layers) = attempt(kind, off, number, &neighbour);
            let in_the_way = behind.iter().filter(|layer| layers.has(**layer)).count();
            assert!(in_the_way == 0 || came != "did it", "without seccomp: {what}, in {layers}");
        }
    }
    eprintln!("not observed here, even without a sandbox: {}", not_observed.join("; "));
}

#[test]
fn nothing_works_in_the_sandbox_of_the_cpu() {
    let all: Vec<_> = (0..ATTEMPTS.len()).collect();
    let layers = nothing_works(Kind::Cpu, &all);
    if rustix::process::geteuid().is_root() {
        assert!(layers.has(Layer::Uid) || layers.has(Layer::UserNs), "{layers}");
    }
}

#[test]
fn nothing_works_in_the_sandbox_of_a_gpu() {
    let all: Vec<_> = (0..ATTEMPTS.len()).collect();
    nothing_works(Kind::Cuda, &all);
}

#[test]
fn controls_work_without_the_sandbox_and_layers_stand_behind_each_other() {
    controls(Kind::Cpu);
}

#[test]
fn nothing_works_where_an_ordinary_user_starts_workers() {
    prisoner();
    let layers = as_stranger(|| Kind::ALL.map(|kind| nothing_works(kind, &SOME)));
    for layers in layers.into_iter().flatten() {
        assert!(!layers.has(Layer::Uid), "{layers}");
        assert!(!layers.has(Layer::PidNs) || layers.has(Layer::UserNs), "{layers}");
    }
}

/// As in a container without any rights: these calls fail, and root is not quite root.
fn in_a_container<T: Send>(absent: &[i64], then: impl FnOnce() -> T + Send) -> T {
    let rules: BTreeMap<_, _> = absent.iter().map(|number| (*number, vec![])).collect();
    let refuse = SeccompAction::Errno(rustix::io::Errno::PERM.raw_os_error() as u32);
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter: BpfProgram =
        SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).unwrap().try_into().unwrap();
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let mut sets = rustix::thread::capabilities(None).unwrap();
            sets.effective -= CapabilitySet::SYS_ADMIN;
            sets.permitted -= CapabilitySet::SYS_ADMIN;
            rustix::thread::set_capabilities(None, sets).unwrap();
            seccompiler::apply_filter(&filter).unwrap();
            then()
        });
        thread.join().unwrap()
    })
}

#[test]
fn nothing_works_in_a_plain_container() {
    prisoner();
    let namespaces = [libc::SYS_unshare, libc::SYS_mount, libc::SYS_setns, libc::SYS_pivot_root];
    let all = in_a_container(&namespaces, || Kind::ALL.map(|kind| nothing_works(kind, &SOME)));
    for layers in all {
        let left: Vec<_> = layers.iter().filter(|layer| layer.name().ends_with("ns")).collect();
        assert_eq!(left, [], "no namespace can be left there");
        assert_eq!(layers.has(Layer::Uid), rustix::process::geteuid().is_root());
    }
}

/// A driver needs the `/proc` of its pid namespace: where none can be mounted, its workers go without.
#[test]
fn a_pid_namespace_without_proc_is_given_up_for_gpus() {
    prisoner();
    let layers = in_a_container(&[libc::SYS_mount], || {
        let (gpu, again, cpu) = (
            started(Kind::Cuda, Off::Nothing),
            started(Kind::Cuda, Off::Nothing),
            started(Kind::Cpu, Off::Nothing),
        );
        [gpu.1, again.1, cpu.1]
    });
    let [gpu, again, cpu] = layers;
    assert_eq!(gpu, again);
    assert!(!gpu.has(Layer::PidNs), "{gpu}");
    // The control: the CPU device needs no /proc. It can have the namespace wherever the network's can be left, too.
    assert_eq!(cpu.has(Layer::PidNs), cpu.has(Layer::NetNs), "{cpu}");
}

/// The kernel is asked to end workers with their supervisor; changing users and namespaces makes it forget.
#[test]
fn workers_end_with_a_killed_supervisor_on_every_host() {
    let namespaces = [libc::SYS_unshare, libc::SYS_mount];
    let program = crate::programs::program("pappus-supervisor");
    let hosts = [
        Some(Supervisor::start()),
        Some(in_a_container(&namespaces, Supervisor::start)),
        // Programs that are built in a home cannot be executed by other users.
        as_stranger(|| program.is_file().then(Supervisor::start)).flatten(),
    ];
    for mut supervisor in hosts.into_iter().flatten() {
        let workers = supervisor.worker_pids();
        // One that runs would find its pipe closed, sooner or later.
        workers.iter().for_each(|pid| signal(*pid, Signal::STOP));
        assert!(workers.iter().all(|pid| is_alive(*pid)));
        supervisor.kill9();
        until("workers are gone", || !workers.iter().any(|pid| is_alive(*pid)));
    }
}

#[test]
fn a_forbidden_system_call_is_reported_to_the_operator() {
    let supervisor = Supervisor::with_worker(prisoner());
    until("the log says so", || supervisor.log().contains("sandbox violation"));
    let client = supervisor.client().status().unwrap();
    assert_eq!(client.devices[0].workers.len(), 1, "it goes on");
}

#[test]
fn status_names_the_layers_of_every_worker() {
    let supervisor = Supervisor::start();
    supervisor.worker_pids();
    let worker = supervisor.device().workers.remove(0);
    assert!(worker.sandbox.contains(&"seccomp".to_owned()), "{:?}", worker.sandbox);
    let shown = supervisor.ok(&["status"]);
    assert!(shown.contains(&worker.sandbox.join(",")), "{shown}");
}

#[test]
fn the_user_of_workers_is_no_tenant() {
    let [refused, other] = [kit::STRANGER, kit::STRANGER + 1].map(|uid| {
        let supervisor = Supervisor::with(&["--worker-uid", &uid.to_string()]);
        as_stranger(|| {
            let client = Client::connect(supervisor.socket());
            client.and_then(|mut client| client.status()).map(drop).map_err(|e| e.to_string())
        })
    });
    // The control: a client whose uid is not the workers' is served, where this test can change its uid.
    assert!(
        matches!(refused, None | Some(Err(_))) && matches!(other, None | Some(Ok(()))),
        "{refused:?} {other:?}"
    );
}

#[test]
fn a_layer_that_is_required_and_missing_ends_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let start = |require: &str| {
        let program = crate::programs::program("pappus-supervisor");
        let flags =
            ["--device", "cpu:workers=1,memory=1MiB", "--sandbox-require", require].map(str::to_owned);
        let mut command = crate::fixture::command(&program, dir.path(), "socket", &flags);
        crate::fixture::run(&mut command)
    };
    let ran = start("seccomp,landlok");
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("`landlok`"), "{}", ran.stderr);
    // No process can leave a namespace from here on.
    let namespaces = [libc::SYS_unshare];
    let ran = in_a_container(&namespaces, || start("seccomp,pidns"));
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("sandbox-require names pidns"), "{}", ran.stderr);
    assert!(ran.stderr.contains("CAP_SYS_ADMIN"), "{}", ran.stderr);
    // The control.
    let supervisor = Supervisor::with(&["--sandbox-require", "seccomp"]);
    let mut client = supervisor.client();
    kit::add_copy(&mut client);
    kit::works(&mut client);
}
