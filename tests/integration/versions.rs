//! Versions of functions through the programs as they are delivered: a replacement is called, named, taken back and removed.

use pappus_client::{Client, Code, Invocation};
use serde_json::{Value, json};

use crate::fixture::Supervisor;
use crate::house::{enter, house};
use crate::kit::{Function, absolute, constant, launch, ptr, refused};

/// Registers `says`: nothing → `out`, eight bytes of this value.
fn add(client: &mut Client, value: i64) -> Value {
    let steps = [launch("fill", &[ptr("out"), constant(value), constant(8)])];
    let buffers = [("out", absolute(8))];
    let function = Function { buffers: &buffers, outputs: &["out"], steps: &steps, ..Function::default() };
    let added = function.replace(client, "says").unwrap();
    json!([added.number, added.kept])
}

fn said(client: &mut Client, name: &str) -> (u8, u32) {
    let answer = client.invoke(&Invocation::new(name).output("out")).unwrap();
    (answer.outputs[0].inline[0], answer.number)
}

#[test]
fn a_replacement_is_taken_back() {
    let mut supervisor = Supervisor::start();
    let mut client = supervisor.client();
    assert_eq!(
        [10, 20, 30].map(|value| add(&mut client, value)),
        [json!([1, []]), json!([2, [1]]), json!([3, [1, 2]])]
    );
    assert_eq!(said(&mut client, "says"), (30, 3));
    assert_eq!(["says@1", "says@2", "says@3"].map(|name| said(&mut client, name).0), [10, 20, 30]);
    assert_eq!(supervisor.ok(&["function", "alias", "says:live", "2"]), "says:live is says@2\n");
    assert_eq!(said(&mut client, "says:live"), (20, 2));
    assert_eq!(supervisor.ok(&["function", "use", "says@1"]), "the current version of says is now 1\n");
    assert_eq!(said(&mut client, "says"), (10, 1));
    let shown = |supervisor: &Supervisor| -> Value {
        let shown: Value =
            serde_json::from_str(&supervisor.ok(&["function", "show", "says", "--json"])).unwrap();
        json!([shown["number"], shown["kept"], shown["aliases"]])
    };
    assert_eq!(shown(&supervisor), json!([1, [2, 3], {"live": 2}]));
    assert!(supervisor.ok(&["function", "list"]).contains("1, kept 2 3, live=2"));
    supervisor.kill9();
    supervisor.restart();
    let mut client = supervisor.client();
    assert_eq!(shown(&supervisor), json!([1, [2, 3], {"live": 2}]));
    assert_eq!(["says", "says:live", "says@3"].map(|name| said(&mut client, name).0), [10, 20, 30]);
    // A number is not given again, the oldest goes, and one with an alias stays.
    assert_eq!(add(&mut client, 40), json!([4, [1, 2]]));
    let shown_one = client.show_function("says@2").unwrap();
    assert_eq!((&*shown_one.name, shown_one.number, shown_one.current), ("says@2", 2, 4));
    assert!(
        supervisor
            .ok(&["function", "show", "says:live"])
            .contains("\nversion 2, current 4, kept 1, live=2\n")
    );
    refused(client.remove_function("says@2"), Code::InvalidArgument, "has the alias live");
    supervisor.ok(&["function", "alias", "says:live", "--remove"]);
    supervisor.ok(&["function", "remove", "says@2"]);
    assert_eq!(shown(&supervisor), json!([4, [1], {}]));
    refused(client.invoke(&Invocation::new("says@2").output("out")), Code::NotFound, "");
    supervisor.admin().settings([("kept-versions".to_owned(), "0".to_owned())].into()).unwrap();
    assert_eq!(add(&mut client, 50), json!([5, []]));
}

#[test]
fn who_may_call_a_function_may_call_its_versions() {
    let supervisor = house(&[("alice", ""), ("bob", "")]);
    let [mut alice, mut bob] = ["alice", "bob"].map(|name| enter(&supervisor, name));
    add(&mut alice, 10);
    add(&mut alice, 20);
    alice.set_alias("says", "live", 1).unwrap();
    refused(bob.invoke(&Invocation::new("alice/says@1").output("out")), Code::NotFound, "");
    alice.grant("says", "bob").unwrap();
    assert_eq!(
        ["alice/says", "alice/says@1", "alice/says:live"].map(|name| said(&mut bob, name).0),
        [20, 10, 10]
    );
    let told = bob.show_function("alice/says:live").unwrap();
    assert_eq!((&*told.name, told.number, told.granted), ("alice/says:live", 1, true));
    refused(bob.use_version("alice/says@1"), Code::PermissionDenied, "another tenant's");
    alice.use_version("says:live").unwrap();
    assert_eq!(said(&mut bob, "alice/says"), (10, 1));
    alice.revoke("says", "bob").unwrap();
    refused(bob.invoke(&Invocation::new("alice/says@2").output("out")), Code::NotFound, "");
}
