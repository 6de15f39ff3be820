//! Calls over HTTP through the gateway, by the Open Inference Protocol with tensors as bytes. A connection has one call at a time;
//! another one is opened where all are busy.

use std::cell::RefCell;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use pappus_client::array::Element;
use serde_json::{Value, json};

use super::drive::Target;
use super::tally::CallError;
use crate::arguments::Assignment;
use crate::failure::{Failure, Result};
use crate::input::{Input, Spec};

/// How long the gateway may take for an answer behind a call's deadline.
const PATIENCE: Duration = Duration::from_secs(10);
/// The code of a call whose connection could not be made, or broke.
const CONNECTION_LOST: &str = "CONNECTION_LOST";

type Connection = SendRequest<Full<Bytes>>;

/// What is sent to call a function.
#[derive(Debug)]
struct Ready {
    path: String,
    head_bytes: usize,
    body: Bytes,
}

/// The gateway, the calls, and who makes them.
#[derive(Debug)]
pub(super) struct Gateway {
    authority: String,
    ready: Vec<Ready>,
    /// What each tenant says of itself.
    tokens: Vec<Option<String>>,
    idle: RefCell<Vec<Connection>>,
}

impl Gateway {
    /// Asks what the functions take, and reads the inputs.
    pub(super) async fn prepare(
        url: &str,
        functions: &[String],
        inputs: &[Assignment<Spec>],
        tokens: &[Option<String>],
    ) -> Result<Self> {
        let authority = authority(url)?;
        let tokens =
            tokens.iter().map(|token| token.as_ref().map(|token| format!("Bearer {token}"))).collect();
        let mut gateway = Self { authority, ready: Vec::new(), tokens, idle: RefCell::default() };
        for function in functions {
            let model = format!("/v2/models/{function}");
            let request = gateway.request(Method::GET, &model, 0, Full::default());
            let (status, body) = gateway.exchange(request).await.map_err(|why| {
                Failure::Refused(format!("cannot reach a gateway at {url}: {why}; start `pappus-gateway`, or name the address that it serves HTTP on"))
            })?;
            if status != StatusCode::OK {
                let said = String::from_utf8_lossy(&body);
                return Err(Failure::Refused(format!("the gateway answers {status} for {function}: {said}")));
            }
            let told: Value = serde_json::from_slice(&body).unwrap_or_default();
            let (head, data) = tensors(function, &told, inputs)?;
            let head = head.to_string().into_bytes();
            let (path, head_bytes) = (format!("{model}/infer"), head.len());
            gateway.ready.push(Ready { path, head_bytes, body: [head, data].concat().into() });
        }
        Ok(gateway)
    }

    fn request(&self, method: Method, path: &str, tenant: usize, body: Full<Bytes>) -> Request<Full<Bytes>> {
        let mut request = Request::new(body);
        *request.method_mut() = method;
        // Both are checked: the address when it was read, a path by the gateway that knows the function.
        *request.uri_mut() = path.parse().unwrap_or_default();
        let mut put = |name, value: &str| {
            if let Ok(value) = value.parse() {
                request.headers_mut().insert(name, value);
            }
        };
        put("host", &self.authority);
        if let Some(Some(token)) = self.tokens.get(tenant) {
            put("authorization", token);
        }
        request
    }

    async fn exchange(
        &self,
        request: Request<Full<Bytes>>,
    ) -> std::result::Result<(StatusCode, Bytes), String> {
        let mut connection = self.connection().await?;
        let answer = connection.send_request(request).await.map_err(|why| why.to_string())?;
        let status = answer.status();
        let body = answer.into_body().collect().await.map_err(|why| why.to_string())?.to_bytes();
        self.idle.borrow_mut().push(connection);
        Ok((status, body))
    }

