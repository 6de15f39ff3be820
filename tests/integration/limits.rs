//! Settings that change while the supervisor runs, and full queues (ATTACKS 23).

use std::collections::HashMap;

use pappus_client::v1::{self, request};
use pappus_client::{Client, Code, Invocation};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};
use serde_json::json;

use crate::fixture::{Supervisor, until};
use crate::kit::{self, Function, absolute, refused};
use crate::raw::{Raw, output};

fn change(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    pairs.iter().map(owned).collect()
}

#[test]
fn settings_change_all_or_none() {
    let supervisor = Supervisor::start();
    let mut admin = supervisor.admin();
    let before = admin.settings(HashMap::new()).unwrap();
    assert_eq!(before["default-deadline"], "30s");
    let changed = admin.settings(change(&[("queue-calls", "7"), ("default-deadline", "500ms")])).unwrap();
    assert_eq!((&*changed["queue-calls"], &*changed["default-deadline"]), ("7", "500ms"));
    for (bad, words) in [
        (("wokers", "2"), "no such setting"),
        (("queue-calls", "many"), "queue-calls"),
        (("queue-bytes", "-1"), "such as 256MiB"),
        (("default-deadline", "0s"), "longer than zero"),
        (("default-deadline", "1h"), "exceed max-deadline"),
        (("poll-us", "99999999"), "at most"),
        (("fault-budget", "9999999"), "at most"),
        (("quarantine-after", "-1"), "quarantine-after"),
        (("cancel-grace", "0s"), "longer than zero"),
    ] {
        let both = change(&[bad, ("queue-calls", "9")]);
        let both = if bad.0 == "queue-calls" { change(&[bad]) } else { both };
        refused(admin.settings(both), Code::InvalidArgument, words);
        assert_eq!(admin.settings(HashMap::new()).unwrap(), changed, "{bad:?}");
    }
    // Not for everyone.
    refused(supervisor.client().settings(HashMap::new()), Code::PermissionDenied, "admin socket");
}

