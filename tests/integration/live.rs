//! Settings of a device that change while calls are in flight: each of them up and down, and no call fails.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pappus_client::v1::{self, request};
use pappus_client::{Client, Code, Invocation};

use crate::fixture::{Supervisor, until};
use crate::house::{config, enter};
use crate::kit::{self, Function, absolute, constant, launch, ptr, refused};
use crate::raw::Raw;

fn pairs(text: &str) -> HashMap<String, String> {
    let pair =
        |one: &str| one.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())).unwrap();
    text.split_whitespace().map(pair).collect()
}

fn set(supervisor: &Supervisor, change: &str) -> v1::DeviceSettings {
    supervisor.admin().set_device("cpu", pairs(change)).unwrap()
}

/// What of a device `status --json` shows.
fn shown(supervisor: &Supervisor) -> serde_json::Value {
    let admin = supervisor.admin_socket();
    let text = supervisor.ok(&["--socket", admin.to_str().unwrap(), "status", "--json"]);
    serde_json::from_str::<serde_json::Value>(&text).unwrap()["devices"][0].take()
}

/// A tenant that has a few calls in flight all the time, each with memory of its own, and checks each answer.
fn calls_all_the_time(mut client: Client, over: &AtomicBool, answered: &AtomicU64) {
    let bytes = 1 << 20;
    let steps = [
        launch("work", &[constant(2_000)]),
        launch("fill", &[ptr("b"), constant(0x37), constant(bytes)]),
        launch("copy", &[ptr("b"), ptr("out"), constant(64)]),
    ];
    let buffers = [("b", absolute(bytes as u64)), ("out", absolute(64))];
    let function = Function { buffers: &buffers, outputs: &["out"], steps: &steps, ..Function::default() };
    function.add(&mut client, "check");
    let call = || Invocation::new("check").output("out").deadline(Duration::from_secs(300));
    let mut open: Vec<u64> = (0..4).map(|_| client.send_invocation(&call()).unwrap()).collect();
    while !open.is_empty() {
        let answer = client.wait_invoked(open.remove(0)).unwrap();
        assert_eq!(answer.outputs[0].inline[..], [0x37; 64]);
        answered.fetch_add(1, Ordering::Relaxed);
        if !over.load(Ordering::Relaxed) {
            open.push(client.send_invocation(&call()).unwrap());
        }
    }
}

/// Ends the calls of all tenants when it is dropped, also where the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn every_setting_goes_up_and_down_under_load_and_no_call_fails() {
    let names = ["a", "b", "c", "d"];
    let rules: Vec<_> = names.iter().map(|name| (*name, "")).collect();
    let device = "cpu:workers=4,memory=16MiB,standbys=1,turns=on,quantum=1ms,min-residency=0s";
    let supervisor = Supervisor::configured(&config(&rules), &["--device", device]);
    let (over, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _ends = Ends(&over);
        for name in names {
            let client = enter(&supervisor, name);
            scope.spawn(|| calls_all_the_time(client, &over, &answered));
        }
        let more = |calls: u64| {
            let before = answered.load(Ordering::Relaxed);
            until("calls are answered", || answered.load(Ordering::Relaxed) >= before + calls);
        };
        more(20);
        for (change, key, value) in [
            ("workers=2", "workers_at_most", 2),
            ("workers=1 standbys=0", "workers_at_most", 1),
            ("workers=12", "workers_at_most", 12),
            ("memory=4MiB", "memory_bytes", 4 << 20),
            ("memory=64MiB", "memory_bytes", 64 << 20),
            ("standbys=3", "standbys", 3),
            ("standbys=1", "standbys", 1),
            ("quantum=20ms", "quantum_us", 20_000),
            ("quantum=200us", "quantum_us", 200),
            ("min-residency=50ms", "min_residency_us", 50_000),
            ("min-residency=0s workers=3 memory=8MiB", "min_residency_us", 0),
        ] {
            let settings = set(&supervisor, change);
            assert_eq!(settings.changes.len(), change.split_whitespace().count(), "{settings:?}");
            assert!(settings.changes.iter().all(|change| !change.effect.is_empty()));
            assert_eq!(shown(&supervisor)[key], value, "{change}");
            more(40);
            // Processes leave and come meanwhile.
            until("it has taken effect", || {
                let device = supervisor.device();
                let used = device.workers.iter().filter(|worker| worker.state != "unused").count();
                let memory = device.memory.as_ref().unwrap();
                used <= device.workers_at_most as usize
                    && memory.lease_bytes <= device.memory_bytes
                    && device.standbys_ready <= device.standbys
            });
        }
    });
    let device = supervisor.device();
    assert_eq!((device.failed, device.queued, device.running), (0, 0, 0));
    assert_eq!(device.completed, answered.load(Ordering::Relaxed), "one answer each");
}