    /// A connection that nobody uses, or a fresh one.
    async fn connection(&self) -> std::result::Result<Connection, String> {
        loop {
            let Some(mut idle) = self.idle.borrow_mut().pop() else { break };
            // It fails where the gateway has closed it.
            if idle.ready().await.is_ok() {
                return Ok(idle);
            }
        }
        let stream = tokio::net::TcpStream::connect(&self.authority).await.map_err(|why| why.to_string())?;
        stream.set_nodelay(true).map_err(|why| why.to_string())?;
        let (send, connection) = handshake(TokioIo::new(stream)).await.map_err(|why| why.to_string())?;
        // It ends with the connection, whose fate the sender tells.
        tokio::task::spawn_local(async { drop(connection.await) });
        Ok(send)
    }
}

impl Target for Gateway {
    async fn call(&self, tenant: usize, number: u64, left: Duration) -> std::result::Result<(), CallError> {
        let ready = &self.ready[(number % self.ready.len() as u64) as usize];
        let mut request = self.request(Method::POST, &ready.path, tenant, Full::new(ready.body.clone()));
        let headers = request.headers_mut();
        headers.insert("inference-header-content-length", ready.head_bytes.into());
        if let Ok(deadline) = format!("{}us", left.as_micros().max(1)).parse() {
            headers.insert("pappus-deadline", deadline);
        }
        match tokio::time::timeout(left + PATIENCE, self.exchange(request)).await {
            Err(_) => Err("NO_ANSWER".into()),
            Ok(Err(said)) => Err(CallError { code: CONNECTION_LOST.to_owned(), said }),
            Ok(Ok((StatusCode::OK, _))) => Ok(()),
            Ok(Ok((status, body))) => Err(error(status, &body)),
        }
    }
}

/// An error, of the class that the gateway names, else of its status.
fn error(status: StatusCode, body: &[u8]) -> CallError {
    let told: Value = serde_json::from_slice(body).unwrap_or_default();
    let code = told["code"].as_str().map_or_else(|| format!("HTTP_{}", status.as_u16()), str::to_owned);
    CallError { code, said: told["error"].as_str().unwrap_or_default().to_owned() }
}

/// `HOST:PORT` of a URL.
fn authority(url: &str) -> Result<String> {
    let wrong = || {
        Failure::Usage(format!("--gateway {url}: expected http://HOST:PORT, such as http://localhost:8000"))
    };
    let uri: Uri = url.parse().map_err(|_| wrong())?;
    let is_plain = uri.scheme_str().is_none_or(|scheme| scheme == "http") && uri.path().len() <= 1;
    let authority = uri.authority().filter(|_| is_plain).ok_or_else(wrong)?;
    Ok(match authority.port() {
        Some(_) => authority.to_string(),
        None => format!("{authority}:80"),
    })
}

/// The JSON of a request for a model of which this is told, and the bytes behind it.
fn tensors(function: &str, told: &Value, inputs: &[Assignment<Spec>]) -> Result<(Value, Vec<u8>)> {
    let wanted: Vec<&Value> = told["inputs"].as_array().into_iter().flatten().collect();
    let name_of = |tensor: &Value| tensor["name"].as_str().unwrap_or_default().to_owned();
    if let Some(unknown) =
        inputs.iter().find(|input| wanted.iter().all(|tensor| name_of(tensor) != input.name))
    {
        return Err(Failure::Refused(format!("{function} has no input {:?}", unknown.name)));
    }
    let (mut heads, mut data) = (Vec::new(), Vec::new());
    for tensor in wanted {
        let name = name_of(tensor);
        let given = inputs.iter().find(|input| input.name == name);
        let given = given.ok_or_else(|| {
            Failure::Refused(format!("input {name:?} of {function} is missing: add --input {name}=FILE"))
        })?;
        let input = Input::open(&name, &given.value, None)?;
        let bytes = input.content()?;
        let (datatype, shape) = type_of(&input, tensor).ok_or_else(|| {
            Failure::Refused(format!("input {name:?}: what shape it has is not known: write TYPE[SHAPE]: in front, or use a .npy file"))
        })?;
        let parameters = json!({"binary_data_size": bytes.len()});
        heads.push(json!({"name": name, "datatype": datatype, "shape": shape, "parameters": parameters}));
        data.extend(bytes);
    }
    Ok((json!({"inputs": heads, "parameters": {"binary_data_output": true}}), data))
}

