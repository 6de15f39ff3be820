//! `pappus top` on a terminal that is none, and printed once.

use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};

use pappus_client::Client;
use rustix::process::Signal;
use rustix::pty::{self, OpenptFlags};
use rustix::termios::{self, LocalModes, Winsize};
use serde_json::Value;

use crate::fixture::{self, PATIENCE, Supervisor};
use crate::house::{enter, house};
use crate::kit;
use crate::programs::program;

/// Rows and columns.
const SIZE: (u16, u16) = (24, 120);

/// A supervisor of two functions, `copy`, whose call ended well, and `trap`, whose call failed.
fn with_calls() -> Supervisor {
    let supervisor = Supervisor::start();
    let mut client = supervisor.client();
    kit::add_copy(&mut client);
    kit::works(&mut client);
    kit::add_kernel(&mut client, "trap", "trap", &[]);
    assert_eq!(supervisor.pappus(&["invoke", "trap"]).code, 4);
    supervisor
}

/// `pappus top` in a terminal of its own.
struct Top {
    child: Child,
    terminal: std::fs::File,
    /// The other end, kept for its settings.
    slave: OwnedFd,
    written: Receiver<Vec<u8>>,
    screen: vt100::Parser,
}

impl Top {
    fn start(supervisor: &Supervisor) -> Self {
        let master = pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        pty::grantpt(&master).unwrap();
        pty::unlockpt(&master).unwrap();
        let name = pty::ptsname(&master, Vec::new()).unwrap();
        let open = || std::fs::File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let slave = open();
        let size = Winsize { ws_row: SIZE.0, ws_col: SIZE.1, ws_xpixel: 0, ws_ypixel: 0 };
        termios::tcsetwinsize(&slave, size).unwrap();
        let child = Command::new(program("pappus"))
            .args(["top", "--every", "20ms"])
            .env("PAPPUS_SOCKET", supervisor.admin_socket())
            .env("TERM", "xterm-256color")
            .stdin(Stdio::from(slave.try_clone().unwrap()))
            .stdout(Stdio::from(slave.try_clone().unwrap()))
            .stderr(Stdio::from(slave.try_clone().unwrap()))
            .spawn()
            .unwrap();
        let terminal = std::fs::File::from(master);
        let (tell, written) = mpsc::channel();
        let mut reader = terminal.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(bytes @ 1..) = reader.read(&mut buffer) {
                if tell.send(buffer[..bytes].to_vec()).is_err() {
                    return;
                }
            }
        });
        let [rows, columns] = [SIZE.0, SIZE.1].map(|size| NonZero::new(size).unwrap());
        let screen = vt100::Parser::new(rows, columns, 0);
        Self { child, terminal, slave: slave.into(), written, screen }
    }

    /// Waits until the screen is like this; what is on it.
    fn until(&mut self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        loop {
            let text = self.screen.screen().contents();
            if is_so(&text) {
                return text;
            }
            match self.written.recv_timeout(PATIENCE) {
                Ok(bytes) => self.screen.process(&bytes),
                Err(_) => panic!("waited in vain until {what}:\n{text}"),
            }
        }
    }

    fn press(&mut self, keys: &str) {
        self.terminal.write_all(keys.as_bytes()).unwrap();
    }

    /// True if lines are edited and typed letters shown, as before the program began.
    fn is_restored(&self) -> bool {
        let modes = termios::tcgetattr(&self.slave).unwrap().local_modes;
        modes.contains(LocalModes::ICANON | LocalModes::ECHO)
    }

    fn ended(&mut self) -> Option<i32> {
        let mut status = None;
        fixture::until("top ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn keys_turn_sort_and_search_on_a_terminal() {
    let supervisor = with_calls();
    let mut top = Top::start(&supervisor);
    let text = top.until("devices are shown", |text| text.contains("DEVICE▼"));
    assert!(text.contains("all is well: ready, 1 device") && text.contains("q end"), "{text}");
    assert!(!top.is_restored());
    top.press("4");
    let place = |text: &str, name: &str| text.lines().position(|line| line.starts_with(name));
    let both = |text: &str| Some((place(text, "copy")?, place(text, "trap")?));
    // By device time: a call that failed counts none.
    top.until("functions are sorted", |text| both(text).is_some_and(|(well, failed)| well < failed));
    top.press("r");
    top.until("the order turns", |text| both(text).is_some_and(|(well, failed)| well > failed));
    top.press("/COP\r");
    top.until("one is found", |text| place(text, "copy").is_some() && place(text, "trap").is_none());
    top.press("\t");
    top.until("no device has that name", |text| text.contains("DEVICE▼") && place(text, "cpu").is_none());
    // Escape alone is told from the beginning of a sequence.
    top.press("\x1b");
    top.until("all are shown", |text| place(text, "cpu").is_some());
    top.press("q");
    assert_eq!(top.ended(), Some(0));
    assert!(top.is_restored());
}

#[test]
fn a_restart_is_outlived_and_a_signal_leaves_the_terminal_as_it_was() {
    let mut supervisor = with_calls();
    let mut top = Top::start(&supervisor);
    top.until("all is well", |text| text.contains("all is well"));
    supervisor.terminate();
    supervisor.ended();
    top.until("nobody answers", |text| text.contains("no newer picture"));
    supervisor.restart();
    top.until("all is well again", |text| text.contains("all is well"));
    fixture::signal(top.child.id(), Signal::TERM);
    assert_eq!(top.ended(), Some(128 + 15));
    assert!(top.is_restored());
}

#[test]
fn one_picture_is_printed_for_scripts() {
    let supervisor = with_calls();
    let socket = ["--socket", "socket.admin"];
    let text = supervisor.ok(&[&socket[..], &["top", "--once"]].concat());
    let first: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
    for heading in ["DEVICE", "cpu", "TENANT", "FUNCTION", "copy", "trap"] {
        assert!(first.contains(&heading), "{heading}: {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
    assert!(text.lines().last().unwrap().starts_with("all is well"), "{text}");
    let told: Value =
        serde_json::from_str(&supervisor.ok(&[&socket[..], &["top", "--json"]].concat())).unwrap();
    let uses = told["status"]["uses"].as_array().unwrap();
    let used = |name: &str| uses.iter().find(|one| one["function"] == name).unwrap();
    assert_eq!((&used("copy")["completed"], &used("copy")["failed"]), (&1.into(), &0.into()));
    assert_eq!((&used("trap")["completed"], &used("trap")["failed"]), (&0.into(), &1.into()));
    assert!(used("copy")["device_ns"].as_u64().unwrap() > 0);
    assert_eq!((&told["status"]["well"], &told["status"]["troubles"]), (&true.into(), &Value::Array(vec![])));
    assert!(!told["tenants"].as_array().unwrap().is_empty());
    // A pipe is no terminal.
    let ran = supervisor.pappus(&[&socket[..], &["top"]].concat());
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("`pappus top --once` prints one picture"), "{}", ran.stderr);
}

#[test]
fn a_tenant_sees_its_own_functions_only() {
    let supervisor = house(&[("alice", ""), ("bob", "")]);
    let owners = |client: &mut Client| {
        let uses = client.status().unwrap().uses;
        let mut owners: Vec<String> = uses.into_iter().map(|one| one.owner).collect();
        owners.sort_unstable();
        owners
    };
    for tenant in ["alice", "bob"] {
        let mut client = enter(&supervisor, tenant);
        kit::add_copy(&mut client);
        kit::works(&mut client);
        assert_eq!(owners(&mut client), [tenant]);
    }
    // Who runs the supervisor sees everyone's.
    assert_eq!(owners(&mut supervisor.client()), ["alice", "bob"]);
}
