//! The endpoint of operators: off unless asked for; its metrics.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use pappus_client::{Code, Invocation};

use crate::fixture::{self, Supervisor, beside, until};
use crate::kit::{self, refused};
use crate::liars::LIAR;
use crate::programs::workspace;

/// True if a process listens on a TCP port of any interface. Some threads have a table of descriptors of their own.
fn listens_on_tcp(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let sockets: Vec<String> = threads
        .filter_map(|thread| std::fs::read_dir(thread.unwrap().path().join("fd")).ok())
        .flatten()
        .filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok())
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

    let address = address(9464);
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
    // Nothing in them names a function.
    assert!(!text.contains("\"copy\"") && !text.contains("uid"), "{text}");
}

/// An address of the loopback network that is this process's own: no other case can hold its ports.
pub(crate) fn address(port: u16) -> String {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    format!("127.{}.{b}.{}:{port}", 64 + a % 64, c.max(1))
}

pub(crate) fn scrape(address: &str) -> String {
    let text = request(address, "GET /metrics HTTP/1.1");
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    text
}

pub(crate) fn request(address: &str, line: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("{line}\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// A supervisor with the CPU device and a GPU, whose readings are what a process says that plays `lies`; without lies, an honest
/// one.
pub(crate) fn with_gpu(address: &str, lies: &str) -> Supervisor {
    let (program, dir) = beside(Path::new(LIAR));
    std::fs::write(dir.path().join("lies.survey"), "survey GPU-aa\nsilence").unwrap();
    if !lies.is_empty() {
        std::fs::write(dir.path().join("lies.meter"), lies).unwrap();
    }
    let flags = ["--device", "cpu", "--device", "cuda:0:workers=1", "--metrics", address];
    Supervisor::new(program, flags.map(str::to_owned).to_vec(), dir)
}

/// Series of what devices measure.
fn readings(address: &str) -> Vec<String> {
    let text = scrape(address);
    let lines = text
        .lines()
        .filter(|line| line.starts_with("pappus_device_") && !line.starts_with("pappus_device_lost"));
    lines.map(str::to_owned).collect()
}

#[test]
fn what_a_gpu_measures_is_shown_as_far_as_it_knows() {
    let address = address(9485);
    let supervisor = with_gpu(&address, "hello\nawait read\nreadings 1500 300000 50 -\nsilence");
    let shown = [
        "pappus_device_energy_joules_total{device=\"cuda:0\"} 1.5",
        "pappus_device_power_watts{device=\"cuda:0\"} 300",
        "pappus_device_utilization_ratio{device=\"cuda:0\"} 0.5",
    ];
    // A scrape waits for nothing, and nothing was asked before the first one.
    until("the values are there", || readings(&address) == shown);
    assert!(!supervisor.log().contains("are not in the metrics"));
}

#[test]
fn a_process_that_lies_about_a_gpu_is_ended_and_none_comes_soon() {
    let address = address(9486);
    let supervisor = with_gpu(&address, "hello\nawait read\nreadings 1 1 1 1 2 2 2 2\nsilence");
    let trouble = "GPUs' energy and use are not in the metrics";
    until("it is asked", || readings(&address).is_empty() && supervisor.log().contains(trouble));
    assert!(supervisor.log().contains("it sent 2 readings of 1 devices"), "{}", supervisor.log());
    // An honest one would say that the library is missing.
    (0..20).for_each(|_| assert!(readings(&address).is_empty()));
    assert_eq!(supervisor.log().matches(trouble).count(), 1);
    kit::add_copy(&mut supervisor.client());
    kit::works(&mut supervisor.client());
}

#[test]
fn a_library_that_is_missing_is_said_once() {
    let address = address(9487);
    let supervisor = with_gpu(&address, "");
    until("it is asked", || readings(&address).is_empty() && supervisor.log().contains("libnvidia-ml.so.1"));
    assert!(supervisor.log().contains("libnvidia-ml.so.1 is missing or does not start"));
    (0..20).for_each(|_| assert!(readings(&address).is_empty()));
    assert_eq!(supervisor.log().matches("libnvidia-ml.so.1").count(), 1);
}

/// The value of a series, written as in the text; 0 where there is none.
pub(crate) fn value(text: &str, series: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.map_or(0.0, |value| value.parse().unwrap())
}

#[test]
fn every_metric_is_described_and_starts_at_zero() {
    let address = address(9465);
    let supervisor = Supervisor::with(&["--metrics", &address]);
    supervisor.worker_pids();
    let mut text = String::new();
    until("gauges are there", || {
        text = scrape(&address);
        text.contains("pappus_running{")
    });
    let page = std::fs::read_to_string(workspace().join("docs/operations/metrics-and-logs.md")).unwrap();
    let documented = page.split('`').filter(|word| word.starts_with("pappus_"));
    let names: BTreeSet<_> = documented.map(|word| word.split('{').next().unwrap()).collect();
    assert!(names.len() >= 12, "{names:?}");
    // They name tenants and functions, and no tenant called one; or they are of GPUs, and here is none.
    let unused =
        ["pappus_tenant_device_seconds", "pappus_tenant_call", "pappus_function_call", "pappus_device_"];
    let is_unused =
        |name: &str| name != "pappus_device_lost" && unused.iter().any(|unused| name.starts_with(unused));
    assert_eq!(names.iter().filter(|name| is_unused(name)).count(), 9, "{names:?}");
    assert!(!text.contains("tenant=") && !text.contains("function="), "{text}");
    for name in names.into_iter().filter(|name| !is_unused(name)) {
        assert!(text.contains(&format!("# HELP {name} ")), "{name} has no description: {text}");
        let has_value = |line: &str| line.starts_with(name) && !line.starts_with('#');
        assert!(text.lines().any(has_value), "{name} has no value: {text}");
    }
}

#[test]
fn calls_of_each_tenant_and_each_function_are_counted_as_far_as_the_setting_says() {
    let address = address(9468);
    let supervisor = Supervisor::with(&["--metrics", &address, "--metrics-of", "functions"]);
    let mut client = supervisor.client();
    kit::add_copy(&mut client);
    kit::works(&mut client);
    kit::works(&mut client);
    refused(client.invoke(&Invocation::new("copy")), Code::InvalidArgument, "");
    refused(client.invoke(&Invocation::new("none")), Code::NotFound, "");
    let tenant = format!("tenant=\"{}\"", rustix::process::getuid().as_raw());
    let function = format!("owner=\"{}\",function=\"copy\"", rustix::process::getuid().as_raw());
    let mut text = String::new();
    until("all answers are counted", || {
        text = scrape(&address);
        let tenants =
            |code: &str| value(&text, &format!("pappus_tenant_calls_total{{{tenant},code=\"{code}\"}}"));
        ["OK", "INVALID_ARGUMENT", "NOT_FOUND"].map(tenants) == [2.0, 1.0, 1.0]
    });
    let functions =
        |code: &str| value(&text, &format!("pappus_function_calls_total{{{function},code=\"{code}\"}}"));
    // No function was found by that name.
    assert_eq!(["OK", "INVALID_ARGUMENT", "NOT_FOUND"].map(functions), [2.0, 1.0, 0.0], "{text}");
    for (prefix, labels) in [("tenant", &tenant), ("function", &function)] {
        for stage in ["queued", "copy_in", "execute", "copy_out", "clear", "total"] {
            let count = format!("pappus_{prefix}_call_seconds_count{{{labels},stage=\"{stage}\"}}");
            assert_eq!(value(&text, &count), 2.0, "{count}: {text}");
        }
    }
    let mut admin = supervisor.admin();
    let mut of = |whose: &str| {
        admin.settings([("metrics-of".to_owned(), whose.to_owned())].into()).unwrap();
    };
    of("tenants");
    text = scrape(&address);
    assert!(text.contains("tenant=") && !text.contains("function="), "{text}");
    of("devices");
    assert!(!scrape(&address).contains("pappus_tenant_call"));
}

#[test]
fn latencies_are_histograms_and_one_slow_call_is_one_slow_call() {
    let address = address(9466);
    let supervisor = Supervisor::with(&["--metrics", &address]);
    let mut client = supervisor.client();
    kit::add_spin(&mut client);
    kit::add_copy(&mut client);
    kit::works(&mut client);
    let slow = Invocation::new("spin").deadline(Duration::from_millis(300));
    refused(client.invoke(&slow), Code::DeadlineExceeded, "");
    for _ in 0..9 {
        kit::works(&mut client);
    }
    let mut text = String::new();
    let count =
        |outcome: &str| format!("pappus_invocation_seconds_count{{device=\"cpu\",outcome=\"{outcome}\"}}");
    until("all answers are counted", || {
        text = scrape(&address);
        value(&text, &count("completed")) == 10.0 && value(&text, &count("deadline")) == 1.0
    });
    assert!(text.contains("# TYPE pappus_invocation_seconds histogram"), "{text}");
    let bucket = |outcome: &str, bound: &str| {
        let labels = format!("device=\"cpu\",outcome=\"{outcome}\",le=\"{bound}\"");
        value(&text, &format!("pappus_invocation_seconds_bucket{{{labels}}}"))
    };
    // The call that spun took at least its deadline, and no other call is counted with it.
    assert_eq!((bucket("deadline", "0.25"), bucket("deadline", "+Inf")), (0.0, 1.0), "{text}");
    assert_eq!(bucket("completed", "+Inf"), 10.0, "{text}");
    let sum = value(&text, "pappus_invocation_seconds_sum{device=\"cpu\",outcome=\"deadline\"}");
    assert!((0.3..60.0).contains(&sum), "{text}");
}

#[test]
fn calls_that_are_cancelled_and_fail_are_counted_apart() {
    let address = address(9467);
    let supervisor = Supervisor::with(&["--metrics", &address]);
    let mut client = supervisor.client();
    kit::add_spin(&mut client);
    kit::add_kernel(&mut client, "trap", "trap", &[]);
    refused(client.invoke(&Invocation::new("trap")), Code::KernelFault, "");
    let spin = client.send_invocation(&Invocation::new("spin")).unwrap();
    supervisor.until_running();
    client.cancel(spin).unwrap();
    kit::fails(&mut client, spin, Code::Cancelled);
    supervisor.end_detached();
    until("both are counted", || {
        let text = scrape(&address);
        let count = |outcome: &str| {
            value(&text, &format!("pappus_invocation_seconds_count{{device=\"cpu\",outcome=\"{outcome}\"}}"))
        };
        (count("failed"), count("cancelled")) == (1.0, 1.0)
    });
}

#[test]
fn only_metrics_and_health_have_a_path() {
    let address = address(9468);
    let _supervisor = Supervisor::with(&["--metrics", &address]);
    for (line, status) in [
        ("GET /metrics HTTP/1.1", "HTTP/1.1 200"),
        ("GET /metrics?x=1 HTTP/1.1", "HTTP/1.1 200"),
        ("GET /healthz HTTP/1.1", "HTTP/1.1 200"),
        ("HEAD /healthz HTTP/1.1", "HTTP/1.1 200"),
        ("POST /healthz HTTP/1.1", "HTTP/1.1 405"),
        ("POST /readyz HTTP/1.1", "HTTP/1.1 405"),
        ("GET /readyz/ HTTP/1.1", "HTTP/1.1 404"),
        ("GET / HTTP/1.1", "HTTP/1.1 404"),
        ("GET /health HTTP/1.1", "HTTP/1.1 404"),
        ("GET /metrics/../etc HTTP/1.1", "HTTP/1.1 404"),
        ("POST /metrics HTTP/1.1", "HTTP/1.1 405"),
        ("nonsense", "HTTP/1.1 400"),
    ] {
        let answer = request(&address, line);
        assert!(answer.starts_with(status), "{line}: {answer}");
    }
    // A header without end is no reason to keep bytes.
    let mut stream = TcpStream::connect(&address).unwrap();
    let flood = [b"GET /metrics HTTP/1.1\r\nx: ".to_vec(), vec![b'a'; 64 << 10]].concat();
    // It may be closed before all is written.
    let _ = stream.write_all(&flood);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 431"), "{}", String::from_utf8_lossy(&answer));
}

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = std::net::TcpListener::bind(address(9469)).unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    let flags = ["--metrics", &address, "--device", "cpu:workers=1,memory=1MiB"].map(str::to_owned);
    let program = crate::programs::program("pappus-supervisor");
    let ran = fixture::run(&mut fixture::command(&program, dir.path(), "socket", &flags));
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains(&address) && ran.stderr.contains("--metrics"), "{}", ran.stderr);
}
