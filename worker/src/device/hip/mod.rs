//! AMD GPUs: the driver that [`gpu`](super::gpu) runs calls with.
//!
//! - [`sys`]: the declarations of the driver's library.

#![allow(unsafe_code, reason = "the driver is a C library")]

pub mod sys;
