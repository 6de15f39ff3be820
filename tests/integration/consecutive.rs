//! Compositions whose steps are calls of their own: of functions of other owners, or without a device for all. Such a composition
//! gives what a linked one gives, has one answer, and leaves nothing behind.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use pappus_client::{Client, Code, Invocation, v1};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::amd::with_gpu;
use crate::compositions::{add, call, compose, marks, of, step};
use crate::fixture::{Supervisor, signal, until};
use crate::house::{enter, house};
use crate::kit::{self, Function, fails, refused};

const TENANTS: [(&str, &str); 3] = [("alice", ""), ("bob", ""), ("carol", "")];

/// Alice's functions, which Bob may call.
fn tenants() -> (Supervisor, [Client; 3]) {
    let supervisor = house(&TENANTS);
    let mut clients = TENANTS.map(|(name, _)| enter(&supervisor, name));
    let alice = &mut clients[0];
    add(alice, "marks", &marks(7), false).unwrap();
    kit::add_copy(alice);
    kit::add_spin(alice);
    kit::add_kernel(alice, "trap", "trap", &[]);
    for function in ["marks", "copy", "spin", "trap"] {
        alice.grant(function, "bob").unwrap();
    }
    (supervisor, clients)
}

/// `p`, marked by Bob and then by Alice.
fn both() -> Value {
    json!({"inputs": ["p"], "steps": [step("own", "marks", json!("p")), step("hers", "alice/marks", of("own"))],
        "outputs": {"early": of("own"), "y": of("hers")}})
}

/// What of the tenant's memory its calls take now.
fn held(client: &mut Client) -> Vec<(String, u64)> {
    let quotas = client.quota().unwrap().quotas;
    let of_calls = |name: &str| ["arena-bytes", "pinned-bytes", "descriptors", "calls"].contains(&name);
    quotas.into_iter().filter(|quota| of_calls(&quota.name)).map(|quota| (quota.name, quota.used)).collect()
}

#[test]
fn a_step_may_be_another_owners_function() {
    let (supervisor, [mut alice, mut bob, mut carol]) = tenants();
    add(&mut bob, "marks", &marks(8), false).unwrap();
    let added = compose(&mut bob, "both", &both(), false).unwrap();
    assert_eq!((added.inputs, added.modules.len()), (vec!["p".to_owned()], 0));
    let before = held(&mut bob);
    assert_eq!(before.len(), 4);
    // In the answer, and through memory of the supervisor's.
    for bytes in [5usize, 100_000] {
        let p = vec![1; bytes];
        let mut early = p.clone();
        early[bytes - 1] = 8;
        let mut last = p.clone();
        last[bytes - 1] = 7;
        let found = call(&mut bob, "both", &[("p", &p, &[bytes as u64])], &["early", "y"]).unwrap();
        assert!(found == [early, last], "{bytes} bytes");
    }
    until("nothing is held", || held(&mut bob) == before);
    // Bob may let others call it, who still cannot call Alice's function by themselves.
    bob.grant("both", "carol").unwrap();
    let mut carols =
        || call(&mut carol, "bob/both", &[("p", &[1, 2, 3], &[3])], &["y"]).map(|mut found| found.remove(1));
    assert_eq!(carols().unwrap(), [1, 2, 7]);
    // It is there after a restart, and as long as Alice lets Bob call her function.
    alice.revoke("marks", "bob").unwrap();
    let error = refused(carols(), Code::InvalidArgument, "its owner can see why");
    assert!(!error.to_string().contains("alice"), "{error}");
    let bobs = call(&mut bob, "both", &[("p", &[1, 2, 3], &[3])], &["y"]);
    let error = refused(bobs, Code::NotFound, "there is no function `alice/marks`");
    assert_eq!(error.place, "step hers");
    drop(supervisor);
}

/// A composition of one's own functions, and the same with their names in full, whose steps are calls.
fn linked_and_not(client: &mut Client, composition: &Value) {
    compose(client, "linked", composition, false).unwrap();
    let mut calls = composition.clone();
    for step in calls["steps"].as_array_mut().unwrap() {
        step["function"] = json!(format!("alice/{}", step["function"].as_str().unwrap()));
    }
    compose(client, "calls", &calls, false).unwrap();
}

