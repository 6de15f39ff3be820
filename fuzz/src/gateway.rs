//! What the gateway reads of its clients before the supervisor sees anything: requests in JSON with tensors behind it, messages of gRPC,
//! and signed tokens.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use pappus_gateway::generated::ModelInferRequest;
use pappus_gateway::grpc::codec;
use pappus_gateway::http::infer::read_tensors;
use pappus_gateway::jwt::{Jwt, JwtRules};
use pappus_gateway::limits::MAX_MESSAGE_PARTS;
use pappus_gateway::memory::Memory;
use prost::Message;

/// Memory that one request may take.
const MEMORY_BYTES: usize = 64 << 20;

/// A body: two bytes say how many bytes of JSON follow, 65535 that all is JSON. Every tensor is a part of the body, or was numbers.
pub fn read_json(input: &[u8]) {
    let Some((length, body)) = input.split_first_chunk::<2>() else { return };
    let body = Bytes::copy_from_slice(body);
    let json_bytes = match u16::from_le_bytes(*length) {
        u16::MAX => None,
        bytes => Some(usize::from(bytes)),
    };
    let memory = Memory::new(MEMORY_BYTES);
    let share = Arc::new(memory.share());
    let Ok(inputs) = read_tensors(&body, json_bytes, &share) else { return };
    for input in inputs {
        assert!(input.bytes.len() <= 8 * body.len(), "a tensor of {} bytes", input.bytes.len());
    }
}

/// A message: what passes the look is decoded to few parts.
pub fn read_grpc(message: &[u8]) {
    if codec::check(message).is_err() {
        return;
    }
    let Ok(request) = ModelInferRequest::decode(message) else { return };
    let parts = request.inputs.len() + request.outputs.len() + request.parameters.len();
    assert!(parts <= MAX_MESSAGE_PARTS, "{parts} parts");
}

/// The public key of RFC 8037, whose private key nobody here signs with.
const KEYS: &str =
    r#"{"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

/// A token that claims to be signed: none is taken.
pub fn read_signed_token(token: &[u8]) {
    static JWT: OnceLock<Jwt> = OnceLock::new();
    let jwt = JWT.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let keys = folder.path().join("keys.json");
        std::fs::write(&keys, KEYS).expect("a file of keys");
        std::fs::write(folder.path().join("acme.token"), "the token of acme").expect("a token");
        let (issuer, audience, claim) = ("i".to_owned(), "a".to_owned(), "tenant".to_owned());
        let rules = JwtRules { keys, issuer, audience, claim, tokens: folder.path().to_owned() };
        Jwt::load(rules).expect("rules that hold")
    });
    assert!(jwt.token(token).is_err(), "a token that nobody signed is taken");
}
