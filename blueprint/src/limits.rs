//! Every limit of the format, in one place. A blueprint is written by a tenant: anything
//! without a limit here is limited by the length of its JSON.

/// Bytes of JSON.
pub const JSON_BYTES: usize = 4 << 20;
/// Objects and lists within each other.
pub const JSON_DEPTH: usize = 128;
/// Mistakes that are told of one document; further ones are counted.
pub const MISTAKES: usize = 20;
/// Names that are listed where another is unknown, and that it is compared with.
pub const LISTED_NAMES: usize = 12;
/// See [`LISTED_NAMES`].
pub const COMPARED_NAMES: usize = 256;
/// Bytes of a name that is compared with others.
pub const COMPARED_BYTES: usize = 64;
/// Memory that reading it takes at the most, in times of its bytes.
pub const PARSE_MEMORY: u64 = 8;
/// Buffers, inputs and weights included.
pub const BUFFERS: usize = 4096;
/// Buffers of a plan that share memory with others: the largest. Each may add one fill to the plan's steps.
pub const SHARING_BUFFERS: usize = 2048;
/// Inputs.
pub const INPUTS: usize = 1024;
/// Outputs.
pub const OUTPUTS: usize = 1024;
/// Modules.
pub const MODULES: usize = 512;
/// Kernels.
pub const KERNELS: usize = 1024;
/// Bytes of the name of a buffer, kernel or module.
pub const NAME_BYTES: usize = 255;
/// Bytes of the path of a module or weight file.
pub const PATH_BYTES: usize = 4096;
/// Distinct words that `FromInput` reads.
pub const WORDS: usize = 1024;
/// Names of free dimensions.
pub const FREE_DIMENSIONS: usize = 256;
/// Items that calls which run together may have along their batch.
pub const BATCH: u64 = 65_536;
/// Microseconds that a call may wait for others of its function.
pub const BATCH_DELAY_US: u64 = 1_000_000;
/// Distinct sizes that compute and depend on the call.
pub const COMPUTED_SIZES: usize = 65_536;
/// Levels of sizes within a size.
pub const SIZING_DEPTH: usize = 16;
/// Levels of `Repeat`.
pub const REPEAT_DEPTH: usize = 16;
/// Actions as written.
pub const JSON_STEPS: usize = 262_144;
/// Launches, copies and fills that one invocation executes; those that the planner adds are not counted.
pub const EXPANDED_STEPS: u64 = 1_000_000;
/// Parameters of one launch.
pub const PARAMS: usize = 512;
/// Bytes of the parameters of one launch, each rounded up to a slot of 8.
pub const PARAM_BYTES: u64 = 4096;
/// Bytes of all distinct parameter lists of a blueprint.
pub const PARAM_TABLE_BYTES: u64 = 16 << 20;
/// Alignment of a struct passed by value.
pub const STRUCT_ALIGN: u64 = 16;
/// Dimensions of a tensor map.
pub const MAP_RANK: usize = 5;
/// Elements of a tensor map along one dimension.
pub const MAP_ELEMENTS: u64 = 1 << 32;
/// Alignment of a tensor map's address, strides and innermost box, in bytes.
pub const MAP_ALIGN: u64 = 16;
/// Elements of a tensor map's box along one dimension.
pub const MAP_BOX: u32 = 256;
/// Bytes of a tensor map as a parameter, and their alignment.
pub const MAP_BYTES: u64 = 128;
/// See [`MAP_BYTES`].
pub const MAP_PARAM_ALIGN: u64 = 64;
/// Blocks of a grid along x, y and z.
pub const GRID: [u64; 3] = [i32::MAX as u64, 65_535, 65_535];
/// Threads of a block along x, y and z.
pub const BLOCK: [u64; 3] = [1024, 1024, 64];
/// Threads of a block.
pub const BLOCK_THREADS: u64 = 1024;
/// Blocks of a cluster.
pub const CLUSTER_BLOCKS: u64 = 8;
/// Bytes of dynamic shared memory.
pub const SHARED_BYTES: u64 = 227 << 10;
/// Bytes of one buffer, of the pool, and of all weights together.
pub const MEMORY_BYTES: u64 = 1 << 40;
/// Dimensions of a shape.
pub const RANK: usize = 32;
/// Alignment of buffers in the pool and of weights in their block.
pub const BUFFER_ALIGN: u64 = 256;
/// Bytes of an error's path and of its message; longer ones are cut.
pub const ERROR_BYTES: usize = 1024;
/// Bytes of the JSON of a composition.
pub const COMPOSITION_BYTES: usize = 1 << 20;
/// Steps of a composition.
pub const STEPS: usize = 1024;
/// Bytes of the name of a step.
pub const STEP_NAME_BYTES: usize = 64;
/// Items that a step is run for.
pub const ITEMS: u64 = 1024;
/// Runs of steps in a linked function: one for each step, or one for each of its items.
pub const RUNS: u64 = 4096;
/// Bytes of the constants of a composition.
pub const CONSTANT_BYTES: u64 = 1 << 20;
/// Sizes of the functions of all steps, which the linker computes.
pub const LINKED_SIZES: usize = COMPUTED_SIZES;
/// Inputs, weights and buffers of all runs; the linked function has at most [`BUFFERS`] of them.
pub const LINKED_BUFFERS: u64 = 262_144;
/// How often the linker compares all shapes, until it learns nothing new of free dimensions.
pub const LINKING_PASSES: usize = 8;
