//! Fenced text as the rewriter writes it is accepted.

use pappus_fence::check;

/// Every form of the fence, written by hand.
pub(crate) const EVERYTHING: &str = include_str!("everything.ptx");

#[test]
fn every_form_of_the_fence_is_accepted() {
    let kernels = check(EVERYTHING).map(|checked| checked.kernels);
    assert_eq!(kernels, Ok(vec!["everything".to_owned(), "nothing".to_owned()]));
}
