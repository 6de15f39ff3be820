//! What each method does.

use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Extensions, Request, Response, Status, Streaming};

use super::metered::Meter;
use super::{messages, status, timeout};
use crate::callers::{Caller, Callers};
use crate::failure::{Failure, Kind, Result as Answer};
use crate::generated::grpc_inference_service_server::GrpcInferenceService;
use crate::generated::repository_index_response::ModelIndex;
use crate::generated::system_shared_memory_status_response::RegionStatus;
use crate::generated::{
    CudaSharedMemoryStatusRequest, CudaSharedMemoryStatusResponse, CudaSharedMemoryUnregisterRequest,
    CudaSharedMemoryUnregisterResponse, ModelConfigRequest, ModelConfigResponse, ModelInferRequest,
    ModelInferResponse, ModelMetadataRequest, ModelMetadataResponse, ModelReadyRequest, ModelReadyResponse,
    ModelStatisticsRequest, ModelStatisticsResponse, ModelStreamInferResponse, RepositoryIndexRequest,
    RepositoryIndexResponse, RepositoryModelLoadRequest, RepositoryModelLoadResponse, ServerLiveRequest,
    ServerLiveResponse, ServerMetadataRequest, ServerMetadataResponse, ServerReadyRequest,
    ServerReadyResponse, SystemSharedMemoryRegisterRequest, SystemSharedMemoryRegisterResponse,
    SystemSharedMemoryStatusRequest, SystemSharedMemoryStatusResponse, SystemSharedMemoryUnregisterRequest,
    SystemSharedMemoryUnregisterResponse,
};
use crate::http::pages::EXTENSIONS;
use crate::infer::infer;
use crate::memory::Share;
use crate::model::Model;
use crate::models;
use crate::traces::Origin;
use tonic::metadata::MetadataMap;

/// The service.
#[derive(Debug)]
pub(super) struct Service {
    callers: Arc<Callers>,
}

type Told<T> = Result<Response<T>, Status>;

fn told<T>(answer: Answer<T>) -> Told<T> {
    answer.map(Response::new).map_err(|failure| status(&failure))
}

impl Service {
    pub(super) fn new(callers: Arc<Callers>) -> Self {
        Self { callers }
    }
}

/// The metadata that has the token.
const AUTHORIZATION: &str = "authorization";

/// Whoever sent a request: judged when its head was read, before its message.
fn caller<T>(request: &Request<T>) -> Answer<Arc<Caller>> {
    let lost = || Failure::busy("the gateway lost whose request this is");
    request.extensions().get::<Arc<Caller>>().cloned().ok_or_else(lost)
}

/// What a request has of the memory for all requests.
fn meter(extensions: &Extensions) -> Answer<Meter> {
    // Every request got one when its head was read.
    extensions.get::<Meter>().cloned().ok_or_else(|| Failure::busy("the gateway lost count of this request"))
}

/// Where a request comes from, by its metadata.
fn origin(metadata: &MetadataMap) -> Origin {
    Origin::of(|name| metadata.get(name)?.to_str().ok())
}

async fn one(
    caller: &Caller,
    request: ModelInferRequest,
    limit: Option<std::time::Duration>,
    mut origin: Origin,
    share: &Share,
) -> Answer<ModelInferResponse> {
    let (mut asked, id) = messages::asked(caller, request, limit, share)?;
    origin.named(&id);
    asked.origin = origin;
    infer(caller, &asked, share, |inferred| Ok(messages::answer(inferred, id))).await
}

#[tonic::async_trait]
impl GrpcInferenceService for Service {
    type ModelStreamInferStream =
        Pin<Box<dyn Stream<Item = Result<ModelStreamInferResponse, Status>> + Send>>;

    async fn server_live(&self, _: Request<ServerLiveRequest>) -> Told<ServerLiveResponse> {
        Ok(Response::new(ServerLiveResponse { live: true }))
    }

    async fn server_ready(&self, _: Request<ServerReadyRequest>) -> Told<ServerReadyResponse> {
        Ok(Response::new(ServerReadyResponse { ready: self.callers.is_ready().await }))
    }

