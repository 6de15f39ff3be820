//! Inputs: what the command line says of them, their bytes as one sequence, and what a blueprint wants to know about
//! them to make a plan.
//!
//! - [`spec`]: what may be written behind `--input NAME=`.
//! - [`literal`]: numbers on the command line.
//! - [`item`]: a file, a stream or numbers, and the array in it.
//! - [`fit`]: whether arrays are what was announced and what the blueprint declares.
//! - [`declared`]: what a function declares of its inputs, and the shapes that go with a call.
//! - [`sizes`]: what is wrong where there is no plan for the inputs' sizes and words.

pub(crate) mod declared;
mod fit;
mod item;
mod literal;
mod sizes;
mod spec;

use pappus_blueprint::{Blueprint, DType, Known, Plan, Sizes};
use pappus_client::Error;
use serde_json::{Value, json};

pub(crate) use declared::Typed;
pub(crate) use item::Item;
pub(crate) use literal::{values, write as numbers};
pub(crate) use spec::{Expected, Source, Spec, SpecError};

use crate::failure::{Failure, Result};

/// One input: the concatenation of its items.
#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) name: String,
    pub(crate) items: Vec<Item>,
    /// What it was said to hold.
    expected: Option<Expected>,
}

impl Input {
    /// An array of which only the type and the shape are known.
    pub(crate) fn announced(name: &str, expected: &Expected) -> Self {
        let items = vec![Item::announced(expected)];
        Self { name: name.to_owned(), items, expected: Some(expected.clone()) }
    }

    /// Opens everything it is made of. What does not hold what it was said to hold is refused; it is `declared` to be of this type.
    pub(crate) fn open(name: &str, spec: &Spec, declared: Option<DType>) -> Result<Self> {
        let items = item::open(spec).map_err(|why| Failure::Refused(cannot_open(name, declared, why)))?;
        let input = Self { name: name.to_owned(), items, expected: spec.expected.clone() };
        if let Some(expected) = &spec.expected {
            fit::as_announced(&input, expected)?;
        }
        Ok(input)
    }

    /// The input's items, with sources, bytes and declared arrays.
    pub(crate) fn to_json(&self) -> Value {
        let items = self.items.iter().map(|item| {
            json!({
                "source": item.source,
                "bytes": item.bytes(),
                "dtype": item.array.as_ref().map(|array| array.element.to_string()),
                "shape": item.array.as_ref().map(|array| &array.shape),
            })
        });
        json!({"name": self.name, "bytes": self.bytes(), "items": items.collect::<Vec<_>>()})
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.items.iter().map(Item::bytes).sum()
    }

