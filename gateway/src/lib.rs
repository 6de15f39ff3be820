//! The gateway: registered functions over HTTP and gRPC, by the Open Inference Protocol v2 and the extensions of Triton's that its
//! clients use. A process of its own, without a GPU and without rights: what it may do, the tenants' tokens let it do.
//!
//! ```text
//! HTTP  ──► http  ──┐                                     ┌─► connection ──┐
//!                   ├─► infer, models ──► upstream ──────►├─► connection ──┼─► supervisor
//! gRPC  ──► grpc  ──┘   one tenant each   (async client)  └─► connection ──┘
//! ```
//!
//! In reading order:
//! - [`limits`]: the most of everything.
//! - [`failure`]: why a request fails: one table of codes, statuses of HTTP and of gRPC.
//! - [`arguments`]: the command line.
//! - [`data_type`]: element types, by the names of both protocols.
//! - [`upstream`]: connections to the supervisor, shared by all tenants.
//! - [`statistics`]: what was inferred, by function; [`metrics`]: the same for whoever watches; [`traces`]: where a request comes from, and
//!   its trace.
//! - [`model`]: a function as a model: names, version, tensors.
//! - [`jwt`]: signed tokens of an identity provider, for tenants' own.
//! - [`shared_memory`]: regions that clients on this machine registered.
//! - [`sequences`]: sequences of requests, which are sessions.
//! - [`callers`]: from a request's token to what is known of whoever sent it.
//! - [`counted`]: one inference as it is counted.
//! - [`models`]: which function a name means for a caller.
//! - [`infer`]: one inference, from bytes to bytes.
//! - [`memory`]: bytes of bodies of all clients together.
//! - [`places`]: places for connections, which strangers give up to the next.
//! - [`patient_io`]: connections whose clients may not stall.
//! - [`tls`]: TLS, with certificates of clients where that is asked for.
//! - [`http`]: HTTP: routes, JSON and binary tensors.
//! - [`grpc`]: gRPC: the service; [`generated`]: its messages, from `proto/inference.proto` (a test keeps them fresh).
//! - [`log`]: the log; [`endpoint`]: metrics and the log's level over HTTP.
//! - [`run`]: all of it put together.

#![forbid(unsafe_code)]

pub mod arguments;
pub mod callers;
pub mod counted;
pub mod data_type;
pub mod endpoint;
pub mod failure;
#[allow(missing_docs, clippy::all, unreachable_pub)]
#[rustfmt::skip]
pub mod generated;
pub mod grpc;
pub mod http;
pub mod infer;
pub mod jwt;
pub mod limits;
pub mod log;
pub mod memory;
pub mod metrics;
pub mod model;
pub mod models;
pub mod patient_io;
pub mod places;
pub mod run;
pub mod sequences;
pub mod shared_memory;
pub mod statistics;
pub mod tls;
pub mod traces;
pub mod upstream;
