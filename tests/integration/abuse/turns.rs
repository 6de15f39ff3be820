//! Processor time is shared among tenants, whatever one of them asks for: the whole device, the compiler, plans.

use std::io::ErrorKind;

use pappus_client::v1::{self, request};
use pappus_client::{Client, Invocation};

use super::{add_steps, raw_of};
use crate::fixture::Supervisor;
use crate::house::{config, enter, house};
use crate::kit::{self, Function, absolute, constant, launch, ptr};
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

/// Modules of some tenants, each of which has been compiled for once, do not come before one of another tenant that has
/// not.
#[test]
fn compilations_of_some_tenants_do_not_delay_another_ones() {
    const NAMES: [&str; 6] = ["m1", "m2", "m3", "m4", "m5", "m6"];
    /// Two run when the other one comes, and two may end beside it. In the order of arrival five would come first.
    const MAY_COME_BEFORE: usize = 4;
    let tenants: Vec<_> = NAMES.iter().chain(&["bob"]).map(|name| (*name, "")).collect();
    let supervisor = house(&tenants);
    let steps = "(local.set 0 (i64.add (i64.mul (local.get 0) (local.get 1)) (local.get 2)))".repeat(2_000);
    let module = |nth: usize| {
        let functions = format!("(func (param i64 i64 i64) (local i64) {steps})").repeat(8);
        let salt = "(func)".repeat(nth);
        let kernel = r#"(func (export "kernel") (param i32 i32 i64 i64))"#;
        wat::parse_str(format!(r#"(module (import "env" "memory" (memory 1)) {kernel} {functions} {salt})"#))
            .unwrap()
    };
    let add = |client: &mut Client, nth: usize| {
        let variants = vec![kit::wasm(client, &module(nth))];
        let body = v1::AddModule { name: format!("slow-{nth}"), variants };
        client.send(request::Body::AddModule(body), &[]).unwrap()
    };
    let mut colluding = NAMES.map(|name| enter(&supervisor, name));
    for client in &mut colluding {
        let first = add(client, 1);
        client.wait(first).unwrap();
    }
    let mut bob = enter(&supervisor, "bob");
    for client in &mut colluding {
        add(client, 2);
        add(client, 3);
    }
    kit::add_copy(&mut bob);
    let done = colluding.iter_mut().map(|client| client.list_modules().unwrap().len() - 1).sum::<usize>();
    assert!(done <= MAY_COME_BEFORE, "{done} modules of others came before");
}

/// The calls take a hundred bytes each, and each keeps a thread busy until its plan fails.
#[test]
fn calls_whose_plan_fails_leave_their_threads_to_others() {
    const CONNECTIONS: usize = 48;
    const CALLS: u64 = 40;
    const HONEST: usize = 10;
    /// With every honest call a few of the others may be planned.
    const MAY_COME_BETWEEN: u64 = 12;
    let supervisor = house(&[("alice", ""), ("bob", "")]);
    let mut bob = enter(&supervisor, "bob");
    kit::add_copy(&mut bob);
    kit::works(&mut bob);
    add_steps(&mut enter(&supervisor, "alice"), "failing", 20_000, true);
    let mut flood: Vec<_> = (0..CONNECTIONS).map(|_| raw_of(&supervisor, "alice")).collect();
    let frames: Vec<u8> =
        (2..2 + CALLS).flat_map(|id| crate::raw::request(id, invoke("failing", Some(b"x")), 0)).collect();
    flood.iter_mut().for_each(|raw| raw.send(&frames));
    // The first is answered: the flood has begun.
    flood[0].error();
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
    let before: u64 = answered(&mut flood);
    for _ in 0..HONEST {
        kit::works(&mut bob);
    }
    let between = answered(&mut flood);
    assert!(before + between < CONNECTIONS as u64 * CALLS, "the flood was over before the honest calls");
    assert!(between <= MAY_COME_BETWEEN * HONEST as u64, "{between} calls between {HONEST} honest ones");
}
