//! A library that looks like `libamdhip64.so.7` of HIP 7.1 to Pappus and runs kernels on the processor, so that tests
//! of the HIP device need no GPU. It is built by the tests, put into a folder under the names of HIP's library and of
//! the one below it (`libhsa-runtime64.so.1`), and found through `LD_LIBRARY_PATH`. Nothing installs it.
//!
//! What each call does is what AMD documents of HIP 7.1; where it is stricter than the real library, a comment says so.
//!
//! In reading order:
//! - [`settings`]: the file `lookalike` beside the library says which GPU it is.
//! - [`error`]: results, the error that sticks after a fault, and how faults are reported.
//! - [`ledger`]: how much memory all processes have, in the file `lookalike.memory` beside the library.
//! - [`ranges`]: what kernels reach, and how.
//! - [`memory`]: device memory, mappings, host memory. Device memory lies in memfds, mapped where kernels see it.
//! - [`module`]: code objects and launches.
//! - [`stream`]: streams, each with a thread; events, captures, graphs.
//! - [`exports`]: the functions as C sees them.

mod error;
mod exports;
mod ledger;
mod memory;
mod module;
mod ranges;
mod settings;
mod stream;