#[test]
fn calls_give_what_the_linked_function_gives() {
    let (_supervisor, [mut alice, ..]) = tenants();
    let composition = json!({
        "inputs": ["p", "q"],
        "constants": {"k": {"dtype": "u8", "values": [9, 9, 9]}},
        "steps": [
            {"name": "a", "function": "marks", "inputs": {"x": "p"}, "each": {"items": 4, "inputs": ["x"]}},
            {"name": "b", "function": "marks", "inputs": {"x": "q"}, "times": 3, "feed": {"y": "x"}},
            step("c", "marks", json!("k"))],
        "outputs": {"items": of("a"), "fed": of("b"), "constant": of("c"), "again": "q"},
    });
    linked_and_not(&mut alice, &composition);
    // In their order, which is that of their names.
    let outputs = ["again", "constant", "fed", "items"];
    let p: Vec<u8> = (0..200_000).map(|at| (at % 251) as u8).collect();
    let q = [4u8; 70_000];
    for rows in [5u64, 50_000] {
        let mut both = ["linked", "calls"].map(|name| {
            let p = &p[..4 * rows as usize];
            call(&mut alice, name, &[("p", p, &[4, rows]), ("q", &q, &[70_000])], &outputs).unwrap()
        });
        let [linked, calls] = &mut both;
        assert!(linked == calls, "{rows} a row");
        assert!(linked[3][rows as usize - 1] == 7 && linked[1] == [9, 9, 7]);
    }
}

#[test]
fn arenas_and_descriptors_are_taken_and_filled() {
    let (_supervisor, [mut alice, ..]) = tenants();
    let chain = json!({"inputs": ["in"], "steps": [
        {"name": "a", "function": "copy", "inputs": {"in": "in"}},
        {"name": "b", "function": "copy", "inputs": {"in": {"step": "a"}}}], "outputs": {"out": {"step": "b"}}});
    linked_and_not(&mut alice, &chain);
    let bytes: Vec<u8> = (0..150_000u32).map(|at| (at * 7 % 253) as u8).collect();
    let mut arena = alice.open_arena(1 << 20).unwrap();
    let brought = arena.store(&bytes).unwrap();
    let room = arena.alloc(200_000).unwrap();
    let part = |offset: u64, bytes: u64| v1::Region { offset: brought.offset + offset, bytes, ..brought };
    let sent = Invocation::new("calls").input("in", part(0, 100_000)).input("in", part(100_000, 50_000));
    let answer = alice.invoke(&sent.output_to("out", room)).unwrap();
    assert_eq!((answer.outputs[0].bytes, answer.outputs[0].inline.len()), (150_000, 0));
    assert!(arena.load(v1::Region { bytes: 150_000, ..room }).unwrap() == bytes);
    assert!(answer.device == "cpu" && answer.timings.unwrap().execute_ns > 0);
    let memfd = Arc::new(pappus_shmem::memfd::sealed("bytes", &bytes).unwrap());
    let answer = alice.invoke(&Invocation::new("calls").input("in", memfd).output("out")).unwrap();
    assert!(answer.outputs[0].inline[..] == bytes);
    let sent = Invocation::new("calls").input("in", vec![4; 9]).output("out").checked();
    assert_eq!(alice.invoke(&sent).unwrap().outputs[0].inline[..], [4; 9], "its steps are checked");
    // What has no room is told with its bytes, as of any call.
    let sent =
        Invocation::new("calls").input("in", brought).output_to("out", v1::Region { bytes: 8, ..room });
    let error = refused(alice.invoke(&sent), Code::InvalidArgument, "it has 150000 bytes, its region only 8");
    assert_eq!((error.place.as_str(), error.output_bytes), ("output out", 150_000));
}