#[test]
fn the_settings_command_shows_and_changes() {
    let supervisor = Supervisor::start();
    let admin = supervisor.admin_socket();
    let settings = |args: &[&str]| {
        let all = [&["--socket", admin.to_str().unwrap(), "settings"], args].concat();
        supervisor.pappus(&all)
    };
    assert!(settings(&[]).stdout.contains("poll-us"));
    let changed: serde_json::Value =
        serde_json::from_str(&settings(&["poll-us=7", "--json"]).stdout).unwrap();
    assert!(changed.to_string().contains(r#""poll-us":"7""#), "{changed}");
    assert_eq!(settings(&["poll-us=soon"]).code, 3);
    assert_eq!(supervisor.pappus(&["settings"]).code, 3);
}

#[test]
fn a_full_queue_says_when_to_come_back() {
    let supervisor = Supervisor::with(&["--queue-calls", "1"]);
    let mut client = supervisor.client();
    kit::add_copy(&mut client);
    kit::works(&mut client);
    kit::add_spin(&mut client);
    let spin = client.send_invocation(&Invocation::new("spin")).unwrap();
    supervisor.until_running();
    let copy = Invocation::new("copy").input("in", vec![1]);
    let waiting = client.send_invocation(&copy).unwrap();
    until("it waits", || supervisor.device().queued == 1);
    let error = refused(client.invoke(&copy), Code::ResourceExhausted, "is full");
    assert!(error.retryable && error.retry_after_ms > 0, "{error}");
    // More room by a setting, at once.
    supervisor.admin().settings(change(&[("queue-calls", "2")])).unwrap();
    let second = client.send_invocation(&copy).unwrap();
    until("it waits", || supervisor.device().queued == 2);
    for id in [spin, waiting, second] {
        client.cancel(id).unwrap();
        kit::fails(&mut client, id, Code::Cancelled);
    }
}

#[test]
fn a_queue_holds_so_many_inline_bytes() {
    let supervisor = Supervisor::with(&["--queue-bytes", "1KiB"]);
    let mut client = supervisor.client();
    kit::add_copy(&mut client);
    kit::works(&mut client);
    kit::add_spin(&mut client);
    // The control: what need not wait is not counted.
    assert!(kit::copied(&mut client, &[1; 2000]).is_ok());
    let spin = client.send_invocation(&Invocation::new("spin")).unwrap();
    supervisor.until_running();
    refused(kit::copied(&mut client, &[1; 2000]), Code::ResourceExhausted, "inline bytes");
    client.cancel(spin).unwrap();
}

#[test]
fn a_flood_of_connections_leaves_the_operator_in() {
    // As many as the supervisor takes; this process must be able to hold them.
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    setrlimit(Resource::Nofile, raised).unwrap();
    let supervisor = Supervisor::start();
    let served =
        || Client::connect(supervisor.socket()).and_then(|mut client| client.quota().map(|_| client));
    let mut connections = Vec::new();
    let refused_with = loop {
        match served() {
            Ok(client) => connections.push(client),
            refused_with => break refused_with,
        }
        assert!(connections.len() < 5000, "no limit");
    };
    refused(refused_with, Code::ResourceExhausted, "the quota connections of tenant");
    assert!(connections.len() > 100);
    // Who can only be reached through a socket must not be shut out by it.
    let status = Client::connect(supervisor.admin_socket()).and_then(|mut admin| admin.status());
    assert!(status.is_ok(), "{status:?}");
    drop(connections);
    until("there is room again", || served().is_ok());
}

/// Answers that were read take no memory, however many there are and however late they are read.
#[test]
fn a_slow_reader_costs_what_it_has_not_read() {
    const MIB: u64 = 1 << 20;
    const BEHIND: u64 = 8;
    const CALLS: u64 = 80;
    let supervisor = Supervisor::start();
    let function = Function { buffers: &[("out", absolute(MIB))], outputs: &["out"], ..Function::default() };
    function.add(&mut supervisor.client(), "mebibyte");
    let mut admin = supervisor.admin();
    let mut raw = Raw::greeted(&supervisor.socket());
    let call = v1::Invoke { function: "mebibyte".into(), outputs: vec![output(None)], ..Default::default() };
    for id in 1..=CALLS {
        raw.request(id, request::Body::Invoke(call.clone()), &[]);
        until("it is answered", || admin.status().unwrap().devices[0].completed == id);
        // Always some answers behind: the supervisor always has something left to write.
        if id > BEHIND {
            raw.body();
        }
    }
    let takes = supervisor.resident_bytes();
    assert!(takes < (3 * BEHIND + 20) * MIB, "{} MiB", takes / MIB);
}

#[test]
fn running_out_of_descriptors_passes() {
    let supervisor = Supervisor::start();
    let mut client = supervisor.client();
    kit::add_copy(&mut client);
    kit::works(&mut client);
    let pid = Pid::from_raw(supervisor.pid() as i32);
    let open = std::fs::read_dir(format!("/proc/{}/fd", supervisor.pid())).unwrap().count() as u64;
    let before = getrlimit(Resource::Nofile);
    let few = Rlimit { current: Some(open + 5), maximum: before.maximum };
    let more = prlimit(pid, Resource::Nofile, few).unwrap();
    // Accepted by the kernel, not by the supervisor, which has no descriptor left for most of them.
    let crowd: Vec<_> = (0..50).map(|_| Raw::connect(&supervisor.socket())).collect();
    kit::works(&mut client);
    drop(crowd);
    prlimit(pid, Resource::Nofile, more).unwrap();
    until("there is room again", || Client::connect(supervisor.socket()).is_ok());
    kit::works(&mut supervisor.client());
}

/// What waits is what was counted: inline bytes, not the frames they came in.
#[test]
fn a_waiting_call_keeps_its_bytes_and_not_its_frame() {
    const MIB: u64 = 1 << 20;
    let supervisor = Supervisor::start();
    let mut client = supervisor.client();
    kit::add_copy(&mut client);
    kit::works(&mut client);
    kit::add_spin(&mut client);
    let spin = client.send_invocation(&Invocation::new("spin")).unwrap();
    supervisor.until_running();
    let mut raw = Raw::greeted(&supervisor.socket());
    let item = v1::Item { source: Some(v1::item::Source::Inline(vec![1].into())) };
    let input = v1::Input { name: "in".into(), items: vec![item], r#type: None };
    let call = v1::Invoke { function: "copy".into(), inputs: vec![input], ..Default::default() };
    for id in 1..=40 {
        let mut frame = crate::raw::request(id, request::Body::Invoke(call.clone()), 0);
        // A field that this version does not know, of two MiB.
        let unknown = [&[0xfa, 0x3e][..], &[0x80, 0x80, 0x80, 0x01], &vec![0; 2 << 20]].concat();
        frame.extend_from_slice(&unknown);
        let length = (frame.len() - 8) as u32;
        frame[..4].copy_from_slice(&length.to_le_bytes());
        raw.send(&frame);
    }
    until("they wait", || supervisor.device().queued == 40);
    let takes = supervisor.resident_bytes();
    assert!(takes < 60 * MIB, "{} MiB", takes / MIB);
    client.cancel(spin).unwrap();
}

#[test]
fn a_function_may_have_as_many_modules_as_compilers_emit() {
    const MODULES: usize = 512;
    let supervisor = Supervisor::start();
    let mut client = supervisor.client();
    let name = |at: usize| format!("m{at}");
    let modules: Vec<_> = (0..MODULES)
        .map(|at| json!({"module_name": name(at), "path": format!("{}.wasm", name(at))}))
        .collect();
    let last = json!({"module_name": name(MODULES - 1), "kernel_name": "store"});
    let config = json!({
        "modules": modules, "kernels": [last],
        "blueprint": {"inputs": [], "buffers": {"out": kit::absolute(8)}, "outputs": ["out"],
            "control_flow": [kit::launch("store", &[kit::ptr("out"), kit::constant(7)])]},
    });
    let variant = kit::wasm(&mut client, kit::probes());
    let module = |at| kit::module_of(&name(at), vec![variant.clone()]);
    let one = kit::parts(&mut client, "many", &config.to_string(), module(0)).unwrap();
    client.add_function(v1::AddFunction { modules: (0..MODULES).map(module).collect(), ..one }).unwrap();
    let answer = client.invoke(&Invocation::new("many").output("out")).unwrap();
    assert_eq!(answer.outputs[0].inline[..], 7u64.to_le_bytes());
}
