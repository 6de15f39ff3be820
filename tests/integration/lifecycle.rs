//! Starting, being killed and starting again (ATTACKS 25): locks, stale sockets, files of others.

use std::os::unix::net::UnixListener;

use pappus_client::{Error, Invocation};

use crate::fixture::{Supervisor, command, is_alive, run, until};
use crate::kit;
use crate::raw::Raw;

#[test]
fn a_killed_supervisor_leaves_no_worker_and_loses_nothing() {
    let mut supervisor = Supervisor::with(&["--device", "cpu:workers=2,memory=16MiB"]);
    let mut client = supervisor.client();
    kit::add_copy(&mut client);
    kit::add_spin(&mut client);
    let module = kit::wasm(&mut client, kit::probes());
    client.add_module("probes", vec![module]).unwrap();
    let spin = client.send_invocation(&Invocation::new("spin")).unwrap();
    until("it runs", || supervisor.device().running == 1);
    let workers = supervisor.worker_pids();
    assert!(workers.iter().all(|pid| is_alive(*pid)));
    let workers = supervisor.children();
    assert!(workers.len() >= 2, "a worker and a standby");

    // Nothing else ends them: one runs a call that does not end, and whose deadlines the supervisor kept.
    supervisor.kill9();
    until("no worker is left", || !workers.iter().any(|pid| is_alive(*pid)));
    assert!(matches!(client.wait_invoked(spin), Err(Error::Lost)));

    // Its sockets are still there, and no process listens.
    assert!(supervisor.socket().exists());
    supervisor.restart();
    let mut client = supervisor.client();
    let names: Vec<_> = client.list_functions().unwrap().into_iter().map(|f| f.name).collect();
    assert_eq!(names, ["copy", "spin"]);
    assert_eq!(client.show_module("probes").unwrap().variants[0].kernels.len(), 7);
    kit::works(&mut client);
}

#[test]
fn a_state_directory_has_one_supervisor() {
    let supervisor = Supervisor::start();
    let ran = supervisor.second("other");
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("in use by another supervisor"), "{}", ran.stderr);
    // The first is not disturbed, even where the second wanted its socket.
    let ran = supervisor.second("socket");
    assert_eq!(ran.code, 1);
    kit::add_copy(&mut supervisor.client());
    kit::works(&mut supervisor.client());
}

#[test]
fn a_path_that_is_no_socket_is_left_alone() {
    let mut supervisor = Supervisor::start();
    supervisor.terminate();
    assert!(supervisor.ended().success());
    supervisor.write("precious", "data");
    let ran = supervisor.second("precious");
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("not a socket"), "{}", ran.stderr);
    assert_eq!(supervisor.read("precious"), b"data");
    let link = supervisor.path("link");
    std::os::unix::fs::symlink(supervisor.path("precious"), &link).unwrap();
    assert_eq!(supervisor.second("link").code, 1);
    assert_eq!(supervisor.read("precious"), b"data");
}

#[test]
fn a_socket_with_a_listener_is_not_replaced() {
    let mut supervisor = Supervisor::start();
    supervisor.terminate();
    assert!(supervisor.ended().success());
    let listener = UnixListener::bind(supervisor.path("taken")).unwrap();
    let ran = supervisor.second("taken");
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("another process listens"), "{}", ran.stderr);
    drop(listener);
    // Once no process listens, it is stale and replaced.
    std::fs::rename(supervisor.path("taken"), supervisor.socket()).unwrap();
    supervisor.restart();
}

#[test]
fn a_start_that_is_refused_leaves_no_socket() {
    let supervisor = Supervisor::start();
    let start = |socket: &str, admin: &str| {
        let flags =
            ["--state-dir", "other", "--admin-socket", admin, "--device", "cpu:workers=1,memory=1MiB"];
        let program = crate::programs::program("pappus-supervisor");
        let mut command = std::process::Command::new(program);
        run(command.current_dir(supervisor.path("")).args(["--socket", socket]).args(flags))
    };
    let refused = start("new", "socket.admin");
    assert!(refused.code == 1 && refused.stderr.contains("another process listens"), "{refused:?}");
    assert!(!supervisor.path("new").exists());
    // The control: the sockets of the one that is there stay, also where the other one is what is refused.
    assert_eq!(start("socket", "new.admin").code, 1);
    assert!(!supervisor.path("new.admin").exists());
    supervisor.client().status().unwrap();
    supervisor.admin().status().unwrap();
}

/// A supervisor that may open so many files.
fn with_descriptors(most: u64) -> (std::path::PathBuf, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("few.sh");
    let program = crate::programs::program("pappus-supervisor");
    std::fs::write(&script, format!("ulimit -n {most}\nexec {program:?} \"$@\"\n")).unwrap();
    (script, dir)
}

