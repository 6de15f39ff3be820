//! The HIP device, in its sandbox, on a library that looks like HIP's and runs kernels on the processor (`tests/amd`), and its
//! start on Debian's own library, which is too old.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pappus_client::{Client, Invocation};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::fixture::{LIBRARIES, Supervisor, is_alive, signal, until};
use crate::folder::look_like_a_gpu;
use crate::programs::program;

/// A folder that looks like a GPU of this architecture.
fn gpu(arch: &str) -> TempDir {
    looking_like(&format!("arch={arch}"))
}

fn looking_like(settings: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    look_like_a_gpu(folder.path(), settings);
    folder
}

/// A supervisor of a machine with such a GPU.
pub(crate) fn with_gpu(flags: &[&str]) -> Supervisor {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    fs::create_dir(dir.path().join(LIBRARIES)).unwrap();
    look_like_a_gpu(&dir.path().join(LIBRARIES), "arch=gfx942");
    let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    Supervisor::new(program("pappus-supervisor"), flags, dir)
}

fn run(program: &str, gpu: &TempDir, arguments: &[&str]) -> Output {
    let mut command = Command::new(self::program(program));
    command.args(arguments).env("LD_LIBRARY_PATH", gpu.path()).env_remove("PAPPUS_SOCKET");
    command.output().unwrap()
}

fn demo(gpu: &TempDir, device: &str, pictures: &Path) {
    let output = run("pappus", gpu, &["demo", "--device", device, "--out", pictures.to_str().unwrap()]);
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success() && out.contains("All results are right."), "{device}: {out}\n{err}");
}

#[test]
fn the_demo_draws_the_same_pictures() {
    let folder = tempfile::tempdir().unwrap();
    let pictures = |name: &str| folder.path().join(name);
    // One architecture stands for both: gpu_system compares all kernels on each.
    let gpu = gpu("gfx942");
    demo(&gpu, "cpu:workers=2,memory=256MiB", &pictures("cpu"));
    demo(&gpu, "hip:0", &pictures("amd"));
    for picture in ["photo.png", "drawing.png", "edges.png"] {
        let [cpu, amd] = ["cpu", "amd"].map(|name| fs::read(pictures(name).join(picture)).unwrap());
        assert!(cpu == amd, "{picture}");
    }
}

#[test]
fn the_devices_are_listed_with_their_architecture_and_memory() {
    let output = run("pappus-supervisor", &gpu("gfx942"), &["--list-devices"]);
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(
        out.contains("hip:0  Look-alike gfx942, gfx942:sramecc+:xnack-, 8.0 GiB of 8.0 GiB free"),
        "{out}"
    );
    assert!(out.contains("driver of AMD GPUs: HIP 7.1.52802"), "{out}");
}

/// Why there are no AMD GPUs with the libraries of this folder: as they are listed, and as a supervisor is refused that is to
/// take one.
fn none_because(folder: &TempDir) -> String {
    let text = |output: &Output| {
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned()).concat()
    };
    let listed = text(&run("pappus-supervisor", folder, &["--list-devices"]));
    let why = listed.lines().find_map(|line| line.strip_prefix("no AMD GPUs: "));
    let why = why.unwrap_or_else(|| panic!("{listed}")).to_owned();
    let place = tempfile::tempdir().unwrap();
    let [socket, state] =
        ["socket", "state"].map(|name| place.path().join(name).to_str().unwrap().to_owned());
    let flags = ["--socket", &socket, "--state-dir", &state, "--device", "hip:0"];
    let refused = run("pappus-supervisor", folder, &flags);
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused));
    assert!(text(&refused).contains(&format!("device hip:0: {why}")), "{}", text(&refused));
    why
}

#[test]
fn what_does_not_start_says_why() {
    let why = none_because(&looking_like("devices=0"));
    assert!(why.contains("HIP does not start: ") && why.contains("no ROCm-capable device"), "{why}");
    assert!(why.contains("/dev/kfd") && why.contains("/dev/dri/renderD*"), "{why}");
    let why = none_because(&looking_like("version=70053211"));
    assert!(why.contains("libamdhip64.so.7 is of HIP 7.0.53211, Pappus needs 7.1"), "{why}");
}

