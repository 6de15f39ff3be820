//! The blueprint format and the planner: JSON → [`Blueprint`] → [`Plan`].
//!
//! Everything here is pure: no files, no devices, no clock. The supervisor and the worker both plan
//! from the same blueprint and the same [`Sizes`], and get the same plan.
//! `docs/blueprint.md` is the reference of the format for kernel authors.
//!
//! In reading order:
//! - `limits`: every limit, in one place
//! - `cursor`: JSON text, token by token
//! - [`hints`]: what an unknown name was meant to be, and which there are
//! - `place`: where in the text a place of the JSON is
//! - `error`: what is wrong, and at which place of the JSON
//! - `types`: types that the format, the planner and plans share
//! - `read`: how objects, lists and numbers of the format are read, every mistake noted
//! - `write`: the same types as JSON again
//! - `format`: the JSON as written: what is read, and what the schema says
//! - `small_float`: the nearest float of 8 or 16 bits, for arguments and constants
//! - `arrays`: arrays of a call, and what is declared of inputs: whether one fits the other
//! - `size`: sizes that compute: one table of shared expressions, arithmetic that never wraps
//! - `blueprint`: the blueprint, resolved: indices instead of names
//! - `launches`: launches as far as they are known without sizes
//! - `launch`: what a launch configuration may be
//! - `resolve`: format → blueprint, with every check that needs no sizes
//! - `plan`: what a worker executes: offsets, steps, parameter bytes
//! - `layout`: buffers of large plans that share memory, and what is cleared in between
//! - `terms`: what the value of a size comes from, for errors
//! - `warnings`: what a blueprint declares and nothing uses
//! - `planner`: blueprint + sizes → plan, with every check that needs them
//! - `binding`: the arrays of a call against the inputs: the free dimensions
//! - `weights`: what the bytes of the weights alone decide, before any call
//! - `checked`: the blueprint of checked calls
//! - `cache`: plans by what they depend on, bounded
//! - `expression`: symbolic sums of products, for people
//! - [`kernel_info`]: what a module tells of its kernels; [`fit`]: a blueprint against that
//! - [`ptx`]: what PTX declares of its kernels, to compare it with a blueprint
//! - [`hsaco`]: the same for machine code of AMD's, which is judged to the end
//! - [`signatures`]: the same for wasm, in a section of its own
//! - [`code`]: the formats of modules: names, which devices run them, what a file tells
//! - [`compose`]: the linker: a composition and its functions become one function
//! - `describe`: `pappus function check`: buffers, memory, launches, as far as they are known

#![forbid(unsafe_code)]

mod arrays;
mod binding;
mod blueprint;
mod cache;
mod checked;
pub mod code;
pub mod compose;
mod cursor;
mod describe;
mod error;
mod expression;
pub mod fit;
mod format;
pub mod hints;
pub mod hsaco;
pub mod kernel_info;
mod launch;
mod launches;
mod layout;
pub mod limits;
mod place;
mod plan;
mod planner;
pub mod ptx;
mod read;
mod resolve;
pub mod signatures;
mod size;
mod small_float;
mod terms;
mod types;
mod warnings;
mod weights;
mod write;

#[cfg(test)]
mod tests;

pub use arrays::{Array, Declared, Dimension, Misfit, fit_all_bytes};
pub use blueprint::{
    BatchDimension, Blueprint, Buffer, BufferId, Kernel, Module, Role, WeightFile, WeightLayout, WordRef,
};
pub use cache::{CacheBounds, PlanCache};
pub use checked::{GUARD_BYTES, PRINTED, PRINTED_BYTES};
pub use describe::{BufferDescription, Description, Known, describe};
pub use error::{Error, Mistakes};
pub use expression::Amount;
pub use launches::{Launch, PassedParam};
pub use place::Position;
pub use plan::{
    Expanded, Location, Param, ParamTable, Placement, Plan, Relocation, Shape, Space, Step, TensorMap,
};
pub use planner::Sizes;
pub use resolve::parse;
pub use types::{BoxFill, DType, Isolation, ParamKind, Swizzle};
