//! Shared memory between processes that do not trust each other.
//!
//! In reading order:
//! - [`memfd`]: creating sealed memfds and judging those that others hand in.
//! - [`mapping`]: mapping a checked memfd; every access is a bounds-checked copy.
//! - [`words`]: a page of atomic words that two processes share.
//! - [`reservation`]: a reserved address range into which memory is mapped piece by piece.
//! - [`heap`]: what the allocator keeps of freed memory.
//! - [`fds`]: bytes with descriptors over Unix sockets (`SCM_RIGHTS`).
//! - [`table`]: threads with a table of descriptors of their own.
//!
//! A mapping of memory that another process can write never becomes a Rust slice: the other side may
//! change it at any time, so it is only ever copied from and to by raw pointer, or reached as atomic words.

pub mod fds;
pub mod heap;
pub mod last_close;
pub mod mapping;
pub mod memfd;
pub mod reservation;
pub mod table;
pub mod words;

pub use mapping::Mapping;
pub use memfd::{MemfdError, ValidatedMemfd};
pub use reservation::{Protection, Reservation};
pub use words::SharedWords;