    /// All bytes.
    pub(crate) fn content(&self) -> Result<Vec<u8>> {
        let mut content = vec![0; self.bytes() as usize];
        let mut at = 0;
        for item in &self.items {
            let end = at + item.bytes() as usize;
            item.read(0, &mut content[at..end])?;
            at = end;
        }
        Ok(content)
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

/// Why an input cannot be opened. A file that is not there may be a number without its type.
fn cannot_open(name: &str, declared: Option<DType>, why: Failure) -> String {
    let Failure::Library(Error::File { path, source }) = &why else {
        return format!("input {name:?}: {why}");
    };
    let file = path.display();
    if source.kind() != std::io::ErrorKind::NotFound {
        return format!("input {name:?}: {why}");
    }
    let text = file.to_string();
    match literal::is_number(text.trim_matches(['[', ']', '(', ')'])) {
        true => format!(
            "input {name:?}: there is no file {file}; numbers need a type in front, and no brackets: --input \
             {name}={}:1,2,3 (u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 bool)",
            declared.unwrap_or(DType::F32).name()
        ),
        false => format!("input {name:?}: there is no file {file}"),
    }
}

/// What the blueprint wants to know about these inputs; returns the shapes that go with a call. Arrays that are not of
/// the type that it declares are refused.
pub(crate) fn learn(known: &mut Known, blueprint: &Blueprint, inputs: &[Input]) -> Result<Vec<Typed>> {
    let learned = inputs.iter().try_for_each(|input| learn_one(known, blueprint, input));
    // Another type says more than the size that follows from it.
    fit::as_declared(blueprint, known, inputs)?;
    learned?;
    let bound = declared::Signature::of(blueprint).bind(inputs)?;
    known.free.extend(bound.free);
    Ok(bound.arrays)
}

/// Adds an input's size, and those of its words that sizes are computed from.
fn learn_one(known: &mut Known, blueprint: &Blueprint, input: &Input) -> Result<()> {
    let bytes = input.bytes();
    known.inputs.insert(input.name.clone(), bytes);
    for word in blueprint.words() {
        let declared = blueprint.input_types()[word.input as usize].as_ref().map(|declared| declared.dtype);
        let id = blueprint.inputs()[word.input as usize];
        if blueprint.buffers()[id.index()].name == input.name {
            let offset = blueprint
                .word_offset(word, bytes)
                .map_err(|_| sizes::no_word(input, declared, word.index))?;
            if !input.items.iter().all(Item::is_there) {
                continue;
            }
            known.words.insert((input.name.clone(), word.index), input.word(offset)?);
        }
    }
    Ok(())
}

/// The plan, if everything it depends on is known.
pub(crate) fn plan(blueprint: &Blueprint, known: &Known) -> Result<Option<Plan>> {
    let name = |id: &pappus_blueprint::BufferId| &blueprint.buffers()[id.index()].name;
    let brought = blueprint.brought().iter().map(|id| known.inputs.get(name(id)).copied());
    let inputs = brought.chain(blueprint.state_bytes().iter().map(|bytes| Some(*bytes)));
    let weights = blueprint.weights().iter().map(|id| known.weights.get(name(id)).copied());
    let words = blueprint.words().iter().map(|word| {
        let input = name(&blueprint.inputs()[word.input as usize]);
        known.words.get(&(input.clone(), word.index)).copied()
    });
    let free = blueprint.free_dimensions().iter().map(|name| known.free.get(&**name).copied());
    let all = (
        inputs.collect::<Option<Vec<_>>>(),
        weights.collect::<Option<Vec<_>>>(),
        words.collect::<Option<Vec<_>>>(),
        free.collect::<Option<Vec<_>>>(),
    );
    let (Some(inputs), Some(weights), Some(words), Some(free)) = all else {
        return Ok(None);
    };
    let plan = blueprint.plan(&Sizes { inputs: &inputs, weights: &weights, words: &words, free: &free });
    plan.map(Some).map_err(|error| sizes::explain(blueprint, known, error))
}

#[cfg(test)]
mod npy_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_there_is_named_with_its_input() {
        let opened = |spec: &str, declared| Input::open("A", &spec.parse().unwrap(), declared);
        let why = |spec: &str| opened(spec, None).unwrap_err().to_string();
        assert_eq!(why("nowhere.bin"), "input \"A\": there is no file nowhere.bin");
        let number = why("12345,6");
        let words = "input \"A\": there is no file 12345; numbers need a type in front, and no brackets: --input A=f32:1,2,3 (u8 i8";
        assert!(number.starts_with(words), "{number}");
        assert!(why("[1,2,3]").contains("no file [1; numbers need a type in front, and no brackets"));
        let declared = opened("1", Some(DType::I64)).unwrap_err().to_string();
        assert!(declared.contains("--input A=i64:1,2,3"), "{declared}");
    }

    #[test]
    fn words_are_read_across_items() {
        let dir = tempfile::tempdir().unwrap();
        let files = [("a", &[1, 2, 3][..]), ("b", &[][..]), ("c", &[4, 5, 6, 7, 8, 9][..])];
        let paths = files.map(|(name, content)| {
            let path = dir.path().join(name);
            std::fs::write(&path, content).unwrap();
            path.to_str().unwrap().to_owned()
        });
        let input = Input::open("A", &paths.join(",").parse().unwrap(), None).unwrap();
        assert_eq!(input.bytes(), 9);
        assert_eq!(input.word(0).unwrap().to_le_bytes(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(input.word(1).unwrap().to_le_bytes(), [2, 3, 4, 5, 6, 7, 8, 9]);
    }
}
