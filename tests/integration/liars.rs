//! Workers that lie (ATTACKS 32): programs in the place of `pappus-worker` that answer nonsense, too much or
//! nothing. The supervisor goes on serving what needs no worker, and ends in order.

use std::path::Path;

use pappus_client::{Code, Error};

use crate::fixture::Supervisor;
use crate::kit;

fn check(liar: &str) {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/liars").join(liar);
    let mut supervisor = Supervisor::with_worker(&program);
    let mut client = supervisor.client();
    let variant = kit::wasm(&mut client, kit::probes());
    match client.add_module("m", vec![variant]) {
        Err(Error::Refused(error)) => {
            assert_eq!(error.code(), Code::InvalidArgument, "{error}");
            assert!(error.message.contains("could not be compiled"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(client.list_modules().unwrap(), []);
    let workers = client.status().unwrap().devices.remove(0).workers;
    assert_eq!(workers[0].state, "starting");
    supervisor.terminate();
    assert_eq!(supervisor.ended().code(), Some(0));
}

#[test]
fn garbage_is_no_answer() {
    check("garbage");
}

#[test]
fn a_flood_is_no_answer() {
    check("flood");
}

#[test]
fn forged_replies_are_no_answer() {
    check("forges");
}

#[test]
fn one_that_quits_is_tried_again_and_again() {
    check("quits");
}