#[test]
fn few_descriptors_are_enough_or_are_refused() {
    let device = ["--device", "cpu:workers=2,memory=16MiB"].map(str::to_owned);
    for few in [64, 128] {
        let (script, dir) = with_descriptors(few);
        let ran = run(&mut command(&script, dir.path(), "socket", &device));
        assert!(ran.code == 1 && ran.stderr.contains("files, and needs 172 at least"), "{few}: {ran:?}");
        assert!(!dir.path().join("socket").exists());
    }
    for some in [192, 256, 512] {
        let (script, dir) = with_descriptors(some);
        let supervisor = Supervisor::new(script, device.to_vec(), dir);
        let words = format!("descriptors are few: this process may open {some} files: ");
        assert!(supervisor.log().contains(&words), "{}", supervisor.log());
        let mut client = supervisor.client();
        kit::add_copy(&mut client);
        kit::works(&mut client);
        // Also while a tenant connects as often as it can.
        let crowd: Vec<_> = (0..some).map(|_| Raw::connect(&supervisor.socket())).collect();
        kit::add_spin(&mut client);
        kit::works(&mut client);
        kit::works(&mut supervisor.admin());
        drop(crowd);
    }
}

#[test]
fn sockets_have_the_right_modes_and_go_at_the_end() {
    use std::os::unix::fs::PermissionsExt;
    let mut supervisor = Supervisor::start();
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&supervisor.socket()), 0o666);
    assert_eq!(mode(&supervisor.admin_socket()), 0o600);
    assert_eq!(mode(&supervisor.path("state")), 0o700);
    supervisor.terminate();
    assert!(supervisor.ended().success());
    assert!(!supervisor.socket().exists() && !supervisor.admin_socket().exists());
}

#[test]
fn what_is_wrong_with_the_flags_is_said_before_anything_starts() {
    let program = crate::programs::program("pappus-supervisor");
    for (args, words) in [
        (&["--state-dir", "s"][..], "--socket is missing"),
        (&["--socket", "s", "--state-dir", "s", "--device", "gpu"], "knows the device"),
        (&["--config", "/nonexistent"], "/nonexistent"),
        (&["--wat"], "--wat"),
    ] {
        let ran = crate::fixture::run(std::process::Command::new(&program).args(args));
        assert_eq!(ran.code, 2, "{args:?}");
        assert!(ran.stderr.contains(words), "{}", ran.stderr);
    }
}

#[test]
fn flags_and_file_are_judged_without_a_start() {
    let dir = tempfile::tempdir().unwrap();
    let check = |text: &str| {
        std::fs::write(dir.path().join("pappus.toml"), text).unwrap();
        let program = crate::programs::program("pappus-supervisor");
        let mut command = std::process::Command::new(program);
        run(command.current_dir(dir.path()).args(["--config", "pappus.toml", "--check"]))
    };
    let right = check(
        "socket = 'socket'\nstate-dir = 'state'\ndevice = ['cuda:7', 'cpu']\nunknown-tenants = 'refuse'\n",
    );
    assert_eq!(right.code, 0, "{right:?}");
    assert!(
        right.stdout.contains("devices    cuda:7 cpu") && right.stdout.contains("others refused"),
        "{right:?}"
    );
    assert!(!dir.path().join("state").exists() && !dir.path().join("socket").exists());
    let wrong = check(
        "socket = 'socket'\nstate-dir = 'state'\nmax-deadline = 60\nwieght = 1\n[tenants.acme]\ncalls = 1\n",
    );
    assert_eq!((wrong.code, &*wrong.stdout), (2, ""), "{wrong:?}");
    let lines: Vec<_> = wrong.stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{wrong:?}");
    assert!(
        lines[0]
            .starts_with("error: pappus.toml:3:16: max-deadline = 60: expected a duration: write \"60s\"")
    );
    assert!(lines[1].starts_with("error: pappus.toml:4:1: wieght: no such setting"), "{wrong:?}");
}

#[test]
fn a_file_configures_as_flags_do_and_flags_win() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pappus.toml");
    let text = "device = ['cpu:workers=2,memory=2MiB']\nqueue-calls = 3\n";
    std::fs::write(&file, text).unwrap();
    let supervisor = Supervisor::with(&["--config", file.to_str().unwrap(), "--poll-us", "9"]);
    let settings = supervisor.admin().settings([].into()).unwrap();
    assert_eq!((&*settings["queue-calls"], &*settings["poll-us"]), ("3", "9"));
    // The fixture's own device flag.
    assert_eq!(supervisor.device().workers.len(), 1);
}
