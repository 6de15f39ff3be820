//! Sequences of requests share the state of a session, apart from those of other names and tenants.

use serde_json::{Value, json};

use super::{Answer, Gateway, bearer};
use crate::fixture::until;
use crate::house::enter;
use crate::kit;

/// A gateway in front of alice's `last`, which bob may call.
fn start() -> Gateway {
    let gateway = Gateway::start();
    let mut alice = enter(&gateway.supervisor, "alice");
    kit::add_last(&mut alice, "last", &[]);
    alice.grant("last", "bob").unwrap();
    gateway
}

/// A request that brings eight times the same byte.
fn ask(gateway: &Gateway, tenant: &str, parameters: Value, brings: u8) -> Answer {
    let input = json!({"name": "in", "datatype": "UINT8", "shape": [8], "data": vec![brings; 8]});
    let body = json!({"parameters": parameters, "inputs": [input]}).to_string();
    let model = if tenant == "alice" { "last" } else { "alice.last" };
    gateway.connect().ask("POST", &format!("/v2/models/{model}/infer"), &[&bearer(tenant)], body.as_bytes())
}

/// What the request before brought.
fn said(gateway: &Gateway, tenant: &str, parameters: Value, brings: u8) -> u64 {
    let answer = ask(gateway, tenant, parameters, brings);
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["outputs"][0]["data"][7].as_u64().unwrap()
}

#[test]
fn requests_of_a_sequence_share_its_state() {
    let gateway = start();
    let begin = |id: Value| json!({"sequence_id": id, "sequence_start": true});
    let go_on = |id: Value| json!({"sequence_id": id});
    assert_eq!(said(&gateway, "alice", begin(json!(5)), 1), 0);
    assert_eq!(said(&gateway, "alice", go_on(json!(5)), 2), 1);
    // Another one of the same tenant, and one of another tenant with the same name.
    assert_eq!(said(&gateway, "alice", begin(json!("5")), 10), 0);
    assert_eq!(said(&gateway, "bob", begin(json!(5)), 20), 0);
    assert_eq!(said(&gateway, "alice", go_on(json!(5)), 3), 2);
    assert_eq!(said(&gateway, "bob", go_on(json!(5)), 21), 20);
    assert_eq!(said(&gateway, "alice", go_on(json!("5")), 11), 10);
    assert_eq!(gateway.supervisor.status().sessions.len(), 3);
    // One that begins again begins with zeroes, and is one session still.
    assert_eq!(said(&gateway, "alice", begin(json!(5)), 4), 0);
    assert_eq!(gateway.supervisor.status().sessions.len(), 3);
    let end = json!({"sequence_id": 5, "sequence_end": true});
    assert_eq!(said(&gateway, "alice", end, 6), 4);
    assert_eq!(gateway.supervisor.status().sessions.len(), 2);
    ask(&gateway, "alice", go_on(json!(5)), 7).error(410, "SESSION_LOST", "sequence_start");
    // A whole sequence in one request.
    let one = json!({"sequence_id": 9, "sequence_start": true, "sequence_end": true});
    assert_eq!(said(&gateway, "alice", one, 8), 0);
    assert_eq!(gateway.supervisor.status().sessions.len(), 2);
}

#[test]
fn what_is_no_sequence_is_refused() {
    let gateway = start();
    ask(&gateway, "alice", json!({}), 1).error(400, "INVALID_ARGUMENT", "sequence_start");
    ask(&gateway, "alice", json!({"sequence_start": true}), 1).error(400, "INVALID_ARGUMENT", "sequence_id");
    ask(&gateway, "bob", json!({"sequence_id": 1}), 1).error(410, "SESSION_LOST", "sequence_start");
    let copy = r#"{"parameters": {"sequence_id": 5, "sequence_start": true}, "inputs": []}"#;
    gateway.ask("POST", "/v2/models/copy/infer", copy).error(400, "INVALID_ARGUMENT", "no state");
    let config = |model: &str| gateway.ask("GET", &format!("/v2/models/{model}/config"), "").json();
    assert_eq!(
        (&config("last")["sequence_batching"], &config("copy")["sequence_batching"]),
        (&json!({}), &Value::Null)
    );
}

#[test]
fn a_last_request_that_fails_can_be_sent_again_and_so_can_one_behind_a_replacement() {
    let gateway = start();
    assert_eq!(said(&gateway, "alice", json!({"sequence_id": 1, "sequence_start": true}), 1), 0);
    let end = json!({"sequence_id": 1, "sequence_end": true});
    let wrong = json!({"parameters": end, "inputs": []}).to_string();
    gateway.ask("POST", "/v2/models/last/infer", &wrong).error(400, "INVALID_ARGUMENT", "`in` is missing");
    let mut alice = enter(&gateway.supervisor, "alice");
    // The same state, and other steps: the gateway learns of it with the request.
    kit::replace_last(
        &mut alice,
        "last",
        &[kit::launch("fill", &[kit::ptr("out"), kit::constant(77), kit::constant(8)])],
    );
    assert_eq!(said(&gateway, "alice", end, 2), 77);
    until("the session is closed", || gateway.supervisor.status().sessions.is_empty());
}

#[test]
fn a_sequence_is_lost_with_its_supervisor() {
    let mut gateway = start();
    let begin = json!({"sequence_id": 1, "sequence_start": true});
    assert_eq!(said(&gateway, "alice", begin.clone(), 1), 0);
    gateway.supervisor.kill9();
    gateway.supervisor.restart();
    until("the gateway has another connection", || gateway.ask("GET", "/v2/health/ready", "").status == 200);
    let lost = ask(&gateway, "alice", json!({"sequence_id": 1}), 2);
    assert!([410, 503].contains(&lost.status), "{lost:?}");
    ask(&gateway, "alice", json!({"sequence_id": 1}), 2).error(410, "SESSION_LOST", "sequence_start");
    assert_eq!(said(&gateway, "alice", begin, 3), 0);
}
