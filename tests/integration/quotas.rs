//! The quotas of a tenant, each limit in turn (ATTACKS 27), and which tenants see the usage.

use pappus_client::source::Source;
use pappus_client::{Blob, Client, Code, Invocation, v1};
use serde_json::{Value, json};

use crate::fixture::{Supervisor, until};
use crate::house::{config, enter, house, own_uid, token};
use crate::kit::{self, Function, absolute, launch, refused};
use crate::metrics::{address, scrape, value};

/// A refusal that says all there is to say.
fn over<T: std::fmt::Debug>(answer: pappus_client::Result<T>, quota: &str, most: &str) -> v1::Error {
    let error = refused(answer, Code::ResourceExhausted, &format!("the quota {quota} of tenant "));
    assert!(error.message.contains(&format!(" is {most}")), "{error}");
    assert!(error.message.contains("ask the operator"), "{error}");
    error
}

fn quota(client: &mut Client, name: &str) -> (u64, Option<u64>) {
    let tenant = client.quota().unwrap();
    let quota = tenant.quotas.into_iter().find(|quota| quota.name == name).unwrap();
    (quota.used, quota.limit)
}

#[test]
fn a_quota_limits_functions() {
    let supervisor = house(&[("alice", "functions = 1"), ("bob", "")]);
    let mut alice = enter(&supervisor, "alice");
    kit::add_copy(&mut alice);
    let second = Function::default();
    over(second.try_add(&mut alice, "second"), "functions", "1");
    assert_eq!(quota(&mut alice, "functions"), (1, Some(1)));
    // The same again is none more; another tenant has its own limit; what is removed makes room.
    kit::add_copy(&mut alice);
    let mut bob = enter(&supervisor, "bob");
    kit::add_copy(&mut bob);
    second.add(&mut bob, "second");
    alice.remove_function("copy").unwrap();
    second.add(&mut alice, "second");
}

#[test]
fn a_quota_limits_bytes_of_modules() {
    let bytes = kit::probes().len();
    let limit = format!("module-bytes = {}", bytes + 10);
    let supervisor = house(&[("alice", &limit), ("bob", "module-bytes = 10")]);
    let mut bob = enter(&supervisor, "bob");
    over(Function::default().try_add(&mut bob, "f"), "module-bytes", "10");
    let variant = kit::wasm(&mut bob, kit::probes());
    over(bob.add_module("m", vec![variant]), "module-bytes", "10");
    // Each counts once, however many functions are made of it.
    let mut alice = enter(&supervisor, "alice");
    kit::add_copy(&mut alice);
    Function::default().add(&mut alice, "second");
    let variant = kit::wasm(&mut alice, kit::probes());
    alice.add_module("m", vec![variant]).unwrap();
    assert_eq!(quota(&mut alice, "module-bytes").0, bytes as u64);
    let other = pappus_kernels::artefact("linalg.wasm").unwrap();
    let variant = kit::wasm(&mut alice, other);
    over(alice.add_module("linalg", vec![variant]), "module-bytes", &(bytes + 10).to_string());
    // Only the last user's removal makes room.
    alice.remove_module("m").unwrap();
    alice.remove_function("copy").unwrap();
    assert_eq!(quota(&mut alice, "module-bytes").0, bytes as u64);
    alice.remove_function("second").unwrap();
    assert_eq!(quota(&mut alice, "module-bytes").0, 0);
}

#[test]
fn what_a_connection_registered_goes_with_what_it_removed() {
    let supervisor = house(&[("alice", "blob-bytes = '400KiB'")]);
    let mut alice = enter(&supervisor, "alice");
    let mut left = Vec::new();
    for round in 0..20u8 {
        let weights = vec![round; 60 << 10];
        let function = Function { weights: &[("w", &weights)], ..Function::default() };
        function.add(&mut alice, "f");
        alice.remove_function("f").unwrap();
        left.push(quota(&mut alice, "blob-bytes").0);
    }
    // The connection itself keeps nothing, however long it stays.
    assert!(left.iter().all(|bytes| *bytes == left[0]) && left[0] < 60 << 10, "{left:?}");
}