#[test]
fn many_items_and_many_pieces_are_few_arenas_for_a_worker() {
    let (supervisor, [mut alice, ..]) = tenants();
    let workers = supervisor.worker_pids();
    let steps = |items: u64| {
        json!({"inputs": ["in"], "steps": [
            {"name": "a", "function": "copy", "inputs": {"in": "in"}, "each": {"items": items, "inputs": ["in"]}},
            {"name": "b", "function": "copy", "inputs": {"in": {"step": "a"}}}],
            "outputs": {"out": {"step": "b"}}})
    };
    // In messages, a piece each, up to what a message may hold; in memory; each item larger than a message's part.
    for (items, each) in [(1000u64, 1000usize), (1024, 960), (12, 70_000), (4, 3)] {
        linked_and_not(&mut alice, &steps(items));
        let bytes: Vec<u8> = (0..items as usize * each).map(|at| (at / 7) as u8).collect();
        let found = alice.invoke(&Invocation::new("calls").input("in", bytes.clone()).output("out")).unwrap();
        assert!(found.outputs[0].inline[..] == bytes, "{items} items");
        for name in ["calls", "linked"] {
            alice.remove_function(name).unwrap();
        }
    }
    // Of as many steps as there are arenas that a call may not have.
    let wide: Vec<Value> = (0..80)
        .map(|at| json!({"name": format!("s{at}"), "function": "alice/copy", "inputs": {"in": "in"}}))
        .collect();
    let names: Vec<String> = (0..80).map(|at| format!("i{at}")).collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    Function { inputs: &all, buffers: &[("y", json!(1))], outputs: &["y"], ..Function::default() }
        .add(&mut alice, "all");
    let given = names.iter().enumerate().map(|(at, name)| (name.clone(), json!({"step": format!("s{at}")})));
    let last =
        json!({"name": "all", "function": "alice/all", "inputs": given.collect::<serde_json::Map<_, _>>()});
    let steps: Vec<Value> = wide.into_iter().chain([last]).collect();
    let fan = json!({"inputs": ["in"], "steps": steps, "outputs": {"out": {"step": "all"}}});
    compose(&mut alice, "fan", &fan, false).unwrap();
    alice.invoke(&Invocation::new("fan").input("in", vec![5; 70_000]).output("out")).unwrap();
    assert_eq!(supervisor.worker_pids(), workers, "no worker was ended");
}

#[test]
fn an_input_in_many_pieces_may_be_taken_often() {
    let (_supervisor, [mut alice, ..]) = tenants();
    let names: Vec<String> = (0..1000).map(|at| format!("x{at}")).collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    let last = vec![json!({"Copy": {"from": "x999", "to": "y"}})];
    let size = json!({"Sizeof": "x999"});
    Function { inputs: &all, buffers: &[("y", size)], outputs: &["y"], steps: &last, ..Function::default() }
        .add(&mut alice, "all");
    let given = names.iter().map(|name| (name.clone(), json!("in")));
    let fan = json!({"inputs": ["in", "once"], "outputs": {"out": {"step": "all"}, "same": {"step": "copy"}}, "steps": [
        {"name": "all", "function": "all", "inputs": given.collect::<serde_json::Map<_, _>>()},
        {"name": "copy", "function": "copy", "inputs": {"in": "once"}}]});
    linked_and_not(&mut alice, &fan);
    for (count, empty) in [(1, 0), (2, 0), (500, 523), (1000, 0)] {
        let bytes: Vec<u8> = (0..count).map(|at| at as u8).collect();
        let mut sent = Invocation::new("calls").input("once", vec![7]).output("out").output("same");
        sent = bytes.iter().fold(sent, |sent, byte| sent.input("in", vec![*byte]));
        sent = (0..empty).fold(sent, |sent, _| sent.input("in", Vec::new()));
        let found = alice.invoke(&sent).unwrap().outputs;
        assert!(found[0].inline[..] == bytes && found[1].inline[..] == [7], "{count} items");
    }
}