#[test]
fn more_standbys_come_and_those_too_many_go() {
    let supervisor = Supervisor::with(&["--device", "cpu:workers=4,standbys=0,memory=16MiB"]);
    supervisor.worker_pids();
    set(&supervisor, "standbys=2");
    until("they are ready", || supervisor.device().standbys_ready == 2);
    assert_eq!(supervisor.children().len(), 3);
    set(&supervisor, "standbys=0");
    until("they are gone", || supervisor.children().len() == 1);
    assert_eq!(supervisor.device().standbys_ready, 0);
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let supervisor = Supervisor::with(&["--device", "cpu:workers=2,memory=16MiB"]);
    let mut admin = supervisor.admin();
    let before = admin.set_device("cpu", HashMap::new()).unwrap();
    assert_eq!((before.values.len(), before.changes.len()), (6, 0));
    for (change, words) in [
        ("workers=0", "workers must be 1 to 64"),
        ("workers=65", "workers must be 1 to 64"),
        ("workers=-1", "workers must be 1 to 64"),
        ("workers=1 standbys=2", "standbys must be 0 to 1"),
        ("wokers=1", "is no setting of it"),
        ("=1", "is no setting of it"),
        ("memory=1KiB", "64KiB at least"),
        ("memory=99999999999999999999GiB", "memory"),
        ("lanes=2", "one lane"),
        ("quantum=1us", "quantum must be 100us to 1s"),
        ("quantum=1ms turns=off", "turns cannot change while the device serves"),
        ("tenant-switch=scrub workers=3", "start the supervisor again"),
        ("min-residency=1h", "min-residency must be"),
    ] {
        refused(admin.set_device("cpu", pairs(change)), Code::InvalidArgument, words);
        assert_eq!(admin.set_device("cpu", HashMap::new()).unwrap().values, before.values, "{change}");
    }
    let long =
        HashMap::from([("workers".to_owned(), "9".repeat(1 << 16)), ("\0".repeat(999), String::new())]);
    refused(admin.set_device("cpu", long), Code::InvalidArgument, "");
    refused(admin.set_device("cuda:7", HashMap::new()), Code::NotFound, "there are cpu");
    refused(admin.set_device("cpu:workers=1", HashMap::new()), Code::NotFound, "there are cpu");
    assert_eq!(
        admin.set_device("cpu:0", HashMap::new()).unwrap().values,
        before.values,
        "another name of it"
    );
    refused(admin.set_device("", pairs("workers=1")), Code::NotFound, "no such device");
    // Not for everyone, whoever they are.
    refused(
        supervisor.client().set_device("cpu", pairs("workers=1")),
        Code::PermissionDenied,
        "admin socket",
    );
    if let Some(mut stranger) = kit::as_stranger(|| Client::connect(supervisor.socket()).unwrap()) {
        refused(stranger.set_device("cpu", pairs("workers=1")), Code::PermissionDenied, "admin socket");
        let shut = kit::as_stranger(|| Client::connect(supervisor.admin_socket()).is_err());
        assert_eq!(shut, Some(true));
    }
    // The same key twice in one map: the last one counts, as in every map of this format.
    let mut raw = Raw::greeted(&supervisor.admin_socket());
    let twice = v1::SetDevice { device: "cpu".into(), change: pairs("workers=3") };
    raw.request(1, request::Body::SetDevice(twice), &[]);
    assert_eq!(raw.body().0, 1);
    assert_eq!(admin.set_device("cpu", HashMap::new()).unwrap().values["workers"], "3");
}

