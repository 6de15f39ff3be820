//! What somebody may have meant who wrote a name that is unknown: the nearest known one, and which there are.

use std::fmt;

use crate::limits::{COMPARED_BYTES, COMPARED_NAMES, LISTED_NAMES};

/// `, did you mean "A"?` where a known name is near, nothing otherwise. Names are compared only when it is written.
pub struct Nearest<'a, I>(&'a str, I);

/// The known name that is nearest to one that is not known, for messages.
pub fn nearest<'a, I: Iterator<Item = &'a str> + Clone>(unknown: &'a str, known: I) -> Nearest<'a, I> {
    Nearest(unknown, known)
}

impl<'a, I: Iterator<Item = &'a str> + Clone> fmt::Display for Nearest<'a, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(unknown, known) = self;
        let comparable = |name: &&str| !name.is_empty() && name.len() <= COMPARED_BYTES;
        if !comparable(unknown) {
            return Ok(());
        }
        // A third of a name may differ, not all of it; and whether letters are large.
        let length = unknown.chars().count();
        let most = length.div_ceil(3).min(length.saturating_sub(1));
        let lower = unknown.to_lowercase();
        let candidates = known.clone().filter(comparable).take(COMPARED_NAMES);
        let judged = candidates.map(|name| (strsim::osa_distance(&lower, &name.to_lowercase()), name));
        match judged
            .filter(|(distance, name)| *distance <= most && name != unknown)
            .min_by_key(|(distance, _)| *distance)
        {
            Some((_, name)) => write!(f, ", did you mean {name:?}?"),
            None => Ok(()),
        }
    }
}

/// The names that there are, for messages: `"A", "B" and 5 more`; `none`.
pub struct Listed<I>(I);

/// The names that there are.
pub fn listed<'a, I: Iterator<Item = &'a str> + Clone>(names: I) -> Listed<I> {
    Listed(names)
}

impl<'a, I: Iterator<Item = &'a str> + Clone> fmt::Display for Listed<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = self.0.clone();
        match names.next() {
            Some(first) => write!(f, "{first:?}")?,
            None => return f.write_str("none"),
        }
        for name in names.by_ref().take(LISTED_NAMES - 1) {
            write!(f, ", {name:?}")?;
        }
        match names.count() {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// `1 byte`, `8 bytes`.
pub fn bytes(bytes: u32) -> impl fmt::Display {
    fmt::from_fn(move |f| match bytes {
        1 => f.write_str("1 byte"),
        bytes => write!(f, "{bytes} bytes"),
    })
}

/// `argument 2 "n"`: which argument of a kernel, from 1, and what its source calls it, where that is known.
pub fn argument(nth: usize, name: &str) -> impl fmt::Display {
    fmt::from_fn(move |f| match name {
        "" => write!(f, "argument {nth}"),
        name => write!(f, "argument {nth} {name:?}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_name_is_what_was_meant() {
        let meant =
            |unknown: &str| nearest(unknown, ["image", "half", "x", "grid_dim_x"].into_iter()).to_string();
        for (unknown, known) in
            [("imgae", "image"), ("Half", "half"), ("grid_dim_w", "grid_dim_x"), ("X", "x")]
        {
            assert_eq!(meant(unknown), format!(", did you mean {known:?}?"));
        }
        for nothing_near in ["", "blurred", "y", &"a".repeat(1000)] {
            assert_eq!(meant(nothing_near), "");
        }
    }

    #[test]
    fn names_are_listed_up_to_a_limit() {
        assert_eq!(listed([].into_iter()).to_string(), "none");
        assert_eq!(listed(["a", "\u{202e}b"].into_iter()).to_string(), r#""a", "\u{202e}b""#);
        let text = listed(["a"; LISTED_NAMES + 5].into_iter()).to_string();
        assert!(text.ends_with("\"a\" and 5 more"), "{text}");
    }
}