#[test]
fn outputs_of_all_items_are_charged_and_unused_ones_are_not_kept() {
    let supervisor = house(&[("alice", "arena-bytes = \"2MiB\"")]);
    let mut alice = enter(&supervisor, "alice");
    // Of 16 items an output has 64 KiB, as much as goes in messages, and all 40 together have more than an arena may.
    let names: Vec<String> = (0..40).map(|at| format!("y{at}")).collect();
    let buffers: Vec<_> = names.iter().map(|name| (name.as_str(), json!(4096))).collect();
    let outputs: Vec<&str> = names.iter().map(String::as_str).collect();
    Function { inputs: &["x"], buffers: &buffers, outputs: &outputs, ..Function::default() }
        .add(&mut alice, "many");
    for (name, used) in [("one", &outputs[..1]), ("all", &outputs[..])] {
        let of = used.iter().map(|output| ((*output).to_owned(), json!({"step": "a", "output": output})));
        let step = json!({"name": "a", "function": "alice/many", "inputs": {"x": "in"},
            "each": {"items": 16, "inputs": ["x"]}});
        let outputs: serde_json::Map<_, _> = of.collect();
        compose(&mut alice, name, &json!({"inputs": ["in"], "outputs": outputs, "steps": [step]}), false)
            .unwrap();
    }
    let call = |name: &str| Invocation::new(name).input("in", vec![0; 16]).output("y0");
    assert!(alice.invoke(&call("one")).unwrap().outputs[0].inline[..] == [0; 16 * 4096]);
    refused(alice.invoke(&call("all")), Code::ResourceExhausted, "arena-bytes");
}

#[test]
fn items_of_different_sizes_are_refused() {
    let (_supervisor, [mut alice, ..]) = tenants();
    let size = json!({"FromInput": {"bufname": "x", "idx": 0}});
    Function { inputs: &["x"], buffers: &[("y", size)], outputs: &["y"], ..Function::default() }
        .add(&mut alice, "sized");
    let each = json!({"inputs": ["in"], "outputs": {"out": {"step": "a"}}, "steps": [
        {"name": "a", "function": "alice/sized", "inputs": {"x": "in"}, "each": {"items": 2, "inputs": ["x"]}}]});
    compose(&mut alice, "each", &each, false).unwrap();
    let call = |sizes: [u64; 2]| {
        Invocation::new("each").input("in", sizes.map(u64::to_le_bytes).concat()).output("out")
    };
    assert_eq!(alice.invoke(&call([3, 3])).unwrap().outputs[0].inline[..], [0; 6]);
    refused(
        alice.invoke(&call([3, 1])),
        Code::InvalidArgument,
        "the items have different sizes or shapes in output y",
    );
}

#[test]
fn an_error_names_its_step_and_nothing_of_others() {
    let (_supervisor, [mut alice, mut bob, mut carol]) = tenants();
    kit::add_kernel(&mut bob, "trap", "trap", &[]);
    let of = |function: &str| {
        json!({"inputs": [], "steps": [{"name": "falls", "function": function, "inputs": {}},
            {"name": "other", "function": "alice/trap", "inputs": {}}], "outputs": {}})
    };
    compose(&mut bob, "own", &of("trap"), false).unwrap();
    compose(&mut bob, "hers", &of("alice/trap"), false).unwrap();
    let error = refused(bob.invoke(&Invocation::new("own")), Code::KernelFault, "");
    assert_eq!(error.place, "step falls, kernel trap");
    let error =
        refused(bob.invoke(&Invocation::new("hers")), Code::KernelFault, "only its owner is told more");
    assert_eq!(error.place, "step falls");
    // Nor is a name of it told to those who may call the composition alone.
    bob.grant("hers", "carol").unwrap();
    until("the function is in quarantine", || {
        let told = carol.invoke(&Invocation::new("bob/hers")).unwrap_err().to_string();
        assert!(!told.contains("alice") && !told.contains("trap") && !told.contains("falls"), "{told}");
        told.contains("quarantine")
    });
    let quarantined = |client: &mut Client| format!("{:?}", client.status().unwrap().devices[0].quarantined);
    let told = quarantined(&mut carol);
    assert!(!told.contains("alice") && !told.contains("trap"), "{told}");
    // The control: its owner sees it.
    assert!(quarantined(&mut alice).contains("trap"));
    // Replaced by another, which takes something else.
    add(&mut bob, "marks", &marks(8), false).unwrap();
    compose(&mut bob, "both", &both(), false).unwrap();
    alice.remove_function("marks").unwrap();
    kit::add_copy_as(&mut alice, "marks", kit::probes()).unwrap();
    alice.grant("marks", "bob").unwrap();
    let found = call(&mut bob, "both", &[("p", &[1, 2], &[2])], &["y"]);
    let error = refused(found, Code::InvalidArgument, "`x` is no input of this function; it has `in`");
    assert_eq!(error.place, "step hers");
}

