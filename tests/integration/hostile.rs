//! Hostile programs: kernels, modules, blueprints and clients that attack (ATTACKS 7, 15 to 18, 20, 31), each beside its
//! control.

use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use pappus_client::{Client, Code, Invocation, Result, v1};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::fixture::{Supervisor, signal, ticks, until};
use crate::kit::{self, absolute, as_stranger, constant, launch, ptr, refused};
use crate::raw::Raw;

const KERNELS: &str = include_str!("../hostile/kernels.wat");

/// A configuration over one module.
fn config(path: &str, kernels: &[&str], blueprint: Value) -> String {
    let kernels: Vec<_> =
        kernels.iter().map(|kernel| json!({"module_name": "hostile", "kernel_name": kernel})).collect();
    let modules = json!([{"module_name": "hostile", "path": path}]);
    json!({"modules": modules, "kernels": kernels, "blueprint": blueprint}).to_string()
}

fn blueprint(buffers: Value, outputs: &[&str], steps: &[Value]) -> Value {
    json!({"inputs": [], "weights": [], "buffers": buffers, "outputs": outputs, "control_flow": steps})
}

fn try_add(client: &mut Client, name: &str, config: &str, module: &[u8]) -> Result<v1::FunctionInfo> {
    let variants = vec![kit::wasm(client, module)];
    let function = kit::parts(client, name, config, kit::module_of("hostile", variants))?;
    client.add_function(function)
}

fn add(client: &mut Client, name: &str, blueprint: Value, kernel: &str) {
    let config = config("hostile.wasm", &[kernel], blueprint);
    try_add(client, name, &config, &wat::parse_str(KERNELS).unwrap()).unwrap();
}

/// `scribble`: writes for ever; `once`: writes once and returns what it wrote; `look`: returns a buffer that no step
/// writes.
fn add_scribblers(client: &mut Client, bytes: u64) {
    let size = json!({"words": absolute(bytes)});
    for (name, rounds, outputs) in [("scribble", 0, &[][..]), ("once", 1, &["words"])] {
        let step = launch("scribble", &[ptr("words"), constant(bytes as i64), constant(rounds)]);
        add(client, name, blueprint(size.clone(), outputs, &[step]), "scribble");
    }
    add(client, "look", blueprint(size, &["words"], &[]), "scribble");
}

fn seen(client: &mut Client, name: &str) -> Vec<u8> {
    client.invoke(&Invocation::new(name).output("words")).unwrap().outputs[0].inline.to_vec()
}

#[test]
fn a_kernel_that_writes_past_its_deadline_reaches_no_other_call() {
    const BYTES: u64 = 512 << 10;
    let supervisor = Supervisor::start();
    let mut own = supervisor.client();
    let mut stranger = as_stranger(|| supervisor.client());
    for client in [Some(&mut own), stranger.as_mut()].into_iter().flatten() {
        add_scribblers(client, BYTES);
    }
    for _ in 0..3 {
        let scribble = Invocation::new("scribble").deadline(Duration::from_millis(300));
        let scribble = own.send_invocation(&scribble).unwrap();
        supervisor.until_running();
        // It waits for the place, and gets the memory.
        let look = Invocation::new("look").output("words");
        let waits = stranger.as_mut().map(|stranger| stranger.send_invocation(&look).unwrap());
        kit::fails(&mut own, scribble, Code::DeadlineExceeded);
        if let (Some(stranger), Some(waits)) = (&mut stranger, waits) {
            let theirs = stranger.wait_invoked(waits).unwrap();
            assert!(theirs.outputs[0].inline.iter().all(|byte| *byte == 0), "of another user");
        }
        assert!(seen(&mut own, "look").iter().all(|byte| *byte == 0), "of the call before");
    }
    // The control: what it writes is seen where it may be.
    assert!(seen(&mut own, "once").iter().all(|byte| *byte == 0xff));
}

#[test]
fn a_flood_of_one_tenant_leaves_the_others_served() {
    let supervisor = Supervisor::start();
    let mut own = supervisor.client();
    kit::add_copy(&mut own);
    // Some tens of milliseconds each.
    kit::add_kernel(&mut own, "work", "work", &[constant(6_000_000)]);
    let flood: Vec<_> = (0..60).map(|_| own.send_invocation(&Invocation::new("work")).unwrap()).collect();
    supervisor.until_running();
    if let Some(mut stranger) = as_stranger(|| supervisor.client()) {
        kit::add_copy(&mut stranger);
        for _ in 0..6 {
            kit::works(&mut stranger);
        }
        // Ten calls of theirs for one of the stranger's, and they are not through.
        assert!(supervisor.device().queued > 0, "the flood was over before the stranger was served");
    }
    for call in flood {
        own.wait_invoked(call).unwrap();
    }
}

