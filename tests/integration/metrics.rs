//! The Prometheus endpoint: off unless asked for.

use std::io::{Read, Write};
use std::net::TcpStream;

use pappus_client::{Code, Invocation};

use crate::fixture::{Supervisor, until};
use crate::kit::{self, refused};

/// Descriptors of a process that listen on a TCP port of the loopback interface or any other.
fn listens_on_tcp(pid: u32) -> bool {
    let sockets: Vec<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok())
        .map(|target| target.to_string_lossy().into_owned())
        .collect();
    let tables = ["tcp", "tcp6"]
        .map(|table| std::fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default());
    // State 0A is LISTEN; the tenth column is the socket's inode.
    let listening = tables.iter().flat_map(|table| table.lines().skip(1)).filter_map(|line| {
        let columns: Vec<_> = line.split_whitespace().collect();
        (columns.get(3) == Some(&"0A")).then(|| format!("socket:[{}]", columns[9]))
    });
    listening.into_iter().any(|socket| sockets.contains(&socket))
}

#[test]
fn metrics_are_served_where_asked_for_and_nowhere_else() {
    let silent = Supervisor::start();
    assert!(!listens_on_tcp(silent.pid()));

    // An address of the loopback network that is this process's own: no other case can hold its port.
    let [_, a, b, c] = std::process::id().to_be_bytes();
    let address = format!("127.{}.{b}.{}:9464", 64 + a % 64, c.max(1));
    let supervisor = Supervisor::with(&["--metrics", &address]);
    assert!(listens_on_tcp(supervisor.pid()), "the control");
    let mut client = supervisor.client();
    kit::add_copy(&mut client);
    kit::add_kernel(&mut client, "trap", "trap", &[]);
    kit::works(&mut client);
    kit::works(&mut client);
    refused(client.invoke(&Invocation::new("trap")), Code::KernelFault, "");
    let mut text = String::new();
    // Counts are published behind the answers that they count.
    until("the metrics show the calls", || {
        text = scrape(&address);
        text.contains(r#"pappus_invocations_total{device="cpu",outcome="completed"} 2"#)
            && text.contains(r#"pappus_invocations_total{device="cpu",outcome="failed"} 1"#)
    });
    for name in ["pappus_connections_total", "pappus_invocation_seconds", "pappus_queued", "pappus_running"] {
        assert!(text.contains(name), "{text}");
    }
    // Nothing in them names a function or a user.
    assert!(!text.contains("copy") && !text.contains("uid"), "{text}");
}

fn scrape(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    text
}
