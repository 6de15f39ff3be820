//! Which devices a supervisor takes: a worker that pretends to look for GPUs stands for machines with some, with
//! none, and with a broken driver.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use pappus_client::{Code, Invocation};
use pappus_protocol::from_worker::{FoundDevice, Hello, Survey};
use pappus_protocol::pipe::Outbox;
use pappus_protocol::{Fault, FaultCode, FromWorker};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::fixture::{Ran, Supervisor, beside, command, run, signal, until};
use crate::kit::{self, Function, launch};
use crate::programs::program;

const GIB: u64 = 1 << 30;

/// A machine that looks as a survey says.
struct Machine {
    program: PathBuf,
    dir: TempDir,
}

fn gpu(index: u32, uuid: &str) -> FoundDevice {
    FoundDevice {
        index,
        name: "NVIDIA H200".into(),
        uuid: uuid.into(),
        arch: "sm_90".into(),
        memory_bytes: 141 * GIB,
        free_bytes: 140 * GIB,
        numa_node: None,
    }
}

fn found(devices: Vec<FoundDevice>) -> FromWorker<'static> {
    FromWorker::Survey(Survey { driver: "570.1".into(), shared: false, devices, ..Survey::default() })
}

impl Machine {
    /// One whose survey does not answer.
    fn broken() -> Self {
        Self::of("surveys")
    }

    fn of(liar: &str) -> Self {
        let liars = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/liars");
        let (program, dir) = beside(&liars.join(liar));
        Self { program, dir }
    }

    fn with(answer: FromWorker<'_>) -> Self {
        let machine = Self::broken();
        machine.says("gpus", answer);
        machine
    }

    fn with_two() -> Self {
        Self::with(found(vec![gpu(0, "GPU-aa"), gpu(1, "GPU-bb")]))
    }

    fn with_one_of_each() -> Self {
        let machine = Self::with(found(vec![gpu(0, "GPU-aa")]));
        let amd = FoundDevice {
            name: "AMD Instinct MI210".into(),
            arch: "gfx90a:sramecc+:xnack-".into(),
            memory_bytes: 64 * GIB,
            free_bytes: 63 * GIB,
            ..gpu(0, "GPU-cc")
        };
        let survey = Survey { driver: "HIP 7.1.0".into(), devices: vec![amd], ..Survey::default() };
        machine.says("gpus.hip", FromWorker::Survey(survey));
        machine
    }

    fn without() -> Self {
        let fault = Fault::new(FaultCode::Device, "libcuda.so.1 was not found: install the NVIDIA driver");
        Self::with(FromWorker::Refused { job: 0, fault: fault.as_ref() })
    }

    fn says(&self, file: &str, answer: FromWorker<'_>) {
        let file = File::create(self.dir.path().join(file)).unwrap();
        let mut outbox = Outbox::new(file.into());
        outbox.push_from_worker(&answer);
        outbox.flush_blocking().unwrap();
    }

    /// What a supervisor says that does not start.
    fn refuses(&self, device: &str) -> String {
        let flags = ["--device", device].map(str::to_owned);
        let Ran { code, stderr, .. } = run(&mut command(&self.program, self.dir.path(), "socket", &flags));
        assert_eq!(code, 1, "{stderr}");
        stderr
    }

    /// The names of the devices that a supervisor takes.
    fn takes(self, devices: &[&str]) -> Vec<String> {
        let flags = devices.iter().flat_map(|device| ["--device".to_owned(), (*device).to_owned()]);
        let supervisor = Supervisor::new(self.program, flags.collect(), self.dir);
        supervisor.status().devices.into_iter().map(|device| device.name).collect()
    }

    fn lists(&self, flags: &[&str]) -> String {
        let listed =
            run(std::process::Command::new(&self.program).arg("--list-devices").args(flags).env_clear());
        assert_eq!(listed.code, 0, "{}", listed.stderr);
        listed.stdout
    }
}

