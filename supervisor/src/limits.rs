//! Limits of the supervisor, each checked before anything is allocated.

use std::num::NonZero;
use std::sync::OnceLock;

use pappus_proto::limits::MAX_INLINE_BYTES;

/// Clients' connections at once.
pub const MAX_CONNECTIONS: usize = 1024;
/// Of these, connections of one tenant.
pub const MAX_CONNECTIONS_PER_TENANT: usize = 512;
/// Refused connections that wait to be closed at once.
pub const MAX_REFUSED: usize = 256;
/// Connections on the admin socket at once.
pub const MAX_ADMIN_CONNECTIONS: usize = 64;
/// Threads for sockets: decoding and handing on, nothing that takes long. Two are busy with 180 000 of the shortest calls in a
/// second, more than one GPU runs; machines with several GPUs have more processors.
pub fn socket_threads() -> usize {
    (processors() / 8).clamp(2, 8)
}

/// Processors that the process might use when it began.
pub fn processors() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| std::thread::available_parallelism().map_or(1, NonZero::get))
}
/// Cold requests of one connection that are worked on at once; the next one waits unread.
pub const MAX_COLD_REQUESTS: usize = 16;
/// Cold requests of one tenant that are worked on at once, on all its connections.
pub const MAX_SLOW_REQUESTS_PER_TENANT: usize = 4;
/// Invocations of one connection without an answer.
pub const MAX_CALLS_PER_CONNECTION: usize = 4096;
/// What each connection takes of its tenant's memory for requests, as long as it is open: 64 KiB for what is read, and as much
/// for a frame that is not whole.
pub const CONNECTION_BYTES: u64 = 128 << 10;
/// Tenants that have a seat at one connection of a gateway, whose requests are from many.
pub const MAX_SEATS: usize = 16_384;
/// Arenas of one connection, and at a gateway's of each tenant.
pub const MAX_ARENAS_PER_CONNECTION: usize = 64;
/// Sessions of one connection, and at a gateway's of each tenant.
pub const MAX_SESSIONS_PER_CONNECTION: usize = 1024;
/// Sessions that are shown.
pub const MAX_SESSIONS_SHOWN: usize = 200;
/// Bytes of a record in the state directory: more than any that is written, of 50 000 callers or of a function with a signature.
pub const MAX_RECORD_BYTES: u64 = 64 << 20;
/// Bytes of answers that a client has not read before it is dropped.
pub const MAX_UNREAD_BYTES: usize = 16 << 20;
/// How long a new connection may take for its greeting, in milliseconds.
pub const HANDSHAKE_MS: u64 = 5_000;