#[test]
fn a_composition_that_is_ended_leaves_nothing_behind() {
    let (supervisor, [_, mut bob, _]) = tenants();
    let endless = json!({"inputs": ["in"], "steps": [
        {"name": "a", "function": "alice/copy", "inputs": {"in": "in"}},
        {"name": "b", "function": "alice/spin", "inputs": {}},
        {"name": "c", "function": "alice/copy", "inputs": {"in": {"step": "a"}}}], "outputs": {"out": {"step": "c"}}});
    compose(&mut bob, "endless", &endless, false).unwrap();
    let before = held(&mut bob);
    let sent = || Invocation::new("endless").input("in", vec![1; 100_000]).output("out");
    let error = refused(
        bob.invoke(&sent().deadline(Duration::from_millis(300))),
        Code::DeadlineExceeded,
        "the deadline of 300ms passed",
    );
    assert_eq!(error.place, "step b");
    let id = bob.send_invocation(&sent()).unwrap();
    supervisor.until_running();
    bob.cancel(id).unwrap();
    fails(&mut bob, id, Code::Cancelled);
    until("nothing is held", || held(&mut bob) == before);
    // Nor does a client that leaves.
    let mut gone = enter(&supervisor, "bob");
    gone.send_invocation(&sent()).unwrap();
    supervisor.until_running();
    drop(gone);
    until("nothing is held", || held(&mut bob) == before);
    // A worker that dies takes no answer with it.
    let chain = json!({"inputs": ["in"], "steps": [
        {"name": "a", "function": "alice/copy", "inputs": {"in": "in"}}], "outputs": {"out": {"step": "a"}}});
    compose(&mut bob, "chain", &chain, false).unwrap();
    for pid in supervisor.worker_pids() {
        signal(pid, Signal::KILL);
        let answer = bob.invoke(&Invocation::new("chain").input("in", vec![3; 9]).output("out")).unwrap();
        assert_eq!(answer.outputs[0].inline[..], [3; 9]);
    }
}

#[test]
fn a_call_has_its_owners_functions_as_they_were_when_it_began() {
    let (supervisor, [_, mut bob, _]) = tenants();
    add(&mut bob, "marks", &marks(8), false).unwrap();
    let chain = json!({"inputs": ["p"], "outputs": {"y": of("b")},
        "steps": [step("a", "alice/marks", json!("p")), step("b", "marks", of("a"))]});
    compose(&mut bob, "chain", &chain, false).unwrap();
    let sent = || Invocation::new("chain").input("p", vec![1, 2]).typed("p", "u8", &[2]).output("y");
    let answer = |found: v1::Invoked| found.outputs[0].inline.to_vec();
    assert_eq!(answer(bob.invoke(&sent()).unwrap()), [1, 8]);
    let pids = supervisor.worker_pids();
    pids.iter().for_each(|pid| signal(*pid, Signal::STOP));
    let id = bob.send_invocation(&sent()).unwrap();
    until("the first step is there", || supervisor.device().queued + supervisor.device().running == 1);
    let mut other = enter(&supervisor, "bob");
    add(&mut other, "marks", &marks(9), true).unwrap();
    pids.iter().for_each(|pid| signal(*pid, Signal::CONT));
    assert_eq!(answer(bob.wait_invoked(id).unwrap()), [1, 8]);
    // The control.
    assert_eq!(answer(bob.invoke(&sent()).unwrap()), [1, 9]);
}