/// A module that takes the compiler a while: its functions are as long and as many as is allowed.
pub(crate) fn slow_module(nth: usize) -> Vec<u8> {
    let steps = "(local.set 0 (i64.add (i64.mul (local.get 0) (local.get 1)) (local.get 2)))".repeat(4_000);
    let functions: String =
        (0..40).map(|_| format!("(func (param i64 i64 i64) (local i64) {steps})")).collect();
    let functions = format!("{functions} {}", "(func)".repeat(nth));
    let kernel = r#"(func (export "kernel") (param i32 i32 i64 i64))"#;
    wat::parse_str(format!(r#"(module (import "env" "memory" (memory 1)) {kernel} {functions})"#)).unwrap()
}

/// The compiling process has limits on time and memory, at which the kernel kills it. Here this test does, since a
/// minute is long and no user may change the limits of another user's process: once more, then it is refused.
#[test]
fn a_module_that_takes_too_long_or_too_much_is_refused() {
    let (supervisor, mut client) = kit::copy_and_spin();
    let mut known = supervisor.worker_pids();
    let workers = known.clone();
    let slow = slow_module(0);
    let variant = kit::wasm(&mut client, &slow);
    let add = v1::AddModule { name: "slow".into(), variants: vec![variant] };
    let sent = client.send(v1::request::Body::AddModule(add), &[]).unwrap();
    for _ in 0..2 {
        let mut compiler = None;
        until("it compiles", || {
            compiler = supervisor.children().into_iter().find(|pid| !known.contains(pid) && ticks(*pid) > 2);
            compiler.is_some()
        });
        let compiler = compiler.unwrap();
        known.push(compiler);
        signal(compiler, Signal::KILL);
        // No other client waits for it meanwhile.
        kit::works(&mut supervisor.client());
    }
    refused(client.wait(sent), Code::InvalidArgument, "could not be compiled");
    assert_eq!(client.list_modules().unwrap(), []);
    // The control: left alone, it compiles.
    let variant = kit::wasm(&mut client, &slow);
    client.add_module("slow", vec![variant]).unwrap();
    assert_eq!(supervisor.worker_pids(), workers);
}

/// Modules that keep the compiler busy leave a place to others.
#[test]
fn slow_modules_of_one_tenant_leave_the_compiler_to_others() {
    let supervisor = Supervisor::start();
    let mut client = supervisor.client();
    let Some(mut stranger) = as_stranger(|| supervisor.client()) else {
        return kit::add_copy(&mut client);
    };
    let slow = [1, 2, 3].map(|nth| v1::AddModule {
        name: format!("slow-{nth}"),
        variants: vec![kit::wasm(&mut client, &slow_module(nth))],
    });
    let sent = slow.map(|add| client.send(v1::request::Body::AddModule(add), &[]).unwrap());
    kit::add_copy(&mut stranger);
    assert_eq!(client.list_modules().unwrap(), [], "another tenant's module had to be compiled first");
    for id in sent {
        assert!(matches!(client.wait(id).unwrap(), v1::response::Body::Module(_)));
    }
}

#[test]
fn blueprints_that_ask_for_too_much_are_refused_where_it_is_written() {
    let (_supervisor, mut client) = kit::copy_and_spin();
    let module = wat::parse_str(KERNELS).unwrap();
    let one = absolute(1);
    let grid = |x: Value, block: Value| {
        json!({"ExecKernel": ["scribble", [], {
            "grid_dim_x": x, "grid_dim_y": one, "grid_dim_z": one,
            "block_dim_x": block, "block_dim_y": one, "block_dim_z": one, "shared_mem_bytes": absolute(0),
        }]})
    };
    let huge = json!({"Product": [absolute(1 << 33), absolute(1 << 33)]});
    let endless = |depth: usize| {
        (0..depth)
            .fold(grid(one.clone(), one.clone()), |inner, _| json!({"Repeat": [absolute(100), [inner]]}))
    };
    let mut cases = vec![
        ("zero", blueprint(json!({}), &[], &[grid(absolute(0), one.clone())])),
        ("threads", blueprint(json!({}), &[], &[grid(one.clone(), absolute(1025))])),
        ("overflow", blueprint(json!({"b": huge}), &["b"], &[])),
        ("grid", blueprint(json!({}), &[], &[grid(huge.clone(), one.clone())])),
        ("cycle", blueprint(json!({"a": {"Sizeof": "b"}, "b": {"Sizeof": "a"}}), &[], &[])),
        ("million", blueprint(json!({}), &[], &[endless(4)])),
        ("nested", blueprint(json!({}), &[], &[endless(20)])),
        ("stranger", blueprint(json!({}), &["nobody"], &[])),
    ];
    cases.push(("negative", blueprint(json!({"b": {"Absolute": -1}}), &["b"], &[])));
    for (name, blueprint) in cases {
        let config = config("hostile.wasm", &["scribble"], blueprint);
        // What depends on nothing is refused at once, the rest with the first call.
        let answer = match try_add(&mut client, name, &config, &module) {
            Err(error) => Err(error),
            Ok(_) => client.invoke(&Invocation::new(name)).map(drop),
        };
        let error = refused(answer, Code::InvalidArgument, "");
        assert!(error.place.contains("blueprint") || error.place.contains("control_flow"), "{name}: {error}");
    }
    // Duplicate keys, and text so deep that a careless reader's stack ends.
    let twice = config("hostile.wasm", &["scribble"], blueprint(json!({}), &[], &[]));
    let twice = twice.replacen("\"modules\"", "\"modules\": [], \"modules\"", 1);
    refused(try_add(&mut client, "twice", &twice, &module), Code::InvalidArgument, "");
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    refused(try_add(&mut client, "deep", &deep, &module), Code::InvalidArgument, "");
    // The control: as much as is allowed.
    let fine = config("hostile.wasm", &["scribble"], blueprint(json!({}), &[], &[]));
    try_add(&mut client, "fine", &fine, &module).unwrap();
    client.invoke(&Invocation::new("fine")).unwrap();
    kit::works(&mut client);
}

/// Paths in a configuration are for the client that hands the files over; for the supervisor they are words.
#[test]
fn paths_in_a_configuration_are_never_opened() {
    let (supervisor, mut client) = kit::copy_and_spin();
    let module = wat::parse_str(KERNELS).unwrap();
    let fifo = supervisor.path("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o666.into(), 0).unwrap();
    let link = supervisor.path("link");
    std::os::unix::fs::symlink(supervisor.path("state"), &link).unwrap();
    let below = link.join("x");
    for path in [
        &fifo,
        &link,
        &below,
        Path::new("/proc/self/mem"),
        Path::new("../../etc/passwd"),
        Path::new("/dev/zero"),
    ] {
        let config = config(path.to_str().unwrap(), &["scribble"], blueprint(json!({}), &[], &[]));
        // A process that opened the FIFO to read would wait for a writer for ever.
        try_add(&mut client, "paths", &config, &module).unwrap();
        client.invoke(&Invocation::new("paths")).unwrap();
        client.remove_function("paths").unwrap();
    }
    // No process reads it now either: opening it for writing alone fails.
    let writer = || std::fs::File::options().write(true).custom_flags(libc_nonblock()).open(&fifo);
    assert!(writer().is_err());
    // The control: a reader is noticed.
    let _reader = std::fs::File::options().read(true).custom_flags(libc_nonblock()).open(&fifo).unwrap();
    assert!(writer().is_ok());
    // Names become files of the state directory: none that is a path is taken.
    for name in ["../up", "a/b", ".hidden", "..", "a\0b", "a\nb", ""] {
        let config = config("hostile.wasm", &["scribble"], blueprint(json!({}), &[], &[]));
        refused(try_add(&mut client, name, &config, &module), Code::InvalidArgument, "name");
        refused(client.show_function(name), Code::NotFound, "");
        refused(client.invoke(&Invocation::new(name)), Code::NotFound, "");
    }
}

fn libc_nonblock() -> i32 {
    rustix::fs::OFlags::NONBLOCK.bits() as i32
}

/// Names of buffers and kernels, and words of a compiler about a module, are the tenant's own.
#[test]
fn what_a_tenant_wrote_forges_no_line_of_the_log() {
    let (supervisor, mut client) = kit::copy_and_spin();
    let forged = "x\n2026-01-01T00:00:00.000000Z ERROR pappus_supervisor: forged \u{1b}[31m line\r";
    let text = format!(
        r#"(module (import "env" "memory" (memory 1)) (func (export {:?}) (param i32)))"#,
        "x\\0a2026-01-01T00:00:00.000000Z ERROR pappus_supervisor: forged \\1b[31m line\\0d"
    )
    .replace("\\\\", "\\");
    let module = wat::parse_str(text).unwrap();
    let fine = wat::parse_str(KERNELS).unwrap();
    let named = config("hostile.wasm", &[forged], blueprint(json!({forged: absolute(1)}), &[forged], &[]));
    let steps = [json!({"ExecKernel": [forged, [], {}]})];
    let steps = config(forged, &["scribble"], blueprint(json!({}), &[], &steps));
    for (config, module) in [(&named, &module), (&named, &fine), (&steps, &fine)] {
        assert!(try_add(&mut client, "forger", config, module).is_err());
    }
    client.invoke(&Invocation::new(forged)).unwrap_err();
    client.show_function(forged).unwrap_err();
    kit::works(&mut client);
    let log = supervisor.log();
    assert!(!log.contains('\u{1b}') && !log.contains('\r'), "{log:?}");
    let lines: Vec<_> = log.lines().filter(|line| line.contains("forged")).collect();
    assert!(lines.iter().all(|line| !line.starts_with("2026-01-01")), "{lines:?}");
}

/// Sixteen bytes may take so long and no longer.
#[test]
fn a_greeting_that_never_ends_is_dropped() {
    let (supervisor, mut client) = kit::copy_and_spin();
    let mut silent = Raw::connect(&supervisor.socket());
    let mut slow = Raw::connect(&supervisor.socket());
    slow.send(b"PAPPUS");
    // The control: the same six bytes and the rest.
    let mut whole = Raw::connect(&supervisor.socket());
    let greeting = pappus_proto::handshake::Greeting::OURS;
    whole.send(&greeting.encode()[..6]);
    whole.send(&greeting.encode()[6..]);
    assert_eq!(whole.greeting(), Some(greeting));
    silent.is_closed();
    slow.is_closed();
    kit::works(&mut client);
    whole.request(1, crate::raw::status(), &[]);
    assert_eq!(whole.body().0, 1);
}