/// Entries of one page of a list.
pub const LIST_PAGE: usize = 1_000;
/// Bytes of names of a function's inputs and outputs, which its record has: callers and gateways go by them.
pub const MAX_SIGNATURE_BYTES: usize = 16 << 10;
/// Bytes of names of a function's modules that a list shows; those of larger ones are shown by `show` only.
pub const LISTED_MODULE_BYTES: usize = 1024;
/// How often a request begins anew since others of the tenant changed what it had read.
pub const MAX_OVERTAKEN: u32 = 100;
/// Bytes of the types that a record keeps of a function's inputs and outputs, as [`DECLARED_BYTES`] and
/// [`DIMENSION_BYTES`] count them; of larger ones it keeps none.
pub const MAX_TYPES_BYTES: usize = 16 << 10;
/// Bytes that a type and a dimension count besides their text.
pub const DECLARED_BYTES: usize = 16;
/// See [`DECLARED_BYTES`].
pub const DIMENSION_BYTES: usize = 16;
/// Bytes of a dimension's formula; of a longer one it is only told that there is one.
pub const MAX_FORMULA_BYTES: usize = 128;
/// Bytes of one answer to a list of functions: there is another page behind it.
pub const LIST_BYTES: usize = 1 << 20;
/// Functions of one tenant, unless the configuration says otherwise; so are those that follow.
pub const DEFAULT_FUNCTIONS: u64 = 50_000;
/// Bytes of one tenant's modules.
pub const DEFAULT_MODULE_BYTES: u64 = 8 << 30;
/// Bytes that one tenant handed over.
pub const DEFAULT_BLOB_BYTES: u64 = 256 << 30;
/// Files that these bytes are in.
pub const DEFAULT_BLOB_FILES: u64 = 200_000;
/// Bytes of one tenant's arenas.
pub const DEFAULT_ARENA_BYTES: u64 = 256 << 30;
/// Of these, bytes that workers map.
pub const DEFAULT_PINNED_BYTES: u64 = 64 << 30;
/// Bytes of the state of one tenant's sessions, twice over.
pub const DEFAULT_SESSION_BYTES: u64 = 16 << 30;
/// Invocations of one tenant without an answer.
pub const DEFAULT_CALLS: u64 = 8192;
/// Invocations of one tenant that wait on one device: less than half of all that may wait there.
pub const DEFAULT_QUEUED_CALLS: u64 = 4096;
/// Their inline bytes, likewise.
pub const DEFAULT_QUEUED_BYTES: u64 = 96 << 20;
/// Memory for one tenant's requests.
pub const DEFAULT_REQUEST_BYTES: u64 = 256 << 20;
/// Memory for one tenant's answers that are not read.
pub const DEFAULT_ANSWER_BYTES: u64 = 64 << 20;
/// Memory for one tenant's functions and plans.
pub const DEFAULT_PLAN_BYTES: u64 = 256 << 20;
/// Memory for one tenant's weights.
pub const DEFAULT_WEIGHT_BYTES: u64 = 64 << 30;
/// Descriptors of one tenant's arenas and calls.
pub const DEFAULT_DESCRIPTORS: u64 = 4096;
/// Functions of one tenant in memory.
pub const DEFAULT_LOADED: u64 = 512;
/// Tenants that may call a function besides its owner.
pub const MAX_GRANTS: usize = 1_000;
/// Aliases of one function's versions.
pub const MAX_ALIASES: usize = 32;
/// The most that `kept-versions` may be.
pub const MAX_KEPT_VERSIONS: u64 = 100;
/// Functions that one tenant may grant to another, who finds them in its list without having asked.
pub const MAX_GRANTS_TO_ONE: usize = 1_000;
/// Owners whose functions a tenant may decline to see.
pub const MAX_DECLINED: usize = 1_000;
/// Bytes that the kernel takes as a socket's path, without the zero at its end.
pub const SOCKET_PATH_BYTES: usize = 107;
/// Bytes of the configuration file.
pub const MAX_CONFIG_BYTES: u64 = 16 << 20;
/// Tenants that the configuration may name.
pub const MAX_CONFIGURED_TENANTS: usize = 10_000;
/// Tokens of one tenant: the old and the new one while they are exchanged.
pub const MAX_TOKENS: usize = 8;
/// Bytes of a token.
pub const MAX_TOKEN_BYTES: usize = 1024;
/// Tenants whose device time is shown and exported for each device.
pub const MAX_TENANTS_SHOWN: usize = 1_000;
/// Functions whose use is shown.
pub const MAX_USES_SHOWN: usize = 200;
/// Processes that are named for each tenant.
pub const MAX_PEERS_SHOWN: usize = 16;
/// Modules registered by name of one tenant.
pub const MAX_MODULES: usize = 10_000;
/// Compositions that are linked again when a function that they run is replaced.
pub const MAX_LINKED_AGAIN: usize = 64;
/// Bytes of a module.
pub const MAX_MODULE_BYTES: u64 = pappus_protocol::limits::MAX_MODULE_BYTES as u64;
/// Bytes of all weights of a function: what a cpu worker can map beside its lease.
pub const MAX_WEIGHT_BYTES: u64 = MAX_CPU_LEASE_BYTES;
/// Variants of one module.
pub const MAX_VARIANTS: usize = 32;
/// Kernels and parameters that an answer describes; of modules beyond that it has the names only.
pub const MAX_DETAILS: usize = 10_000;
/// Kernels and parameters of all modules of a function, those of the same content counted once: one request has all of them in memory.
pub const MAX_FUNCTION_DETAILS: usize = 100_000;
/// Bytes of kernels' names in an answer; of modules beyond that it has none.
pub const MAX_KERNEL_NAMES: usize = 1 << 20;
/// Parsed functions kept in memory.
pub const MAX_LOADED: usize = 1024;
/// Plans kept per tenant.
pub const MAX_PLANS: usize = 512;
/// Bytes of plans kept per tenant.
pub const MAX_PLAN_BYTES: usize = 8 << 20;