/// Debian's own library, by the name of its file; none where its package is not installed.
fn debians() -> Option<(PathBuf, &'static str)> {
    let folder = PathBuf::from(format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH));
    let names = ["libamdhip64.so.5", "libamdhip64.so.6"];
    names.into_iter().map(|name| (folder.join(name), name)).find(|(path, _)| path.is_file())
}

/// True if the loader finds a HIP that Pappus takes.
fn new_enough(folder: &TempDir) -> bool {
    let listed = run("pappus-supervisor", folder, &["--list-devices"]).stdout;
    String::from_utf8_lossy(&listed).contains("driver of AMD GPUs")
}

/// The real library, by a survey in its sandbox: opened, asked, refused. Under the name of the one that is wanted as well, as
/// it would be found by a link that somebody made.
#[test]
fn debians_own_library_is_too_old_in_words() {
    let Some((library, name)) = debians() else {
        return eprintln!("SKIPPED: Debian's libamdhip64 is not installed (libamdhip64-dev brings it)");
    };
    for (named, words) in [("libamdhip64.so.7", "libamdhip64.so.7 "), (name, &format!("{name} is of HIP "))] {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        if named == name && new_enough(&folder) {
            return eprintln!(
                "SKIPPED: this machine has a library that is new enough, which goes before {name}"
            );
        }
        symlink(&library, folder.path().join(named)).unwrap();
        let why = none_because(&folder);
        assert!(why.starts_with(words) && why.contains("7.1"), "{named}: {why}");
    }
}

#[test]
fn the_state_of_a_session_stays_in_memory_of_the_gpu() {
    // Room for one state, which takes a page.
    let supervisor = with_gpu(&["--device", "hip:0:workers=1,standbys=0,memory=2GiB,states=4MiB"]);
    supervisor.write("probes.hsaco", include_bytes!("../../worker/tests/probes/probes.gfx942.hsaco"));
    let config = r#"{"module_path": "probes.hsaco", "kernels": [], "blueprint": {"inputs": ["in"], "state": {"last": 8, "rest": 1048576},
        "buffers": {"out": 8}, "outputs": ["out"], "control_flow": [
            {"Copy": {"from": "last", "to": "out"}}, {"Copy": {"from": "in", "to": "last"}}]}}"#;
    let config = supervisor.write("last.json", config);
    supervisor.ok(&["function", "add", "last", config.to_str().unwrap()]);
    let mut client = supervisor.client();
    let open = |client: &mut Client| client.open_session("last").unwrap().session;
    let said = |client: &mut Client, session, brings: u64| {
        let call = Invocation::new("last").session(session).input("in", brings.to_le_bytes().to_vec());
        let answer = client.invoke(&call.output("out")).unwrap();
        u64::from_le_bytes(answer.outputs[0].inline[..].try_into().unwrap())
    };
    let places = || {
        let sessions = supervisor.status().sessions;
        let places = sessions.into_iter().map(|one| (one.session, one.device));
        places.collect::<HashMap<_, _>>()
    };
    let (one, other) = (open(&mut client), open(&mut client));
    assert_eq!((said(&mut client, one, 10), said(&mut client, other, 20)), (0, 0));
    assert_eq!(places(), HashMap::from([(one, "hip:0".to_owned()), (other, String::new())]));
    assert_eq!((said(&mut client, one, 11), said(&mut client, other, 21)), (10, 20));
    // Both outlive their worker.
    for pid in supervisor.worker_pids() {
        signal(pid, Signal::KILL);
        until("the worker ends", || !is_alive(pid));
    }
    assert_eq!((said(&mut client, one, 12), said(&mut client, other, 22)), (11, 21));
    assert_eq!(places()[&one], "hip:0");
    // The room is the next one's, and nothing is left in it.
    client.close_session(one).unwrap();
    until("the room is free", || {
        let next = open(&mut client);
        assert_eq!(said(&mut client, next, 30), 0);
        let is_there = places()[&next] == "hip:0";
        client.close_session(next).unwrap();
        is_there
    });
}
