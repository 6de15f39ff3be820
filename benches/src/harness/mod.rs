//! What all parts measure with.
//!
//! - [`sampling`]: rounds, medians, percentiles.
//! - [`cores`]: keeping something on a core.
//! - [`pace`]: waiting for a moment.
//! - [`pipes`]: the floor of anything that asks another process.
//! - [`supervisor`]: a supervisor of one's own.
//! - [`gateway`]: a gateway in front of it, and clients over gRPC and HTTP.
//! - [`functions`]: the library's functions registered in it, and calls of them.

pub mod cores;
pub mod functions;
pub mod gateway;
pub mod pace;
pub mod pipes;
pub mod sampling;
pub mod supervisor;
