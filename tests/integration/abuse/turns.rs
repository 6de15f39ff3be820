//! Processor time is shared among tenants, whatever one of them asks for: the whole device, the compiler, plans.

use std::io::ErrorKind;
use std::path::PathBuf;

use pappus_client::Invocation;
use pappus_client::v1::{self, request};
use rustix::process::Signal;

use super::clients_files::stop;
use super::{add_steps, raw_of, used};
use crate::fixture::{Supervisor, signal, until};
use crate::hostile::slow_module;
use crate::house::{config, enter, house};
use crate::kit::{self, Function, absolute, constant, launch, ptr};
use crate::programs::files_below;
use crate::raw::invoke;

#[test]
fn whole_device_calls_of_one_tenant_leave_the_device_to_others() {
    const QUEUED: usize = 40;
    // More than the 8 MiB that each of the two workers has.
    const LARGE: u64 = 12 << 20;
    let tenants = [("alice", ""), ("bob", "")];
    let supervisor = Supervisor::configured(&config(&tenants), &["--device", "cpu:workers=2,memory=16MiB"]);
    let steps = [
        launch("work", &[constant(3_000_000)]),
        launch("fill", &[ptr("all"), constant(7), constant(8)]),
        launch("copy", &[ptr("all"), ptr("out"), constant(8)]),
    ];
    let buffers = [("all", absolute(LARGE)), ("out", absolute(8))];
    let function = Function { buffers: &buffers, outputs: &["out"], steps: &steps, ..Function::default() };
    let [mut alice, mut bob] = tenants.map(|(name, _)| {
        let mut client = enter(&supervisor, name);
        function.add(&mut client, "large");
        client
    });
    let call = Invocation::new("large").output("out");
    bob.invoke(&call).unwrap();
    let flood: Vec<_> = (0..QUEUED).map(|_| alice.send_invocation(&call).unwrap()).collect();
    supervisor.until_running();
    let answer = bob.invoke(&call).unwrap();
    assert_eq!(&answer.outputs[0].inline[..], [7; 8]);
    let waiting = supervisor.device().queued as usize;
    assert!(waiting > QUEUED / 2, "{waiting} of {QUEUED} were to come before one of another tenant");
    for id in flood {
        alice.cancel(id).unwrap();
    }
}

/// Modules that take the compiler long do not come before one of another tenant that takes a moment.
#[test]
fn compilations_of_some_tenants_do_not_delay_another_ones() {
    const NAMES: [&str; 4] = ["m1", "m2", "m3", "m4"];
    let tenants: Vec<_> = NAMES.iter().chain(&["bob"]).map(|name| (*name, "")).collect();
    let supervisor = house(&tenants);
    let mut colluding = NAMES.map(|name| enter(&supervisor, name));
    // To make such a module takes long, too.
    let modules: Vec<_> =
        colluding.iter_mut().enumerate().map(|(nth, client)| kit::wasm(client, &slow_module(nth))).collect();
    for (nth, (client, module)) in colluding.iter_mut().zip(modules).enumerate() {
        let body = v1::AddModule { name: format!("slow-{nth}"), variants: vec![module] };
        client.send(request::Body::AddModule(body), &[]).unwrap();
    }
    kit::add_copy(&mut enter(&supervisor, "bob"));
    // Their records: to ask would take time in which others get ready.
    let records = files_below(&supervisor.path("state"));
    let is_slow =
        |file: &&PathBuf| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("slow-"));
    let done = records.iter().filter(is_slow).count();
    assert!(done < NAMES.len() / 2, "{done} modules of others came before");
}

/// The calls take a hundred bytes each, and each keeps a thread busy until its plan fails.
#[test]
fn calls_whose_plan_fails_leave_their_threads_to_others() {
    const CONNECTIONS: usize = 48;
    const CALLS: u64 = 40;
    const HONEST: usize = 10;
    let supervisor = house(&[("alice", ""), ("bob", "")]);
    let mut bob = enter(&supervisor, "bob");
    kit::add_copy(&mut bob);
    kit::works(&mut bob);
    add_steps(&mut enter(&supervisor, "alice"), "failing", 20_000, true);
    let mut flood: Vec<_> = (0..CONNECTIONS).map(|_| raw_of(&supervisor, "alice")).collect();
    // It finds all of them at once.
    stop(&supervisor);
    for (nth, raw) in flood.iter_mut().enumerate() {
        // Each of a size of its own: that there is no plan is remembered.
        let call = |id: u64| match invoke("failing", Some(&vec![0; nth * CALLS as usize + id as usize])) {
            request::Body::Invoke(call) => request::Body::Invoke(v1::Invoke { outputs: Vec::new(), ..call }),
            other => other,
        };
        let frames: Vec<u8> = (2..2 + CALLS).flat_map(|id| crate::raw::request(id, call(id), 0)).collect();
        raw.send(&frames);
    }
    signal(supervisor.pid(), Signal::CONT);
    // The first is answered: the flood has begun.
    let first = flood[0].error().1;
    assert!(first.message.contains("beyond the buffer"), "{first}");
    let answered = |flood: &mut Vec<crate::raw::Raw>| {
        let mut count = 0;
        for raw in flood {
            raw.stream.set_nonblocking(true).unwrap();
            loop {
                match raw.try_answer() {
                    Ok(Some(_)) => count += 1,
                    Ok(None) => panic!("closed"),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        count
    };
    let before = answered(&mut flood);
    (0..HONEST).for_each(|_| kit::works(&mut bob));
    let between = answered(&mut flood);
    assert!(
        1 + before + between < CONNECTIONS * CALLS as usize,
        "the flood was over before the honest calls"
    );
    // With a turn for each connection in place of each tenant, all connections came before each honest call.
    assert!(between < HONEST * CONNECTIONS / 2, "{between} came before {HONEST} honest calls");
}

/// What a client left behind that is gone is not worked on: it would keep the tenant's places from its other clients.
#[test]
fn no_request_of_a_client_that_is_gone_is_begun() {
    const SENT: u64 = 200;
    let supervisor = house(&[("alice", "")]);
    let mut alice = enter(&supervisor, "alice");
    kit::add_copy(&mut alice);
    let mut raw = raw_of(&supervisor, "alice");
    for nth in 0..SENT {
        let grant = v1::Grant { function: "copy".into(), tenant: format!("t{nth}") };
        raw.request(2 + nth, request::Body::Grant(grant), &[]);
    }
    drop(raw);
    until("its connection is closed", || used(&mut alice, "connections") == 1);
    let granted = alice.list_grants("copy").unwrap().len() as u64;
    assert!(granted < SENT / 2, "{granted} of {SENT} requests were worked on");
    // The control: of a client that stays all are.
    let mut raw = raw_of(&supervisor, "alice");
    for nth in 0..SENT {
        let grant = v1::Grant { function: "copy".into(), tenant: format!("t{nth}") };
        raw.request(2 + nth, request::Body::Grant(grant), &[]);
    }
    until("all are worked on", || alice.list_grants("copy").unwrap().len() as u64 == SENT);
    drop(raw);
}
