//! What clients get over gRPC.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use pappus_gateway::generated::infer_parameter::ParameterChoice;
use pappus_gateway::generated::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use pappus_gateway::generated::*;
use tonic::codegen::{Service, http};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use super::Gateway;
use crate::fixture::until;
use crate::house::{enter, token};

/// A connection, as tonic wants it.
#[derive(Clone)]
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

/// A client for one tenant.
struct Client {
    grpc: tonic::client::Grpc<Channel>,
    tenant: Option<&'static str>,
}

impl Client {
    async fn connect(gateway: &Gateway, tenant: Option<&'static str>) -> Self {
        let stream = tokio::net::TcpStream::connect(&gateway.grpc).await.unwrap();
        let connection = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (send, connection) = connection.await.unwrap();
        tokio::spawn(connection);
        let origin = format!("http://{}", gateway.grpc).parse().unwrap();
        let grpc =
            tonic::client::Grpc::with_origin(Channel(send), origin).max_decoding_message_size(64 << 20);
        Self { grpc, tenant }
    }

    fn path(method: &str) -> http::uri::PathAndQuery {
        format!("/inference.GRPCInferenceService/{method}").parse().unwrap()
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(tenant) = self.tenant {
            let value = format!("Bearer {}", token(tenant)).parse().unwrap();
            request.metadata_mut().insert("authorization", value);
        }
        request
    }

    async fn ask<T, U>(&mut self, method: &str, message: T) -> Result<U, Status>
    where
        T: prost::Message + Send + Sync + 'static,
        U: prost::Message + Default + Send + Sync + 'static,
    {
        let request = self.request(message);
        self.send(method, request).await
    }

    async fn send<T, U>(&mut self, method: &str, request: Request<T>) -> Result<U, Status>
    where
        T: prost::Message + Send + Sync + 'static,
        U: prost::Message + Default + Send + Sync + 'static,
    {
        self.grpc.ready().await.unwrap();
        let answer = self.grpc.unary(request, Self::path(method), ProstCodec::<T, U>::default()).await;
        answer.map(tonic::Response::into_inner)
    }
}

fn with<T>(gateway: &Gateway, tenant: Option<&'static str>, case: impl AsyncFnOnce(Client) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { case(Client::connect(gateway, tenant).await).await })
}

fn refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, name: &str, words: &str) {
    let status = answer.unwrap_err();
    let is = status.metadata().get("pappus-code").map(|value| value.to_str().unwrap().to_owned());
    assert!(
        status.code() == code && is.as_deref() == Some(name) && status.message().contains(words),
        "expected {code:?} {name} {words:?}: {status:?}"
    );
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// A request of `vec_add` with raw tensors.
fn add(values: [f32; 3]) -> ModelInferRequest {
    let input = |name: &str| InferInputTensor {
        name: name.into(),
        datatype: "FP32".into(),
        shape: vec![3],
        ..Default::default()
    };
    ModelInferRequest {
        model_name: "vec_add".into(),
        id: "7".into(),
        inputs: vec![input("A"), input("B")],
        raw_input_contents: vec![floats(&values).into(), floats(&[10., 20., 30.]).into()],
        ..Default::default()
    }
}

fn copy(bytes: usize) -> ModelInferRequest {
    let input = InferInputTensor {
        name: "in".into(),
        datatype: "UINT8".into(),
        shape: vec![bytes as i64],
        ..Default::default()
    };
    ModelInferRequest {
        model_name: "copy".into(),
        inputs: vec![input],
        raw_input_contents: vec![(0..bytes).map(|n| (n % 251) as u8).collect::<Vec<u8>>().into()],
        ..Default::default()
    }
}

#[test]
fn an_inference_gives_what_the_function_computes() {
    let gateway = Gateway::start();
    with(&gateway, Some("alice"), async |mut client| {
        let answer: ModelInferResponse = client.ask("ModelInfer", add([1., 2., 3.])).await.unwrap();
        assert_eq!((&*answer.model_name, &*answer.id), ("vec_add", "7"));
        let output = &answer.outputs[0];
        assert_eq!((&*output.name, &*output.datatype, &output.shape[..]), ("C", "FP32", &[3][..]));
        assert_eq!(answer.raw_output_contents, [floats(&[11., 22., 33.])]);
        // Numbers in the list of their type, an output by its name, parameters that are not known.
        let mut request = add([0.; 3]);
        let lists = [vec![1., 2., 3.], vec![1., 1., 1.]];
        request.raw_input_contents.clear();
        for (input, list) in request.inputs.iter_mut().zip(lists) {
            input.contents = Some(InferTensorContents { fp32_contents: list, ..Default::default() });
        }
        request.outputs = vec![InferRequestedOutputTensor { name: "C".into(), ..Default::default() }];
        let unknown = InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(true)) };
        request.parameters.insert("triton_enable_empty_final_response".into(), unknown);
        let answer: ModelInferResponse = client.ask("ModelInfer", request).await.unwrap();
        assert_eq!(answer.raw_output_contents, [floats(&[2., 3., 4.])]);
        // An offer to take compressed answers is not used, and a message that says it is compressed is refused.
        let with = |name: &'static str| {
            let mut request = client.request(add([1., 2., 3.]));
            request.metadata_mut().insert(name, "gzip".parse().unwrap());
            request
        };
        let (offers, compressed) = (with("grpc-accept-encoding"), with("grpc-encoding"));
        let answer: ModelInferResponse = client.send("ModelInfer", offers).await.unwrap();
        assert_eq!(answer.raw_output_contents, [floats(&[11., 22., 33.])]);
        let answer: Result<ModelInferResponse, _> = client.send("ModelInfer", compressed).await;
        assert_eq!(answer.unwrap_err().code(), Code::Unimplemented);
        // More than one message of the supervisor's protocol takes.
        for bytes in [1 << 20, 3_000_000] {
            let answer: ModelInferResponse = client.ask("ModelInfer", copy(bytes)).await.unwrap();
            assert!(answer.raw_output_contents == copy(bytes).raw_input_contents, "{bytes}");
        }
    });
}