#[test]
fn gpus_are_taken_by_position_by_uuid_and_all_of_them() {
    assert_eq!(Machine::with_two().takes(&["cuda:1:workers=1"]), ["cuda:1"]);
    assert_eq!(Machine::with_two().takes(&["cuda:GPU-bb", "cuda:GPU-aa:lanes=1"]), ["cuda:1", "cuda:0"]);
    assert_eq!(Machine::with_one_of_each().takes(&["hip:GPU-cc:workers=1"]), ["hip:0"]);
    assert_eq!(Machine::with_two().takes(&["cuda:all:workers=1", "cpu"]), ["cuda:0", "cuda:1", "cpu"]);
}

#[test]
fn status_shows_what_a_device_is_and_how_it_is_set_up() {
    let machine = Machine::with_two();
    let flags = ["--device", "cuda:0:workers=2,lanes=4,memory=64GiB,standbys=0,quantum=2ms,scrub=call"];
    let supervisor = Supervisor::new(machine.program, flags.map(str::to_owned).to_vec(), machine.dir);
    let device = supervisor.device();
    assert_eq!(
        (device.name.as_str(), device.kind.as_str(), device.arch.as_str()),
        ("cuda:0", "cuda", "sm_90")
    );
    assert_eq!((device.description.as_str(), device.driver.as_str()), ("NVIDIA H200", "570.1"));
    assert_eq!((device.lanes, device.turns, device.quantum_us, device.scrub_calls), (4, true, 2000, true));
    assert_eq!((device.standbys, device.memory.unwrap().total_bytes), (0, 64 * GIB));
    let text = supervisor.ok(&["status"]);
    for words in ["NVIDIA H200, sm_90, driver 570.1", "2.00 ms", "0 of 0 ready", "call", "0/4"] {
        assert!(text.contains(words), "{text}");
    }
    let json: Value = serde_json::from_str(&supervisor.ok(&["status", "--json"])).unwrap();
    assert_eq!(json["devices"][0]["memory"]["total_bytes"], 64 * GIB);
    assert_eq!(json["devices"][0]["workers"][0]["busy_lanes"], 0);
}

#[test]
fn without_a_device_setting_all_gpus_are_taken_or_the_cpu() {
    assert_eq!(Machine::with_two().takes(&[]), ["cuda:0", "cuda:1"]);
    assert_eq!(Machine::with_one_of_each().takes(&[]), ["cuda:0", "hip:0"]);
    assert_eq!(Machine::without().takes(&[]), ["cpu"]);
    assert_eq!(Machine::broken().takes(&[]), ["cpu"]);
}

#[test]
fn a_slice_is_surveyed_by_itself() {
    let machine = Machine::with_two();
    machine.says("gpus.MIG-7", found(vec![gpu(0, "MIG-7")]));
    assert_eq!(machine.takes(&["cuda:MIG-7:memory=16GiB", "cuda:0"]), ["cuda:MIG-7", "cuda:0"]);
}

#[test]
fn a_device_that_is_missing_is_named_with_the_reason() {
    let why = Machine::without().refuses("cuda:0");
    let expect =
        "device cuda:0: libcuda.so.1 was not found: install the NVIDIA driver; or run with --device cpu";
    assert!(why.contains(expect), "{why}");
    assert_eq!(why.matches("--device cpu").count(), 1, "{why}");
    let why = Machine::broken().refuses("cuda:all");
    assert!(
        why.contains("device cuda:all: the process that looks for NVIDIA GPUs exited with code 1"),
        "{why}"
    );
    let two = Machine::with_two();
    for (device, words) in [
        ("cuda:3", "device cuda:3: there are 2 GPUs: cuda:0 NVIDIA H200 GPU-aa, cuda:1 NVIDIA H200 GPU-bb"),
        ("cuda:GPU-cc", "device cuda:GPU-cc: there are 2 GPUs"),
        ("hip:0", "device hip:0: the process that looks for AMD GPUs exited with code 1"),
        ("cuda:MIG-9", "device cuda:MIG-9: the process that looks for NVIDIA GPUs"),
        ("cuda:0:memory=500GiB", "cuda:0 has 141.0 GiB"),
    ] {
        let why = two.refuses(device);
        assert!(why.contains(words), "{device}: {why}");
    }
    let why = Machine::with(found(vec![])).refuses("cuda:0");
    assert!(why.contains("device cuda:0: there is no GPU"), "{why}");
}

