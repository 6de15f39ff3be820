//! What several threads share while a call is answered. Each type is small and uses nothing but `sync`, so that
//! `tests/models` can compile the same files against loom, which tries every order of events.

pub mod one_answer;
pub mod open_calls;
#[cfg(test)]
mod open_calls_tests;
pub mod owed_answers;
mod sync;

pub use one_answer::OneAnswer;
pub use open_calls::{OpenCall, OpenCalls, OpenError};
pub use owed_answers::OwedAnswers;
