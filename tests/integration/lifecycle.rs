//! Starting, being killed and starting again (ATTACKS 25): locks, stale sockets, files of others.

use std::os::unix::net::UnixListener;

use pappus_client::{Error, Invocation};

use crate::fixture::{Supervisor, is_alive, until};
use crate::kit;

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

    let killed = std::time::Instant::now();
    supervisor.kill9();
    until("no worker is left", || !workers.iter().any(|pid| is_alive(*pid)));
    let took = killed.elapsed();
    assert!(took < std::time::Duration::from_secs(1), "{took:?}");
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