#[test]
fn failures_have_the_statuses_of_the_table() {
    let gateway = Gateway::start();
    for tenant in [None, Some("nobody")] {
        with(&gateway, tenant, async |mut client| {
            let answer: Result<ModelInferResponse, _> = client.ask("ModelInfer", add([0.; 3])).await;
            refused(answer, Code::Unauthenticated, "UNAUTHENTICATED", "token");
            let live: ServerLiveResponse = client.ask("ServerLive", ServerLiveRequest {}).await.unwrap();
            assert!(live.live);
        });
    }
    with(&gateway, Some("bob"), async |mut client| {
        let answer: Result<ModelInferResponse, _> = client.ask("ModelInfer", add([0.; 3])).await;
        refused(answer, Code::NotFound, "NOT_FOUND", "no model `vec_add` for you");
    });
    with(&gateway, Some("alice"), async |mut client| {
        let mut short = add([0.; 3]);
        short.raw_input_contents.pop();
        let answer: Result<ModelInferResponse, _> = client.ask("ModelInfer", short).await;
        refused(answer, Code::InvalidArgument, "INVALID_ARGUMENT", "1 raw_input_contents for 2 inputs");
        let mut wrong = add([0.; 3]);
        wrong.inputs[0].shape = vec![4];
        let answer: Result<ModelInferResponse, _> = client.ask("ModelInfer", wrong).await;
        refused(answer, Code::InvalidArgument, "INVALID_ARGUMENT", "input A");
        let spin = ModelInferRequest { model_name: "spin".into(), ..Default::default() };
        let mut late = client.request(spin);
        late.metadata_mut().insert("grpc-timeout", "50m".parse().unwrap());
        let answer: Result<ModelInferResponse, _> = client.send("ModelInfer", late).await;
        refused(answer, Code::DeadlineExceeded, "DEADLINE_EXCEEDED", "");
        let status =
            client.ask::<_, ServerLiveResponse>("TraceSetting", ServerLiveRequest {}).await.unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented);
    });
}

