//! Checks of fenced text: what is accepted, and what must not be.

mod accepted;
