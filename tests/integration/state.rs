//! The state directory: what is registered survives, broken records are set aside, blobs without a record are removed.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use pappus_client::v1::{self, request, response};
use pappus_client::{Blob, Client, Code, Invocation};

use crate::fixture::{self, Supervisor, until};
use crate::kit::{self, Function, launch, refused};

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn functions(client: &mut Client) -> Vec<String> {
    client.list_functions().unwrap().into_iter().map(|f| f.name).collect()
}

#[test]
fn half_written_files_go_and_corrupt_records_are_set_aside() {
    let mut supervisor = Supervisor::start();
    kit::add_copy(&mut supervisor.client());
    supervisor.kill9();
    let tenant = supervisor.tenant_dir();
    let half = ["functions/copy.json.7.tmp", "blobs/incoming.3.tmp", "code/x.1.tmp"];
    for name in half {
        std::fs::write(tenant.join(name), "{\"na").unwrap();
    }
    std::fs::write(tenant.join("functions/broken.json"), "{\"name\": 1").unwrap();
    supervisor.restart();
    let mut client = supervisor.client();
    assert_eq!(functions(&mut client), ["copy"]);
    assert!(half.iter().all(|name| !tenant.join(name).exists()));
    assert_eq!(names(&tenant.join("functions")), ["broken.json.corrupt", "copy.json"]);
    kit::works(&mut client);
}

/// Copies some folders of each tenant, and makes the directories above them.
fn copy_tenants(from: &Path, to: &Path, parts: &[&str]) {
    for tenant in names(&from.join("tenants")) {
        for part in parts {
            let part = Path::new("tenants").join(&tenant).join(part);
            std::fs::create_dir_all(to.join(&part)).unwrap();
            for name in names(&from.join(&part)) {
                std::fs::copy(from.join(&part).join(&name), to.join(&part).join(&name)).unwrap();
            }
        }
    }
}

/// As docs/runbook.md has it: records, then the bytes that they name, and no machine code.
#[test]
fn a_backup_that_was_made_while_serving_is_restored() {
    let mut supervisor = Supervisor::start();
    let mut client = supervisor.client();
    kit::add_copy(&mut client);
    kit::add_kernel(&mut client, "gone", "trap", &[]);
    let (state, backup) = (supervisor.path("state"), supervisor.path("backup"));
    copy_tenants(&state, &backup, &["functions", "modules", "grants"]);
    std::fs::copy(state.join("VERSION"), backup.join("VERSION")).unwrap();
    client.remove_function("gone").unwrap();
    // The connection that handed its bytes over might still register them.
    drop(client);
    until("its bytes are gone", || names(&supervisor.tenant_dir().join("blobs")).len() == 2);
    copy_tenants(&state, &backup, &["blobs"]);
    supervisor.kill9();
    std::fs::remove_dir_all(&state).unwrap();
    std::fs::rename(&backup, &state).unwrap();
    supervisor.restart();
    let mut client = supervisor.client();
    assert_eq!(functions(&mut client), ["copy", "gone"]);
    kit::works(&mut client);
    // What was removed meanwhile has a record and no bytes, and can be removed again.
    refused(client.invoke(&Invocation::new("gone")), Code::Internal, "");
    client.remove_function("gone").unwrap();
    kit::works(&mut client);
}

#[test]
fn blobs_go_when_nothing_needs_them() {
    let supervisor = Supervisor::start();
    let mut client = supervisor.client();
    kit::add_copy(&mut client);
    kit::works(&mut client);
    let tenant = supervisor.tenant_dir();
    assert_eq!(names(&tenant.join("blobs")).len(), 2, "configuration and module");
    assert!(!names(&tenant.join("code")).is_empty());
    client.remove_function("copy").unwrap();
    refused(client.remove_function("copy"), Code::NotFound, "copy");
    // The connection that handed them over may still register them.
    drop(client);
    until("bytes and machine code are gone", || {
        names(&tenant.join("blobs")).is_empty() && names(&tenant.join("code")).is_empty()
    });
}

#[test]
fn what_was_handed_over_and_never_used_goes_with_the_connection_or_the_next_start() {
    let mut supervisor = Supervisor::start();
    let tenant = supervisor.tenant_dir();
    let mut client = supervisor.client();
    client.put_blob(Blob::Bytes(b"one")).unwrap();
    assert_eq!(names(&tenant.join("blobs")).len(), 1);
    drop(client);
    until("it is gone", || names(&tenant.join("blobs")).is_empty());
    supervisor.client().put_blob(Blob::Bytes(b"two")).unwrap();
    supervisor.kill9();
    supervisor.restart();
    assert_eq!(names(&tenant.join("blobs")), [""; 0]);
}