    async fn server_metadata(&self, _: Request<ServerMetadataRequest>) -> Told<ServerMetadataResponse> {
        Ok(Response::new(ServerMetadataResponse {
            name: "pappus".to_owned(),
            version: pappus_version::VERSION.to_owned(),
            extensions: EXTENSIONS.map(str::to_owned).into(),
        }))
    }

    async fn model_ready(&self, request: Request<ModelReadyRequest>) -> Told<ModelReadyResponse> {
        let looked = async {
            let caller = caller(&request)?;
            let asked = request.get_ref();
            models::look(&caller, &asked.name, &asked.version)
                .await
                .map(|_| ModelReadyResponse { ready: true })
        };
        told(looked.await)
    }

    async fn model_metadata(&self, request: Request<ModelMetadataRequest>) -> Told<ModelMetadataResponse> {
        let looked = async {
            let caller = caller(&request)?;
            let asked = request.get_ref();
            models::look(&caller, &asked.name, &asked.version).await.map(|model| messages::metadata(&model))
        };
        told(looked.await)
    }

    async fn model_config(&self, request: Request<ModelConfigRequest>) -> Told<ModelConfigResponse> {
        let looked = async {
            let caller = caller(&request)?;
            let asked = request.get_ref();
            let model = models::look(&caller, &asked.name, &asked.version).await?;
            Ok(ModelConfigResponse { config: Some(messages::config(&model)) })
        };
        told(looked.await)
    }

    async fn model_statistics(
        &self,
        request: Request<ModelStatisticsRequest>,
    ) -> Told<ModelStatisticsResponse> {
        let looked = async {
            let caller = caller(&request)?;
            let asked = request.get_ref();
            let models = match asked.name.is_empty() {
                true => models::list(&caller).await?,
                false => vec![(*models::look(&caller, &asked.name, &asked.version).await?).clone()],
            };
            let of = |model: &Model| {
                let counted = caller.counts(model, &asked.version).into_iter();
                let told =
                    counted.map(|(version, counts)| messages::statistics(&model.name, version, &counts));
                told.collect::<Vec<_>>()
            };
            Ok(ModelStatisticsResponse { model_stats: models.iter().flat_map(of).collect() })
        };
        told(looked.await)
    }

    async fn repository_index(
        &self,
        request: Request<RepositoryIndexRequest>,
    ) -> Told<RepositoryIndexResponse> {
        let listed = async {
            let caller = caller(&request)?;
            let models = models::list(&caller).await?;
            let entry = |model: &Model, version| ModelIndex {
                version,
                name: model.name.clone(),
                state: "READY".to_owned(),
                reason: String::new(),
            };
            let entries = |model: &Model| {
                model.versions().into_iter().map(|version| entry(model, version)).collect::<Vec<_>>()
            };
            Ok(RepositoryIndexResponse { models: models.iter().flat_map(entries).collect() })
        };
        told(listed.await)
    }

    async fn repository_model_load(
        &self,
        request: Request<RepositoryModelLoadRequest>,
    ) -> Told<RepositoryModelLoadResponse> {
        let looked = async {
            let caller = caller(&request)?;
            // What is registered is loaded when it is called.
            models::look(&caller, &request.get_ref().model_name, "").await?;
            Ok(RepositoryModelLoadResponse {})
        };
        told(looked.await)
    }

    async fn model_infer(&self, request: Request<ModelInferRequest>) -> Told<ModelInferResponse> {
        let inferred = async {
            let caller = caller(&request)?;
            let limit =
                timeout(request.metadata().get("grpc-timeout").map(|value| value.as_encoded_bytes()))?;
            let share = meter(request.extensions())?.share();
            let origin = origin(request.metadata());
            one(&caller, request.into_inner(), limit, origin, &share).await
        };
        told(inferred.await)
    }

