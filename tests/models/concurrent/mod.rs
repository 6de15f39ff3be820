//! The supervisor's `concurrent` folder over loom, and the protocol's turn page.

// What no case uses is used by the supervisor.
#![allow(dead_code, unreachable_pub)]

#[path = "../../../supervisor/src/concurrent/one_answer.rs"]
pub mod one_answer;
#[path = "../../../supervisor/src/concurrent/open_calls.rs"]
pub mod open_calls;
#[path = "../../../supervisor/src/concurrent/owed_answers.rs"]
pub mod owed_answers;
pub mod sync;
#[path = "../../../protocol/src/turn_page.rs"]
pub mod turn_page;

pub use pappus_protocol::ids;
