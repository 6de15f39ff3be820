//! What a window is to a kernel, and what the fence's names are: constants that rewriter, checker and worker agree on. Limits of
//! what is read are here as well, each checked before anything is allocated for what it counts.

/// What names begin with that only the fence may use: symbols, and with `$` or `%` before it labels and registers.
pub const RESERVED: &str = "pappus_";
/// The last parameter of each kernel: the upper half of the window's address.
pub const WINDOW: &str = "pappus_window";
/// The register that holds the upper half of the window's address.
pub const HI: &str = "%pappus_hi";
/// The register that holds the lower half of an address.
pub const LO: &str = "%pappus_lo";
/// The register that counts down to the next look at the stop word.
pub const FUEL_LEFT: &str = "%pappus_fuel";
/// The register of fenced addresses.
pub const AT: &str = "%pappus_at";
/// The register that holds where a local array begins.
pub const BASE: &str = "%pappus_base";
/// The predicate of the fence's own branches.
pub const OUT: &str = "%pappus_out";

/// Backward branches of a thread between two looks at the stop word.
pub const FUEL: u32 = 1024;
/// Where in its window the stop word lies: kernels read it, the worker writes it. Threads exit where it is not zero.
pub const STOP: u32 = 0xffff_f000;
/// Where in its window a module's variables begin.
pub const VARIABLES_BEGIN: u32 = 0x1000_0000;
/// Bytes of a module's variables.
pub const VARIABLES_LIMIT: u64 = 256 << 20;
/// Bytes of a function's local arrays together.
pub const LOCAL_LIMIT: u64 = 4 << 10;
/// The PTX version that has the registers by which shared memory is cleared.
pub const CLEARING_VERSION: (u32, u32) = (8, 1);
/// The target that has these registers, as in `sm_90`.
pub const CLEARING_TARGET: u32 = 90;
/// The newest PTX version.
pub const NEWEST_VERSION: (u32, u32) = (9, 0);
/// The oldest target, as in `sm_70`.
pub const OLDEST_TARGET: u32 = 70;

/// Bytes of one text.
pub const TEXT_LIMIT: usize = 16 << 20;
/// Bytes of one name.
pub const NAME_LIMIT: usize = 1 << 12;
/// Scopes within each other.
pub const NESTING_LIMIT: usize = 32;
/// Registers, vectors' members and arguments of one instruction.
pub const OPERAND_LIMIT: usize = 1 << 10;
/// Registers that one declaration such as `%r<9>` declares.
pub const REGISTER_LIMIT: u64 = 1 << 24;
/// Statements and declarations that a module's calls are replaced by.
pub const COPY_LIMIT: usize = 1 << 20;
/// Reasons that are listed of one module.
pub const REASON_LIMIT: usize = 1 << 10;
/// Bytes of a fenced text for each byte of its source, at most, above a fixed part.
pub const GROWTH_LIMIT: usize = 64;
