//! Every order of events, for what threads of the supervisor share: loom runs each case once for each order in which
//! its threads may meet, with every value that the memory model lets them see.
//!
//! The code under test is the supervisor's own files, and the turn page of the protocol, compiled with loom's types in the place of the standard
//! library's (`concurrent/mod.rs`). Each case has a control with a plausible mistake, which loom must find.

#![allow(clippy::unwrap_used)]

mod command_order;
mod concurrent;
mod one_answer;
mod open_calls;
mod owed_answers;
mod turn_page;
