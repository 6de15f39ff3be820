//! What a panic in a device's threads ends: the part of the work that panicked, with the process that it was for. The
//! policy is in CONTRIBUTING.md.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// A part of a thread's work panicked; in the panic's words.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the supervisor's thread for it panicked ({0}); this is a fault of Pappus: report it with this log")]
pub(super) struct Panicked(String);

/// Does a part of a thread's work. A panic ends that part and is returned; what the part left behind is thrown away by
/// the caller: its process is killed, its calls are decided about.
pub(super) fn contained<T>(part: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(part)).map_err(|payload| {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        Panicked(text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_its_part_only_and_says_what_to_do() {
        let why = contained(|| panic!("the test's own panic number {}", 7)).unwrap_err().to_string();
        assert!(why.contains("the test's own panic number 7") && why.contains("report it"), "{why}");
        assert_eq!(contained(|| 7), Ok(7));
    }
}
