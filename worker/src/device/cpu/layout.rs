//! The linear memory that a kernel sees, and how kernels are called: the ABI of wasm modules.
//!
//! ```text
//! 0            low        32 MiB           64 MiB                                        4 GiB
//! | stack, data |           | call | scratch | pool …              weights, read-only |    |
//!   private, per module       private          the worker's, shared   the function's
//! ```
//! Everything between is unreachable, and so is the last page: a stray access traps. Where calls can be interrupted, a page
//! lies behind `call` which [their code writes to](super::polls). Where calls are checked, behind
//! `scratch` lies what kernels may reach ([`bounds`](super::bounds)); they themselves do not reach that.
//!
//! A kernel is an export of type `(args: i32, launch: i32, first: i64, count: i64) -> ()`. It runs the
//! blocks `first .. first + count` of the linearised grid, x fastest. `args` is the address of the
//! parameters in slots of 8 bytes, `launch` that of a [`LaunchRecord`].

/// Address space of a 32-bit linear memory.
pub const MEMORY_BYTES: u64 = 1 << 32;
/// Unreachable bytes behind it, so that an address plus a constant offset needs no check.
pub const GUARD_BYTES: u64 = 32 << 20;
/// A page of wasm.
pub const WASM_PAGE: u64 = 64 << 10;
/// A page of the host.
pub const HOST_PAGE: u64 = 4096;

/// The most that a module's stack and data may take.
pub const MAX_LOW_BYTES: u64 = 32 << 20;
/// The launch record.
pub const LAUNCH_AT: u32 = 32 << 20;
/// The parameters of the launch.
pub const ARGS_AT: u32 = LAUNCH_AT + 64;
/// Launch record and parameters.
pub const CALL_BYTES: u64 = 2 * HOST_PAGE;
/// What interruptible code writes to, which is a page of its own.
pub const POLL_AT: u32 = LAUNCH_AT + CALL_BYTES as u32;
/// Dynamic shared memory: reachable as far as launches of the module asked for some.
pub const SCRATCH_AT: u32 = LAUNCH_AT + (64 << 10);
/// The most shared memory of a launch.
pub const MAX_SCRATCH_BYTES: u64 = 256 << 10;
/// What kernels of checked calls may reach.
pub const CHECKS_AT: u32 = LAUNCH_AT + (1 << 20);
/// The pool, at the same place in every module.
pub const POOL_AT: u64 = 64 << 20;
/// Weights end here.
pub const WEIGHTS_END: u64 = MEMORY_BYTES - WASM_PAGE;
/// The longest pool, for functions without weights.
pub const MAX_LEASE_BYTES: u64 = WEIGHTS_END - POOL_AT;

/// A module's stack and data, from address 0 on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LowPart {
    /// How long it is.
    pub bytes: u64,
    /// Where its data segments lie; the rest starts as zeros.
    pub data: std::ops::Range<u64>,
}

/// Where a kernel leaves why it traps, in its stack's far end: this mark, and behind it a text up to a zero
/// (`REQUIRE` of `kernels/c/pappus.h`).
pub const REASON_AT: usize = 8;
/// What stands there.
pub const REASON_MARK: &[u8; 8] = b"REQUIRE:";
/// The longest text.
pub const REASON_BYTES: usize = 192;

/// What a kernel finds at `launch`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct LaunchRecord {
    /// Blocks along x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y, z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared_bytes: u32,
    /// Its address.
    pub shared_at: u32,
    /// Where a checked call takes what kernels print, and how many bytes of it; none in other calls.
    pub prints_at: u32,
    /// See [`LaunchRecord::prints_at`].
    pub prints_bytes: u32,
}

/// Bytes of a [`LaunchRecord`].
pub const LAUNCH_BYTES: usize = 40;

impl LaunchRecord {
    /// The record as it lies in memory.
    pub fn to_bytes(self) -> [u8; LAUNCH_BYTES] {
        let [gx, gy, gz] = self.grid;
        let [bx, by, bz] = self.block;
        let mut bytes = [0; LAUNCH_BYTES];
        let (prints_at, prints_bytes) = (self.prints_at, self.prints_bytes);
        let words = [gx, gy, gz, bx, by, bz, self.shared_bytes, self.shared_at, prints_at, prints_bytes];
        for (slot, word) in bytes.chunks_exact_mut(4).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

const _: () = {
    use pappus_blueprint::limits;
    assert!(LAUNCH_BYTES <= (ARGS_AT - LAUNCH_AT) as usize);
    assert!(limits::PARAM_BYTES <= CALL_BYTES - (ARGS_AT - LAUNCH_AT) as u64);
    assert!(limits::SHARED_BYTES <= MAX_SCRATCH_BYTES);
    assert!(CALL_BYTES + HOST_PAGE <= (SCRATCH_AT - LAUNCH_AT) as u64);
    assert!(SCRATCH_AT as u64 + MAX_SCRATCH_BYTES <= CHECKS_AT as u64);
    assert!(MAX_LOW_BYTES <= LAUNCH_AT as u64);
};
