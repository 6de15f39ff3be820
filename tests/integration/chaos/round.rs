//! One run: a supervisor, its clients, an injector of disturbances; then the judgement.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use fastrand::Rng;
use pappus_client::{Client, Code};

use super::caller::Run;
use super::checker::check;
use super::clients::{ACTORS, become_tenant, live};
use super::drift;
use super::functions::{Kind, MEMORY, OVERRUN_LIMIT};
use super::history::{Answer, End, Event, What, listed};
use super::injector::Injector;
use crate::disk::TinyDisk;
use crate::fixture::{Supervisor, beside, until};

/// Both, or the first one.
const DEVICES: [&str; 2] = ["cpu", "cpu:1"];

/// How a run is to be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    /// Decides everything that is decided here.
    pub(crate) seed: u64,
    /// Faults of the injector.
    pub(crate) faults: u32,
}

/// What came of it.
#[derive(Debug, Default, Clone)]
pub(crate) struct Outcome {
    /// What was done, how often: by the injector, by hostile kernels, by rude clients.
    pub(crate) injected: BTreeMap<String, u64>,
    /// Calls of clients that did nothing wrong: all, successful ones, ones refused for an injected reason,
    /// ones that ended with the connection.
    pub(crate) neighbours: u64,
    pub(crate) right: u64,
    pub(crate) refused: u64,
    pub(crate) unanswered: u64,
    /// All calls.
    pub(crate) calls: u64,
}

impl Outcome {
    pub(crate) fn add(&mut self, other: &Self) {
        for (what, times) in &other.injected {
            *self.injected.entry(what.clone()).or_default() += times;
        }
        self.neighbours += other.neighbours;
        self.right += other.right;
        self.refused += other.refused;
        self.unanswered += other.unanswered;
        self.calls += other.calls;
    }

    pub(crate) fn faults(&self) -> u64 {
        self.injected.values().sum()
    }
}

/// Runs it; on a failure the history is in a file that the message names.
pub(crate) fn run(wanted: Wanted) -> Outcome {
    let mut rng = Rng::with_seed(wanted.seed);
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    // Workers that do not come up when they should not; of another folder, since tenants must get at the socket.
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/liars/absent");
    let (supervisor_program, programs) = beside(&script);
    let absent = programs.path().join("absent");
    let disk = TinyDisk::at(dir.path(), &supervisor_program);
    let start = disk.as_ref().map_or(supervisor_program, TinyDisk::start);
    let (workers, standbys) = (rng.usize(2..=4), rng.usize(0..=2));
    let turns = if rng.bool() { "on,quantum=1ms" } else { "off" };
    let memory = MEMORY >> 20;
    // With two devices, calls move between them when one is lost: in every other run, also in the short one of the tests.
    let devices = if wanted.seed.is_multiple_of(2) { &DEVICES[..1] } else { &DEVICES[..] };
    let settings = format!("workers={workers},memory={memory}MiB,standbys={standbys},turns={turns}");
    let named = devices.iter().flat_map(|name| ["--device".to_owned(), format!("{name}:{settings}")]);
    // So many kills spend every budget.
    let flags = ["--fault-budget", "0", "--quarantine-after", "0", "--overrun-limit", OVERRUN_LIMIT];
    let flags = flags.map(str::to_owned).into_iter().chain(named).collect();
    let mut supervisor = Supervisor::new(start, flags, dir);
    let socket = supervisor.socket();
    prepare(&socket);
    narrow(&supervisor, devices);
    let before = drift::baseline(&supervisor);
    set_processes(&supervisor, devices, workers, standbys);

    let run = Run::new(socket);
    let actors: Vec<_> = ACTORS.into_iter().map(|actor| (actor, rng.fork())).collect();
    std::thread::scope(|scope| {
        // However this ends, the clients must hear of it.
        let _over = Over(&run);
        for (actor, rng) in actors {
            let run = &run;
            scope.spawn(move || live(actor, run, rng));
        }
        let mut injector = Injector {
            run: &run,
            supervisor: &mut supervisor,
            disk: disk.as_ref(),
            devices: devices.len(),
            absent: &absent,
            rng: rng.fork(),
        };
        for _ in 0..wanted.faults {
            injector.step();
        }
    });
    let events = run.history.so_far();
    let wrong = check(&events);
    if let Some(first) = wrong.first() {
        let path = keep(wanted.seed, &events);
        let line = first.at + 1;
        panic!(
            "seed {}: {} (line {line} of {}; {} wrong in all)",
            wanted.seed,
            first.why,
            path.display(),
            wrong.len()
        );
    }
    narrow(&supervisor, devices);
    drift::none_since(&before, &supervisor);
    outcome(&events)
}

