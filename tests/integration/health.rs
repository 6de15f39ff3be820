//! What an orchestrator is told: `/healthz`, whether to start the supervisor again, and `/readyz`, whether to send it
//! calls, with the reason in words.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use pappus_client::Invocation;
use rustix::net::{AddressFamily, SocketType};

use crate::fixture::{Supervisor, beside, until};
use crate::kit;
use crate::metrics::{address, request, scrape, value};

/// Status and body of an answer.
fn get(address: &str, path: &str) -> (u16, String) {
    let answer = request(address, &format!("GET {path} HTTP/1.1"));
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn until_ready(address: &str) {
    until("it is ready", || get(address, "/readyz") == (200, "ready\n".to_owned()));
}

/// Reasons that metrics show, by their names.
fn reasons(address: &str) -> (f64, Vec<&'static str>) {
    let text = scrape(address);
    let holds = |reason: &&str| value(&text, &format!("pappus_not_ready{{reason=\"{reason}\"}}")) == 1.0;
    let all = ["starting", "draining", "no-worker", "socket", "state"];
    (value(&text, "pappus_ready"), all.into_iter().filter(holds).collect())
}

#[test]
fn a_supervisor_is_ready_until_it_drains_and_alive_to_the_end() {
    let address = address(9470);
    let mut supervisor = Supervisor::with(&["--metrics", &address]);
    until_ready(&address);
    assert_eq!(reasons(&address), (1.0, vec![]));
    let mut client = supervisor.client();
    kit::add_spin(&mut client);
    client.send_invocation(&Invocation::new("spin")).unwrap();
    supervisor.until_running();
    supervisor.terminate();
    let mut admin = supervisor.admin();
    until("it drains", || admin.status().unwrap().draining);
    let (status, why) = get(&address, "/readyz");
    assert_eq!(status, 503);
    assert_eq!(why, "draining: accepted calls are finished, new ones are refused\n");
    assert_eq!(get(&address, "/healthz"), (200, "alive\n".to_owned()));
    assert_eq!(reasons(&address), (0.0, vec!["draining"]));
    supervisor.terminate();
    supervisor.ended();
}

#[test]
fn without_a_worker_it_is_alive_and_not_ready() {
    let quits = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/liars/quits");
    let address = address(9471);
    let (program, dir) = beside(&quits);
    let flags = ["--device", "cpu:workers=1,memory=1MiB", "--metrics", &address].map(str::to_owned);
    let supervisor = Supervisor::new(program, flags.into(), dir);
    let no_worker = "no worker is ready on any device: calls wait; the log says why\n";
    until("it says so", || get(&address, "/readyz") == (503, no_worker.to_owned()));
    assert_eq!(get(&address, "/healthz").0, 200);
    assert_eq!(reasons(&address), (0.0, vec!["no-worker"]));
    assert_eq!(supervisor.pappus(&["status", "--ready"]).code, 1);
    until("the device counts as lost", || {
        value(&scrape(&address), "pappus_device_lost{device=\"cpu\"}") == 1.0
    });
}

#[test]
fn a_state_directory_that_cannot_be_written_is_named() {
    let address = address(9472);
    let supervisor = Supervisor::with(&["--metrics", &address]);
    until_ready(&address);
    assert!(value(&scrape(&address), "pappus_state_free_bytes") > 0.0);
    let (state, away) = (supervisor.path("state"), supervisor.path("away"));
    std::fs::rename(&state, &away).unwrap();
    let mut why = (0, String::new());
    // What is known of the disk is believed for a moment.
    until("it is not ready", || {
        why = get(&address, "/readyz");
        why.0 == 503
    });
    assert!(why.1.starts_with("the state directory cannot be written"), "{}", why.1);
    assert!(why.1.contains("state/try-out.tmp"), "{}", why.1);
    assert_eq!(reasons(&address), (0.0, vec!["state"]));
    // Calls can be made all the same: readiness asks for no more.
    assert_eq!(supervisor.pappus(&["status", "--ready"]).code, 0);
    std::fs::rename(&away, &state).unwrap();
    until_ready(&address);
    // Nothing is left behind.
    assert!(!state.join("try-out.tmp").exists());
}

/// A connection from this address of the loopback network.
fn from(peer: &str, address: &str) -> TcpStream {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &format!("{peer}:0").parse::<SocketAddr>().unwrap()).unwrap();
    rustix::net::connect(&socket, &address.parse::<SocketAddr>().unwrap()).unwrap();
    socket.into()
}