    async fn model_stream_infer(
        &self,
        request: Request<Streaming<ModelInferRequest>>,
    ) -> Told<Self::ModelStreamInferStream> {
        let meter = meter(request.extensions()).map_err(|failure| status(&failure))?;
        let callers = self.callers.clone();
        let authorization =
            request.metadata().get(AUTHORIZATION).map(|value| value.as_encoded_bytes().to_vec());
        let of_stream = origin(request.metadata());
        let mut requests = request.into_inner();
        let sending = meter.clone();
        // One answer waits at most: whoever does not read them is not read from.
        let (answers, stream) = mpsc::channel(1);
        tokio::spawn(async move {
            let serves = async {
                loop {
                    let request = match requests.message().await {
                        Ok(None) => return,
                        Ok(Some(request)) => request,
                        Err(status) => {
                            let _ = answers.send((Err(status), meter.hold())).await;
                            return;
                        }
                    };
                    let id = request.id.clone();
                    // Whose message it is is judged anew: a stream may last for longer than its token is good.
                    let answer = match callers.enter(authorization.as_deref()).await {
                        Ok(caller) => one(&caller, request, None, of_stream.clone(), &meter.share()).await,
                        Err(failure) => Err(failure),
                    };
                    let answer = match answer {
                        Ok(response) => ModelStreamInferResponse {
                            error_message: String::new(),
                            infer_response: Some(response),
                        },
                        Err(failure) if failure.kind == Kind::Unauthenticated => {
                            let _ = answers.send((Err(status(&failure)), meter.hold())).await;
                            return;
                        }
                        Err(failure) => ModelStreamInferResponse {
                            error_message: failure.text(),
                            infer_response: Some(ModelInferResponse { id, ..Default::default() }),
                        },
                    };
                    if answers.send((Ok(answer), meter.hold())).await.is_err() {
                        return;
                    }
                    meter.renew();
                }
            };
            // Whoever closes the stream cancels the call in it.
            tokio::select! {
                () = serves => {}
                () = answers.closed() => {}
            }
        });
        let answers = ReceiverStream::new(stream).map(move |(answer, held)| {
            sending.queue(held);
            answer
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn system_shared_memory_status(
        &self,
        request: Request<SystemSharedMemoryStatusRequest>,
    ) -> Told<SystemSharedMemoryStatusResponse> {
        if !self.callers.has_shared_memory() {
            return Ok(Response::new(SystemSharedMemoryStatusResponse::default()));
        }
        let listed = async {
            let caller = caller(&request)?;
            let regions = caller.own_regions().await?.list(&request.get_ref().name);
            let told = regions.into_iter().map(|(name, region)| {
                let (key, offset, byte_size) = (region.key.clone(), region.offset, region.bytes);
                (name.clone(), RegionStatus { name, key, offset, byte_size })
            });
            Ok(SystemSharedMemoryStatusResponse { regions: told.collect() })
        };
        told(listed.await)
    }

    async fn system_shared_memory_register(
        &self,
        request: Request<SystemSharedMemoryRegisterRequest>,
    ) -> Told<SystemSharedMemoryRegisterResponse> {
        let registered = async {
            let caller = caller(&request)?;
            let SystemSharedMemoryRegisterRequest { name, key, offset, byte_size } = request.into_inner();
            caller.own_regions().await?.register(&name, &key, offset, byte_size)?;
            Ok(SystemSharedMemoryRegisterResponse {})
        };
        told(registered.await)
    }

    async fn system_shared_memory_unregister(
        &self,
        request: Request<SystemSharedMemoryUnregisterRequest>,
    ) -> Told<SystemSharedMemoryUnregisterResponse> {
        // Clients unregister what there may be before they begin.
        if !self.callers.has_shared_memory() {
            return Ok(Response::new(SystemSharedMemoryUnregisterResponse {}));
        }
        let unregistered = async {
            let caller = caller(&request)?;
            caller.own_regions().await?.unregister(&request.get_ref().name);
            Ok(SystemSharedMemoryUnregisterResponse {})
        };
        told(unregistered.await)
    }

    async fn cuda_shared_memory_status(
        &self,
        _: Request<CudaSharedMemoryStatusRequest>,
    ) -> Told<CudaSharedMemoryStatusResponse> {
        Ok(Response::new(CudaSharedMemoryStatusResponse {}))
    }

    async fn cuda_shared_memory_unregister(
        &self,
        _: Request<CudaSharedMemoryUnregisterRequest>,
    ) -> Told<CudaSharedMemoryUnregisterResponse> {
        Ok(Response::new(CudaSharedMemoryUnregisterResponse {}))
    }
}