#[test]
fn a_name_means_one_thing() {
    let supervisor = Supervisor::start();
    let mut client = supervisor.client();
    kit::add_copy(&mut client);
    // The same again is no error, something else under the name is.
    kit::add_copy(&mut client);
    let other = Function::default();
    refused(other.try_add(&mut client, "copy"), Code::AlreadyExists, "copy");
    for bad in ["", ".hidden", "../../etc/passwd", "a/b", "a b", &"x".repeat(129)] {
        refused(other.try_add(&mut client, bad), Code::InvalidArgument, "cannot name");
    }
    kit::works(&mut client);
}

#[test]
fn a_removed_module_stays_with_the_functions_that_use_it() {
    let supervisor = Supervisor::start();
    let mut client = supervisor.client();
    let variant = kit::wasm(&mut client, kit::probes());
    client.add_module("probes", vec![variant]).unwrap();
    let function = Function { steps: &[launch("trap", &[])], ..Function::default() };
    let module = v1::FunctionModule { name: "probes".into(), variants: vec![], registered: "probes".into() };
    let function = kit::parts(&mut client, "trap", &function.json(), module).unwrap();
    client.add_function(function).unwrap();
    client.remove_module("probes").unwrap();
    drop(client);
    refused(supervisor.client().invoke(&Invocation::new("trap")), Code::KernelFault, "unreachable");
}

