//! What those see who watch a gateway: counts, the log's level, names of requests in the supervisor's log, traces.

use std::convert::Infallible;
use std::io::{BufRead, BufReader};
use std::sync::mpsc::{Receiver, channel};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustix::process::Signal;

use super::{ADD, Gateway, bearer};
use crate::fixture::{signal, until};
use crate::house::house;
use crate::metrics::{address, scrape, value};

/// The value of the first series with this name and these labels among others.
fn of(text: &str, name: &str, labels: &str) -> Option<f64> {
    let is_it = |line: &&str| line.starts_with(&format!("{name}{{")) && line.contains(labels);
    let line = text.lines().find(is_it)?;
    line.rsplit(' ').next()?.parse().ok()
}

#[test]
fn inferences_are_counted_under_tritons_names_and_answers_by_code() {
    let address = address(8002);
    let gateway = Gateway::before(house(&[("alice", ""), ("bob", "")]), &["--metrics", &address]);
    let before = scrape(&address);
    assert!(!before.contains("model="), "no series without an inference: {before}");
    assert_eq!(value(&before, r#"pappus_gateway_requests_total{protocol="http",code="OK"}"#), 0.0);
    gateway.works();
    gateway.ask("POST", "/v2/models/vec_add/infer", r#"{"inputs": [{"name": "A", "data": [1]}]}"#).error(
        400,
        "INVALID_ARGUMENT",
        "",
    );
    gateway.ask("POST", "/v2/models/none/infer", ADD).error(404, "NOT_FOUND", "");
    let text = scrape(&address);
    let model = r#"model="vec_add""#;
    for name in ["request_success", "count", "exec_count"] {
        assert_eq!(of(&text, &format!("nv_inference_{name}"), model), Some(1.0), "{name}: {text}");
    }
    for name in ["request", "queue", "compute_input", "compute_infer", "compute_output"] {
        assert!(of(&text, &format!("nv_inference_{name}_duration_us"), model).is_some(), "{name}: {text}");
    }
    assert_eq!(of(&text, "nv_inference_pending_request_count", model), Some(0.0), "{text}");
    assert_eq!(of(&text, "nv_inference_request_failure", r#"reason="OTHER""#), Some(1.0), "{text}");
    assert!(!text.contains("none"), "what is no model has no series: {text}");
    for (code, n) in [("OK", 1.0), ("INVALID_ARGUMENT", 1.0), ("NOT_FOUND", 1.0)] {
        let series = format!("pappus_gateway_requests_total{{protocol=\"http\",code=\"{code}\"}}");
        assert_eq!(value(&text, &series), n, "{text}");
    }
}

#[test]
fn the_logs_level_changes_while_it_serves() {
    let address = address(8003);
    let _gateway = Gateway::before(house(&[("alice", ""), ("bob", "")]), &["--metrics", &address]);
    let ask = |head: &str, body: &str| {
        let length = format!("{head} HTTP/1.1\r\nContent-Length: {}\r\n", body.len());
        let mut stream = std::net::TcpStream::connect(&address).unwrap();
        let request = format!("{length}Host: g\r\nConnection: close\r\n\r\n{body}");
        std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
        std::io::read_to_string(stream).unwrap()
    };
    assert!(ask("GET /log", "").ends_with("\r\n\r\ninfo\n"));
    assert!(ask("POST /log", "debug\n").ends_with("\r\n\r\ndebug\n"));
    for (head, body, status) in [
        ("POST /log", "loud", "400"),
        ("POST /log", &*"x".repeat(100_000), "400"),
        ("DELETE /log", "", "405"),
        ("GET /else", "", "404"),
    ] {
        assert!(ask(head, body).starts_with(&format!("HTTP/1.1 {status}")), "{head}");
    }
    assert!(ask("GET /log", "").ends_with("\r\n\r\ndebug\n"), "a wrong one changes nothing");
}

#[test]
fn a_request_has_one_name_from_its_client_to_the_supervisors_log() {
    let gateway = Gateway::start();
    gateway.supervisor.admin().settings([("log".to_owned(), "debug".to_owned())].into()).unwrap();
    let wrong = r#"{"id": "from-the-body", "inputs": [{"name": "A", "data": [1]}]}"#;
    let ask = |headers: &[&str]| {
        let token = bearer("alice");
        let headers = [&[&*token], headers].concat();
        gateway.connect().ask("POST", "/v2/models/vec_add/infer", &headers, wrong.as_bytes())
    };
    ask(&[]).error(400, "INVALID_ARGUMENT", "");
    ask(&["X-Request-Id: from-a-header"]).error(400, "INVALID_ARGUMENT", "");
    ask(&["X-Request-Id: does not fit"]).error(400, "INVALID_ARGUMENT", "");
    until("the log has them", || {
        let log = gateway.supervisor.log();
        let named =
            |name: &str| log.lines().filter(|line| line.contains(&format!("request=\"{name}\""))).count();
        // The third one's header is no name: the body's is there.
        named("from-the-body") == 2 && named("from-a-header") == 1
    });
}

/// A collector of traces that gives on what it gets.
fn collector() -> (String, Receiver<Bytes>) {
    let (sender, receiver) = channel();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    listener.set_nonblocking(true).unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let (stream, _) = listener.accept().await.unwrap();
            let service = service_fn(|request: Request<Incoming>| {
                let sender = sender.clone();
                async move {
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    // The case may have ended.
                    let _ = sender.send(body);
                    let mut trailers = hyper::HeaderMap::new();
                    trailers.insert("grpc-status", "0".parse().unwrap());
                    // An empty message.
                    let body =
                        Full::new(Bytes::from_static(&[0; 5])).with_trailers(async { Some(Ok(trailers)) });
                    let response = Response::builder().header("content-type", "application/grpc").body(body);
                    Ok::<_, Infallible>(response.unwrap())
                }
            });
            let served = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let _ = served.serve_connection(TokioIo::new(stream), service).await;
        });
    });
    (address, receiver)
}

