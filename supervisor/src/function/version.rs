//! A number that changes where calls of a function may have to be made otherwise. Callers learn it with what the function
//! takes and gives, and say it with their calls: one that was made for what was replaced meanwhile is refused.

use sha2::{Digest, Sha256};

use crate::store::records::{Dimension, FunctionRecord};

/// The numbers for the owner and for other callers. A number reveals nothing that its reader is not told
/// anyway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    own: u64,
    granted: u64,
}

impl Versions {
    /// Those of a function.
    pub fn of(record: &FunctionRecord) -> Self {
        // The owner is told the configuration, which sizes are computed from.
        Self { own: number(&record.config.0), granted: number(&signature(record)) }
    }

    /// What a caller is told, to whom the function may be `granted`.
    pub fn for_caller(self, granted: bool) -> u64 {
        if granted { self.granted } else { self.own }
    }
}

/// A hash of the inputs and outputs, without the formulas of sizes.
fn signature(record: &FunctionRecord) -> [u8; 32] {
    let mut hasher = Sha256::new();
    // The tag says what follows, the length where it ends.
    let mut say = |tag: &[u8; 1], text: &str| {
        hasher.update(tag);
        hasher.update((text.len() as u64).to_le_bytes());
        hasher.update(text);
    };
    record.inputs.iter().for_each(|name| say(b"i", name));
    let inputs = record.input_types.iter().map(|declared| ("", &declared.dtype, &declared.shape));
    let outputs = record.outputs.iter().map(|output| (&*output.name, &output.dtype, &output.shape));
    for (name, dtype, shape) in inputs.chain(outputs) {
        say(b"o", name);
        say(b"t", dtype);
        say(if shape.is_some() { b"s" } else { b"-" }, "");
        for dim in shape.iter().flatten() {
            match dim {
                Dimension::Fixed(value) => say(b"n", &value.to_string()),
                Dimension::Free(name) => say(b"f", name),
                Dimension::Computed(_) => say(b"c", ""),
            }
        }
    }
    hasher.finalize().into()
}

/// Eight bytes of a hash; 0 means none.
fn number(hash: &[u8; 32]) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *hash;
    u64::from_le_bytes([a, b, c, d, e, f, g, h]).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sha256::Hash;
    use crate::store::records::{Declared, Output};

    fn record(config: u8, dtype: &str, dim: Dimension) -> FunctionRecord {
        let shape: Option<Box<[Dimension]>> = Some(Box::new([dim]));
        FunctionRecord {
            name: "f".into(),
            config: Hash([config; 32]),
            modules: Box::default(),
            weights: Box::default(),
            inputs: Box::new(["A".into()]),
            outputs: Box::new([Output { name: "B".into(), dtype: dtype.into(), shape: shape.clone() }]),
            input_types: Box::new([Declared { dtype: dtype.into(), shape }]),
            state_bytes: 0,
            composition: None,
            number: 1,
            largest: 0,
        }
    }

    #[test]
    fn each_caller_is_told_of_what_it_sees() {
        let first = Versions::of(&record(1, "f32", Dimension::Fixed(3)));
        assert_eq!(first, Versions::of(&record(1, "f32", Dimension::Fixed(3))));
        // Another configuration with the same inputs and outputs concerns its owner alone.
        let other = Versions::of(&record(2, "f32", Dimension::Fixed(3)));
        assert_ne!(first.for_caller(false), other.for_caller(false));
        assert_eq!(first.for_caller(true), other.for_caller(true));
        for (dtype, dim) in [
            ("f64", Dimension::Fixed(3)),
            ("f32", Dimension::Fixed(4)),
            ("f32", Dimension::Free("n".into())),
            ("f32", Dimension::Computed("n".into())),
        ] {
            assert_ne!(first.for_caller(true), Versions::of(&record(1, dtype, dim)).for_caller(true));
        }
    }

    #[test]
    fn a_formula_is_not_told_by_its_hash() {
        let of = |formula: &str| Versions::of(&record(1, "f32", Dimension::Computed(formula.into())));
        assert_eq!(of("sizeof(secret)").for_caller(true), of("2 × n").for_caller(true));
    }
}