/// Builds before kernels had parameters kept their names only.
#[test]
fn machine_code_records_of_an_older_build_are_made_again() {
    let mut supervisor = Supervisor::start();
    kit::add_copy(&mut supervisor.client());
    supervisor.kill9();
    let code = supervisor.tenant_dir().join("code");
    let infos: Vec<_> = names(&code).into_iter().filter(|name| name.ends_with(".json")).collect();
    assert_eq!(infos.len(), 1);
    std::fs::write(code.join(&infos[0]), r#"{"kernels":["copy"]}"#).unwrap();
    supervisor.restart();
    kit::works(&mut supervisor.client());
    let text = std::fs::read_to_string(code.join(&infos[0])).unwrap();
    assert!(text.contains(r#""name":"copy""#), "{text}");
}

#[test]
fn machine_code_of_another_build_goes_when_this_one_makes_its_own() {
    let mut supervisor = Supervisor::start();
    kit::add_copy(&mut supervisor.client());
    supervisor.kill9();
    let code = supervisor.tenant_dir().join("code");
    let own = names(&code);
    for name in &own {
        let (stem, json) = name.strip_suffix(".json").map_or((&**name, ""), |stem| (stem, ".json"));
        std::fs::rename(code.join(name), code.join(format!("{stem}-of-before{json}"))).unwrap();
    }
    supervisor.restart();
    kit::works(&mut supervisor.client());
    until("what another build made is gone", || names(&code) == own);
}

/// True if a process of the supervisor compiles a module.
fn compiles(supervisor: &Supervisor) -> bool {
    let parent = format!(" {} ", supervisor.pid());
    std::fs::read_dir("/proc").unwrap().any(|process| {
        let read = |name| std::fs::read_to_string(process.as_ref().unwrap().path().join(name));
        // PID (NAME) STATE PARENT …
        let is_child = |stat: String| stat.rsplit(')').next().unwrap()[2..].starts_with(&parent);
        read("cmdline").is_ok_and(|command| command.contains("\0compile\0"))
            && read("stat").is_ok_and(is_child)
    })
}

/// A client that is told that a function is registered can rely on all of its parts being stored.
#[test]
fn a_module_that_is_removed_while_a_function_takes_it_is_kept_or_missed() {
    let mut supervisor = Supervisor::start();
    let mut first = supervisor.client();
    // Large enough to take a while to compile.
    let variant = kit::wasm(&mut first, pappus_kernels::artefact("mlops.wasm").unwrap());
    first.add_module("mlops", vec![variant]).unwrap();
    drop(first);
    until("what it handed over is released", || supervisor.status().connections == 1);
    supervisor.forget_code();
    let mut client = supervisor.client();
    let config = pappus_kernels::config("matmul_loop").unwrap();
    let module =
        v1::FunctionModule { name: "mlops.wasm".into(), variants: vec![], registered: "mlops".into() };
    let add = kit::parts(&mut client, "f", config, module).unwrap();
    client.send(request::Body::AddFunction(add), &[]).unwrap();
    let mut answer = None;
    until("the module is being compiled", || {
        answer = client.recv_within(std::time::Duration::ZERO).unwrap();
        answer.is_some() || compiles(&supervisor)
    });
    supervisor.client().remove_module("mlops").unwrap();
    match answer.unwrap_or_else(|| client.recv().unwrap()).body.unwrap() {
        response::Body::Error(error) => assert_eq!(error.code(), Code::NotFound, "{error}"),
        response::Body::Function(_) => {
            // Everything is made again from what was registered.
            supervisor.update();
            let a = pappus_kernels::bytes::from_elements(&[1i64, 5]);
            supervisor.client().invoke(&Invocation::new("f").input("A", a)).unwrap();
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_waiting_call_outlives_the_removal_of_its_function() {
    let supervisor = Supervisor::start();
    let mut client = supervisor.client();
    kit::add_copy(&mut client);
    kit::add_spin(&mut client);
    let spin = client.send_invocation(&Invocation::new("spin")).unwrap();
    supervisor.until_running();
    let copy = Invocation::new("copy").input("in", b"abc".to_vec()).output("out");
    let waiting = client.send_invocation(&copy).unwrap();
    until("it waits", || supervisor.device().queued == 1);
    client.remove_function("copy").unwrap();
    client.remove_function("spin").unwrap();
    // The connection that handed the bytes over ends, so that nothing holds them but the call.
    refused(client.invoke(&copy), Code::NotFound, "copy");
    supervisor.kill_call();
    kit::fails(&mut client, spin, Code::WorkerLost);
    let answer = client.wait_invoked(waiting).unwrap();
    assert_eq!(&answer.outputs[0].inline[..], b"abc");
}

#[test]
fn modules_that_are_none_are_refused_with_the_reason() {
    let supervisor = Supervisor::start();
    let mut client = supervisor.client();
    let good = kit::probes();
    let flipped: Vec<u8> = good
        .iter()
        .enumerate()
        .map(|(at, byte)| if at == good.len() / 2 { byte ^ 0xff } else { *byte })
        .collect();
    let wat = |text: &str| wat::parse_str(text).unwrap();
    let cases = [
        (vec![], "no WebAssembly"),
        (b"\x7fELF".to_vec(), "no WebAssembly"),
        (good[..good.len() / 2].to_vec(), ""),
        (flipped, ""),
        (wat("(module (memory 1))"), "memory of its own"),
        (wat("(module (import \"env\" \"exit\" (func)))"), "may import nothing but"),
        (wat("(module (func) (start 0))"), "start function"),
    ];
    for (module, words) in cases {
        let variant = kit::wasm(&mut client, &module);
        refused(client.add_module("m", vec![variant]), Code::InvalidArgument, words);
    }
    let mut variant = kit::wasm(&mut client, good);
    variant.format = "exe".into();
    refused(client.add_module("m", vec![variant.clone()]), Code::InvalidArgument, "unknown format");
    variant.format = "wasm".into();
    variant.sha256 = vec![0; 32].into();
    refused(client.add_module("m", vec![variant]), Code::NotFound, "PutBlob");
    assert_eq!(client.list_modules().unwrap(), []);
    // The control.
    let variant = kit::wasm(&mut client, good);
    client.add_module("m", vec![variant]).unwrap();
}

/// What a supervisor with this state directory says, which must be refused without a trace.
fn refused_state(dir: &Path, words: &str) {
    let before = (mode(&dir.join("state")), names(&dir.join("state")));
    let flags = ["--device", "cpu:workers=1,memory=1MiB"].map(str::to_owned);
    let program = crate::programs::program("pappus-supervisor");
    let ran = fixture::run(&mut fixture::command(&program, dir, "socket", &flags));
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("state") && ran.stderr.contains(words), "{}", ran.stderr);
    assert_eq!((mode(&dir.join("state")), names(&dir.join("state"))), before);
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_directory_that_is_not_a_supervisors_keeps_its_mode_and_its_files() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    std::fs::create_dir(&state).unwrap();
    std::fs::set_permissions(&state, std::fs::Permissions::from_mode(0o1777)).unwrap();
    refused_state(dir.path(), "1777");
    std::fs::set_permissions(&state, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(state.join("thesis.tex"), "years").unwrap();
    refused_state(dir.path(), "thesis.tex");
}

#[test]
fn a_new_state_directory_is_for_its_owner_alone() {
    assert_eq!(mode(&Supervisor::start().path("state")), 0o700);
}

#[test]
fn a_directory_of_another_version_is_not_touched() {
    let mut supervisor = Supervisor::start();
    supervisor.kill9();
    supervisor.write("state/VERSION", "pappus-state 99\n");
    let ran = supervisor.second("socket");
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("another version"), "{}", ran.stderr);
    assert_eq!(supervisor.read("state/VERSION"), b"pappus-state 99\n");
}