/// Built-in devices.
pub const MAX_CPU_DEVICES: u32 = 16;
/// Workers of one device.
pub const MAX_WORKERS: usize = 64;
/// Lanes of one worker.
pub const MAX_LANES: u32 = 32;
/// Shortest and longest turn while others wait, in microseconds.
pub const MIN_QUANTUM_US: u64 = 100;
/// See [`MIN_QUANTUM_US`].
pub const MAX_QUANTUM_US: u64 = 1_000_000;
/// Device memory of one cpu worker: wasm's 4 GiB of addresses less what the device keeps for itself.
pub use pappus_protocol::kind::MAX_CPU_LEASE_BYTES;
/// The most device memory that the CPU device may be given.
pub const MAX_CPU_MEMORY_BYTES: u64 = 1 << 50;
/// Functions installed in one worker at once; the one used longest ago goes first.
pub const MAX_INSTALLED: usize = 256;
/// Bytes of a lane's staging range: inline inputs and outputs of one call.
pub const STAGING_BYTES: u64 = 2 << 20;
/// Longest spin in microseconds.
pub const MAX_POLL_US: u64 = 1_000_000;

/// Most failures that a setting may count.
pub const MAX_FAILURES: u32 = 1_000_000;
/// Shortest and longest time that a call may be in the way of others, in milliseconds, where that is limited.
pub const MIN_OVERRUN_MS: u64 = 100;
/// See [`MIN_OVERRUN_MS`].
pub const MAX_OVERRUN_MS: u64 = 3_600_000;
/// The largest weight of a tenant.
pub const MAX_WEIGHT: u32 = 1000;
/// How long a worker may take to get ready, in seconds.
pub const WORKER_START_S: u64 = 20;
/// How long a look for GPUs, or at what they measure, may take, in seconds.
pub const SURVEY_S: u64 = 20;
/// The power that a device may say it draws, in milliwatts.
pub const MAX_POWER_MW: u32 = 10_000_000;
/// The energy that a device may say it took, in millijoules: at that power, 28 years.
pub const MAX_ENERGY_MJ: u64 = 1 << 53;
/// How long a module may take to compile, in seconds.
pub const COMPILE_S: u64 = 60;
/// Compilations of tenants at once, at most one of each; processor time is shared by the kernel.
pub const MAX_COMPILATIONS: usize = 8;
/// Compilations of the operator at once, besides.
pub const OPERATOR_COMPILATIONS: usize = 2;
/// Threads that the runtime has for work that waits. Work that keeps a socket's thread counts twice: another thread
/// takes that one's place meanwhile.
pub const MAX_BLOCKING_THREADS: usize = 96;
/// Of these, how many work of tenants may keep at once.
pub const MAX_TENANTS_THREADS: usize = 32;
/// Device memory of a lane in a worker of a GPU that all domains share. A lane keeps what it was lent: this and weights have room of
/// their own in a window of addresses.
pub const SHARED_POOL_BYTES: u64 = 1 << 30;
/// Weights of a function that runs there.
pub const SHARED_WEIGHTS_BYTES: u64 = pappus_protocol::limits::SHARED_BYTES - SHARED_POOL_BYTES;
/// Arenas of a call that runs there: a worker that pins memory serves nobody meanwhile. The driver takes
/// 8.4 ms for 256 MiB whose pages are there; others are cleared first.
pub const SHARED_ARENA_BYTES: u64 = 128 << 20;
/// The shortest and the longest time that an operator may say for it, in microseconds.
pub const MIN_SHARED_LIMIT_US: u64 = 100;
/// See [`MIN_SHARED_LIMIT_US`].
pub const MAX_SHARED_LIMIT_US: u64 = 10_000_000;
/// The longest [`RESIDENCY_NS`](crate::schedule::limits::RESIDENCY_NS) that a device may say, in microseconds.
pub const MAX_RESIDENCY_US: u64 = 600_000_000;

// Sets of workers, and of the lanes of one, are bits of a `u64`.
const _: () = assert!(MAX_WORKERS <= 64 && MAX_LANES <= 64);
// Inline data of one call fits into its lane's staging range, rounded up to 8 bytes.
const _: () = assert!(STAGING_BYTES >= MAX_INLINE_BYTES + 8);
// What a client may send, a worker may be sent.
const _: () = assert!(pappus_proto::limits::MAX_ITEMS <= pappus_protocol::limits::MAX_ITEMS);
const _: () = assert!(pappus_blueprint::limits::OUTPUTS <= pappus_protocol::limits::MAX_OUTPUTS);
const _: () = assert!(pappus_blueprint::limits::MODULES < pappus_protocol::limits::MAX_FDS);
const _: () = assert!(
    pappus_blueprint::limits::WORDS + pappus_blueprint::limits::FREE_DIMENSIONS
        <= pappus_protocol::limits::MAX_SCALARS
);
