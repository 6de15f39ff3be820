//! x
pub mod config;
pub mod limits;
pub mod schedule;