/// Type and shape of an input: its own, or those that are declared, where at most one dimension is free.
fn type_of(input: &Input, declared: &Value) -> Option<(String, Vec<u64>)> {
    if let [item] = &input.items[..]
        && let Some(array) = &item.array
        && let Element::Of(dtype) = array.element
    {
        return Some((datatype(dtype.name()), array.shape.clone()));
    }
    let datatype = declared["datatype"].as_str()?;
    let width = match datatype.trim_start_matches(|c: char| c.is_ascii_alphabetic()) {
        "" => 1,
        bits => bits.parse::<u64>().ok()? / 8,
    };
    let shape: Vec<i64> = declared["shape"].as_array()?.iter().filter_map(Value::as_i64).collect();
    let fixed = shape.iter().filter_map(|size| u64::try_from(*size).ok()).product::<u64>();
    let elements = input.bytes() / width;
    let free = shape.iter().filter(|size| **size < 0).count();
    let one = elements.checked_div(fixed).unwrap_or_default();
    (free <= 1).then(|| {
        (datatype.to_owned(), shape.iter().map(|size| u64::try_from(*size).unwrap_or(one)).collect())
    })
}

/// The protocol's name of a type.
fn datatype(name: &str) -> String {
    let (kind, bits) = name.split_at(name.find(|c: char| c.is_ascii_digit()).unwrap_or(name.len()));
    match kind {
        "u" => format!("UINT{bits}"),
        "i" => format!("INT{bits}"),
        "f" => format!("FP{}", bits.to_ascii_uppercase()),
        other => format!("{}{bits}", other.to_ascii_uppercase()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_the_protocols_names() {
        let names = ["u8", "i64", "f32", "bf16", "f8e4m3fn", "bool"].map(datatype);
        assert_eq!(names, ["UINT8", "INT64", "FP32", "BF16", "FP8E4M3FN", "BOOL"]);
    }

    #[test]
    fn an_address_is_plain_http() {
        assert_eq!(authority("http://h:8000").unwrap(), "h:8000");
        assert_eq!(authority("http://[::1]:8000/").unwrap(), "[::1]:8000");
        assert_eq!(authority("localhost").unwrap(), "localhost:80");
        for wrong in ["https://h", "http://h/v2", "", "unix:/s"] {
            assert!(authority(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_request_has_the_inputs_in_the_functions_order() {
        let told = json!({"inputs": [
            {"name": "A", "datatype": "FP32", "shape": [2, -1]},
            {"name": "B", "datatype": "UINT8", "shape": [-1]},
        ]});
        let input =
            |name: &str, spec: &str| Assignment { name: name.to_owned(), value: spec.parse().unwrap() };
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.bin");
        std::fs::write(&file, [7; 24]).unwrap();
        let inputs = [input("B", "u8:1,2"), input("A", file.to_str().unwrap())];
        let (head, data) = tensors("f", &told, &inputs).unwrap();
        assert_eq!(head["inputs"][0]["shape"], json!([2, 3]));
        assert_eq!(head["inputs"][1]["parameters"]["binary_data_size"], 2);
        assert_eq!(data, [&[7; 24][..], &[1, 2]].concat());
        let why = |inputs: &[Assignment<Spec>]| tensors("f", &told, inputs).unwrap_err().to_string();
        assert!(why(&inputs[..1]).contains("\"A\" of f is missing"));
        assert!(why(&[input("C", "u8:1")]).contains("no input \"C\""));
        // Two free dimensions do not follow from a size.
        let free = json!({"inputs": [{"name": "A", "datatype": "FP32", "shape": [-1, -1]}]});
        let why = tensors("f", &free, &inputs[1..]).unwrap_err().to_string();
        assert!(why.contains("TYPE[SHAPE]"), "{why}");
    }

    #[test]
    fn an_error_has_the_gateways_code_or_its_status() {
        let told = error(StatusCode::NOT_FOUND, br#"{"error": "no", "code": "NOT_FOUND"}"#);
        assert_eq!((&*told.code, &*told.said), ("NOT_FOUND", "no"));
        assert_eq!(error(StatusCode::BAD_GATEWAY, b"<html>"), CallError::from("HTTP_502"));
    }
}
