//! Inputs: what the command line says of them, their bytes as one sequence, and what a blueprint wants to know about
//! them to make a plan.
//!
//! - [`spec`]: what may be written behind `--input NAME=`.
//! - [`literal`]: numbers on the command line.
//! - [`item`]: a file, a stream or numbers, and the array in it.
//! - [`fit`]: whether arrays are what was announced and what the blueprint declares.

mod fit;
mod item;
mod literal;
mod spec;

use pappus_blueprint::{Blueprint, Known, Plan, Sizes};
use serde_json::{Value, json};

pub(crate) use item::Item;
pub(crate) use spec::{Source, Spec, SpecError};

use crate::failure::Result;

/// One input: the concatenation of its items.
#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) name: String,
    pub(crate) items: Vec<Item>,
}

impl Input {
    /// Opens everything it is made of. What does not hold what it was said to hold is refused.
    pub(crate) fn open(name: &str, spec: &Spec) -> Result<Self> {
        let input = Self { name: name.to_owned(), items: item::open(spec)? };
        if let Some(expected) = &spec.expected {
            fit::as_announced(&input, expected)?;
        }
        Ok(input)
    }

    /// What is sent, and what its items say that they hold.
    pub(crate) fn to_json(&self) -> Value {
        let items = self.items.iter().map(|item| {
            json!({
                "source": item.source,
                "bytes": item.bytes(),
                "dtype": item.array.as_ref().map(item::Array::type_name),
                "shape": item.array.as_ref().map(|array| &array.shape),
            })
        });
        json!({"name": self.name, "bytes": self.bytes(), "items": items.collect::<Vec<_>>()})
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.items.iter().map(Item::bytes).sum()
    }

    /// The word at `offset`, which must lie inside; items may divide it.
    fn word(&self, offset: u64) -> Result<u64> {
        let mut word = [0; 8];
        let mut filled = 0;
        let mut start = 0;
        for item in &self.items {
            let wanted = offset + filled as u64;
            if wanted < start + item.bytes() && filled < word.len() {
                let at = wanted - start;
                let take = (item.bytes() - at).min((word.len() - filled) as u64) as usize;
                item.read(at, &mut word[filled..filled + take])?;
                filled += take;
            }
            start += item.bytes();
        }
        Ok(u64::from_le_bytes(word))
    }
}

/// What the blueprint wants to know about these inputs. Arrays that are not of the type that it declares are refused.
pub(crate) fn learn(known: &mut Known, blueprint: &Blueprint, inputs: &[Input]) -> Result<()> {
    inputs.iter().try_for_each(|input| learn_one(known, blueprint, input))?;
    fit::as_declared(blueprint, known, inputs)
}

/// Adds an input's size, and those of its words that sizes are computed from.
fn learn_one(known: &mut Known, blueprint: &Blueprint, input: &Input) -> Result<()> {
    let bytes = input.bytes();
    known.inputs.insert(input.name.clone(), bytes);
    for word in blueprint.words() {
        let id = blueprint.inputs()[word.input as usize];
        if blueprint.buffers()[id.index()].name == input.name {
            let offset = blueprint.word_offset(word, bytes)?;
            known.words.insert((input.name.clone(), word.index), input.word(offset)?);
        }
    }
    Ok(())
}

/// The plan, if everything it depends on is known.
pub(crate) fn plan(blueprint: &Blueprint, known: &Known) -> Result<Option<Plan>> {
    let name = |id: &pappus_blueprint::BufferId| &blueprint.buffers()[id.index()].name;
    let inputs = blueprint.inputs().iter().map(|id| known.inputs.get(name(id)).copied());
    let weights = blueprint.weights().iter().map(|id| known.weights.get(name(id)).copied());
    let words = blueprint.words().iter().map(|word| {
        let input = name(&blueprint.inputs()[word.input as usize]);
        known.words.get(&(input.clone(), word.index)).copied()
    });
    let all = (inputs.collect::<Option<Vec<_>>>(), weights.collect::<Option<Vec<_>>>(), words.collect());
    let (Some(inputs), Some(weights), Some(words)): (_, _, Option<Vec<u64>>) = all else {
        return Ok(None);
    };
    Ok(Some(blueprint.plan(&Sizes { inputs: &inputs, weights: &weights, words: &words })?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_across_items() {
        let dir = tempfile::tempdir().unwrap();
        let files = [("a", &[1, 2, 3][..]), ("b", &[][..]), ("c", &[4, 5, 6, 7, 8, 9][..])];
        let paths = files.map(|(name, content)| {
            let path = dir.path().join(name);
            std::fs::write(&path, content).unwrap();
            path.to_str().unwrap().to_owned()
        });
        let input = Input::open("A", &paths.join(",").parse().unwrap()).unwrap();
        assert_eq!(input.bytes(), 9);
        assert_eq!(input.word(0).unwrap().to_le_bytes(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(input.word(1).unwrap().to_le_bytes(), [2, 3, 4, 5, 6, 7, 8, 9]);
    }
}
