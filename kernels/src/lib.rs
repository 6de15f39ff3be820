//! The kernels that come with Pappus: compiled for every device, their configurations, and what
//! they must compute.
//!
//! - [`artefacts`]: the compiled modules (`built/`), as bytes
//! - [`authoring`]: headers and templates for kernels of others
//! - [`configs`]: the functions made of them (`configs/`), as JSON
//! - [`photo`]: a picture to run the `picture` function on
//! - [`mod@reference`]: the same in plain Rust, to compare with
//! - [`synthetic`]: code objects of AMD's with whatever kernels a test wants
//! - [`bytes`]: from numbers to the bytes of a buffer and back
//!
//! The sources are in `c/`; `scripts/kernels` compiles them.
#![forbid(unsafe_code)]

pub mod artefacts;
pub mod authoring;
pub mod bytes;
pub mod configs;
pub mod photo;
pub mod reference;
pub mod synthetic;

pub use artefacts::{ARTEFACTS, artefact};
pub use configs::{CONFIGS, config};
