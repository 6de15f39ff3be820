//! What a panic in a device's threads ends: the part of the work that panicked, with the process that it was for. The
//! policy is in CONTRIBUTING.md.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Does a part of a thread's work. A panic ends that part and is returned in words; what the part left behind is
/// thrown away by the caller: its process is killed, its calls are decided about.
pub(super) fn contained<T>(part: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(part)).map_err(|payload| {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
        format!("the supervisor's thread for it panicked ({text}); this is a fault of Pappus: report it with this log")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_its_part_only_and_says_what_to_do() {
        let why = contained(|| panic!("the test's own panic number {}", 7)).unwrap_err();
        assert!(why.contains("the test's own panic number 7") && why.contains("report it"), "{why}");
        assert_eq!(contained(|| 7), Ok(7));
    }
}