#[test]
fn functions_are_described_as_models() {
    let gateway = Gateway::start();
    until("it is ready", || {
        with(&gateway, None, async |mut client| {
            client.ask::<_, ServerReadyResponse>("ServerReady", ServerReadyRequest {}).await.unwrap().ready
        })
    });
    with(&gateway, Some("alice"), async |mut client| {
        let named = || ModelMetadataRequest { name: "vec_add".into(), version: String::new() };
        let told: ModelMetadataResponse = client.ask("ModelMetadata", named()).await.unwrap();
        assert_eq!(
            (&*told.inputs[0].name, &*told.inputs[0].datatype, &told.inputs[0].shape[..]),
            ("A", "FP32", &[-1][..])
        );
        let asked = ModelConfigRequest { name: "vec_add".into(), version: told.versions[0].clone() };
        let config: ModelConfigResponse = client.ask("ModelConfig", asked).await.unwrap();
        let config = config.config.unwrap();
        assert_eq!((config.input[0].data_type(), config.max_batch_size), (DataType::TypeFp32, 0));
        let asked = RepositoryIndexRequest::default();
        let index: RepositoryIndexResponse = client.ask("RepositoryIndex", asked).await.unwrap();
        assert_eq!(
            index.models.iter().map(|model| &*model.name).collect::<Vec<_>>(),
            ["copy", "spin", "vec_add"]
        );
        let _: ModelInferResponse = client.ask("ModelInfer", add([0.; 3])).await.unwrap();
        let asked = ModelStatisticsRequest { name: "vec_add".into(), version: String::new() };
        let told: ModelStatisticsResponse = client.ask("ModelStatistics", asked).await.unwrap();
        let counted = told.model_stats[0].inference_stats.unwrap();
        assert_eq!((counted.queue.unwrap().count, told.model_stats[0].inference_count), (1, 1));
        // Clients unregister what there may be before they begin.
        let asked = CudaSharedMemoryUnregisterRequest::default();
        client
            .ask::<_, CudaSharedMemoryUnregisterResponse>("CudaSharedMemoryUnregister", asked)
            .await
            .unwrap();
    });
}

#[test]
fn a_stream_answers_one_request_after_the_other_also_those_that_fail() {
    let gateway = Gateway::start();
    with(&gateway, Some("alice"), async |mut client| {
        let mut wrong = add([0.; 3]);
        wrong.model_name = "nothing".into();
        let requests = [add([1.; 3]), wrong, add([2.; 3])];
        let stream = tokio_stream::iter(requests);
        client.grpc.ready().await.unwrap();
        let request = client.request(stream);
        let codec = ProstCodec::<ModelInferRequest, ModelStreamInferResponse>::default();
        let answers = client.grpc.streaming(request, Client::path("ModelStreamInfer"), codec).await;
        let mut answers = answers.unwrap().into_inner();
        let mut told = Vec::new();
        while let Some(answer) = answers.message().await.unwrap() {
            told.push(answer);
        }
        assert_eq!(told.len(), 3);
        assert!(told[1].error_message.contains("no model `nothing`"), "{told:?}");
        let outputs = |at: usize| told[at].infer_response.as_ref().unwrap().raw_output_contents.clone();
        assert_eq!(outputs(0), [floats(&[11., 21., 31.])]);
        assert_eq!(outputs(2), [floats(&[12., 22., 32.])]);
    });
}

/// Whose token is no tenant's gets neither a stream nor the time to send a message, and takes no place of others who are new.
#[test]
fn strangers_hold_no_streams() {
    let gateway = Gateway::start();
    with(&gateway, Some("nobody"), async |mut client| {
        let mut held = Vec::new();
        for method in ["ModelStreamInfer"; 256].into_iter().chain(["ModelInfer"]) {
            client.grpc.ready().await.unwrap();
            let request = client.request(tokio_stream::pending::<ModelInferRequest>());
            let codec = ProstCodec::<ModelInferRequest, ModelStreamInferResponse>::default();
            held.push(client.grpc.streaming(request, Client::path(method), codec).await);
        }
        let mut bob = Client::connect(&gateway, Some("bob")).await;
        let index: RepositoryIndexResponse =
            bob.ask("RepositoryIndex", RepositoryIndexRequest::default()).await.unwrap();
        assert!(index.models.is_empty());
        for answer in held {
            refused(answer, Code::Unauthenticated, "UNAUTHENTICATED", "token");
        }
    });
}

/// Whoever gives up a request cancels the call.
#[test]
fn closing_a_request_cancels_its_call() {
    let gateway = Gateway::start();
    let mut alice = enter(&gateway.supervisor, "alice");
    let mut calls = || alice.quota().unwrap().quotas.iter().find(|quota| quota.name == "calls").unwrap().used;
    with(&gateway, Some("alice"), async |mut client| {
        let spin = ModelInferRequest { model_name: "spin".into(), ..Default::default() };
        let call = client.ask::<_, ModelInferResponse>("ModelInfer", spin);
        let running = async {
            while calls() == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            answer = call => panic!("{answer:?}"),
            () = running => {}
        }
        // The connection lives on: only the request was given up.
        while calls() > 0 {
            let live: ServerLiveResponse = client.ask("ServerLive", ServerLiveRequest {}).await.unwrap();
            assert!(live.live);
        }
    });
}