#[test]
fn an_inference_is_traced_under_its_clients_context() {
    let (collector, traces) = collector();
    let mut gateway = Gateway::before(house(&[("alice", ""), ("bob", "")]), &["--otlp", &collector]);
    let parent = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let token = bearer("alice");
    let asked = [&*token, parent, "X-Request-Id: r-7"];
    let answer = gateway.connect().ask("POST", "/v2/models/vec_add/infer", &asked, ADD.as_bytes());
    assert_eq!(answer.status, 200, "{answer:?}");
    // It sends what is left before it ends.
    signal(gateway.child.id(), Signal::TERM);
    let traced = traces.recv_timeout(crate::fixture::PATIENCE).unwrap();
    let has = |bytes: &[u8]| traced.windows(bytes.len()).any(|window| window == bytes);
    for text in
        ["pappus-gateway", "infer vec_add", "r-7", "queued", "copy in", "execute", "copy out", "clear"]
    {
        assert!(has(text.as_bytes()), "{text}");
    }
    assert!(has(&0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c_u128.to_be_bytes()), "the client's trace");
    assert!(has(&0xb7ad_6b71_6920_3331_u64.to_be_bytes()), "the client's span");
    assert!(!has(crate::house::token("alice").as_bytes()), "no token travels along");
    assert!(gateway.child.wait().unwrap().success());
}

#[test]
fn lines_of_the_log_are_objects_where_that_is_asked_for() {
    let programs = [("pappus-gateway", "--socket"), ("pappus-supervisor", "--state-dir")];
    for (program, flag) in programs {
        let mut command = std::process::Command::new(crate::programs::program(program));
        command.env("PAPPUS_LOG_FORMAT", "xml").args([flag, "/nowhere"]);
        let refused = command.output().unwrap();
        let why = String::from_utf8_lossy(&refused.stderr);
        assert!(
            refused.status.code() == Some(2) && why.contains("expected text or json"),
            "{program}: {why}"
        );
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (socket, state) = (path("socket"), path("state"));
    let gateway = ["--socket", "/nowhere", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"];
    let supervisor = ["--socket", &socket, "--state-dir", &state, "--device", "cpu:workers=1,memory=16MiB"];
    for (program, flags, words) in
        [("pappus-gateway", &gateway, "serving HTTP"), ("pappus-supervisor", &supervisor, "device cpu")]
    {
        let mut command = std::process::Command::new(crate::programs::program(program));
        command.env("PAPPUS_LOG_FORMAT", "json").args(flags);
        let mut child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert!(line["level"] == "INFO" && line["message"].as_str().unwrap().contains(words), "{line}");
    }
}
