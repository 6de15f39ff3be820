//! Lines of the source for places in a module: found by its compiling process from its debug information, appended to
//! its machine code as text, and read by the serving process.
//!
//! ```text
//! machine code … | 17 4 reverse.c \n 63 5 reverse.c \n … | bytes of the text: u64 | "pappus:l"
//! ```
//! A row is a place, a line, and a file, ordered by places: what is said there holds up to the next row. A row with line 0
//! knows nothing. Of a path only the last part stands there, as in the text of a failed `REQUIRE`.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use addr2line::Context;
use addr2line::gimli::{Dwarf, EndianSlice, Error, LittleEndian};
use wasmparser::{BinaryReaderError, Parser, Payload};

use super::instrument::place;

/// What comes last in machine code with lines.
const MARK: &[u8; 8] = b"pappus:l";
/// Bytes of the text: what is beyond has no lines.
const MAX_BYTES: usize = 16 << 20;

/// The rows of a module, as text.
#[derive(Debug, Default)]
pub(super) struct Lines(String);

impl Lines {
    /// Those of a module's accesses to memory; none where it has no debug information that can be read.
    pub(super) fn find(module: &[u8]) -> Result<Self, BinaryReaderError> {
        let mut sections = HashMap::new();
        for payload in Parser::new(0).parse_all(module) {
            if let Payload::CustomSection(section) = payload? {
                sections.insert(section.name(), section.data());
            }
        }
        let section = |name: &str| sections.get(name).copied().unwrap_or_default();
        let dwarf = Dwarf::load(|id| Ok::<_, Error>(EndianSlice::new(section(id.name()), LittleEndian)));
        let Ok(context) = dwarf.and_then(Context::from_dwarf) else { return Ok(Self::default()) };
        let mut rows = String::new();
        let mut last = None;
        let mut code_at = 0;
        let mut say = |place: u32, line: u32, file: &str| {
            let row = (line, file.replace(char::is_control, "?"));
            if rows.len() < MAX_BYTES && last.as_ref() != Some(&row) {
                // Writing into a string does not fail.
                let _ = writeln!(rows, "{place} {line} {}", row.1);
                last = Some(row);
            }
        };
        for payload in Parser::new(0).parse_all(module) {
            let body = match payload? {
                Payload::CodeSectionStart { range, .. } => {
                    code_at = range.start;
                    continue;
                }
                Payload::CodeSectionEntry(body) => body,
                _ => continue,
            };
            // What is known of one function says nothing of the next.
            say((body.range().start - code_at) as u32, 0, "");
            let mut operators = body.get_operators_reader()?;
            while !operators.eof() {
                let (operator, at) = operators.read_with_offset()?;
                let Some(place) = place(&operator, at, code_at) else { continue };
                let Some(location) = context.find_location(place.into()).ok().flatten() else { continue };
                let file = location.file.and_then(|file| Path::new(file).file_name()?.to_str());
                if let (Some(line @ 1..), Some(file)) = (location.line, file) {
                    say(place, line, file);
                }
            }
        }
        Ok(Self(rows))
    }

    /// Appends them to machine code.
    pub(super) fn append_to(&self, code: &mut Vec<u8>) {
        code.extend_from_slice(self.0.as_bytes());
        code.extend_from_slice(&(self.0.len() as u64).to_le_bytes());
        code.extend_from_slice(MARK);
    }

    /// Reads those that machine code has.
    pub(super) fn read(code: &File) -> std::io::Result<Self> {
        const TAIL: u64 = 16;
        let mut tail = [0; TAIL as usize];
        let Some(tail_at) = code.metadata()?.len().checked_sub(TAIL) else { return Ok(Self::default()) };
        code.read_exact_at(&mut tail, tail_at)?;
        let Some(&[b0, b1, b2, b3, b4, b5, b6, b7]) = tail.strip_suffix(MARK) else {
            return Ok(Self::default());
        };
        let bytes = u64::from_le_bytes([b0, b1, b2, b3, b4, b5, b6, b7]);
        let at = tail_at.checked_sub(bytes).filter(|_| bytes <= 2 * MAX_BYTES as u64);
        let Some(at) = at else { return Ok(Self::default()) };
        let mut rows = vec![0; bytes as usize];
        code.read_exact_at(&mut rows, at)?;
        Ok(Self(String::from_utf8_lossy(&rows).into_owned()))
    }

    /// Where in the source a place is, such as `reverse.c:4`, if that is known.
    pub(super) fn of(&self, place: u32) -> Option<String> {
        let rows = self.0.lines().filter_map(|row| {
            let (at, row) = row.split_once(' ')?;
            Some((at.parse::<u32>().ok()?, row))
        });
        let (_, row) = rows.take_while(|(at, _)| *at <= place).last()?;
        let (line, file) = row.split_once(' ')?;
        (line != "0" && !file.is_empty()).then(|| format!("{file}:{line}"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use wasm_encoder::{CustomSection, Section as _};

    use super::*;

    #[test]
    fn a_place_has_the_line_of_the_last_row_before_it() {
        let lines = Lines("17 4 a.c\n63 0 \n80 5 my file.c\n".into());
        let of = |place| lines.of(place);
        assert_eq!((of(16), of(17), of(62)), (None, Some("a.c:4".into()), Some("a.c:4".into())));
        assert_eq!((of(63), of(u32::MAX)), (None, Some("my file.c:5".into())));
    }

    #[test]
    fn lines_travel_behind_machine_code() {
        let lines = Lines("17 4 a.c\n".into());
        let (mut code, file) = (b"code".to_vec(), tempfile());
        lines.append_to(&mut code);
        file.write_all_at(&code, 0).unwrap();
        assert_eq!(Lines::read(&file).unwrap().0, lines.0);
        // Code without, and lengths that lie.
        for tail in [
            &b""[..],
            b"code alone, of some length",
            b"\xff\xff\xff\xff\xff\xff\xff\xffpappus:l",
            b"\x09\0\0\0\0\0\0\0pappus:l",
        ] {
            file.set_len(0).unwrap();
            file.write_all_at(tail, 0).unwrap();
            assert_eq!(Lines::read(&file).unwrap().0, "");
        }
    }

    proptest! {
        #[test]
        fn debug_information_may_be_anything(
            sections in vec((0..SECTIONS.len(), vec(any::<u8>(), 0..120)), 1..5),
            version in 2u8..6,
        ) {
            let text = r#"(module (memory 1) (func (drop (i32.load (i32.const 0)))) (func (drop (i64.load (i32.const 8)))))"#;
            let mut module = wat::parse_str(text).unwrap();
            for (name, mut data) in sections {
                // Mostly a length and a version, so that more than those is read.
                if let Some(head) = data.first_chunk_mut() {
                    *head = [100, 0, 0, 0, version, 0];
                }
                CustomSection { name: SECTIONS[name].into(), data: data.into() }.append_to(&mut module);
            }
            let lines = Lines::find(&module).unwrap();
            prop_assert!(lines.0.lines().count() <= 4, "{lines:?}");
            lines.of(u32::MAX);
        }
    }

    const SECTIONS: [&str; 6] =
        [".debug_info", ".debug_abbrev", ".debug_line", ".debug_str", ".debug_ranges", ".debug_aranges"];

    fn tempfile() -> File {
        rustix::fs::memfd_create("lines", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into()
    }
}
