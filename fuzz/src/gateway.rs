//! What the gateway reads of its clients before the supervisor sees anything: requests in JSON with tensors behind it, and messages of
//! gRPC.

use std::sync::Arc;

use bytes::Bytes;
use pappus_gateway::generated::ModelInferRequest;
use pappus_gateway::grpc::codec;
use pappus_gateway::http::infer::read_tensors;
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