#[test]
fn a_deadline_ends_waiting_for_a_steps_function_to_load() {
    let mut supervisor = Supervisor::start();
    let mut client = supervisor.client();
    kit::add_copy(&mut client);
    let own = client.quota().unwrap().name;
    let chain = json!({"inputs": ["in"], "outputs": {"out": {"step": "a"}},
        "steps": [{"name": "a", "function": format!("{own}/copy"), "inputs": {"in": "in"}}]});
    compose(&mut client, "chain", &chain, false).unwrap();
    supervisor.update();
    let mut client = supervisor.client();
    // The composition itself is in memory after that.
    refused(client.open_session("chain"), Code::InvalidArgument, "");
    let sent = Invocation::new("chain").input("in", vec![1, 2]).output("out");
    let error = client.invoke(&sent.clone().deadline(Duration::from_millis(1)));
    refused(error, Code::DeadlineExceeded, "being loaded");
    assert_eq!(client.invoke(&sent).unwrap().outputs[0].inline[..], [1, 2]);
}

#[test]
fn what_does_not_fit_is_told_when_it_is_registered() {
    let (_supervisor, [mut alice, mut bob, _]) = tenants();
    add(&mut bob, "marks", &marks(8), false).unwrap();
    kit::add_last(&mut alice, "last", &[]);
    alice.grant("last", "bob").unwrap();
    compose(&mut bob, "both", &both(), false).unwrap();
    let mut told = |change: &dyn Fn(&mut Value), code: Code, words: &str| {
        let mut composition = both();
        change(&mut composition);
        refused(compose(&mut bob, "wrong", &composition, false), code, words);
    };
    let invalid = Code::InvalidArgument;
    told(
        &|c| c["steps"][1]["function"] = json!("alice/nothing"),
        invalid,
        "there is no function \"alice/nothing\"",
    );
    told(&|c| c["steps"][1]["function"] = json!("alice/marks:new"), invalid, "is an alias");
    told(
        &|c| c["steps"][1]["inputs"] = json!({"z": "p"}),
        invalid,
        "\"alice/marks\" has no input \"z\"; inputs: \"x\"",
    );
    told(&|c| c["steps"][0]["function"] = json!("both"), invalid, "`both` runs as consecutive calls itself");
    told(&|c| c["steps"][1]["function"] = json!("bob/wrong"), invalid, "`wrong` would run itself");
    told(
        &|c| {
            c["steps"][1]["function"] = json!("alice/last");
            c["steps"][1]["inputs"] = json!({"in": of("own")});
            c["outputs"] = json!({"y": of("own")});
        },
        invalid,
        "`alice/last` has state",
    );
    // What a composition of others' functions is made of stays as long as that.
    refused(bob.remove_function("marks"), invalid, "`marks` is a step of both");
    // Versions of it are kept as of any function.
    let mut other = both();
    other["outputs"] = json!({"y": of("own")});
    compose(&mut bob, "both", &other, true).unwrap();
    assert_eq!(call(&mut bob, "both", &[("p", &[1, 2], &[2])], &["y"]).unwrap(), [[1, 8]]);
}

