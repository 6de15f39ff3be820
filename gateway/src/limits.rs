//! Limits of the gateway, each checked before anything is allocated.

use std::time::Duration;

/// Connections of clients at once, over HTTP and gRPC each.
pub const MAX_CONNECTIONS: usize = 1024;
/// Of them, those of one token that give no place up where all are taken: sixteen who connect as often as they can fill the gateway.
pub const MAX_KEPT_PER_TOKEN: usize = 64;
/// How long the supervisor's answer to whether it is ready holds.
pub const READY_FOR: Duration = Duration::from_millis(200);
/// Bytes of a request's line and headers.
pub const MAX_HEAD_BYTES: usize = 32 << 10;
/// Headers of a request.
pub const MAX_HEADERS: usize = 64;
/// How long a client may take to agree on keys.
pub const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// How long a client may take for the line and headers of a request, from the end of the one before.
pub const HEAD_TIME: Duration = Duration::from_secs(60);
/// How long a client may take for the whole body of a request.
pub const BODY_TIME: Duration = Duration::from_secs(60);
/// How long a client may take none of the bytes that wait for it.
pub const STALL_TIME: Duration = Duration::from_secs(20);
/// How long a client of HTTP/2 may take nothing of an answer.
pub const ANSWER_TIME: Duration = Duration::from_secs(60);
/// Requests of one HTTP/2 connection at once.
pub const MAX_STREAMS: u32 = 256;
/// Bytes that a client may send on an HTTP/2 connection, or for one request of it, before they are read.
pub const WINDOW_BYTES: u32 = 1 << 20;
/// Streams that an HTTP/2 client may have reset before the gateway saw them; one more ends its connection.
pub const MAX_RESETS: usize = 32;
/// Requests of one token at once.
pub const MAX_CALLS_PER_TOKEN: usize = 1024;
/// Requests at once of all tokens that the supervisor has not accepted yet.
pub const MAX_CALLS_OF_STRANGERS: usize = 256;
/// Tokens of which something is remembered: functions they called, and statistics.
pub const MAX_TOKENS: usize = 16_384;
/// Functions that are remembered for one token, and versions of functions that are counted for it.
pub const MAX_MODELS_PER_TOKEN: usize = 1024;
/// Bytes of a token, as the supervisor takes them.
pub const MAX_TOKEN_BYTES: usize = 1024;
/// Bytes of a signed token (JWT).
pub const MAX_JWT_BYTES: usize = 8 << 10;
/// Keys of a set by which signed tokens are verified.
pub const MAX_KEYS: usize = 64;
/// Bytes of the file of such a set.
pub const MAX_KEY_SET_BYTES: u64 = 1 << 20;
/// Bytes of JSON in a request.
pub const MAX_JSON_BYTES: usize = 8 << 20;
/// Memory for each byte of JSON while it is read: a number of two bytes takes sixteen, in a list that doubles as it grows.
pub const JSON_FACTOR: usize = 24;
/// Bytes of outputs that an answer can hold as JSON; each takes up to so many characters.
pub const MAX_JSON_OUTPUT_BYTES: usize = 8 << 20;
/// See [`MAX_JSON_OUTPUT_BYTES`].
pub const JSON_OUTPUT_FACTOR: usize = 8;
/// Characters of a request's id, which comes back in the answer.
pub const MAX_ID_BYTES: usize = 256;
/// Bytes of a model's name: an owner's, a dot, and a function's.
pub const MAX_NAME_BYTES: usize = 257;
/// How long a granted function is remembered by a name that one's own may get: `OWNER.NAME`.
pub const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Inputs, and outputs, of one inference; the supervisor takes no more of a call.
pub const MAX_TENSORS: usize = 1024;
/// Dimensions of a tensor.
pub const MAX_RANK: usize = 32;
/// Inline bytes of a call's inputs: all that the supervisor takes. More goes through shared memory.
pub const MAX_INLINE_BYTES: u64 = 1 << 20;
/// How long to wait before a lost connection to the supervisor is opened again.
pub const RECONNECT_AFTER: Duration = Duration::from_millis(200);
/// How long the supervisor may take to answer what it does at once.
pub const UPSTREAM_PATIENCE: Duration = Duration::from_secs(10);
/// Sequences of one token that are open.
pub const MAX_SEQUENCES: usize = 1000;
/// How long one of these must be unused to make room for another one.
pub const UNUSED_SEQUENCE: Duration = Duration::from_secs(60);
/// Regions of shared memory of one token.
pub const MAX_REGIONS: usize = 64;
/// Bytes of the name of a region.
pub const MAX_REGION_NAME_BYTES: usize = 256;
/// Pages of functions that a listing asks for: a thousand functions each.
pub const MAX_PAGES: usize = 50;
/// Dots of a model's name at which an owner's name may end.
pub const MAX_SPLITS: usize = 4;
/// How long accepted requests may take once the gateway is told to end.
pub const DRAIN_TIME: Duration = Duration::from_secs(30);
/// Bytes of an answer from which on it is worth compressing.
pub const COMPRESS_FROM_BYTES: usize = 1024;
/// Parts of one message of gRPC: tensors, parameters, numbers that stand alone.
pub const MAX_MESSAGE_PARTS: usize = 65_536;
/// Bytes of one message of gRPC that are numbers in lists of their types; more goes as bytes.
pub const MAX_CONTENTS_BYTES: usize = 1 << 20;
/// Memory for each byte of such numbers: one of one byte takes eight.
pub const CONTENTS_FACTOR: usize = 8;
/// Models that are counted by name for whoever watches.
pub const MAX_COUNTED_MODELS: usize = 1000;
/// Bytes of the name of a request that the supervisor takes.
pub const MAX_REQUEST_ID_BYTES: usize = 128;
/// Bytes of a header of a trace's context; longer ones are not read.
pub const MAX_TRACE_BYTES: usize = 512;
/// Connections of those who watch.
pub const MAX_WATCHERS: usize = 16;
