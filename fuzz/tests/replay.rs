//! Every input that the fuzzer found worth keeping, read once by its target: what was mended stays mended.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;

use pappus_fuzz::{TARGETS, target};

/// All of the corpus together.
const MAX_CORPUS_BYTES: usize = 1 << 20;

fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let files = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let read = |file: std::io::Result<std::fs::DirEntry>| {
        let path = file.unwrap().path();
        (path.display().to_string(), std::fs::read(&path).unwrap())
    };
    files.map(read).collect()
}

#[test]
fn the_corpus_is_read_without_a_finding() {
    let mut bytes = 0;
    for target in TARGETS {
        let inputs = corpus(target.name);
        assert!(!inputs.is_empty(), "{} has no corpus", target.name);
        for (path, input) in inputs {
            bytes += input.len();
            // The name of the input is what one needs when its target panics.
            let read = std::panic::catch_unwind(|| (target.read)(&input));
            assert!(read.is_ok(), "{} panics on {path}", target.name);
        }
    }
    assert!(bytes <= MAX_CORPUS_BYTES, "the corpus has {bytes} bytes: scripts/fuzz --merge keeps it small");
}

#[test]
fn every_folder_of_the_corpus_is_replayed() {
    let folders = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")).unwrap();
    for folder in folders {
        let name = folder.unwrap().file_name().into_string().unwrap();
        assert!(target(&name).is_some(), "corpus/{name} belongs to no target");
    }
}
