//! What there is before a request: the state directory, the sockets, a gateway's first frame.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use pappus_client::Client;
use pappus_client::v1::{self, request::Body};
use tempfile::TempDir;

use crate::fixture::{Ran, Supervisor, run, until};
use crate::house::{enter, house, token};
use crate::kit::{self, STRANGER};
use crate::programs::program;
use crate::raw::{Raw, request};

/// How long a client may take for its first frame, three times.
const PATIENCE: Duration = Duration::from_secs(15);

/// A gateway has as long for its first frame as any client for its greeting.
#[test]
fn a_gateways_first_frame_that_never_ends_is_dropped() {
    let supervisor = house(&[("alice", "")]);
    let act = v1::ActFor { token: token("alice").into_bytes().into() };
    let frame = request(1, Body::ActFor(act), 0);
    let mut cut = Raw::greeted(&supervisor.socket());
    cut.stream.set_read_timeout(Some(PATIENCE)).unwrap();
    cut.send(&frame[..frame.len() - 1]);
    // The control: the same frame in two pieces; then it may be silent for as long as it likes.
    let mut whole = Raw::greeted(&supervisor.socket());
    whole.send(&frame[..5]);
    whole.send(&frame[5..]);
    assert_eq!(whole.body().0, 1);
    cut.is_closed();
    whole.request(2, crate::raw::status(), &[]);
    assert_eq!(whole.body().0, 2);
    kit::add_copy(&mut enter(&supervisor, "alice"));
}

/// To accept takes longer than to connect: without a pace one user's connections fill the row in which all wait to be accepted.
#[test]
fn who_opens_connections_too_fast_is_turned_away_and_told() {
    let supervisor = Supervisor::start();
    let mut kept = supervisor.client();
    let words = "opens more than";
    until("it is too fast", || {
        (0..1000).for_each(|_| drop(Raw::connect(&supervisor.socket())));
        supervisor.log().contains(words)
    });
    // The user's connections go on, and later it may open others.
    kept.status().unwrap();
    until("it may connect", || match Client::connect(supervisor.socket()).and_then(|mut new| new.status()) {
        Ok(_) => true,
        Err(why) => {
            assert!(why.to_string().contains(words), "{why}");
            false
        }
    });
}

/// How a supervisor ends whose state directory another user made beforehand: by `make`, in a folder that all may write
/// to, which comes with it. None where this user cannot be another.
fn ended_with(make: impl FnOnce(&Path)) -> Option<(Ran, TempDir)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    make(dir.path());
    let device = ["--device", "cpu:workers=1,memory=1MiB"].map(str::to_owned);
    // One that is not refused runs until it is told to end.
    let mut limited = Command::new("timeout");
    limited.arg("10").arg(program("pappus-supervisor")).current_dir(dir.path());
    limited.args(["--socket", "socket", "--state-dir", "state"]).args(device);
    Some((run(&mut limited), dir))
}

#[test]
fn a_state_directory_of_another_user_is_refused() {
    let ended = ended_with(|dir| {
        let state = dir.join("state");
        std::fs::create_dir(&state).unwrap();
        std::os::unix::fs::chown(&state, Some(STRANGER), None).unwrap();
    });
    let Some((ended, _dir)) = ended else { return };
    assert!(
        ended.code == 1
            && (ended.stderr.contains("54321") || ended.stderr.contains("any user can replace it")),
        "{ended:?}"
    );
}

#[test]
fn a_link_of_another_user_is_not_followed_to_the_state_directory() {
    let ended = ended_with(|dir| {
        let (link, target) = (dir.join("state"), dir.join("target"));
        std::fs::create_dir(&target).unwrap();
        std::fs::set_permissions(&target, PermissionsExt::from_mode(0o755)).unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        std::os::unix::fs::lchown(&link, Some(STRANGER), None).unwrap();
    });
    let Some((ended, dir)) = ended else { return };
    assert_eq!(ended.code, 1, "{ended:?}");
    let target = dir.path().join("target");
    assert_eq!(target.metadata().unwrap().mode() & 0o777, 0o755);
    assert_eq!(target.read_dir().unwrap().count(), 0);
}

/// Between two system calls nothing changes, so every moment is looked at.
#[cfg(target_arch = "x86_64")]
#[test]
fn the_admin_socket_is_the_operators_from_its_first_moment() {
    use crate::fixture::until;
    use crate::tracer::{Deed, trace};
    use std::process::{Child, Stdio};
    use std::sync::{Arc, Mutex};

    struct Ends(Child);

    impl Drop for Ends {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket.admin");
    let script = "umask 0; while [ ! -e go ]; do :; done; exec \"$0\" \"$@\"";
    let child = Command::new("sh")
        .current_dir(dir.path())
        .args(["-c", script])
        .arg(program("pappus-supervisor"))
        .args(["--socket", "socket", "--state-dir", "state", "--device", "cpu:workers=1,memory=1MiB"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let child = Ends(child);
    let octal = |modes: &[u32]| modes.iter().map(|mode| format!("{mode:o} ")).collect::<String>();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (looked_at, seeing) = (socket.clone(), seen.clone());
    let tracer = trace(child.0.id(), move |_| {
        if let Ok(found) = looked_at.symlink_metadata() {
            seeing.lock().unwrap().push(found.mode() & 0o777);
        }
        Deed::Pass
    });
    let Some(tracer) = tracer else { return };
    std::fs::write(dir.path().join("go"), "").unwrap();
    until("it listens", || pappus_client::Client::connect(&socket).is_ok());
    tracer.stop();
    let mut modes = seen.lock().unwrap().clone();
    modes.sort_unstable();
    modes.dedup();
    assert!(modes == [0o600], "in octal: {}", octal(&modes));
}

/// The control of the case above: what clients reach is for all of them.
#[test]
fn the_clients_socket_is_for_everyone_and_the_operators_is_not() {
    let supervisor = Supervisor::start();
    let mode = |path: std::path::PathBuf| path.metadata().unwrap().mode() & 0o777;
    assert_eq!((mode(supervisor.socket()), mode(supervisor.admin_socket())), (0o666, 0o600));
}