#[test]
fn a_quota_limits_bytes_that_are_handed_over() {
    let mut supervisor = house(&[("alice", "blob-bytes = '140KiB'")]);
    let mut alice = enter(&supervisor, "alice");
    let weights = vec![1; 60 << 10];
    let function = Function { weights: &[("w", &weights)], ..Function::default() };
    function.add(&mut alice, "f");
    over(alice.put_blob(Blob::Bytes(&[2; 60 << 10])), "blob-bytes", "143360 (140.0 KiB)");
    let large = supervisor.write("large", vec![3; 60 << 10]);
    over(alice.put_blob(Blob::File(&Source::file(&large))), "blob-bytes", "143360 (140.0 KiB)");
    // Refused bytes do not count, nor do bytes that were not registered once their connection is gone.
    let used = quota(&mut alice, "blob-bytes").0;
    // Whole blocks of the disk, records and machine code included.
    assert!((60 << 10..100 << 10).contains(&used), "{used}");
    enter(&supervisor, "alice").put_blob(Blob::Bytes(&[4; 20 << 10])).unwrap();
    until("it is gone", || quota(&mut alice, "blob-bytes").0 == used);
    // After a start the same is counted.
    drop(alice);
    supervisor.kill9();
    supervisor.restart();
    let mut alice = enter(&supervisor, "alice");
    assert_eq!(quota(&mut alice, "blob-bytes").0, used);
    alice.remove_function("f").unwrap();
    alice.put_blob(Blob::Bytes(&[2; 60 << 10])).unwrap();
}

#[test]
fn a_quota_limits_bytes_of_arenas() {
    let supervisor = house(&[("alice", "arena-bytes = 8192"), ("bob", "")]);
    let (mut one, mut two) = (enter(&supervisor, "alice"), enter(&supervisor, "alice"));
    let first = one.open_arena(4096).unwrap();
    let _second = two.open_arena(4096).unwrap();
    over(one.open_arena(4096), "arena-bytes", "8192 (8.0 KiB)");
    over(two.open_arena(4096), "arena-bytes", "8192 (8.0 KiB)");
    enter(&supervisor, "bob").open_arena(1 << 20).unwrap();
    one.close_arena(first).unwrap();
    let _third = one.open_arena(4096).unwrap();
    drop(two);
    until("the other connection's is gone", || quota(&mut one, "arena-bytes").0 == 4096);
    one.open_arena(4096).unwrap();
}

#[test]
fn a_quota_limits_bytes_that_workers_map() {
    let supervisor = house(&[("alice", "pinned-bytes = 4096")]);
    let mut alice = enter(&supervisor, "alice");
    kit::add_copy(&mut alice);
    let call = |alice: &mut Client, arena: &mut pappus_client::Arena| {
        let input = arena.store(b"works")?;
        alice.invoke(&Invocation::new("copy").input("in", input).output("out"))
    };
    let (mut first, mut second) = (alice.open_arena(4096).unwrap(), alice.open_arena(4096).unwrap());
    assert_eq!(quota(&mut alice, "pinned-bytes").0, 0, "until a call names one");
    call(&mut alice, &mut first).unwrap();
    call(&mut alice, &mut first).unwrap();
    over(call(&mut alice, &mut second), "pinned-bytes", "4096 (4.0 KiB)");
    alice.close_arena(first).unwrap();
    until("it is forgotten", || quota(&mut alice, "pinned-bytes").0 == 0);
    call(&mut alice, &mut second).unwrap();
    assert_eq!(quota(&mut alice, "pinned-bytes"), (4096, Some(4096)));
}

#[test]
fn a_quota_limits_calls_in_flight() {
    let supervisor = house(&[("alice", "calls = 1"), ("bob", "")]);
    let (mut alice, mut other) = (enter(&supervisor, "alice"), enter(&supervisor, "alice"));
    kit::add_spin(&mut alice);
    let spin = Invocation::new("spin").deadline(std::time::Duration::from_millis(200));
    let id = alice.send_invocation(&spin).unwrap();
    supervisor.until_running();
    let error = over(other.invoke(&Invocation::new("spin")), "calls", "1");
    assert!(error.retryable && error.retry_after_ms > 0, "{error}");
    let mut bob = enter(&supervisor, "bob");
    kit::add_copy(&mut bob);
    kit::works(&mut bob);
    kit::fails(&mut alice, id, Code::DeadlineExceeded);
    until("it counts no more", || quota(&mut alice, "calls").0 == 0);
    kit::add_copy(&mut alice);
    kit::works(&mut other);
}

/// The next call finds the place of the last one free as soon as that is answered; the case before is the control.
#[test]
fn who_calls_one_after_the_other_needs_one_call() {
    let supervisor = house(&[("alice", "calls = 1")]);
    let mut alice = enter(&supervisor, "alice");
    kit::add_copy(&mut alice);
    for _ in 0..2000 {
        kit::works(&mut alice);
    }
}

