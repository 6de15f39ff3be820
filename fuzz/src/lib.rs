//! What reads bytes that a stranger wrote, as functions of nothing but these bytes. `scripts/fuzz` lets libFuzzer
//! look for an input that makes one panic or break what it promises; an ordinary test runs them over what the
//! fuzzer found before (`corpus/`).
//!
//! - [`blueprint`]: JSON → blueprint → plan.
//! - [`client`]: greetings, frames and requests of clients; answers to them.
//! - [`requests`]: an invocation, checked against its function.
//! - [`worker`]: frames between supervisor and workers, in both directions, and descriptors beside them.
//! - [`modules`]: wasm, cubin, fatbin, PTX and hsaco before a compiler or a driver sees them.
//! - [`fence`]: PTX for shared workers: reader and rewriter, and the checker.
//! - [`files`]: what the client reads.
//! - [`gateway`]: what the gateway reads of its clients.
#![forbid(unsafe_code)]

pub mod blueprint;
pub mod client;
pub mod fence;
pub mod files;
pub mod gateway;
pub mod modules;
pub mod requests;
pub mod worker;

/// Something that reads a stranger's bytes.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The name of the target, and of its folder of the corpus.
    pub name: &'static str,
    /// Reads an input, which may be refused; panics if something is wrong with the reader.
    pub read: fn(&[u8]),
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "blueprint", read: blueprint::read },
    Target { name: "greeting", read: client::read_greeting },
    Target { name: "frames", read: client::read_frames },
    Target { name: "messages", read: client::read_messages },
    Target { name: "requests", read: requests::read },
    Target { name: "worker", read: worker::read },
    Target { name: "control", read: worker::read_control },
    Target { name: "wasm", read: modules::read_wasm },
    Target { name: "cuda", read: modules::read_cuda },
    Target { name: "hsaco", read: modules::read_hsaco },
    Target { name: "ptx", read: fence::read_ptx },
    Target { name: "fenced", read: fence::read_fenced },
    Target { name: "npy", read: files::read_npy },
    Target { name: "inference_json", read: gateway::read_json },
    Target { name: "inference_grpc", read: gateway::read_grpc },
    Target { name: "signed_token", read: gateway::read_signed_token },
];

/// The target of this name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().copied().find(|target| target.name == name)
}
