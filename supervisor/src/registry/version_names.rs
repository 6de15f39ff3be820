//! How versions of functions are called by those who name them, and which of them go when another one is kept. Pure.

use pappus_proto::limits::is_valid_name;

/// Which version of a function is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which<'n> {
    Current,
    Number(u32),
    Alias(&'n str),
}

/// Where a reference goes on behind the name, with a number (`@`) or an alias (`:`): no name has these.
fn mark(reference: &str) -> Option<usize> {
    reference.bytes().position(|byte| matches!(byte, b'@' | b':'))
}

/// The function that a reference is about, and which version of it; none where it is no reference.
pub(super) fn split(reference: &str) -> Option<(&str, Which<'_>)> {
    let Some(at) = mark(reference) else { return Some((reference, Which::Current)) };
    let (name, which) = (&reference[..at], &reference[at + 1..]);
    if reference[at..].starts_with(':') {
        return is_valid_name(which).then_some((name, Which::Alias(which)));
    }
    // One spelling for each number.
    let is_plain = !which.starts_with('0') && which.bytes().all(|digit| digit.is_ascii_digit());
    let number = which.parse().ok().filter(|_| is_plain)?;
    Some((name, Which::Number(number)))
}

/// The function that a version, by whichever reference, is one of.
pub(super) fn base(reference: &str) -> &str {
    mark(reference).map_or(reference, |at| &reference[..at])
}

/// True if a reference names something else than the current version.
pub(super) fn is_marked(reference: &str) -> bool {
    mark(reference).is_some()
}

/// What the record of a kept version is called.
pub(super) fn kept_name(name: &str, number: u32) -> String {
    format!("{name}@{number}")
}

/// Of the kept versions and the one that is to be kept besides, those that go so that at most `most` are kept: the oldest that
/// are not named elsewhere, and the one that was current only if no other can. None where too many are named.
pub(super) fn to_drop(
    kept: &[u32],
    replaced: u32,
    most: usize,
    is_named: impl Fn(u32) -> bool,
) -> Option<Vec<u32>> {
    let excess = (kept.len() + 1).saturating_sub(most);
    let free = kept.iter().chain([&replaced]).copied().filter(|number| excess > 0 && !is_named(*number));
    let dropped: Vec<u32> = free.take(excess).collect();
    (dropped.len() == excess).then_some(dropped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_has_one_spelling_and_hostile_ones_are_none() {
        assert_eq!(split("a"), Some(("a", Which::Current)));
        assert_eq!(split("a@12"), Some(("a", Which::Number(12))));
        assert_eq!(split("a:live"), Some(("a", Which::Alias("live"))));
        assert_eq!(split("a@4294967295"), Some(("a", Which::Number(u32::MAX))));
        for bad in [
            "a@",
            "a@0",
            "a@01",
            "a@-1",
            "a@+1",
            "a@ 1",
            "a@1 ",
            "a@1@2",
            "a@1:b",
            "a:b:c",
            "a:b@1",
            "a:",
            "a:.b",
            "a:b/c",
            "a@4294967296",
            "a@99999999999999999999",
            "a@x",
            "a@١",
            "@",
            ":",
            "@@",
        ] {
            assert_eq!(split(bad), None, "{bad}");
        }
        // Nothing is called so.
        assert_eq!(split("@1"), Some(("", Which::Number(1))));
        assert_eq!(["a", "a@1", "a:b@c", "@1"].map(base), ["a", "a", "a", ""]);
        assert_eq!(["a.b-c_1", "a@", ":"].map(is_marked), [false, true, true]);
    }

    #[test]
    fn the_oldest_version_goes_first_and_none_that_is_named() {
        let drop =
            |kept: &[u32], most, named: &[u32]| to_drop(kept, 9, most, |number| named.contains(&number));
        assert_eq!(drop(&[1], 2, &[]), Some(vec![]));
        assert_eq!(drop(&[1, 2], 2, &[]), Some(vec![1]));
        assert_eq!(drop(&[1, 2], 2, &[1]), Some(vec![2]));
        assert_eq!(
            drop(&[1, 2], 2, &[1, 2]),
            Some(vec![9]),
            "what was current is better than none that has a name"
        );
        assert_eq!(drop(&[1, 2], 2, &[1, 2, 9]), None);
        assert_eq!(drop(&[1, 2, 3], 1, &[2]), Some(vec![1, 3, 9]));
        assert_eq!(drop(&[], 0, &[]), Some(vec![9]));
        assert_eq!(drop(&[], 0, &[9]), None);
        assert_eq!(
            drop(&[10], 1, &[]),
            Some(vec![10]),
            "what was current a moment ago is what one takes back"
        );
    }
}