#[test]
fn a_quota_limits_connections_and_says_so() {
    let supervisor = house(&[("alice", "connections = 2")]);
    // Of a gateway's tenant, as the answer to the token.
    let _alice = [(); 2].map(|()| enter(&supervisor, "alice"));
    let error = over(supervisor.client().act_for(token("alice").as_bytes()), "connections", "2");
    assert!(error.retryable && error.retry_after_ms > 0, "{error}");
    // Of a uid, in place of the first answer.
    let text = format!("[tenants.own]\nuid = {}\nconnections = 1", own_uid());
    let supervisor = Supervisor::configured(&text, &[]);
    // The connection that saw it start may not be gone yet.
    let mut own = supervisor.client();
    until("it has the place", || {
        let has = own.status().is_ok();
        if !has {
            own = supervisor.client();
        }
        has
    });
    let error = over(supervisor.client().status(), "connections", "1");
    assert!(
        error.retryable && error.message.contains("tenant own") && error.message.contains("1 in use"),
        "{error}"
    );
    let told = supervisor.pappus(&["status"]);
    assert!(told.code != 0 && told.stderr.contains("the quota connections of tenant own is 1"), "{told:?}");
    own.status().unwrap();
    drop(own);
    until("its place is free", || supervisor.client().status().is_ok());
}

#[test]
fn a_quota_limits_memory_for_connections_and_says_so() {
    let own = format!("[tenants.own]\nuid = {}\nrequest-bytes = '100KiB'", own_uid());
    let supervisor = Supervisor::configured(&own, &[]);
    let error = over(supervisor.client().status(), "request-bytes", "102400 (100.0 KiB)");
    assert!(!error.retryable && error.message.contains("more than all of the quota"), "{error}");
    let supervisor = house(&[("alice", "request-bytes = '100KiB'")]);
    over(supervisor.client().act_for(token("alice").as_bytes()), "request-bytes", "102400 (100.0 KiB)");
}

/// Refusals are counted by quota, and the operator sees which quota is nearly used up.
#[test]
fn the_operator_sees_which_quotas_are_reached() {
    let address = address(9477);
    let supervisor = Supervisor::configured(&config(&[("alice", "functions = 1")]), &["--metrics", &address]);
    let reached =
        |quota: &str| value(&scrape(&address), &format!("pappus_quota_refusals_total{{quota=\"{quota}\"}}"));
    assert_eq!((reached("functions"), reached("calls")), (0.0, 0.0));
    let mut alice = enter(&supervisor, "alice");
    kit::add_copy(&mut alice);
    over(Function::default().try_add(&mut alice, "second"), "functions", "1");
    until("it is counted", || reached("functions") == 1.0);
    assert_eq!(reached("calls"), 0.0);
    let admin = supervisor.admin_socket();
    let admin = ["--socket", admin.to_str().unwrap(), "tenants"];
    let table = supervisor.ok(&admin);
    assert!(table.contains("functions 100 %"), "{table}");
    let one = supervisor.ok(&[&admin[..], &["alice"]].concat());
    assert!(one.starts_with("tenant alice") && one.contains("slow-requests"), "{one}");
    let none = supervisor.pappus(&[&admin[..], &["carol"]].concat());
    assert!(none.code != 0 && none.stderr.contains("there is no tenant carol"), "{none:?}");
}