#[test]
fn memory_that_an_accepted_call_needs_is_not_taken_away() {
    let supervisor = Supervisor::with(&["--device", "cpu:workers=2,memory=16MiB"]);
    let mut client = supervisor.client();
    let spins = [launch("spin", &[])];
    let large = Function { buffers: &[("b", absolute(10 << 20))], steps: &spins, ..Function::default() };
    large.add(&mut client, "large");
    let call = client.send_invocation(&Invocation::new("large").deadline(Duration::from_secs(100))).unwrap();
    supervisor.until_running();
    let why = supervisor.admin().set_device("cpu", pairs("memory=8MiB"));
    refused(why, Code::ResourceExhausted, "needs 10.0 MiB");
    assert_eq!(supervisor.device().memory_bytes, 16 << 20);
    set(&supervisor, "memory=12MiB");
    client.cancel(call).unwrap();
    supervisor.end_detached();
    until("it is over", || supervisor.device().running == 0);
    set(&supervisor, "memory=8MiB");
    refused(client.invoke(&Invocation::new("large")), Code::OutOfMemory, "10485760 bytes");
}

#[test]
fn the_device_command_and_a_reload_say_what_changed_and_when_it_counts() {
    let text = |device: &str, more: &str| format!("device = ['{device}']\n{more}\n{}", config(&[("a", "")]));
    let start = "cpu:workers=2,memory=16MiB";
    let supervisor = Supervisor::from_file(&text(start, ""));
    let admin = supervisor.admin_socket();
    let pappus = |args: &[&str]| supervisor.pappus(&[&["--socket", admin.to_str().unwrap()], args].concat());
    let ran = pappus(&["device", "set", "cpu", "workers=3", "quantum=2ms"]);
    assert!(ran.stdout.contains("workers of cpu: 2 -> 3: at once"), "{}", ran.stdout);
    assert!(ran.stdout.contains("quantum of cpu: 5ms -> 2ms: of no effect"), "{}", ran.stdout);
    assert!(ran.stdout.contains("min-residency  100ms"), "{}", ran.stdout);
    let json: serde_json::Value =
        serde_json::from_str(&pappus(&["device", "set", "cpu", "--json"]).stdout).unwrap();
    assert_eq!((json["settings"]["workers"].as_str(), json["changes"][0].is_null()), (Some("3"), true));
    assert_eq!(pappus(&["device", "set", "cpu", "workers=none"]).code, 3);
    assert_eq!(pappus(&["device", "set"]).code, 2);

    // What the file says is put in force, what it does not name stays.
    supervisor.write(
        "pappus.toml",
        text(&format!("{start},min-residency=1s"), "queue-calls = 7\nmetrics = '127.0.0.1:1'"),
    );
    let ran = pappus(&["reload"]);
    for words in [
        "queue-calls: 10000 -> 7\n",
        "workers of cpu: 3 -> 2: residents beyond it",
        "min-residency of cpu: 100ms -> 1s: at once",
        "takes another start: metrics",
    ] {
        assert!(ran.stdout.contains(words), "{}{}", ran.stdout, ran.stderr);
    }
    assert_eq!(shown(&supervisor)["queue_calls_at_most"], 7);
    assert_eq!(set(&supervisor, "").values["quantum"], "2ms");
    // One mistake anywhere, and nothing changes.
    for (device, more, words) in [
        ("cpu:workers=9,standbys=10", "queue-calls = 8", "standbys must be"),
        ("cpu:workers=9", "queue-calls = 8\ndefault-deadline = '9h'", "exceed max-deadline"),
        ("cpu:workers=9", "poll-us = 'x'", "pappus.toml"),
    ] {
        supervisor.write("pappus.toml", text(device, more));
        refused(supervisor.admin().reload(), Code::InvalidArgument, words);
        let device = supervisor.device();
        assert_eq!((device.workers_at_most, device.queue_calls_at_most), (2, 7), "{words}");
    }
    supervisor.write("pappus.toml", text("cpu:workers=4,turns=on", ""));
    let reloaded = supervisor.admin().reload().unwrap();
    assert_eq!(reloaded.restart, ["turns of cpu"]);
    assert_eq!(supervisor.device().workers_at_most, 4);
}