#[test]
fn a_function_that_no_device_here_can_run_is_refused_with_what_they_need() {
    let supervisor = Supervisor::start();
    let mut client = supervisor.client();
    let function = Function { steps: &[launch("trap", &[])], ..Function::default() };
    let mut variant = kit::wasm(&mut client, b".version 7.0");
    variant.format = "ptx".into();
    let module = kit::module_of("probes", vec![variant]);
    let add = kit::parts(&mut client, "f", &function.json(), module).unwrap();
    let expect = "the device cpu needs its .wasm variant, but there is only ptx";
    let error = kit::refused(client.add_function(add), Code::Unsupported, expect);
    assert_eq!(error.place, "module probes");
}

#[test]
fn arguments_are_checked_against_the_ptx_where_no_gpu_is() {
    let supervisor = Supervisor::start();
    let mut client = supervisor.client();
    let json = Function { steps: &[launch("trap", &[])], ..Function::default() }.json();
    let mut add = |name: &str, trap: &str| {
        let others =
            ["copy", "fill", "store", "global", "work", "spin"].map(|name| format!(".entry {name}() {{ }}"));
        let text = format!(".version 7.0\n{}\n.visible .entry trap({trap}) {{ }}", others.join("\n"));
        let mut ptx = kit::wasm(&mut client, text.as_bytes());
        ptx.format = "ptx".into();
        let variants = vec![kit::wasm(&mut client, kit::probes()), ptx];
        let function = kit::parts(&mut client, name, &json, kit::module_of("probes", variants))?;
        client.add_function(function)
    };
    add("good", "").unwrap();
    let expect = "module probes (ptx): kernel `trap` takes 1 arguments, the blueprint passes 0";
    let error = kit::refused(add("bad", ".param .u32 code"), Code::InvalidArgument, "takes 1 arguments");
    assert_eq!(error.message, expect);
    assert_eq!(error.place, "blueprint.control_flow[0].ExecKernel[1]");
}

#[test]
fn a_machine_lists_what_it_has() {
    let text = Machine::with_two().lists(&[]);
    assert!(text.contains("cuda:1  NVIDIA H200, sm_90, 140.0 GiB of 141.0 GiB free, GPU-bb"), "{text}");
    assert!(text.contains("driver of NVIDIA GPUs: 570.1"), "{text}");
    assert!(text.contains("no AMD GPUs: the process that looks for AMD GPUs exited with code 1"), "{text}");
    let text = Machine::with_one_of_each().lists(&[]);
    assert!(
        text.contains("hip:0  AMD Instinct MI210, gfx90a:sramecc+:xnack-, 63.0 GiB of 64.0 GiB free, GPU-cc")
    );
    assert!(text.contains("driver of AMD GPUs: HIP 7.1.0"), "{text}");
    assert!(Machine::without().lists(&[]).contains("no NVIDIA GPUs: libcuda.so.1 was not found"));
    let json: Value = serde_json::from_str(&Machine::with_two().lists(&["--json"])).unwrap();
    assert_eq!((&json["devices"][0]["name"], &json["devices"][2]["uuid"]), (&"cpu".into(), &"GPU-bb".into()));
    assert_eq!((&json["drivers"]["cuda"], &json["mps"]), (&"570.1".into(), &false.into()));
    assert!(json["missing"]["hip"].as_str().unwrap().contains("exited with code 1"));
}

