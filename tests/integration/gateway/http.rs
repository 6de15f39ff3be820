//! What clients get over HTTP.

use std::time::{Duration, Instant};

use pappus_client::{Client, v1};
use serde_json::json;

use super::{ADD, Gateway, add_vec_add, bearer};
use crate::fixture::{Supervisor, until};
use crate::house::{config, enter, house, token};
use crate::kit::{self, Function, absolute, constant, launch, ptr};
use crate::programs::workspace;

#[test]
fn a_person_gets_an_answer_by_curl() {
    let gateway = Gateway::start();
    let answer = gateway.ask("POST", "/v2/models/vec_add/infer", ADD);
    let json = answer.json();
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(json["model_name"], "vec_add");
    assert_eq!(
        json["outputs"],
        json!([{"name": "C", "datatype": "FP32", "shape": [3], "data": [11.0, 22.0, 33.0]}])
    );
    // Without a datatype where the function declares it, and with lists in lists where it does not matter.
    let short = r#"{"id": "7", "inputs": [{"name": "A", "data": [1]}, {"name": "B", "data": [2]}], "outputs": [{"name": "C"}]}"#;
    let answer = gateway.ask("POST", "/v2/models/vec_add/infer", short);
    assert_eq!(
        (answer.json()["outputs"][0]["data"].clone(), answer.json()["id"].clone()),
        (json!([3.0]), json!("7"))
    );
}

#[test]
fn a_request_without_a_token_is_told_what_is_missing() {
    let gateway = Gateway::start();
    let answer = gateway.connect().ask("POST", "/v2/models/vec_add/infer", &[], ADD.as_bytes());
    answer.error(401, "UNAUTHENTICATED", "Authorization: Bearer TOKEN");
    assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
    for wrong in ["Authorization: Bearer guessed", "Authorization: Basic YTpi", "Authorization: Bearer "] {
        for path in ["/v2/models/vec_add", "/v2/models/vec_add/stats", "/v2/models/stats"] {
            let answer = gateway.connect().ask("GET", path, &[wrong], b"");
            assert_eq!(
                (answer.status, &answer.json()["code"]),
                (401, &json!("UNAUTHENTICATED")),
                "{wrong} {path}"
            );
        }
        gateway.connect().ask("POST", "/v2/models/vec_add/infer", &[wrong], ADD.as_bytes()).error(
            401,
            "UNAUTHENTICATED",
            "",
        );
        gateway.connect().ask("POST", "/v2/repository/index", &[wrong], b"").error(
            401,
            "UNAUTHENTICATED",
            "",
        );
    }
    // What is nobody's is told to everybody.
    for path in ["/v2", "/v2/health/live"] {
        assert_eq!(gateway.connect().ask("GET", path, &[], b"").status, 200);
    }
    until("it is ready", || gateway.connect().ask("GET", "/v2/health/ready", &[], b"").status == 200);
    // KServe's client reads the answers, too.
    for (path, name) in
        [("/v2/health/live", "live"), ("/v2/health/ready", "ready"), ("/v2/models/vec_add/ready", "ready")]
    {
        let told = gateway.connect().ask("GET", path, &[&bearer("alice")], b"").json();
        assert_eq!(told[name], true, "{path}: {told}");
    }
}

