//! A gateway in front of a supervisor, and clients of it over gRPC and HTTP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::task::{Context, Poll};

use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use pappus_gateway::generated::model_infer_request::InferInputTensor;
use pappus_gateway::generated::{ModelInferRequest, ModelInferResponse};
use tonic::codegen::{Service, http};
use tonic_prost::ProstCodec;

use crate::Result;

const PROGRAM: &str = "pappus-gateway";

/// A running gateway, ended on drop.
#[derive(Debug)]
pub struct Gateway {
    child: Child,
    /// Where it serves HTTP.
    pub http: String,
    /// Where it serves gRPC.
    pub grpc: String,
}

impl Gateway {
    /// Starts one in front of the supervisor with this socket, and waits until it serves.
    pub fn start(socket: &Path, flags: &[&str]) -> Result<Self> {
        let program = std::env::current_exe()?.with_file_name(PROGRAM);
        let mut child = Command::new(&program)
            .arg("--socket")
            .arg(socket)
            .args(["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"])
            .args(flags)
            .env("NO_COLOR", "1")
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|why| {
                format!(
                    "cannot start {}: {why}; build it with `cargo build --release --bins`",
                    program.display()
                )
            })?;
        let mut log = BufReader::new(child.stderr.take().ok_or("a program without its stderr")?);
        let (http, grpc) = (address(&mut log, "HTTP"), address(&mut log, "gRPC"));
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::stderr()));
        let mut gateway = Self { child, http: String::new(), grpc: String::new() };
        (gateway.http, gateway.grpc) = (http?, grpc?);
        Ok(gateway)
    }

    /// Its resident memory.
    pub fn resident_bytes(&self) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
        Ok(1024.0 * line.trim().trim_end_matches(" kB").parse::<f64>()?)
    }
}

/// Where it says that it serves a protocol.
fn address(log: &mut impl BufRead, protocol: &str) -> Result<String> {
    let mut line = String::new();
    while log.read_line(&mut line)? > 0 {
        if let Some((_, address)) = line.split_once(&format!("serving {protocol} on ")) {
            return Ok(address.trim().to_owned());
        }
        line.clear();
    }
    Err("the gateway ended".into())
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection, as tonic wants it.
#[derive(Debug, Clone)]
struct Channel(SendRequest<tonic::body::Body>);

impl Service<http::Request<tonic::body::Body>> for Channel {
    type Response = http::Response<hyper::body::Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// A client over gRPC; a clone shares the connection.
#[derive(Debug, Clone)]
pub struct Grpc(tonic::client::Grpc<Channel>);

impl Grpc {
    /// A connection.
    pub async fn connect(gateway: &Gateway) -> Result<Self> {
        let stream = tokio::net::TcpStream::connect(&gateway.grpc).await?;
        stream.set_nodelay(true)?;
        let connection = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (send, connection) = connection.await?;
        tokio::spawn(connection);
        let origin = format!("http://{}", gateway.grpc).parse()?;
        Ok(Self(tonic::client::Grpc::with_origin(Channel(send), origin)))
    }

    /// Adds two vectors; with a token where it is given.
    pub async fn add(&mut self, elements: usize, token: Option<&str>) -> Result<ModelInferResponse> {
        let vector = vec![0; 4 * elements];
        let input = |name: &str| InferInputTensor {
            name: name.to_owned(),
            datatype: "FP32".to_owned(),
            shape: vec![elements as i64],
            ..InferInputTensor::default()
        };
        let message = ModelInferRequest {
            model_name: "vec_add".to_owned(),
            inputs: vec![input("A"), input("B")],
            raw_input_contents: vec![vector.clone().into(), vector.into()],
            ..ModelInferRequest::default()
        };
        let mut request = tonic::Request::new(message);
        if let Some(token) = token {
            request.metadata_mut().insert("authorization", format!("Bearer {token}").parse()?);
        }
        self.0.ready().await?;
        let path = http::uri::PathAndQuery::from_static("/inference.GRPCInferenceService/ModelInfer");
        Ok(self.0.unary(request, path, ProstCodec::default()).await?.into_inner())
    }
}

/// A client over HTTP, with tensors as bytes.
#[derive(Debug)]
pub struct Http {
    stream: BufReader<TcpStream>,
    request: Vec<u8>,
}

impl Http {
    /// A connection, for adding two vectors.
    pub fn connect(gateway: &Gateway, elements: usize) -> Result<Self> {
        let stream = TcpStream::connect(&gateway.http)?;
        stream.set_nodelay(true)?;
        let bytes = 4 * elements;
        let input = |name: &str| {
            format!(
                r#"{{"name":"{name}","datatype":"FP32","shape":[{elements}],"parameters":{{"binary_data_size":{bytes}}}}}"#
            )
        };
        let head = format!(
            r#"{{"inputs":[{},{}],"outputs":[{{"name":"C","parameters":{{"binary_data":true}}}}]}}"#,
            input("A"),
            input("B")
        );
        let request = format!(
            "POST /v2/models/vec_add/infer HTTP/1.1\r\nHost: g\r\nInference-Header-Content-Length: {}\r\nContent-Length: {}\r\n\r\n{head}",
            head.len(),
            head.len() + 2 * bytes
        );
        let request = [request.into_bytes(), vec![0; 2 * bytes]].concat();
        Ok(Self { stream: BufReader::new(stream), request })
    }

    /// Sends the request and reads the answer, whose bytes are returned.
    pub fn add(&mut self) -> Result<usize> {
        self.stream.get_mut().write_all(&self.request)?;
        let (mut line, mut bytes) = (String::new(), 0);
        self.stream.read_line(&mut line)?;
        if !line.starts_with("HTTP/1.1 200") {
            return Err(line.into());
        }
        loop {
            line.clear();
            self.stream.read_line(&mut line)?;
            match line.trim_end().split_once(": ") {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    bytes = value.parse()?
                }
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; bytes];
        self.stream.read_exact(&mut body)?;
        Ok(bytes)
    }
}
