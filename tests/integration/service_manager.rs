//! A supervisor under a service manager such as systemd, by its protocols: the clients' socket outlives supervisors, so that
//! a restart refuses nobody; readiness, reloads, draining and the watchdog's periods are told.

use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pappus_client::{Client, Code, Error, Invocation};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::fixture::{self, PATIENCE, signal};
use crate::kit;
use crate::programs::program;

/// A service manager: it listens for clients, and hears what its supervisor says.
struct Manager {
    dir: TempDir,
    clients: UnixListener,
    ear: UnixDatagram,
}

/// A supervisor that is killed with its case.
struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Manager {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("pappus.toml"), "device = ['cpu:workers=2,memory=16MiB']").unwrap();
        let clients = UnixListener::bind(dir.path().join("socket")).unwrap();
        let ear = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        ear.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { dir, clients, ear }
    }

    fn socket(&self) -> std::path::PathBuf {
        self.dir.path().join("socket")
    }

    /// Starts a supervisor that is told where to listen, with further variables of its environment.
    fn start(&self, variables: &[(&str, &str)]) -> Service {
        let clients: OwnedFd = self.clients.try_clone().unwrap().into();
        // The socket becomes descriptor 3; the number of the process is the shell's.
        let words = "exec 3<&0 </dev/null; exec env LISTEN_FDS=1 LISTEN_PID=$$ \"$@\"";
        let log =
            std::fs::File::options().create(true).append(true).open(self.dir.path().join("log")).unwrap();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", words, "sh"]).arg(program("pappus-supervisor"));
        command.arg("--socket").arg(self.socket()).args(["--state-dir", "state", "--config", "pappus.toml"]);
        command.current_dir(self.dir.path()).stdin(clients).stdout(Stdio::null()).stderr(log);
        command.env("NOTIFY_SOCKET", self.dir.path().join("notify"));
        command.envs(variables.iter().copied());
        Service(command.spawn().unwrap())
    }

    /// The next thing that is said.
    fn hears(&self) -> String {
        let mut bytes = [0; 512];
        match self.ear.recv(&mut bytes) {
            Ok(length) => String::from_utf8(bytes[..length].into()).unwrap(),
            Err(e) => panic!("nothing is said ({e}); the log:\n{}", log(self.dir.path())),
        }
    }

    /// Waits until a supervisor can be called.
    fn until_ready(&self) {
        assert_eq!(self.hears(), "READY=1");
    }

    /// Ends a supervisor as a stop of its unit does; it must end by itself and well.
    fn stop(&self, service: &mut Service) {
        signal(service.0.id(), Signal::TERM);
        assert!(self.hears().starts_with("STOPPING=1"));
        assert_eq!(service.0.wait().unwrap().code(), Some(0), "{}", log(self.dir.path()));
    }
}

fn log(dir: &Path) -> String {
    std::fs::read_to_string(dir.join("log")).unwrap_or_default()
}

#[test]
fn readiness_reloads_and_the_end_are_told() {
    let manager = Manager::new();
    let mut service = manager.start(&[]);
    manager.until_ready();
    // Ready means that a call can be made.
    let mut client = Client::connect(manager.socket()).unwrap();
    assert!(client.status().unwrap().ready);
    signal(service.0.id(), Signal::HUP);
    let reloading = manager.hears();
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    assert_eq!(manager.hears(), "READY=1");
    // A file that is wrong changes nothing, and the supervisor goes on.
    std::fs::write(manager.dir.path().join("pappus.toml"), "nonsense").unwrap();
    signal(service.0.id(), Signal::HUP);
    assert!(manager.hears().starts_with("RELOADING=1"));
    assert_eq!(manager.hears(), "READY=1");
    manager.stop(&mut service);
    assert!(manager.socket().exists(), "the socket is the service manager's");
}

#[test]
fn a_watchdog_hears_from_the_supervisor_as_often_as_it_asks() {
    let manager = Manager::new();
    let began = Instant::now();
    let service = manager.start(&[("WATCHDOG_USEC", "200000")]);
    manager.until_ready();
    (0..5).for_each(|_| assert_eq!(manager.hears(), "WATCHDOG=1"));
    // The first one comes at once, the others twice in each period.
    assert!(began.elapsed() >= Duration::from_millis(390), "{:?}", began.elapsed());
    // A supervisor that is stuck is not heard any more, once what it said before is taken.
    signal(service.0.id(), Signal::STOP);
    let stat = format!("/proc/{}/stat", service.0.id());
    fixture::until("it is stopped", || std::fs::read_to_string(&stat).unwrap().contains(") T "));
    manager.ear.set_nonblocking(true).unwrap();
    while manager.ear.recv(&mut [0; 64]).is_ok() {}
    manager.ear.set_nonblocking(false).unwrap();
    manager.ear.set_read_timeout(Some(Duration::from_millis(400))).unwrap();
    assert!(manager.ear.recv(&mut [0; 64]).is_err());
}

