//! What the supervisor holds in memory for a tenant is bounded by its quotas, and refused by their names.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use pappus_client::v1::{self, request, response};
use pappus_client::{Blob, Client, Code, Invocation};
use pappus_proto::limits::MAX_MESSAGE_BYTES;
use serde_json::json;

use super::{MIB, add_steps, keep_busy, kernel_says, raw_of, used};
use crate::fixture::{Supervisor, until};
use crate::house::{enter, house};
use crate::kit::{self, Function, absolute, fails, launch, refused};
use crate::raw::{Raw, request as framed, status};

/// Messages inside one request.
const MOST_PARTS: &str = "8192";
/// An answer that does not come by then never does.
const SOON: Duration = Duration::from_secs(10);

/// A frame of a request whose field `path[0]` holds a message whose field `path[1]`… is a list of empty messages, as
/// many as fit.
fn hollow(id: u8, path: &[u8]) -> Vec<u8> {
    let varint = |mut value: usize| {
        let mut bytes = Vec::new();
        while value >= 0x80 {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    };
    let key = |field: u8| varint((usize::from(field) << 3) | 2);
    let (list, around) = path.split_last().unwrap();
    let empty = [key(*list), vec![0]].concat();
    let list = empty.repeat((MAX_MESSAGE_BYTES - 64) / empty.len());
    let body =
        around.iter().rev().fold(list, |inner, field| [key(*field), varint(inner.len()), inner].concat());
    let message = [vec![0x08, id], body].concat();
    [&(message.len() as u32).to_le_bytes()[..], &[0; 4], &message].concat()
}

#[test]
fn a_request_of_empty_messages_is_refused_before_it_is_decoded() {
    let supervisor = Supervisor::start();
    let mut client = supervisor.client();
    kit::add_copy(&mut client);
    kit::works(&mut client);
    let before = kernel_says(&supervisor, "VmHWM:");
    let mut raw = Raw::greeted(&supervisor.socket());
    // Inputs, items, outputs; modules, weights; variants.
    let lists: [&[u8]; 6] = [&[13, 2], &[13, 2, 2], &[13, 3], &[7, 3], &[7, 4], &[3, 2]];
    for (id, list) in (7..).zip(lists) {
        raw.send(&hollow(id, list));
        let (answered, error) = raw.error();
        assert_eq!((answered, error.code()), (u64::from(id), Code::InvalidArgument), "{list:?}: {error}");
        assert!(error.message.contains(MOST_PARTS), "{list:?}: {error}");
    }
    // Decoded, each would take 160 MB.
    let grew = kernel_says(&supervisor, "VmHWM:") - before;
    assert!(grew < 64 * MIB, "{} MiB", grew / MIB);
    // The control: as many parts as a call may have.
    let item = v1::Item { source: Some(v1::item::Source::Inline(vec![1].into())) };
    let input = v1::Input { name: "in".into(), items: vec![item; 1024], r#type: None };
    let call = v1::Invoke { function: "copy".into(), inputs: vec![input], ..Default::default() };
    raw.request(20, request::Body::Invoke(call), &[]);
    assert!(matches!(raw.body(), (20, response::Body::Invoked(_))));
}

#[test]
fn plans_of_waiting_calls_count() {
    let supervisor = house(&[("alice", "plan-bytes = '16MiB'"), ("bob", "")]);
    let mut alice = enter(&supervisor, "alice");
    // Each plan has a MiB, and no other call has the same sizes.
    add_steps(&mut alice, "hungry", 20_000, false);
    let call =
        |bytes| Invocation::new("hungry").input("in", vec![1; bytes]).deadline(Duration::from_secs(50));
    // The function in memory counts too, and its configuration counts many times its bytes while it is read: the first call
    // is over before anything is measured.
    alice.invoke(&call(1)).unwrap();
    let mut bob = enter(&supervisor, "bob");
    let spin = keep_busy(&supervisor, &mut bob);
    // It has the plan that the first call left; the next one needs its own.
    alice.send_invocation(&call(1)).unwrap();
    let first = used(&mut alice, "plan-bytes");
    alice.send_invocation(&call(2)).unwrap();
    until("a plan is held", || used(&mut alice, "plan-bytes") > first);
    let one = used(&mut alice, "plan-bytes") - first;
    // One after the other: nobody knows which of several simultaneous plans are refused.
    let mut more = 3..=40;
    let id = loop {
        let (held, open) = (used(&mut alice, "plan-bytes"), alice.in_flight());
        let id = alice.send_invocation(&call(more.next().expect("none was refused"))).unwrap();
        until("its plan is held, or refused", || {
            used(&mut alice, "plan-bytes") > held || alice.in_flight() <= open
        });
        if alice.in_flight() <= open {
            break id;
        }
        assert!(held + one <= 16 * MIB, "{held}");
    };
    let error = refused(alice.wait_invoked(id), Code::ResourceExhausted, "plan-bytes");
    assert!(error.retryable, "{error}");
    let held = used(&mut alice, "plan-bytes");
    assert!(held <= 16 * MIB && held + one > 16 * MIB, "{held}");
    // Another tenant's own are its own.
    kit::add_copy(&mut bob);
    bob.cancel(spin).unwrap();
    kit::works(&mut bob);
}

/// A configuration becomes many times its bytes while it is read.
#[test]
fn configurations_count_while_they_are_read() {
    let supervisor = house(&[("alice", "plan-bytes = '4MiB'"), ("bob", "")]);
    let mut alice = enter(&supervisor, "alice");
    // The control: one that fits.
    add_steps(&mut alice, "fits", 5_000, false);
    let fills = vec![json!({"Fill": {"buffer": "b", "byte": 0}}); 20_000];
    let large = Function { buffers: &[("b", absolute(8))], steps: &fills, ..Function::default() }
        .try_add(&mut alice, "large");
    refused(large, Code::ResourceExhausted, "plan-bytes");
    add_steps(&mut enter(&supervisor, "bob"), "large", 20_000, false);
}

/// Bytes of the supervisor's copies of weights, each once.
fn weights_in_memory(supervisor: &Supervisor) -> u64 {
    let mut files = HashMap::new();
    for entry in std::fs::read_dir(format!("/proc/{}/fd", supervisor.pid())).unwrap() {
        let path = entry.unwrap().path();
        // It may be closed meanwhile.
        let name = std::fs::read_link(&path).unwrap_or_default();
        if name.to_string_lossy().starts_with("/memfd:pappus-weights")
            && let Ok(file) = path.metadata()
        {
            files.insert(file.ino(), file.blocks() * 512);
        }
    }
    files.values().sum()
}

#[test]
fn functions_with_the_same_weights_share_one_copy() {
    const FUNCTIONS: usize = 15;
    let supervisor = house(&[("alice", "weight-bytes = '5MiB'")]);
    let mut alice = enter(&supervisor, "alice");
    let (same, other) = (vec![1; 2 << 20], vec![2; 4 << 20]);
    // A function is loaded when it is called at the latest.
    let call = |alice: &mut Client, name: &str, content: &[u8]| {
        let function = Function { weights: &[("w", content)], ..Function::default() };
        function.try_add(alice, name)?;
        alice.invoke(&Invocation::new(name))
    };
    for nth in 0..FUNCTIONS {
        call(&mut alice, &format!("f{nth}"), &same).unwrap();
    }
    let all = weights_in_memory(&supervisor);
    assert!((2 * MIB..4 * MIB).contains(&all), "{all}");
    assert!((2 * MIB..4 * MIB).contains(&used(&mut alice, "weight-bytes")));
    // One of another content takes the place of the tenant's functions that no call has.
    call(&mut alice, "other", &other).unwrap();
    until("the first copy is gone", || weights_in_memory(&supervisor) < 5 * MIB);
    // What has no room by itself is refused.
    let large = vec![3; 6 << 20];
    refused(call(&mut alice, "large", &large), Code::ResourceExhausted, "weight-bytes");
}

/// What a call still held when its function was removed goes with the call, and waits for no other change.
#[test]
fn weights_of_a_removed_function_go_with_its_last_call() {
    let supervisor = house(&[("alice", "weight-bytes = '5MiB'\nblob-bytes = '9MiB'")]);
    let mut alice = enter(&supervisor, "alice");
    let (first, second, third) = (vec![1; 3 << 20], vec![2; 4 << 20], vec![3; 4 << 20]);
    let endless =
        Function { weights: &[("w", &first)], steps: &[launch("spin", &[])], ..Function::default() };
    endless.add(&mut alice, "endless");
    let call = alice.send_invocation(&Invocation::new("endless")).unwrap();
    supervisor.until_running();
    alice.remove_function("endless").unwrap();
    Function { weights: &[("w", &second)], ..Function::default() }.add(&mut alice, "f");
    // The control: both do not fit.
    refused(alice.invoke(&Invocation::new("f")), Code::ResourceExhausted, "weight-bytes");
    alice.cancel(call).unwrap();
    fails(&mut alice, call, Code::Cancelled);
    until("there is room", || alice.invoke(&Invocation::new("f")).is_ok());
    // Nor do its files.
    alice.put_blob(Blob::Bytes(&third)).unwrap();
}

#[test]
fn unfinished_frames_count_and_the_connection_goes_on() {
    const PART: usize = 3 << 20;
    let supervisor = house(&[("alice", "request-bytes = '8MiB'"), ("bob", "")]);
    let put = request::Body::PutBlob(v1::PutBlob { inline: vec![7; 4_000_000].into() });
    let frame = framed(9, put, 0);
    let mut connections: Vec<_> = (0..6).map(|_| raw_of(&supervisor, "alice")).collect();
    connections.iter_mut().for_each(|raw| raw.send(&frame[..PART]));
    let last = connections.last_mut().unwrap();
    last.stream.set_read_timeout(Some(SOON)).unwrap();
    let (id, error) = last.error();
    assert_eq!((id, error.code()), (9, Code::ResourceExhausted));
    assert!(error.message.contains("request-bytes") && error.retryable, "{error}");
    // Its rest is skipped, and the next request is answered.
    last.send(&frame[PART..]);
    last.request(10, status(), &[]);
    assert_eq!(last.body().0, 10);
    // Another tenant has its own; with the others' end there is room again.
    let mut bob = raw_of(&supervisor, "bob");
    bob.send(&frame);
    assert!(matches!(bob.body(), (9, response::Body::Blob(_))));
    drop(connections);
    let mut alice = enter(&supervisor, "alice");
    until("there is room", || used(&mut alice, "request-bytes") < MIB);
    let mut again = raw_of(&supervisor, "alice");
    again.send(&frame);
    assert!(matches!(again.body(), (9, response::Body::Blob(_))));
}

/// The same module under many names tells of its kernels as often: what an answer holds of that is bounded, and so is what is made
/// for it.
#[test]
fn what_is_told_of_kernels_is_bounded_for_all_modules_of_a_function() {
    use pappus_blueprint::signatures::{Class, Signature, laid_out, put};
    const MODULES: usize = 200;
    const MOST_DETAILS: usize = 10_000;
    let supervisor = Supervisor::start();
    let mut client = supervisor.client();
    let linalg = pappus_kernels::artefact("linalg.wasm").unwrap();
    let params = laid_out(vec![("name", Class::Integer, 8, 8); 500]).unwrap();
    let kernels = ["axpy_f", "matmul_i64", "sgemm", "vec_add_f"];
    let told: Vec<_> =
        kernels.map(|kernel| Signature { kernel: kernel.into(), params: params.clone() }).into();
    let module = client.put_blob(Blob::Bytes(&put(linalg, &told).unwrap())).unwrap().sha256;
    let names: Vec<String> = (0..MODULES).map(|n| format!("m{n}")).collect();
    let modules: Vec<_> = names.iter().map(|name| json!({"module_name": name, "path": "m.wasm"})).collect();
    let config = json!({
        "modules": modules,
        "kernels": [],
        "blueprint": {"inputs": [], "buffers": {}, "outputs": [], "control_flow": []},
    });
    let config = client.put_blob(Blob::Bytes(config.to_string().as_bytes())).unwrap().sha256;
    let variant = v1::Variant { format: "wasm".into(), arch: String::new(), sha256: module };
    let modules = names.iter().map(|name| v1::FunctionModule {
        name: name.clone(),
        variants: vec![variant.clone()],
        registered: String::new(),
    });
    let function = v1::AddFunction {
        name: "f".into(),
        config_sha256: config,
        modules: modules.collect(),
        ..Default::default()
    };
    let before = kernel_says(&supervisor, "VmHWM:");
    client.add_function(function).unwrap();
    let shown = client.show_function("f").unwrap();
    let variants = shown.found.iter().flat_map(|module| &module.variants);
    let details = variants.clone().flat_map(|variant| &variant.details);
    let details: usize = details.map(|kernel| 1 + kernel.params.len()).sum();
    assert!((MOST_DETAILS / 2..=MOST_DETAILS).contains(&details), "{details} details");
    assert!(variants.clone().all(|variant| variant.kernels.len() > kernels.len()), "names of all");
    // Told for each module, they would take 100 MB.
    let grew = kernel_says(&supervisor, "VmHWM:") - before;
    assert!(grew < 64 * MIB, "{} MiB", grew / MIB);
}
