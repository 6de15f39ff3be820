//! Input files, read as one sequence of bytes, and what a blueprint wants to know about them to make a plan.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use pappus_blueprint::{Blueprint, Known, Plan, Sizes};
use pappus_client::Error;
use pappus_client::npy::{self, FileRange};

use crate::failure::Result;

/// One input: the concatenation of parts of files.
#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) name: String,
    pub(crate) items: Vec<Item>,
}

/// A file, or the array in it.
#[derive(Debug)]
pub(crate) struct Item {
    path: PathBuf,
    file: File,
    range: FileRange,
}

impl Item {
    fn open(path: &Path) -> Result<Self> {
        Ok(Self {
            range: npy::data_of(path)?,
            file: File::open(path).map_err(Error::file(path))?,
            path: path.to_owned(),
        })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.range.bytes
    }

    /// Reads `at` bytes from the start of the item.
    pub(crate) fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        let read = self.file.read_exact_at(out, self.range.offset + at);
        Ok(read.map_err(Error::file(&self.path))?)
    }
}

impl Input {
    pub(crate) fn open(name: &str, files: &[PathBuf]) -> Result<Self> {
        Ok(Self {
            name: name.to_owned(),
            items: files.iter().map(|path| Item::open(path)).collect::<Result<_>>()?,
        })
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

/// Adds an input's size, and those of its words that sizes are computed from.
pub(crate) fn learn(known: &mut Known, blueprint: &Blueprint, input: &Input) -> Result<()> {
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
            path
        });
        let input = Input::open("A", &paths).unwrap();
        assert_eq!(input.bytes(), 9);
        assert_eq!(input.word(0).unwrap().to_le_bytes(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(input.word(1).unwrap().to_le_bytes(), [2, 3, 4, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let why = Input::open("A", &["nowhere.bin".into()]).unwrap_err().to_string();
        assert!(why.starts_with("nowhere.bin: "), "{why}");
    }
}