#[test]
fn sockets_that_do_not_fit_the_configuration_are_refused() {
    let manager = Manager::new();
    let refused = |variables: &[(&str, &str)], socket: &Path, words: &str| {
        let clients: OwnedFd = manager.clients.try_clone().unwrap().into();
        let mut command = Command::new("/bin/sh");
        let set = "exec 3<&0 4<&0 </dev/null; exec env LISTEN_PID=$$ \"$@\"";
        command.args(["-c", set, "sh"]).arg(program("pappus-supervisor"));
        command.arg("--socket").arg(socket).args(["--state-dir", "state", "--config", "pappus.toml"]);
        command.current_dir(manager.dir.path()).stdin(clients).envs(variables.iter().copied());
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(words), "{said}");
    };
    let other = manager.dir.path().join("other");
    refused(&[("LISTEN_FDS", "1")], &other, "make both the same");
    refused(&[("LISTEN_FDS", "2")], &manager.socket(), "hands over 2 sockets");
}

/// What clients saw of restarts.
#[derive(Default)]
struct Seen {
    calls: AtomicU64,
    retries: AtomicU64,
    longest_ms: AtomicU64,
}

/// Calls again and again until `over`, as a client that knows that supervisors are replaced: where the connection ends, or
/// the supervisor drains, it connects anew and asks once more. Anything else, as being refused by the socket, fails.
fn calls_on(socket: &Path, over: &AtomicBool, seen: &Seen) {
    let mut connection = None;
    let mut next: u8 = 0;
    while !over.load(Ordering::Acquire) {
        let (input, began) = (vec![next; 64], Instant::now());
        loop {
            assert!(began.elapsed() < PATIENCE, "a call takes far too long");
            let mut client = match connection.take() {
                Some(client) => client,
                None => match Client::connect(socket) {
                    Ok(client) => client,
                    // It was accepted by a supervisor that ended.
                    Err(Error::Lost) => {
                        seen.retries.fetch_add(1, Ordering::Relaxed);
                        continue;
                    }
                    Err(e) => panic!("a client was refused: {e}"),
                },
            };
            match client.invoke(&Invocation::new("copy").input("in", input.clone()).output("out")) {
                Ok(answer) => {
                    assert_eq!(answer.outputs[0].inline, input);
                    connection = Some(client);
                    break;
                }
                Err(Error::Lost) => {}
                Err(Error::Refused(error)) if error.code() == Code::Unavailable => {}
                Err(e) => panic!("a call failed: {e}"),
            }
            seen.retries.fetch_add(1, Ordering::Relaxed);
        }
        seen.calls.fetch_add(1, Ordering::Relaxed);
        seen.longest_ms.fetch_max(began.elapsed().as_millis() as u64, Ordering::Relaxed);
        next = next.wrapping_add(1);
    }
}

/// `PAPPUS_RESTARTS=50` restarts more often, and prints what was seen.
#[test]
fn restarts_under_load_fail_no_call() {
    let wanted = std::env::var("PAPPUS_RESTARTS").ok();
    let restarts: u32 = wanted.as_ref().map_or(4, |number| number.parse().unwrap());
    let manager = Manager::new();
    let mut service = manager.start(&[]);
    manager.until_ready();
    kit::add_copy(&mut Client::connect(manager.socket()).unwrap());
    let (over, seen) = (AtomicBool::new(false), Seen::default());
    let mut ready_ms = Vec::new();
    std::thread::scope(|scope| {
        let callers: Vec<_> =
            (0..4).map(|_| scope.spawn(|| calls_on(&manager.socket(), &over, &seen))).collect();
        for _ in 0..restarts {
            // Some calls with each supervisor.
            let enough = seen.calls.load(Ordering::Relaxed) + 20;
            fixture::until("calls are answered", || {
                let failed = callers.iter().any(|caller| caller.is_finished());
                failed || seen.calls.load(Ordering::Relaxed) >= enough
            });
            manager.stop(&mut service);
            let began = Instant::now();
            service = manager.start(&[]);
            manager.until_ready();
            ready_ms.push(began.elapsed().as_millis());
        }
        over.store(true, Ordering::Release);
    });
    manager.stop(&mut service);
    if wanted.is_some() {
        ready_ms.sort_unstable();
        let Seen { calls, retries, longest_ms } = seen;
        println!(
            "{restarts} restarts: {} calls of 4 clients, none failed, {} tried again, the longest took {} ms; \
             start to ready: median {} ms, longest {} ms",
            calls.into_inner(),
            retries.into_inner(),
            longest_ms.into_inner(),
            ready_ms[ready_ms.len() / 2],
            ready_ms[ready_ms.len() - 1],
        );
    }
}
