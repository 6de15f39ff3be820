//! `pappus bench` through the gateway.

use serde_json::Value;

use super::Gateway;
use crate::house::token;

/// Runs it with these arguments behind the common ones.
fn bench(gateway: &Gateway, arguments: &[&str]) -> Value {
    let tenants = format!("alice - {}\nbob - {}\n", token("alice"), token("bob"));
    let tenants = gateway.supervisor.write("tenants.txt", tenants);
    let url = format!("http://{}", gateway.http);
    let common = ["bench", "vec_add", "--gateway", &url, "--tenants", tenants.to_str().unwrap(), "--json"];
    let short = ["--duration", "500ms", "--warm-up", "100ms", "--deadline", "20s"];
    let printed = gateway.supervisor.ok(&[&common[..], arguments, &short].concat());
    serde_json::from_str(&printed).unwrap()
}

#[test]
fn calls_and_failures_are_those_of_each_tenant() {
    let gateway = Gateway::start();
    let a = gateway.supervisor.write("a.bin", [0; 4096]);
    let a = format!("A={}", a.display());
    let before = gateway.supervisor.device().completed;
    // A raw file takes the declared type; numbers have their own.
    let numbers = format!("B=f32:{}", vec!["1"; 1024].join(","));
    let result = bench(&gateway, &["-i", &a, "-i", &numbers, "--rate", "80", "--arrivals", "uniform"]);
    let tenants = &result["runs"][0]["tenants"];
    let (alice, bob) = (&tenants["alice"], &tenants["bob"]);
    assert_eq!(
        (&alice["due"], &alice["answered"], &alice["failed"]),
        (&40.into(), &40.into(), &0.into()),
        "{alice}"
    );
    // The function is alice's.
    assert_eq!((&bob["answered"], &bob["errors"]["NOT_FOUND"]), (&0.into(), &40.into()), "{bob}");
    assert_eq!(gateway.supervisor.device().completed - before, 48);
}