/// What such a connection is answered; nothing where it is closed instead.
fn asked(peer: &str, address: &str) -> String {
    let mut text = String::new();
    let mut stream = from(peer, address);
    let _ = stream.write_all(format!("GET /healthz HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes());
    let _ = stream.read_to_string(&mut text);
    text
}

#[test]
fn connections_that_ask_nothing_keep_nobody_from_an_answer() {
    let address = address(9475);
    let supervisor = Supervisor::with(&["--metrics", &address]);
    until_ready(&address);
    // More than are served at the same time, from eight addresses. Those that came first make way.
    let held: Vec<_> = (0..300).map(|nth| from(&format!("127.0.0.{}", 2 + nth % 8), &address)).collect();
    for peer in ["127.0.0.1", "127.0.0.2", "127.0.0.20"] {
        assert!(asked(peer, &address).starts_with("HTTP/1.1 200"), "{peer}");
    }
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", supervisor.pid())).unwrap().count();
    drop(held);
    // A connection ends once no request came for a second. The promise is one of time: by the other rule, which an answer
    // has, it would end after ten.
    let began = Instant::now();
    let _ = from("127.0.0.4", &address).read_to_string(&mut String::new());
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    until("their descriptors are closed", || descriptors() < 128);
}

#[test]
fn the_process_shows_what_it_takes() {
    let address = address(9473);
    let supervisor = Supervisor::with(&["--metrics", &address]);
    until_ready(&address);
    let text = scrape(&address);
    let at_least = |name: &str, least: f64| {
        let found = value(&text, name);
        assert!(found >= least, "{name} is {found}");
        found
    };
    let resident = at_least("process_resident_memory_bytes", 1e6);
    assert!(resident < 1e9, "{resident}");
    let open = std::fs::read_dir(format!("/proc/{}/fd", supervisor.pid())).unwrap().count() as f64;
    let shown = at_least("process_open_fds", 10.0);
    // The connection that asked is closed by now, and another may be open.
    assert!((shown - open).abs() <= 8.0, "{shown} shown, {open} open");
    at_least("process_max_fds", shown);
    at_least("process_threads", 3.0);
    at_least("process_start_time_seconds", 1.7e9);
    let version = format!("pappus_build_info{{version=\"{} (", env!("CARGO_PKG_VERSION"));
    assert!(text.lines().any(|line| line.starts_with(&version) && line.ends_with("} 1")), "{text}");
    let part = |part: &str| value(&text, &format!("pappus_memory_bytes{{device=\"cpu\",part=\"{part}\"}}"));
    let all = ["contexts", "stacks", "leases", "weights", "free"].map(part);
    assert_eq!(all.iter().sum::<f64>(), f64::from(16 << 20), "{all:?}");
}

/// Somebody removes the sockets' files: a cleaner of /tmp, an emptied folder of the host.
#[test]
fn a_socket_whose_file_is_gone_is_made_anew_and_until_then_it_is_not_ready() {
    let address = address(9477);
    let supervisor = Supervisor::with(&["--metrics", &address]);
    until_ready(&address);
    // A file in the place of the socket, which then cannot be made anew.
    std::fs::remove_file(supervisor.socket()).unwrap();
    std::fs::write(supervisor.socket(), "somebody's").unwrap();
    let mut why = String::new();
    until("it is not ready", || {
        let (status, text) = get(&address, "/readyz");
        why = text;
        status == 503
    });
    assert!(why.starts_with("nobody can connect: socket is gone or another's"), "{why}");
    assert_eq!(reasons(&address), (0.0, vec!["socket"]));
    assert!(!supervisor.admin().status().unwrap().ready);
    until("the log says so", || {
        supervisor.log().contains("nobody can connect, since the file of a socket is gone")
    });
    assert_eq!(supervisor.read("socket"), b"somebody's");
    std::fs::remove_file(supervisor.socket()).unwrap();
    until_ready(&address);
    assert!(supervisor.client().status().unwrap().ready);
    assert!(supervisor.log().contains("the file of a socket was gone, and is made anew: socket"));
    // Both of them, at once.
    for socket in [supervisor.socket(), supervisor.admin_socket()] {
        std::fs::remove_file(socket).unwrap();
    }
    until("they are there", || supervisor.socket().exists() && supervisor.admin_socket().exists());
    until_ready(&address);
    assert!(supervisor.client().status().unwrap().ready && supervisor.admin().status().unwrap().ready);
}
