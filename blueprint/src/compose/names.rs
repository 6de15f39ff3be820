//! Names of the linked function, each given once.

use std::collections::{HashMap, HashSet};

use crate::limits::NAME_BYTES;

/// Bytes that are kept free for what makes a name distinct.
const SUFFIX_BYTES: usize = 12;

#[derive(Default)]
pub(super) struct Distinct {
    taken: HashSet<String>,
    /// How often a name was wanted that was taken.
    again: HashMap<String, u32>,
}

impl Distinct {
    /// The name that is wanted, or, where it is taken or too long, one like it.
    pub(super) fn name(&mut self, wanted: &str) -> String {
        let most = NAME_BYTES - SUFFIX_BYTES;
        let begin = &wanted[..wanted.floor_char_boundary(most)];
        if wanted.len() <= most && self.taken.insert(wanted.to_owned()) {
            return wanted.to_owned();
        }
        loop {
            let again = self.again.entry(begin.to_owned()).or_default();
            *again += 1;
            let name = format!("{begin}~{again}");
            if self.taken.insert(name.clone()) {
                return name;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_given_once() {
        let mut names = Distinct::default();
        let given = ["a", "a", "a~1", "a", "b"].map(|wanted| names.name(wanted));
        assert_eq!(given, ["a", "a~1", "a~1~1", "a~2", "b"]);
        let long = "é".repeat(NAME_BYTES);
        let (one, other) = (names.name(&long), names.name(&long));
        assert!(one != other && one.len() <= NAME_BYTES && other.len() <= NAME_BYTES);
    }
}