#[test]
fn steps_run_on_the_devices_that_have_their_code() {
    let supervisor = with_gpu(&[
        "--device",
        "hip:0:workers=1,standbys=0,memory=2GiB",
        "--device",
        "cpu:workers=1,memory=64MiB",
    ]);
    let mut client = supervisor.client();
    kit::add_copy(&mut client);
    supervisor.write("probes.hsaco", include_bytes!("../../worker/tests/probes/probes.gfx942.hsaco"));
    let config = r#"{"module_path": "probes.hsaco", "kernels": [], "blueprint": {"inputs": ["x"], "buffers": {"y": {"Sizeof": "x"}},
        "outputs": ["y"], "control_flow": [{"Copy": {"from": "x", "to": "y"}}]}}"#;
    let config = supervisor.write("gpu.json", config);
    supervisor.ok(&["function", "add", "gpu", config.to_str().unwrap()]);
    let composition = json!({"inputs": ["in"], "steps": [
        {"name": "a", "function": "copy", "inputs": {"in": "in"}},
        {"name": "b", "function": "gpu", "inputs": {"x": {"step": "a"}}}], "outputs": {"out": {"step": "b"}}});
    compose(&mut client, "across", &composition, false).unwrap();
    let bytes = vec![5; 100_000];
    let answer = client.invoke(&Invocation::new("across").input("in", bytes.clone()).output("out")).unwrap();
    assert!(answer.outputs[0].inline[..] == bytes);
    assert_eq!(answer.device, "cpu, hip:0");
    // Once one device has all the code it is linked.
    let copy = supervisor.write("copy.json", config_of_copy());
    supervisor.write("probes.wasm", kit::probes());
    supervisor.ok(&["function", "add", "--replace", "gpu", copy.to_str().unwrap()]);
    let answer = client.invoke(&Invocation::new("across").input("in", bytes.clone()).output("out")).unwrap();
    assert_eq!((answer.device.as_str(), answer.outputs[0].inline.len()), ("cpu", bytes.len()));
    assert!(!client.show_function("across").unwrap().modules.is_empty());
}

/// The function of the other device, for the processor.
fn config_of_copy() -> &'static str {
    r#"{"module_path": "probes.wasm", "kernels": [], "blueprint": {"inputs": ["x"], "buffers": {"y": {"Sizeof": "x"}},
        "outputs": ["y"], "control_flow": [{"Copy": {"from": "x", "to": "y"}}]}}"#
}

#[test]
fn the_command_checks_adds_shows_and_calls_them() {
    let supervisor = house(&TENANTS);
    let mut alice = enter(&supervisor, "alice");
    add(&mut alice, "marks", &marks(7), false).unwrap();
    alice.grant("marks", "bob").unwrap();
    let bob = supervisor.write("bob", crate::house::token("bob"));
    fs::set_permissions(&bob, PermissionsExt::from_mode(0o600)).unwrap();
    supervisor.write("probes.wasm", kit::probes());
    let own = supervisor.write("marks.json", marks(8));
    let composition = supervisor.write("both.json", both().to_string());
    let [own, composition] = [&own, &composition].map(|path| path.to_str().unwrap());
    let ok = |args: &[&str]| supervisor.ok(&[args, &["--token-file", bob.to_str().unwrap()]].concat());

    let checked = supervisor.ok(&["function", "check", composition]);
    for line in [
        "steps: consecutive calls, since alice/marks is another owner's function",
        "edge: own.y → hers.x: through the host",
    ] {
        assert!(checked.lines().any(|found| found == line), "{line:?} is not in\n{checked}");
    }
    let checked = supervisor.ok(&["function", "check", composition, "--json"]);
    let checked: Value = serde_json::from_str(&checked).unwrap();
    assert_eq!(checked["edges"], json!([{"from": "own.y", "to": "hers.x", "linked": false}]));
    let linked = supervisor.write("twice.json", both().to_string().replace("alice/", ""));
    let checked = supervisor.ok(&["function", "check", linked.to_str().unwrap()]);
    assert!(checked.contains("edge: own.y → hers.x: linked\n"), "{checked}");

    ok(&["function", "add", "marks", own]);
    assert!(ok(&["function", "add", "both", composition]).contains("both"));
    assert!(
        ok(&["function", "add", "both", composition]).contains("unchanged"),
        "what is there is known again"
    );
    let shown = ok(&["function", "show", "both"]);
    assert!(shown.contains("both: p: u8[p_0] → early: u8, y: u8\n"), "{shown}");
    assert!(shown.ends_with("a composition whose steps run as consecutive calls\n"), "{shown}");
    let p: Vec<u8> = vec![1; 200_000];
    supervisor.write("p.bin", &p);
    let [input, output] = [format!("p={}", supervisor.path("p.bin").display()), "y=y.bin".to_owned()];
    ok(&["invoke", "both", "--input", &input, "--output", &output]);
    assert_eq!(supervisor.read("y.bin"), [&p[1..], &[7]].concat());
}