/// How many processes of each device there may be.
fn set_processes(supervisor: &Supervisor, devices: &[&str], workers: usize, standbys: usize) {
    let admin = supervisor.admin_socket();
    let [workers, standbys] = [format!("workers={workers}"), format!("standbys={standbys}")];
    for device in devices {
        supervisor.ok(&["--socket", admin.to_str().unwrap(), "device", "set", device, &workers, &standbys]);
    }
}

/// Waits until one process of each device is left: what is held is compared with that, since who called last decides how
/// many stay.
fn narrow(supervisor: &Supervisor, devices: &[&str]) {
    set_processes(supervisor, devices, 1, 0);
    until("one process of each device is left", || supervisor.all_children().len() <= devices.len());
}

/// Ends the run when dropped.
struct Over<'r>(&'r Run);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Release);
    }
}

/// Every tenant registers everything, and calls it once.
fn prepare(socket: &std::path::Path) {
    let mut tenants: Vec<u32> = ACTORS.iter().map(|actor| actor.tenant).collect();
    tenants.dedup();
    if !rustix::process::geteuid().is_root() {
        tenants.truncate(1);
    }
    for tenant in tenants {
        let register = move || {
            become_tenant(tenant);
            let mut client = Client::connect(socket).unwrap();
            Kind::ALL.into_iter().for_each(|kind| kind.add(&mut client));
            crate::kit::works(&mut client);
        };
        std::thread::scope(|scope| scope.spawn(register).join().unwrap());
    }
}

/// Keeps a history for people.
fn keep(seed: u64, events: &[Event]) -> PathBuf {
    let path = std::env::temp_dir().join(format!("pappus-chaos-{seed}.history"));
    std::fs::write(&path, listed(events)).unwrap();
    path
}

/// Counts what happened.
fn outcome(events: &[Event]) -> Outcome {
    let mut outcome = Outcome::default();
    let mut open = BTreeMap::new();
    for event in events {
        match &event.what {
            What::Fault(fault) => outcome.count(&format!("{fault:?}")),
            What::Left { .. } => outcome.count("ClientLeft"),
            What::Sent { id, ask, .. } => {
                outcome.calls += 1;
                outcome.neighbours += u64::from(!ask.hostile);
                open.insert(*id, ask);
            }
            What::Answered { id, answer, .. } => {
                let Some(ask) = open.remove(id) else { continue };
                match answer {
                    Answer::Refused { code: Code::KernelFault, .. } => outcome.count("KernelFault"),
                    Answer::Refused { code: Code::DeadlineExceeded, .. } if ask.end == End::Never => {
                        outcome.count("EndlessKernel");
                    }
                    Answer::Refused { code: Code::Overrun, .. } => outcome.count("Overrun"),
                    Answer::Refused { .. } => outcome.refused += u64::from(!ask.hostile),
                    Answer::Done { .. } => outcome.right += u64::from(!ask.hostile),
                }
            }
            _ => {}
        }
    }
    outcome.unanswered = open.values().filter(|ask| !ask.hostile).count() as u64;
    outcome
}

impl Outcome {
    fn count(&mut self, what: &str) {
        *self.injected.entry(what.to_owned()).or_default() += 1;
    }
}