#[test]
fn tenants_see_their_own_functions_and_what_is_granted_to_them() {
    let gateway = Gateway::start();
    let of = |tenant: &str, method: &str, path: &str, body: &str| {
        gateway.connect().ask(method, path, &[&bearer(tenant)], body.as_bytes())
    };
    let names = |tenant: &str| -> Vec<String> {
        let index = of(tenant, "POST", "/v2/repository/index", "").json();
        index.as_array().unwrap().iter().map(|model| model["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names("alice"), ["copy", "spin", "vec_add"]);
    assert_eq!(names("bob"), [""; 0]);
    of("bob", "POST", "/v2/models/vec_add/infer", ADD).error(404, "NOT_FOUND", "no model `vec_add` for you");
    of("bob", "POST", "/v2/models/alice.vec_add/infer", ADD).error(404, "NOT_FOUND", "");
    enter(&gateway.supervisor, "alice").grant("vec_add", "bob").unwrap();
    assert_eq!(names("bob"), ["alice.vec_add"]);
    for name in ["alice.vec_add", "alice%2Fvec_add"] {
        let answer = of("bob", "POST", &format!("/v2/models/{name}/infer"), ADD);
        assert_eq!(
            (answer.status, &answer.json()["model_name"]),
            (200, &json!("alice.vec_add")),
            "{answer:?}"
        );
    }
    // Bob's own function of that name goes first, though the gateway remembers the other one.
    let version = || {
        let answer = of("bob", "POST", "/v2/models/alice.vec_add/infer", ADD);
        answer.json()["model_version"].as_str().unwrap().to_owned()
    };
    let granted = version();
    gateway.supervisor.write("bob.token", token("bob"));
    // The second of its name, which its version tells.
    for config in ["axpy", "vec_add"] {
        let config = workspace().join(format!("kernels/configs/{config}.json"));
        let add = ["--token-file", "bob.token", "function", "add", "alice.vec_add", "--replace"];
        gateway.supervisor.ok(&[&add[..], &[config.to_str().unwrap()]].concat());
    }
    until("his own is called", || version() != granted);
    gateway.supervisor.ok(&["--token-file", "bob.token", "function", "remove", "alice.vec_add"]);
    assert_eq!(version(), granted);
    // Taken back, it is gone, though the gateway remembers what it was.
    enter(&gateway.supervisor, "alice").revoke("vec_add", "bob").unwrap();
    of("bob", "POST", "/v2/models/alice.vec_add/infer", ADD).error(404, "NOT_FOUND", "");
}

#[test]
fn functions_are_described_as_models() {
    let gateway = Gateway::start();
    let json = gateway.ask("GET", "/v2/models/vec_add", "").json();
    let version = json["versions"][0].as_str().unwrap().to_owned();
    assert_eq!((&json["name"], &json["platform"]), (&json!("vec_add"), &json!("pappus")));
    assert_eq!(json["inputs"][0], json!({"name": "A", "datatype": "FP32", "shape": [-1]}));
    let json = gateway.ask("GET", "/v2/models/vec_add/config", "").json();
    assert_eq!((&json["input"][1]["data_type"], &json["max_batch_size"]), (&json!("TYPE_FP32"), &json!(0)));
    // What declares nothing is bytes.
    let json = gateway.ask("GET", "/v2/models/copy", "").json();
    assert_eq!(json["inputs"], json!([{"name": "in", "datatype": "UINT8", "shape": [-1]}]));
    assert_eq!(json["outputs"], json!([{"name": "out", "datatype": "UINT8", "shape": [-1]}]));
    // The versions are those of the function.
    assert_eq!(gateway.ask("GET", &format!("/v2/models/vec_add/versions/{version}/ready"), "").status, 200);
    let with = format!("/v2/models/vec_add/versions/{version}/infer");
    assert_eq!(gateway.ask("POST", &with, ADD).status, 200);
    gateway.ask("POST", "/v2/models/vec_add/versions/7/infer", ADD).error(
        404,
        "NOT_FOUND",
        "no version 7: there are 1",
    );
    gateway.ask("GET", "/v2/models/nothing", "").error(404, "NOT_FOUND", "no model");
    assert!(
        gateway.ask("GET", "/v2", "").json()["extensions"].as_array().unwrap().contains(&json!("statistics"))
    );
}

#[test]
fn a_function_that_is_replaced_is_called_as_it_is_now() {
    let gateway = Gateway::start();
    let ask = |body: &str| gateway.ask("POST", "/v2/models/copy/infer", body);
    let bytes = r#"{"inputs": [{"name": "in", "datatype": "UINT8", "data": [1, 2]}]}"#;
    assert_eq!(ask(bytes).json()["outputs"][0]["name"], "out");
    let version =
        gateway.ask("GET", "/v2/models/copy", "").json()["versions"][0].as_str().unwrap().to_owned();
    let mut alice = enter(&gateway.supervisor, "alice");
    let fill = kit::Function {
        inputs: &["other"],
        buffers: &[("new", json!({"Sizeof": "other"}))],
        outputs: &["new"],
        steps: &[kit::launch(
            "copy",
            &[kit::ptr("other"), kit::ptr("new"), json!({"I64": {"Sizeof": "other"}})],
        )],
        ..Default::default()
    };
    fill.replace(&mut alice, "copy").unwrap();
    ask(bytes).error(400, "INVALID_ARGUMENT", "");
    let answer = ask(&bytes.replace("\"in\"", "\"other\""));
    assert_eq!((&answer.json()["outputs"][0]["name"], answer.status), (&json!("new"), 200));
    assert_eq!((&*version, &answer.json()["model_version"]), ("1", &json!("2")));
    // The version before is kept, and is the current one again once that is wanted.
    let of = |path: &str, body: &str| gateway.ask("POST", &format!("/v2/models/copy{path}/infer"), body);
    assert_eq!(of("/versions/1", bytes).json()["model_version"], json!("1"));
    alice.set_alias("copy", "live", 1).unwrap();
    let answer = of(":live", bytes).json();
    assert_eq!((&answer["model_name"], &answer["model_version"]), (&json!("copy:live"), &json!("1")));
    alice.set_alias("copy", "live", 2).unwrap();
    of(":live", bytes).error(400, "INVALID_ARGUMENT", "");
    for wrong in ["/versions/3", "/versions/01", "/versions/1@1", "/versions/-1", ":live/versions/1"] {
        of(wrong, bytes).error(404, "NOT_FOUND", "");
    }
    alice.use_version("copy@1").unwrap();
    assert_eq!(ask(bytes).json()["model_version"], json!("1"));
    assert_eq!(gateway.ask("GET", "/v2/models/copy", "").json()["versions"], json!(["1", "2"]));
    let index = gateway.ask("POST", "/v2/repository/index", "").json();
    let of_copy = index.as_array().unwrap().iter().filter(|entry| entry["name"] == "copy");
    assert_eq!(of_copy.map(|entry| entry["version"].as_str().unwrap()).collect::<Vec<_>>(), ["1", "2"]);
}

/// Bytes behind the JSON, both ways, as tritonclient sends them.
#[test]
fn tensors_travel_as_bytes() {
    let gateway = Gateway::start();
    let floats = |values: [f32; 3]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let input = |name: &str| json!({"name": name, "shape": [3], "datatype": "FP32", "parameters": {"binary_data_size": 12}});
    let request =
        json!({"inputs": [input("A"), input("B")], "parameters": {"binary_data_output": true}}).to_string();
    let body = [request.as_bytes(), &floats([1., 2., 3.]), &floats([10., 20., 30.])].concat();
    let length = format!("Inference-Header-Content-Length: {}", request.len());
    let mut connection = gateway.connect();
    // Any number of requests on one connection.
    for _ in 0..3 {
        let answer = connection.ask("POST", "/v2/models/vec_add/infer", &[&bearer("alice"), &length], &body);
        let json_bytes: usize = answer.header("inference-header-content-length").unwrap().parse().unwrap();
        let json: serde_json::Value = serde_json::from_slice(&answer.body[..json_bytes]).unwrap();
        assert_eq!(json["outputs"][0]["parameters"]["binary_data_size"], 12);
        assert_eq!(answer.body[json_bytes..], floats([11., 22., 33.]));
    }
}

/// More than fits into a message goes through shared memory, in and out.
#[test]
fn large_tensors_go_through_arenas() {
    let gateway = Gateway::before(house(&[("alice", ""), ("bob", "")]), &["--max-body", "8MiB"]);
    let mut connection = gateway.connect();
    let before = arena_bytes(&gateway.supervisor);
    for bytes in [0usize, 1, 600_000, 1 << 20, (1 << 20) + 1, 5_000_000] {
        let tensor: Vec<u8> = (0..bytes).map(|n| (n % 251) as u8).collect();
        let request = json!({
            "inputs": [{"name": "in", "shape": [bytes], "datatype": "UINT8", "parameters": {"binary_data_size": bytes}}],
            "outputs": [{"name": "out", "parameters": {"binary_data": true}}],
        })
        .to_string();
        let length = format!("Inference-Header-Content-Length: {}", request.len());
        let body = [request.as_bytes(), &tensor].concat();
        let answer = connection.ask("POST", "/v2/models/copy/infer", &[&bearer("alice"), &length], &body);
        assert_eq!(
            answer.status,
            200,
            "{bytes}: {}",
            String::from_utf8_lossy(&answer.body[..200.min(answer.body.len())])
        );
        let json_bytes: usize = answer.header("inference-header-content-length").unwrap().parse().unwrap();
        assert!(answer.body[json_bytes..] == tensor, "{bytes}");
    }
    until("every arena is closed", || arena_bytes(&gateway.supervisor) == before);
}

/// Each input begins at a multiple of eight bytes: these two have no more than a message takes, and with that they do.
#[test]
fn what_fits_into_a_message_by_itself_and_not_beside_others_goes_through_an_arena() {
    let gateway = Gateway::start();
    let bytes: usize = (1 << 20) - 3;
    let both = Function {
        inputs: &["first", "in"],
        buffers: &[("out", absolute(bytes as u64))],
        outputs: &["out"],
        steps: &[launch("copy", &[ptr("in"), ptr("out"), constant(bytes as i64)])],
        ..Function::default()
    };
    both.add(&mut enter(&gateway.supervisor, "alice"), "both");
    let input = |name: &str, bytes: usize| json!({"name": name, "shape": [bytes], "datatype": "UINT8", "parameters": {"binary_data_size": bytes}});
    let request = json!({"inputs": [input("first", 3), input("in", bytes)],
        "outputs": [{"name": "out", "parameters": {"binary_data": true}}]})
    .to_string();
    let length = format!("Inference-Header-Content-Length: {}", request.len());
    let body = [request.as_bytes(), &vec![7; 3 + bytes]].concat();
    let headers = [&*bearer("alice"), &length];
    let answer = gateway.connect().ask("POST", "/v2/models/both/infer", &headers, &body);
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body[..200.min(answer.body.len())]));
}

fn arena_bytes(supervisor: &Supervisor) -> u64 {
    let used =
        |info: v1::TenantInfo| info.quotas.iter().find(|quota| quota.name == "arena-bytes").unwrap().used;
    used(enter(supervisor, "alice").quota().unwrap())
}

#[test]
fn bodies_may_be_compressed_both_ways() {
    use std::io::{Read, Write};
    let gateway = Gateway::start();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let zeros = vec!["0"; 2000].join(",");
    let body = format!(r#"{{"inputs": [{{"name": "in", "datatype": "UINT8", "data": [{zeros}]}}]}}"#);
    gzip.write_all(body.as_bytes()).unwrap();
    let headers = [&*bearer("alice"), "Content-Encoding: gzip", "Accept-Encoding: gzip"];
    let answer = gateway.connect().ask("POST", "/v2/models/copy/infer", &headers, &gzip.finish().unwrap());
    assert_eq!((answer.status, answer.header("content-encoding")), (200, Some("gzip")));
    let mut text = String::new();
    flate2::read::GzDecoder::new(&answer.body[..]).read_to_string(&mut text).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["outputs"][0]["shape"], json!([2000]));
    let headers = [&*bearer("alice"), "Content-Encoding: br"];
    gateway.connect().ask("POST", "/v2/models/copy/infer", &headers, b"x").error(
        501,
        "UNSUPPORTED",
        "encoding",
    );
}

#[test]
fn statistics_count_what_was_inferred() {
    let gateway = Gateway::start();
    let of = |tenant: &str, path: &str| gateway.connect().ask("GET", path, &[&bearer(tenant)], b"").json();
    let stats = || of("alice", "/v2/models/vec_add/stats")["model_stats"][0].clone();
    assert_eq!(stats()["inference_count"], 0);
    for _ in 0..3 {
        gateway.works();
    }
    gateway.ask("POST", "/v2/models/vec_add/infer", r#"{"inputs": []}"#).error(
        400,
        "INVALID_ARGUMENT",
        "missing",
    );
    let told = stats();
    assert_eq!((&told["inference_count"], &told["execution_count"]), (&json!(3), &json!(3)));
    let tallies = &told["inference_stats"];
    assert_eq!((&tallies["queue"]["count"], &tallies["fail"]["count"]), (&json!(3), &json!(1)));
    assert!(
        tallies["compute_infer"]["ns"].as_u64().unwrap() > 0 && told["last_inference"].as_u64().unwrap() > 0
    );
    let all = of("alice", "/v2/models/stats");
    assert_eq!(all["model_stats"].as_array().unwrap().len(), 3);
    // They are nobody else's.
    assert_eq!(of("bob", "/v2/models/stats"), json!({"model_stats": []}));
}

#[test]
fn statistics_are_those_of_a_version_however_it_is_called() {
    let gateway = Gateway::start();
    let mut alice = enter(&gateway.supervisor, "alice");
    let replace = |dtype: &str| {
        let of_type = json!({"dtype": dtype, "shape": [{"Free": "n"}]});
        let typed = kit::Function {
            inputs: &["in"],
            buffers: &[("out", json!({"Sizeof": "in"}))],
            outputs: &["out"],
            types: &[("in", of_type.clone()), ("out", of_type)],
            steps: &[kit::launch(
                "copy",
                &[kit::ptr("in"), kit::ptr("out"), json!({"I64": {"Sizeof": "in"}})],
            )],
            ..Default::default()
        };
        typed.replace(&mut enter(&gateway.supervisor, "alice"), "copy").unwrap();
    };
    replace("f32");
    alice.set_alias("copy", "live", 2).unwrap();
    let ask = |name: &str, body: &str| gateway.ask("POST", &format!("/v2/models/{name}/infer"), body);
    let plain = r#"{"inputs": [{"name": "in", "data": [1, 2]}]}"#;
    for name in ["copy", "copy/versions/2", "copy:live"] {
        assert_eq!(ask(name, plain).json()["outputs"][0]["datatype"], "FP32", "{name}");
    }
    // The type is the one that is declared now, also in the first request behind a replacement.
    replace("i32");
    let answer = ask("copy", plain).json();
    assert_eq!((&answer["model_version"], &answer["outputs"][0]["datatype"]), (&json!("3"), &json!("INT32")));
    // Likewise the version that is counted, where the request says the type.
    replace("f16");
    let halves = r#"{"inputs": [{"name": "in", "datatype": "FP16", "shape": [2], "parameters": {"binary_data_size": 4}}]}"#;
    let token = bearer("alice");
    let header = format!("Inference-Header-Content-Length: {}", halves.len());
    let half = |parameters: &str| {
        let json = halves.replacen('{', &format!("{{{parameters}"), 1);
        let header = header.replace(&halves.len().to_string(), &json.len().to_string());
        let body = [json.as_bytes(), &[0; 4]].concat();
        gateway.connect().ask("POST", "/v2/models/copy/infer", &[&token, &header], &body)
    };
    assert_eq!(half(r#""parameters": {"binary_data_output": true}, "#).status, 200);
    half("").error(400, "INVALID_ARGUMENT", "binary_data");
    let told = gateway.ask("GET", "/v2/models/copy/stats", "").json();
    let counted = told["model_stats"].as_array().unwrap().iter().map(|of| {
        let tally = |name: &str| of["inference_stats"][name]["count"].as_u64().unwrap();
        (of["version"].as_str().unwrap().to_owned(), tally("success"), tally("fail"))
    });
    let mut counted: Vec<_> = counted.collect();
    counted.retain(|(version, ..)| version != "1");
    let expected =
        [("2", 3, 0), ("3", 1, 0), ("4", 1, 1)].map(|(version, ok, bad)| (version.to_owned(), ok, bad));
    assert_eq!(counted, expected);
    let one = gateway.ask("GET", "/v2/models/copy/versions/2/stats", "").json();
    assert_eq!(one["model_stats"].as_array().unwrap().len(), 1);
}

#[test]
fn a_deadline_ends_a_call() {
    let gateway = Gateway::start();
    let spin = |headers: &[&str], body: &str| {
        let token = bearer("alice");
        let headers = [&[&*token], headers].concat();
        gateway.connect().ask("POST", "/v2/models/spin/infer", &headers, body.as_bytes())
    };
    spin(&["Pappus-Deadline: 50ms"], "{}").error(504, "DEADLINE_EXCEEDED", "");
    spin(&[], r#"{"parameters": {"timeout": 50000}}"#).error(504, "DEADLINE_EXCEEDED", "");
    spin(&["Pappus-Deadline: soon"], "{}").error(400, "INVALID_ARGUMENT", "Pappus-Deadline");
}

/// Whoever closes the connection cancels the call.
#[test]
fn closing_a_request_cancels_its_call() {
    let gateway = Gateway::start();
    let mut alice = enter(&gateway.supervisor, "alice");
    let calls = |alice: &mut Client| {
        alice.quota().unwrap().quotas.iter().find(|quota| quota.name == "calls").unwrap().used
    };
    let mut connection = gateway.connect();
    connection.begin("POST", "/v2/models/spin/infer", &[&bearer("alice")], 2);
    connection.send(b"{}");
    until("the call runs", || calls(&mut alice) == 1);
    let began = Instant::now();
    drop(connection);
    until("the call is over", || calls(&mut alice) == 0);
    let stats = || gateway.ask("GET", "/v2/models/spin/stats", "").json()["model_stats"][0].clone();
    until("it is counted", || stats()["inference_stats"]["fail"]["count"] == 1);
    assert!(began.elapsed() < Duration::from_secs(25), "not by its deadline, which is 30 s");
}

#[test]
fn shared_memory_is_answered_as_what_it_is_here() {
    let gateway = Gateway::start();
    for kind in ["system", "cuda"] {
        let path = |rest: &str| format!("/v2/{kind}sharedmemory/{rest}");
        assert_eq!(gateway.ask("POST", &path("unregister"), "").status, 200);
        assert_eq!(gateway.ask("GET", &path("status"), "").json(), json!([]));
        gateway.ask("POST", &path("region/r/register"), "{}").error(501, "UNSUPPORTED", "send the bytes");
    }
    let input = r#"{"inputs": [{"name": "in", "datatype": "UINT8", "shape": [1], "parameters": {"shared_memory_region": "r"}}]}"#;
    gateway.ask("POST", "/v2/models/copy/infer", input).error(501, "UNSUPPORTED", "send the bytes");
}

/// Tensors in shared memory of this machine, each token's own, copied and never trusted.
#[test]
fn tensors_may_be_in_shared_memory_where_that_is_asked_for() {
    let gateway = Gateway::before(house(&[("alice", ""), ("bob", "")]), &["--shared-memory"]);
    let key = format!("pappus-test-{}", gateway.child.id());
    let object = std::path::Path::new("/dev/shm").join(&key);
    std::fs::write(&object, [1, 2, 3, 4, 0, 0, 0, 0]).unwrap();
    let register = format!(r#"{{"key": "/{key}", "offset": 0, "byte_size": 8}}"#);
    let of = |tenant: &str, method: &str, path: &str, body: &str| {
        gateway.connect().ask(method, path, &[&bearer(tenant)], body.as_bytes())
    };
    let region = "/v2/systemsharedmemory/region/r";
    assert_eq!(of("alice", "POST", &format!("{region}/register"), &register).status, 200);
    of("alice", "POST", &format!("{region}/register"), &register).error(409, "ALREADY_EXISTS", "unregister");
    of("guess", "POST", &format!("{region}/register"), &register).error(401, "UNAUTHENTICATED", "");
    let told = of("alice", "GET", "/v2/systemsharedmemory/status", "").json();
    assert_eq!(told, json!([{"name": "r", "key": format!("/{key}"), "offset": 0, "byte_size": 8}]));
    let place = |offset: u64, bytes: u64| json!({"shared_memory_region": "r", "shared_memory_offset": offset, "shared_memory_byte_size": bytes});
    let copy = |from: u64, to: u64, bytes: u64| {
        json!({
            "inputs": [{"name": "in", "datatype": "UINT8", "shape": [bytes], "parameters": place(from, bytes)}],
            "outputs": [{"name": "out", "parameters": place(to, bytes)}],
        })
        .to_string()
    };
    let answer = of("alice", "POST", "/v2/models/copy/infer", &copy(0, 4, 4));
    let output = json!({"name": "out", "datatype": "UINT8", "shape": [4]});
    assert_eq!((answer.status, &answer.json()["outputs"][0]), (200, &output));
    assert_eq!(std::fs::read(&object).unwrap(), [1, 2, 3, 4, 1, 2, 3, 4]);
    of("alice", "POST", "/v2/models/copy/infer", &copy(6, 0, 4)).error(400, "INVALID_ARGUMENT", "outside");
    // It is nobody else's.
    assert_eq!(of("bob", "GET", "/v2/systemsharedmemory/status", "").json(), json!([]));
    enter(&gateway.supervisor, "alice").grant("copy", "bob").unwrap();
    of("bob", "POST", "/v2/models/alice.copy/infer", &copy(0, 4, 4)).error(
        400,
        "INVALID_ARGUMENT",
        "no region",
    );
    // Whoever shrinks it is refused, and ends nobody.
    std::fs::write(&object, [1]).unwrap();
    of("alice", "POST", "/v2/models/copy/infer", &copy(0, 4, 4)).error(
        400,
        "INVALID_ARGUMENT",
        "outside of the object",
    );
    // Nor of anybody whose token is none any more.
    gateway.supervisor.write("pappus.toml", config(&[("alice", "")]));
    gateway.supervisor.admin().reload().unwrap();
    of("bob", "GET", "/v2/systemsharedmemory/status", "").error(401, "UNAUTHENTICATED", "");
    // By now it is a stranger's, and judged before any of a body is waited for.
    let mut stranger = gateway.connect();
    stranger.begin("POST", "/v2/models/alice.copy/infer", &[&bearer("bob")], 1 << 20);
    stranger.answer().error(401, "UNAUTHENTICATED", "token");
    assert_eq!(of("alice", "POST", "/v2/systemsharedmemory/unregister", "").status, 200);
    of("alice", "POST", "/v2/models/copy/infer", &copy(0, 4, 4)).error(400, "INVALID_ARGUMENT", "no region");
    std::fs::remove_file(&object).unwrap();
    gateway.works();
}

/// Tokens that an identity provider signed, in the place of a tenant's own.
#[test]
fn signed_tokens_are_taken_where_that_is_asked_for() {
    const SIGNED: &str = include_str!("../../../gateway/testdata/acme.jwt").trim_ascii();
    let supervisor = house(&[("acme", ""), ("alice", "")]);
    let keys = supervisor.write("keys.json", include_str!("../../../gateway/testdata/keys.json"));
    supervisor.write("tokens/acme.token", token("acme"));
    add_vec_add(&supervisor, &["--token-file", "tokens/acme.token"]);
    let tokens = supervisor.path("tokens");
    let flags = |audience| {
        let files = ["--jwt-keys", keys.to_str().unwrap(), "--jwt-tokens", tokens.to_str().unwrap()];
        [&files[..], &["--jwt-issuer", "https://id.example", "--jwt-audience", audience]].concat()
    };
    let ask = |gateway: &Gateway, token: &str| {
        let header = format!("Authorization: Bearer {token}");
        gateway.connect().ask("POST", "/v2/models/vec_add/infer", &[&header], ADD.as_bytes())
    };
    let mut gateway = Gateway::alone(supervisor, &flags("pappus"));
    assert_eq!(ask(&gateway, SIGNED).json()["outputs"][0]["data"], json!([11.0, 22.0, 33.0]));
    assert_eq!(ask(&gateway, &token("acme")).status, 200, "a tenant's own token counts as before");
    let (head, signature) = SIGNED.rsplit_once('.').unwrap();
    let forged = format!("{head}.AAAA{}", &signature[4..]);
    ask(&gateway, &forged).error(401, "UNAUTHENTICATED", "no key of the set verifies it");
    ask(&gateway, &format!("{head}x.{signature}")).error(
        401,
        "UNAUTHENTICATED",
        "the signed token is not taken",
    );
    gateway.again(&flags("others"));
    ask(&gateway, SIGNED).error(401, "UNAUTHENTICATED", "another audience");
    // Without the keys it is a token like any other, and nobody's.
    gateway.again(&[]);
    ask(&gateway, SIGNED).error(401, "UNAUTHENTICATED", "no tenant's");
}

#[test]
fn what_is_not_served_is_told() {
    let gateway = Gateway::start();
    let answer = gateway.ask("GET", "/v2/models/vec_add/infer", "");
    answer.error(405, "METHOD_NOT_ALLOWED", "POST");
    assert_eq!(answer.header("allow"), Some("POST"));
    gateway.ask("GET", "/v3", "").error(404, "NO_ROUTE", "v2/models/NAME/infer");
    gateway.ask("POST", "/v2/repository/models/copy/unload", "").error(501, "UNSUPPORTED", "");
    assert_eq!(gateway.ask("POST", "/v2/repository/models/copy/load", "").status, 200);
}

/// Of this user alone, on a machine that is its own.
#[test]
fn where_that_is_asked_for_requests_without_a_token_are_of_the_gateways_user() {
    let supervisor = Supervisor::start();
    add_vec_add(&supervisor, &[]);
    let gateway = Gateway::alone(supervisor, &["--own-tenant"]);
    let answer = gateway.connect().ask("POST", "/v2/models/vec_add/infer", &[], ADD.as_bytes());
    assert_eq!(answer.json()["outputs"][0]["data"], json!([11.0, 22.0, 33.0]));
    // A token from a user that is no gateway is not taken.
    gateway.ask("POST", "/v2/models/vec_add/infer", ADD).error(403, "PERMISSION_DENIED", "only a gateway");
}

#[test]
fn a_supervisor_that_is_gone_is_told_and_found_again() {
    let mut gateway = Gateway::start();
    gateway.works();
    gateway.supervisor.kill9();
    gateway.ask("POST", "/v2/models/vec_add/infer", ADD).error(
        503,
        "UNAVAILABLE",
        "cannot reach its supervisor",
    );
    assert_eq!(gateway.connect().ask("GET", "/v2/health/ready", &[], b"").status, 503);
    assert_eq!(gateway.connect().ask("GET", "/v2/health/live", &[], b"").status, 200);
    gateway.supervisor.restart();
    until("it is there again", || gateway.ask("POST", "/v2/models/vec_add/infer", ADD).status == 200);
}

#[test]
fn a_gateway_that_is_told_to_end_answers_first() {
    let mut gateway = Gateway::start();
    let mut alice = enter(&gateway.supervisor, "alice");
    let mut connection = gateway.connect();
    connection.begin("POST", "/v2/models/spin/infer", &[&bearer("alice"), "Pappus-Deadline: 1s"], 2);
    connection.send(b"{}");
    until("the call runs", || {
        alice.quota().unwrap().quotas.iter().any(|quota| quota.name == "calls" && quota.used == 1)
    });
    crate::fixture::signal(gateway.child.id(), rustix::process::Signal::TERM);
    connection.answer().error(504, "DEADLINE_EXCEEDED", "");
    assert!(connection.try_answer().is_none());
    assert!(gateway.child.wait().unwrap().success());
}
