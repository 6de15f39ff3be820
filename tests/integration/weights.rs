//! More weights than a device keeps: they come and go, calls wait for them, and every answer is right.

use std::time::Duration;

use pappus_client::{Client, Code, Invocation, v1};

use crate::fixture::Supervisor;
use crate::house::{config, enter};
use crate::kit::{self, Function, absolute, constant, launch, ptr};

/// Bytes of each function's weights.
const BYTES: usize = 64 << 10;

/// Weights that are one function's only.
fn content(tenant: usize, function: usize) -> Vec<u8> {
    (0..BYTES).map(|at| (at / 4096 + 16 * function + 128 * tenant + 1) as u8).collect()
}

/// Registers a function that returns its weights.
fn add(client: &mut Client, name: &str, weights: &[u8]) {
    let function = Function {
        weights: &[("w", weights)],
        buffers: &[("out", absolute(weights.len() as u64))],
        outputs: &["out"],
        steps: &[launch("copy", &[ptr("w"), ptr("out"), constant(weights.len() as i64)])],
        ..Function::default()
    };
    function.add(client, name);
}

/// The same, and its call does not end by itself.
fn add_endless(client: &mut Client, name: &str, weights: &[u8]) {
    let function =
        Function { weights: &[("w", weights)], steps: &[launch("spin", &[])], ..Function::default() };
    function.add(client, name);
}

fn call(name: &str) -> Invocation {
    Invocation::new(name).output("out")
}

fn answer(client: &mut Client, name: &str) -> Vec<u8> {
    client.invoke(&call(name)).unwrap().outputs[0].inline.to_vec()
}

/// A supervisor with two tenants whose functions' weights may take so much together. Neither loses its process, however slow
/// the machine is.
fn two(weights_bytes: usize) -> (Supervisor, [Client; 2]) {
    let kib = weights_bytes >> 10;
    let device = format!("cpu:workers=2,standbys=0,memory=64MiB,min-residency=10m,weights={kib}KiB");
    let supervisor = Supervisor::configured(&config(&[("ann", ""), ("bob", "")]), &["--device", &device]);
    let clients = ["ann", "bob"].map(|tenant| enter(&supervisor, tenant));
    (supervisor, clients)
}

fn weights(supervisor: &Supervisor) -> v1::DeviceWeights {
    supervisor.device().weights.unwrap()
}

#[test]
fn a_working_set_of_four_times_what_there_is_room_for_works() {
    for functions in [2, 4, 8] {
        // Of both tenants together.
        let room = functions * 2 * BYTES / 4;
        let (supervisor, mut clients) = two(room);
        for (tenant, client) in clients.iter_mut().enumerate() {
            for function in 0..functions {
                add(client, &format!("f{function}"), &content(tenant, function));
            }
        }
        // Every client has a worker of its own, which it keeps.
        for client in &mut clients {
            client.invoke(&call("f0")).unwrap();
        }
        // Many at a time, in an order that no cache likes and in one that it does.
        for round in 0..6 {
            let mut sent = Vec::new();
            for nth in 0..4 * functions {
                let function = if round % 2 == 0 { nth % functions } else { nth % functions / 2 };
                for (tenant, client) in clients.iter_mut().enumerate() {
                    let id = client.send_invocation(&call(&format!("f{function}"))).unwrap();
                    sent.push((tenant, function, id));
                }
            }
            for (tenant, function, id) in sent {
                let answer = clients[tenant].wait_invoked(id).unwrap();
                assert_eq!(answer.outputs[0].inline, content(tenant, function), "{tenant} {function}");
            }
            let weights = weights(&supervisor);
            assert!(weights.bytes <= room as u64, "{} bytes of {room}", weights.bytes);
            assert_eq!(weights.most_bytes, Some(room as u64));
            let held: Vec<u64> =
                supervisor.device().workers.iter().map(|worker| worker.weight_bytes).collect();
            let own = (functions * BYTES) as u64;
            // What is in room for all is in some process.
            assert!(held.iter().sum::<u64>() >= BYTES as u64, "{held:?}");
            assert!(held.iter().all(|bytes| *bytes <= own), "{held:?} of {own} each");
        }
        let (weights, device) = (weights(&supervisor), supervisor.device());
        assert_eq!((weights.calls, device.failed), (6 * 4 * functions as u64 * 2 + 2, 0));
        assert_eq!(device.completed, weights.calls);
        assert!(weights.evictions > 0 && weights.loads > weights.evictions, "{weights:?}");
        // Where there is room for one tenant's weights only, tenants may have it in turns, call by call.
        assert!((weights.hits > 0 || functions == 2) && weights.hits < weights.calls, "{weights:?}");
        // A function's code stays where its weights are gone.
        assert!(device.workers.iter().all(|worker| worker.restarts == 0), "{device:?}");
    }
}

#[test]
fn nothing_of_weights_that_left_is_found_in_those_that_came() {
    let (_supervisor, mut clients) = two(BYTES);
    let secret = vec![0x5e; BYTES];
    let short = [7; 100];
    for client in &mut clients {
        add(client, "secret", &secret);
        // All of the page that its weights are in.
        let all = launch("copy", &[ptr("w"), ptr("out"), constant(4096)]);
        let function = Function {
            weights: &[("w", &short)],
            buffers: &[("out", absolute(4096))],
            outputs: &["out"],
            steps: &[all],
            ..Function::default()
        };
        function.add(client, "look");
    }
    let mut expected = short.to_vec();
    expected.resize(4096, 0);
    for round in 0..6 {
        let [first, second] = [round % 2, (round + 1) % 2];
        // The control: where they are, they are found.
        assert_eq!(answer(&mut clients[first], "secret"), secret);
        assert_eq!(answer(&mut clients[second], "look"), expected);
        assert_eq!(answer(&mut clients[first], "look"), expected);
    }
}