#[test]
fn one_tenant_does_not_fill_the_queue_for_others() {
    let rules = [("a", "queued-calls = 2\nqueued-bytes = 1000"), ("b", "")];
    let supervisor = Supervisor::configured(&config(&rules), &[]);
    let (mut a, mut b) = (enter(&supervisor, "a"), enter(&supervisor, "b"));
    kit::add_spin(&mut a);
    kit::add_copy(&mut a);
    kit::add_copy(&mut b);
    kit::works(&mut a);
    let spin = a.send_invocation(&Invocation::new("spin").deadline(Duration::from_secs(100))).unwrap();
    supervisor.until_running();
    let copy =
        |bytes: usize| Invocation::new("copy").input("in", vec![1; bytes]).deadline(Duration::from_secs(100));
    let mut open = vec![a.send_invocation(&copy(10)).unwrap()];
    until("it waits", || supervisor.device().queued == 1);
    let error =
        refused(a.invoke(&copy(991)), Code::ResourceExhausted, "the quota queued-bytes of tenant a is 1000");
    assert!(error.retryable && error.retry_after_ms > 0, "{error}");
    open.push(a.send_invocation(&copy(10)).unwrap());
    until("it waits", || supervisor.device().queued == 2);
    let error = refused(
        a.invoke(&copy(1)),
        Code::ResourceExhausted,
        "the quota queued-calls of tenant a is 2: 2 in use",
    );
    assert!(error.retryable && error.retry_after_ms > 0, "{error}");
    open.push(b.send_invocation(&copy(2000)).unwrap());
    until("it waits", || supervisor.device().queued == 3);
    let device = supervisor.device();
    assert_eq!((device.queued_bytes, device.queue_calls_at_most), (2020, 10_000));
    let used = |client: &mut Client, name: &str| {
        client.quota().unwrap().quotas.into_iter().find(|quota| quota.name == name).unwrap()
    };
    assert_eq!((used(&mut a, "queued-calls").used, used(&mut a, "queued-bytes").used), (2, 20));
    assert_eq!(used(&mut a, "queued-calls").limit, Some(2));
    // More room while it serves, and less again: what waits is not given up.
    supervisor.write("pappus.toml", config(&[("a", "queued-calls = 3"), ("b", "")]));
    supervisor.admin().reload().unwrap();
    open.push(a.send_invocation(&copy(1)).unwrap());
    until("it waits", || supervisor.device().queued == 4);
    supervisor.write("pappus.toml", config(&[("a", "queued-calls = 1"), ("b", "")]));
    supervisor.admin().reload().unwrap();
    refused(a.invoke(&copy(1)), Code::ResourceExhausted, "queued-calls");
    assert_eq!(supervisor.device().queued, 4);
    a.cancel(spin).unwrap();
    kit::fails(&mut a, spin, Code::Cancelled);
    for (nth, id) in open.into_iter().enumerate() {
        let client = if nth == 2 { &mut b } else { &mut a };
        client.wait_invoked(id).unwrap();
    }
}

#[test]
fn the_log_says_more_from_one_moment_to_the_next() {
    let supervisor = Supervisor::start();
    let breaks = || Raw::connect(&supervisor.socket()).send(b"no greeting at all");
    let told = || supervisor.log().matches("closing a connection: ").count();
    breaks();
    let admin = supervisor.admin_socket();
    let settings =
        |change: &str| supervisor.pappus(&["--socket", admin.to_str().unwrap(), "settings", change]);
    assert!(settings("log=debug").stdout.contains("debug"));
    breaks();
    until("it is told", || told() == 1);
    assert_eq!(settings("log=warn").code, 0);
    breaks();
    supervisor.client().status().unwrap();
    let why = settings("log=loud");
    assert!(why.code != 0 && why.stderr.contains("expected error, warn, info, debug or trace"), "{why:?}");
    assert_eq!(told(), 1);
}