#[test]
fn a_reload_says_which_quotas_it_changed_and_who_has_more() {
    let supervisor = house(&[("alice", ""), ("bob", "arena-bytes = 8192")]);
    let (mut alice, mut bob) = (enter(&supervisor, "alice"), enter(&supervisor, "bob"));
    let (_first, _second) = (alice.open_arena(4096).unwrap(), bob.open_arena(8192).unwrap());
    let again = config(&[("alice", "weight = 2"), ("bob", "arena-bytes = 4096")]);
    supervisor.write("pappus.toml", format!("{again}\n[tenant-defaults]\ncalls = 7\narena-bytes = 4095"));
    let admin = supervisor.admin_socket();
    let told = supervisor.ok(&["--socket", admin.to_str().unwrap(), "reload"]);
    for line in [
        "arena-bytes of tenant-defaults: 274877906944 (256.0 GiB) -> 4095 (4.0 KiB): alice has 4096 (4.0 KiB): it stays",
        "calls of tenant-defaults: 8192 -> 7\n",
        "weight of alice: 1 -> 2\n",
        "arena-bytes of bob: 8192 (8.0 KiB) -> 4096 (4.0 KiB): bob has 8192 (8.0 KiB): it stays, and no more comes",
    ] {
        assert!(told.contains(line), "{line}\nin\n{told}");
    }
    let log = supervisor.log();
    assert!(log.contains("calls: 8192 -> 7") && log.contains("tenant-defaults"), "{log}");
    // Nothing is news the second time.
    let told = supervisor.ok(&["--socket", admin.to_str().unwrap(), "reload"]);
    assert!(told.contains(": nothing changed"), "{told}");
    let told = supervisor.ok(&["--socket", admin.to_str().unwrap(), "reload", "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&told).unwrap()["tenants"], json!([]));
}

#[test]
fn a_reload_says_what_a_smaller_quota_means() {
    let supervisor = house(&[("alice", ""), ("bob", "")]);
    let mut alice = enter(&supervisor, "alice");
    kit::add_copy(&mut alice);
    kit::works(&mut alice);
    let again = config(&[("alice", "loaded-functions = 0"), ("bob", "request-bytes = 4096")]);
    supervisor.write("pappus.toml", again);
    let admin = supervisor.admin_socket();
    let told = supervisor.ok(&["--socket", admin.to_str().unwrap(), "reload"]);
    for line in [
        "loaded-functions of alice: 512 -> 0: alice has 1: those that no call uses go when another one comes",
        "4096 (4.0 KiB): too little for a connection, which takes 131072 (128.0 KiB)",
    ] {
        assert!(told.contains(line), "{line}\nin\n{told}");
    }
}

#[test]
fn a_quota_limits_device_memory() {
    let tenants = [("alice", "device-memory = '5MiB'"), ("bob", ""), ("tiny", "device-memory = '32KiB'")];
    let supervisor = Supervisor::configured(&config(&tenants), &["--device", "cpu:workers=3,memory=16MiB"]);
    let [mut alice, mut bob, mut tiny] = tenants.map(|(name, _)| enter(&supervisor, name));
    let buffers = [("b", absolute(3 << 20))];
    let hog = Function { buffers: &buffers, steps: &[launch("spin", &[])], ..Function::default() };
    let large = Function { buffers: &[("b", absolute(9 << 20))], ..Function::default() };
    for client in [&mut alice, &mut bob, &mut tiny] {
        kit::add_copy(client);
        hog.add(client, "hog");
        large.add(client, "large");
    }

    // As many calls at the same time as it may be lent memory for; the others wait, and delay no other tenant.
    let both =
        |client: &mut Client| [(); 2].map(|()| client.send_invocation(&Invocation::new("hog")).unwrap());
    let ids = both(&mut alice);
    supervisor.until_running();
    until("one waits", || supervisor.device().queued == 1);
    assert_eq!(quota(&mut alice, "device-memory").0, 3 << 20);
    kit::works(&mut bob);
    for id in ids {
        alice.cancel(id).unwrap();
        kit::fails(&mut alice, id, Code::Cancelled);
    }
    supervisor.end_detached();
    kit::works(&mut alice);
    over(kit::copied(&mut tiny, b"x"), "device-memory", "32768 (32.0 KiB)");
    // A call that takes the whole device.
    bob.invoke(&Invocation::new("large")).unwrap();
    over(alice.invoke(&Invocation::new("large")), "device-memory", "5242880 (5.0 MiB)");

    // The control: without a limit there are two at a time.
    let ids = both(&mut bob);
    until("both run", || supervisor.device().running == 2);
    for id in ids {
        bob.cancel(id).unwrap();
        kit::fails(&mut bob, id, Code::Cancelled);
    }
}

#[test]
fn the_operator_sees_everyone_and_each_only_itself() {
    let supervisor = house(&[("alice", "calls = 3"), ("bob", "")]);
    let (mut alice, mut bob) = (enter(&supervisor, "alice"), enter(&supervisor, "bob"));
    kit::add_copy(&mut alice);
    refused(alice.list_tenants(), Code::PermissionDenied, "admin socket");
    refused(supervisor.client().list_tenants(), Code::PermissionDenied, "admin socket");
    assert_eq!((quota(&mut bob, "functions").0, quota(&mut bob, "blob-bytes").0), (0, 0));
    let own = alice.quota().unwrap();
    assert!((own.peers.is_empty() && own.connections == 0) && own.uids.is_empty(), "{own:?}");

    let all = || supervisor.admin().list_tenants().unwrap();
    // Whoever has left is not shown once that is noticed.
    until("alice and bob are shown", || all().iter().map(|tenant| &*tenant.name).eq(["alice", "bob"]));
    let all = all();
    assert_eq!((all[0].configured, all[0].connections), (true, 1));
    // Where the kernel can say so, which process that is.
    assert!(all[0].peers.iter().all(|peer| (peer.uid, peer.pid) == (own_uid(), std::process::id())));

    let admin = supervisor.admin_socket();
    let shown = supervisor.ok(&["--socket", admin.to_str().unwrap(), "tenants", "--json"]);
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let alice = &shown["tenants"][0];
    assert_eq!(alice["quotas"]["calls"], json!({"used": 0, "limit": 3}));
    assert_eq!(alice["quotas"]["functions"]["used"], 1);
    assert_eq!(alice["quotas"]["device-memory"]["limit"], Value::Null);
    let table = supervisor.ok(&["--socket", admin.to_str().unwrap(), "tenants"]);
    assert!(table.starts_with("TENANT") && table.contains("0 of 3"), "{table}");
    let refused = supervisor.pappus(&["tenants"]);
    assert!(refused.code == 3 && refused.stderr.contains(".admin tenants"), "{refused:?}");
}