#[test]
fn calls_wait_while_others_use_all_the_room() {
    let (supervisor, [mut ann, mut bob]) = two(BYTES);
    kit::add_copy(&mut bob);
    add_endless(&mut ann, "endless", &content(0, 0));
    add(&mut bob, "f", &content(1, 0));
    let endless = ann.send_invocation(&Invocation::new("endless").deadline(Duration::from_secs(50))).unwrap();
    supervisor.until_running();
    // One that cannot wait so long is told so; others of the same tenant that need no weights go on.
    let late = bob.send_invocation(&call("f").deadline(Duration::from_millis(300))).unwrap();
    let waits = bob.send_invocation(&call("f").deadline(Duration::from_secs(50))).unwrap();
    kit::fails(&mut bob, late, Code::DeadlineExceeded);
    assert_eq!(weights(&supervisor).bytes, BYTES as u64);
    ann.cancel(endless).unwrap();
    kit::fails(&mut ann, endless, Code::Cancelled);
    supervisor.end_detached();
    assert_eq!(bob.wait_invoked(waits).unwrap().outputs[0].inline, content(1, 0));
    kit::works(&mut bob);
    let weights = weights(&supervisor);
    assert_eq!((weights.bytes, supervisor.device().running), (BYTES as u64, 0));
}

#[test]
fn weights_that_never_fit_are_refused() {
    let (_supervisor, [mut ann, _]) = two(BYTES);
    add(&mut ann, "large", &vec![1; BYTES + 1]);
    add(&mut ann, "f", &content(0, 1));
    for _ in 0..3 {
        kit::refused(ann.invoke(&call("large")), Code::OutOfMemory, "give them more with weights=SIZE");
        assert_eq!(answer(&mut ann, "f"), content(0, 1));
    }
}

#[test]
fn weights_of_a_size_that_no_call_can_accept_are_refused_with_the_place() {
    let supervisor = Supervisor::start();
    let mut client = supervisor.client();
    let shape = [absolute(2), absolute(3)];
    let types = [("w", serde_json::json!({"dtype": "f32", "shape": shape}))];
    let mut add = |bytes: usize| {
        let weights = vec![1; bytes];
        Function { weights: &[("w", &weights)], types: &types, ..Function::default() }
            .replace(&mut client, "typed")
    };
    add(24).unwrap();
    for bytes in [0, 20, 25, 48] {
        let words = format!("{bytes} bytes, expected 24");
        let why = kit::refused(add(bytes), Code::InvalidArgument, &words);
        assert_eq!((why.place.as_str(), why.retryable), ("blueprint.types.w", false));
    }
    // What was there is there still.
    assert_eq!(client.show_function("typed").unwrap().weights[0].bytes, 24);
}

#[test]
fn weights_come_again_when_their_worker_was_killed() {
    let (supervisor, [mut ann, mut bob]) = two(BYTES);
    for (tenant, client) in [&mut ann, &mut bob].into_iter().enumerate() {
        add(client, "f", &content(tenant, 3));
        add_endless(client, "endless", &content(tenant, 4));
    }
    for _ in 0..3 {
        assert_eq!(answer(&mut ann, "f"), content(0, 3));
        let endless =
            ann.send_invocation(&Invocation::new("endless").deadline(Duration::from_secs(50))).unwrap();
        supervisor.until_running();
        let waits = bob.send_invocation(&call("f")).unwrap();
        ann.cancel(endless).unwrap();
        kit::fails(&mut ann, endless, Code::Cancelled);
        supervisor.end_detached();
        assert_eq!(bob.wait_invoked(waits).unwrap().outputs[0].inline, content(1, 3));
    }
    let weights = weights(&supervisor);
    assert!(weights.bytes <= BYTES as u64 && weights.evictions > 0, "{weights:?}");
}

/// The functions that a tenant is told calls find ready.
fn warm(client: &mut Client) -> Vec<String> {
    let functions = client.list_functions().unwrap();
    let told: Vec<_> =
        functions.iter().filter(|one| one.warm_on == ["cpu"]).map(|one| one.name.clone()).collect();
    for function in functions.iter().filter(|one| !one.granted) {
        let shown = client.show_function(&function.name).unwrap();
        assert_eq!(shown.warm_on, function.warm_on);
    }
    told
}

#[test]
fn callers_are_told_which_functions_are_ready_for_them() {
    let (_supervisor, [mut ann, mut bob]) = two(BYTES);
    kit::add_copy(&mut ann);
    for function in 0..2 {
        add(&mut ann, &format!("f{function}"), &content(0, function));
    }
    ann.grant("f0", "bob").unwrap();
    assert_eq!(warm(&mut ann), [""; 0]);
    kit::works(&mut ann);
    answer(&mut ann, "f0");
    assert_eq!(warm(&mut ann), ["copy", "f0"]);
    // What others have is theirs to know.
    assert_eq!(warm(&mut bob), [""; 0]);
    // The room is for one function's: code alone is not enough for a call of one with weights.
    answer(&mut ann, "f1");
    assert_eq!(warm(&mut ann), ["copy", "f1"]);
    answer(&mut bob, "ann/f0");
    assert_eq!(warm(&mut bob), ["ann/f0"]);
    assert_eq!(warm(&mut ann), ["copy"]);
}