/// A library below the directory that the new root is put together in is seen there, as an MPS daemon's folder has to
/// be: this one is empty, which the loader says of it.
#[test]
fn what_a_driver_needs_is_seen_wherever_it_lies() {
    let dir = tempfile::Builder::new().permissions(Permissions::from_mode(0o755)).tempdir_in("/tmp").unwrap();
    let found = || {
        let mut list = std::process::Command::new(program("pappus-supervisor"));
        let listed = run(list.args(["--list-devices"]).env("LD_LIBRARY_PATH", dir.path()));
        assert_eq!(listed.code, 0, "{}", listed.stderr);
        listed.stdout
    };
    assert!(!found().contains("too short"), "{}", found());
    for (library, devices) in [("libcuda.so.1", "NVIDIA GPUs"), ("libamdhip64.so.7", "AMD GPUs")] {
        File::create(dir.path().join(library)).unwrap();
        let listed = found();
        let line = listed
            .lines()
            .find(|line| line.starts_with(&format!("no {devices}: {library} could not be loaded")));
        assert!(line.is_some_and(|line| line.contains("too short")), "{listed}");
    }
}

/// As under MPS, where a fault of one process costs all of them their device for a while.
#[test]
fn compilations_wait_for_a_device_that_comes_back() {
    let machine = Machine::of("recovers");
    let fault = Fault::new(FaultCode::Device, "the MPS server is not ready");
    for (nth, job) in [0, 1, 0].into_iter().enumerate() {
        machine.says(&format!("lost.{nth}"), FromWorker::Refused { job, fault: fault.as_ref() });
    }
    let dir = machine.dir.path().to_owned();
    let supervisor = Supervisor::new(machine.program, Vec::new(), machine.dir);
    let mut client = supervisor.client();
    Function::default().add(&mut client, "f");
    client.invoke(&Invocation::new("f")).unwrap();
    let lost = std::fs::read_dir(dir)
        .unwrap()
        .filter(|file| file.as_ref().unwrap().file_name().to_string_lossy().starts_with("lost."));
    assert_eq!(lost.count(), 0, "all three were tried");
    assert!(supervisor.log().contains("the MPS server is not ready"));
}

/// The supervisor adopts processes that workers leave behind, and waits for them, too.
#[test]
fn what_a_worker_leaves_behind_does_not_stay() {
    let machine = Machine::of("litters");
    let dir = machine.dir.path().to_owned();
    let supervisor = Supervisor::new(machine.program, Vec::new(), machine.dir);
    let worker = supervisor.worker_pids()[0];
    signal(worker, Signal::KILL);
    until("another one is there", || {
        let workers = supervisor.worker_pids();
        !workers.contains(&worker) && workers.len() == supervisor.device().workers.len()
    });
    let files = std::fs::read_dir(dir).unwrap().map(|file| file.unwrap().file_name());
    let littered = files.filter(|name| name.to_string_lossy().starts_with("littered.")).count();
    assert!(littered >= 3, "each process left one: {littered}");
    until("nothing stays", || supervisor.all_children().len() == supervisor.children().len());
}

/// No signal would ever reach it.
#[test]
fn a_greeting_from_a_process_that_ended_is_not_believed() {
    let machine = Machine::of("haunts");
    machine.says("hello", FromWorker::Hello(Hello::new("cpu", "haunts")));
    let flags = ["--device", "cpu:workers=1"].map(str::to_owned);
    let supervisor = Supervisor::new(machine.program, flags.to_vec(), machine.dir);
    until("it is found out", || supervisor.log().contains("it ended when it greeted"));
}

/// The folders of a worker's root are the supervisor's to make: its user must be able to go through them, so that libraries
/// are found whatever the service's umask is.
#[test]
fn a_tight_umask_hides_no_library() {
    let output = std::process::Command::new("sh")
        .args(["-c", "umask 077; exec \"$0\" --list-devices"])
        .arg(program("pappus-supervisor"))
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    assert!(output.status.success() && said[0].contains("cpu"), "{said:?}");
    assert!(!said[0].contains("Permission denied"), "{said:?}");
}
