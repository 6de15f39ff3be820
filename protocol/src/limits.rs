//! Limits between supervisor and workers, each checked before anything is allocated.

/// Bytes of one message's body.
pub const MAX_BODY_BYTES: usize = 128 << 10;
/// Bytes of a module, for any device.
pub const MAX_MODULE_BYTES: usize = 16 << 20;
/// Items of one invocation's inputs.
pub const MAX_ITEMS: usize = 1024;
/// Outputs of one invocation.
pub const MAX_OUTPUTS: usize = 1024;
/// Scalars (numbers in inputs that sizes depend on, and free dimensions) of one invocation.
pub const MAX_SCALARS: usize = 1280;
/// Descriptors that belong to one message: a function's configuration and modules.
pub const MAX_FDS: usize = 520;
/// Bytes of a fault's message; longer ones are cut.
pub const MAX_FAULT_BYTES: usize = 2048;
/// Bytes of pipe buffer asked for; the kernel may grant less.
pub const PIPE_BYTES: usize = 1 << 20;
/// Bytes of device memory and weights together, each rounded up to whole pages, that a function has at most in a worker which strangers
/// share on a GPU: a window of addresses has room for them.
pub const SHARED_BYTES: u64 = 3 << 30;
