//! The gateway, a process of its own, in front of a supervisor with tenants: what its clients get, and what hostile ones do not.
//!
//! - `http`: requests by hand, as bytes. `grpc`: by tonic.
//! - `bench`: load by `pappus bench`. `sequences`: requests that share state.
//! - `tls`: certificates.
//! - `watching`: metrics, the log, traces.
//! - `hostile`: requests that break rules, and clients that stall or flood.

mod bench;
mod grpc;
mod hostile;
mod http;
mod sequences;
mod tls;
mod watching;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::fixture::{PATIENCE, Supervisor};
use crate::house::{enter, house, token};
use crate::kit;
use crate::programs::{program, workspace};

/// A running gateway and its supervisor.
pub(crate) struct Gateway {
    child: Child,
    pub(crate) http: String,
    pub(crate) grpc: String,
    pub(crate) supervisor: Supervisor,
}

impl Gateway {
    /// In front of a supervisor with these tenants; each has `copy`, `spin` and the library's `vec_add`.
    fn start() -> Self {
        Self::before(house(&[("alice", ""), ("bob", "")]), &[])
    }

    fn before(supervisor: Supervisor, flags: &[&str]) -> Self {
        let mut alice = enter(&supervisor, "alice");
        kit::add_copy(&mut alice);
        kit::add_spin(&mut alice);
        supervisor.write("alice.token", token("alice"));
        add_vec_add(&supervisor, &["--token-file", "alice.token"]);
        Self::alone(supervisor, flags)
    }

    /// Starts another one in its place, with other flags.
    fn again(&mut self, flags: &[&str]) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        (self.child, self.http, self.grpc) = start(&self.supervisor, flags);
    }

    /// With nothing registered.
    fn alone(supervisor: Supervisor, flags: &[&str]) -> Self {
        let (child, http, grpc) = start(&supervisor, flags);
        Self { child, http, grpc, supervisor }
    }

    /// A connection for HTTP.
    fn connect(&self) -> Connection {
        let stream = TcpStream::connect(&self.http).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Connection { stream: BufReader::new(stream) }
    }

    /// One request of alice's, on a connection of its own.
    fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        self.connect().ask(method, path, &[&bearer("alice")], body.as_bytes())
    }

    /// How much memory it takes, in bytes.
    fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        1024 * line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    }

    /// It still does what it is for.
    fn works(&self) {
        let answer = self.ask("POST", "/v2/models/vec_add/infer", ADD);
        assert_eq!((answer.status, answer.json()["outputs"][0]["data"][1].as_f64()), (200, Some(22.0)));
    }
}

/// Starts a gateway, and returns where it serves HTTP and gRPC.
fn start(supervisor: &Supervisor, flags: &[&str]) -> (Child, String, String) {
    let mut child = Command::new(program("pappus-gateway"))
        .arg("--socket")
        .arg(supervisor.socket())
        .args(["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"])
        .args(flags)
        .env("NO_COLOR", "1")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It says where it listens, and nothing else that is waited for.
    let mut log = BufReader::new(child.stderr.take().unwrap());
    let mut address = |protocol: &str| {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0, "the gateway ended");
            if let Some((_, address)) = line.split_once(&format!("serving {protocol} on ")) {
                return address.trim().to_owned();
            }
        }
    };
    let (http, grpc) = (address("HTTP"), address("gRPC"));
    std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::stderr()));
    (child, http, grpc)
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Registers the library's `vec_add`.
fn add_vec_add(supervisor: &Supervisor, who: &[&str]) {
    let config = workspace().join("kernels/configs/vec_add.json");
    supervisor.ok(&[who, &["function", "add", "vec_add", config.to_str().unwrap()]].concat());
}

/// A request of `vec_add`.
const ADD: &str = r#"{"inputs": [{"name": "A", "datatype": "FP32", "data": [1, 2, 3]},
    {"name": "B", "datatype": "FP32", "shape": [3], "data": [10, 20, 30]}]}"#;

fn bearer(tenant: &str) -> String {
    format!("Authorization: Bearer {}", token(tenant))
}

/// A connection for HTTP.
struct Connection {
    stream: BufReader<TcpStream>,
}

/// An answer over HTTP.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    /// What it says is wrong.
    fn error(&self, status: u16, code: &str, words: &str) {
        let json = self.json();
        let text = json["error"].as_str().unwrap();
        assert!(self.status == status && json["code"] == code && text.contains(words), "{self:?}\n{text}");
    }
}

impl Connection {
    fn send(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    /// The next answer.
    fn answer(&mut self) -> Answer {
        self.try_answer().expect("an answer")
    }

    /// The next answer; none if the connection is closed instead.
    fn try_answer(&mut self) -> Option<Answer> {
        let mut head = String::new();
        loop {
            let before = head.len();
            match self.stream.read_line(&mut head) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
            if head[before..].trim().is_empty() {
                break;
            }
        }
        let mut answer = Answer { status: head[9..12].parse().unwrap(), head, body: Vec::new() };
        let bytes = answer.header("content-length").map_or(0, |bytes| bytes.parse().unwrap());
        answer.body = vec![0; bytes];
        self.stream.read_exact(&mut answer.body).unwrap();
        Some(answer)
    }

    fn ask(&mut self, method: &str, path: &str, headers: &[&str], body: &[u8]) -> Answer {
        self.begin(method, path, headers, body.len());
        self.send(body);
        self.answer()
    }

    /// Sends all of a request but its body.
    fn begin(&mut self, method: &str, path: &str, headers: &[&str], bytes: usize) {
        let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
        let length = if method == "POST" { format!("Content-Length: {bytes}\r\n") } else { String::new() };
        self.send(format!("{method} {path} HTTP/1.1\r\nHost: gateway\r\n{headers}{length}\r\n").as_bytes());
    }

    /// Lets reads give up after a while.
    fn patience(&self, patience: Duration) {
        self.stream.get_ref().set_read_timeout(Some(patience)).unwrap();
    }
}
