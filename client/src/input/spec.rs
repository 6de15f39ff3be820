//! What may be written behind `--input NAME=`: files, `-`, pipes, numbers and text, with the type they must have.
//!
//! ```text
//! a.npy,tail.bin        files, concatenated
//! -                     stdin
//! i64:431,577           numbers
//! f32[2,2]:1,0,0,1      numbers of a shape
//! f32[128,128]:a.npy    a file that must hold this type and shape
//! text:hello, world     these bytes
//! ```

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use pappus_blueprint::DType;

use super::literal::{self, LiteralError};

/// Everything that was written for one input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Spec {
    /// The announced type and shape, if any.
    pub(crate) expected: Option<Expected>,
    /// Where its bytes come from, in order.
    pub(crate) sources: Vec<Source>,
}

/// Where bytes of an input come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// A file, or a pipe that has a name.
    File(PathBuf),
    /// Stdin until its end.
    Stdin,
    /// What stands on the command line.
    Literal(Vec<u8>),
}

/// An element type, and how many elements along each dimension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) dtype: DType,
    /// Any, where it was not written.
    pub(crate) shape: Option<Vec<u64>>,
}

/// What is wrong with what was written.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SpecError {
    #[error("{found:?} is no type: expected {expected}; a file of that name is written ./{text}")]
    NoType { found: String, expected: String, text: String },
    #[error(
        "{0:?} lacks its closing bracket: shapes are written as in f32[2,3]:…; a file of that name is written ./{0}…"
    )]
    Unclosed(String),
    #[error("shapes are written in square brackets: expected {0}:…")]
    Brackets(String),
    #[error("a space before the type {0}: expected none around = and :")]
    Space(String),
    #[error("an empty file name between commas")]
    EmptyName,
    #[error("nothing stands behind {0:?}: expected numbers or files")]
    Nothing(String),
    #[error("a shape of {0:?}, expected numbers between commas, such as [128,128]")]
    Shape(String),
    #[error(transparent)]
    Literal(#[from] LiteralError),
    #[error("{found} numbers for {expected}, which has {wanted} elements")]
    Count { expected: Expected, wanted: u64, found: u64 },
}

impl Expected {
    /// Elements, where the shape is known; as many as there can be where there are too many to count.
    pub(crate) fn elements(&self) -> Option<u64> {
        self.shape.as_ref().map(|dims| dims.iter().fold(1, |all: u64, dim| all.saturating_mul(*dim)))
    }

    /// Reads `i64[128,128]` without anything behind it.
    pub(crate) fn announced(text: &str) -> Option<Self> {
        Self::read(text)?.ok().filter(|expected| expected.shape.is_some())
    }

    /// Reads `i64` or `i64[128,128]`; `None` where it is no type at all, so that it may be part of a file's name.
    fn read(text: &str) -> Option<Result<Self, SpecError>> {
        let (name, dims) = match text.split_once('[') {
            Some((name, dims)) => (name, Some(dims.strip_suffix(']')?)),
            None => (text, None),
        };
        let dtype = DType::named(name)?;
        let read =
            |dim: &str| dim.trim().parse().map_err(|_| SpecError::Shape(text[name.len()..].to_owned()));
        let shape = match dims {
            None => Ok(None),
            Some("") => Ok(Some(Vec::new())),
            Some(dims) => dims.split(',').map(read).collect::<Result<_, _>>().map(Some),
        };
        Some(shape.map(|shape| Self { dtype, shape }))
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.dtype.name())?;
        match &self.shape {
            Some(dims) => write!(f, "{}", Dims(dims)),
            None => Ok(()),
        }
    }
}

/// `[2,3]`.
pub(crate) struct Dims<'a>(pub(crate) &'a [u64]);

impl fmt::Display for Dims<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.0.iter().map(u64::to_string).collect();
        write!(f, "[{}]", dims.join(","))
    }
}

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let Some((before, rest)) = text.split_once(':') else {
            return match Expected::announced(text) {
                Some(_) => Err(SpecError::Nothing(text.to_owned())),
                None => Ok(Self { expected: None, sources: files(text)? }),
            };
        };
        if before == "text" {
            return Ok(Self { expected: None, sources: vec![Source::Literal(rest.into())] });
        }
        let Some(expected) = Expected::read(before) else {
            if let Some(why) = almost(before) {
                return Err(why);
            }
            if let Some((found, expected)) = meant(before) {
                return Err(SpecError::NoType { found, expected, text: text.to_owned() });
            }
            // A colon in a file's name.
            return Ok(Self { expected: None, sources: files(text)? });
        };
        let expected = expected?;
        if rest.is_empty() {
            return Err(SpecError::Nothing(format!("{before}:")));
        }
        let sources = match literal::read(expected.dtype, rest)? {
            None => files(rest)?,
            Some(bytes) => {
                let found = bytes.len() as u64 / expected.dtype.bytes();
                match expected.elements() {
                    Some(wanted) if wanted != found => {
                        return Err(SpecError::Count { expected, wanted, found });
                    }
                    _ => vec![Source::Literal(bytes)],
                }
            }
        };
        Ok(Self { expected: Some(expected), sources })
    }
}

/// Names that types have elsewhere.
const ELSEWHERE: [(&str, DType); 27] = [
    ("float", DType::F32),
    ("float32", DType::F32),
    ("fp32", DType::F32),
    ("single", DType::F32),
    ("double", DType::F64),
    ("float64", DType::F64),
    ("fp64", DType::F64),
    ("half", DType::F16),
    ("float16", DType::F16),
    ("fp16", DType::F16),
    ("bfloat16", DType::Bf16),
    ("float8_e4m3fn", DType::F8E4M3FN),
    ("float8_e5m2", DType::F8E5M2),
    ("int", DType::I32),
    ("int8", DType::I8),
    ("int16", DType::I16),
    ("int32", DType::I32),
    ("int64", DType::I64),
    ("long", DType::I64),
    ("short", DType::I16),
    ("byte", DType::U8),
    ("uint", DType::U32),
    ("uint8", DType::U8),
    ("uint16", DType::U16),
    ("uint32", DType::U32),
    ("uint64", DType::U64),
    ("boolean", DType::Bool),
];

/// What is wrong with what stands before a colon, where it is a type but for its brackets or spaces.
fn almost(before: &str) -> Option<SpecError> {
    let trimmed = before.trim();
    if trimmed != before && Expected::read(trimmed).is_some() {
        return Some(SpecError::Space(trimmed.to_owned()));
    }
    let is_type = |name: &str| DType::ALL.iter().any(|dtype| dtype.name() == name);
    if before.split_once('[').is_some_and(|(name, dims)| is_type(name) && !dims.contains(']')) {
        return Some(SpecError::Unclosed(before.to_owned()));
    }
    let (name, dims) = before.split_once('(')?;
    is_type(name).then(|| SpecError::Brackets(format!("{name}[{}]", dims.trim_end_matches(')'))))
}

/// What stands before a colon, where it was surely meant to be a type: the name that it has, or all that there are.
fn meant(before: &str) -> Option<(String, String)> {
    let (name, shape) = before.split_once('[').map_or((before, None), |(name, shape)| (name, Some(shape)));
    let known = ELSEWHERE.iter().find(|(other, _)| other.eq_ignore_ascii_case(name));
    let dtype = known
        .map(|(_, dtype)| *dtype)
        .or_else(|| DType::ALL.into_iter().find(|dtype| dtype.name().eq_ignore_ascii_case(name)));
    let expected = match (dtype, shape) {
        (Some(dtype), None) => dtype.name().to_owned(),
        (Some(dtype), Some(shape)) => format!("{}[{shape}", dtype.name()),
        (None, Some(shape)) if shape.ends_with(']') => DType::ALL.map(DType::name).join(", "),
        (None, _) => return None,
    };
    Some((name.to_owned(), expected))
}

/// `FILE[,FILE...]`, where `-` is stdin.
fn files(text: &str) -> Result<Vec<Source>, SpecError> {
    let source = |name: &str| match name {
        "" => Err(SpecError::EmptyName),
        "-" => Ok(Source::Stdin),
        name => Ok(Source::File(name.into())),
    };
    text.split(',').map(source).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Spec {
        text.parse().unwrap()
    }

    fn file(name: &str) -> Source {
        Source::File(name.into())
    }

    #[test]
    fn what_is_almost_a_type_is_told() {
        for (text, expected) in [
            ("f32[2,3:1,2", "\"f32[2,3\" lacks its closing bracket"),
            ("f32(2,3):1,2", "shapes are written in square brackets: expected f32[2,3]:…"),
            (" f32[2]:1,2", "a space before the type f32[2]"),
            ("f32[2,3]", "nothing stands behind \"f32[2,3]\""),
        ] {
            let why = text.parse::<Spec>().unwrap_err().to_string();
            assert!(why.starts_with(expected), "{why}");
        }
        // Files that are called so.
        assert_eq!(read("./f32[2,3]").sources, [file("./f32[2"), file("3]")]);
        assert_eq!(read("f32").sources, [file("f32")]);
    }

    #[test]
    fn files_pipes_and_stdin_are_told_apart() {
        assert_eq!(read("a,b=c").sources, [file("a"), file("b=c")]);
        assert_eq!(read("-").sources, [Source::Stdin]);
        assert_eq!(read("head.bin,-").sources, [file("head.bin"), Source::Stdin]);
        // What is no type is part of the name.
        assert_eq!(read("C:x"), Spec { expected: None, sources: vec![file("C:x")] });
        assert_eq!(read("./i64:1").sources, [file("./i64:1")]);
    }

    #[test]
    fn numbers_and_text_stand_for_themselves() {
        let words = [431i64, 577].map(i64::to_le_bytes).concat();
        assert_eq!(read("i64:431,577").sources, [Source::Literal(words)]);
        let square = [1f32, 0.0, 0.0, 1.0].map(f32::to_le_bytes).concat();
        assert_eq!(read("f32[2,2]:1,0,0,1").sources, [Source::Literal(square)]);
        assert_eq!(read("text:a, b:c").sources, [Source::Literal(b"a, b:c".to_vec())]);
    }

    #[test]
    fn files_may_have_a_type_that_they_must_hold() {
        let spec = read("f32[128,128]:a.npy");
        assert_eq!(spec.sources, [file("a.npy")]);
        assert_eq!(spec.expected.unwrap().to_string(), "f32[128,128]");
        assert_eq!(read("u8:-").expected, Some(Expected { dtype: DType::U8, shape: None }));
    }

    #[test]
    fn a_malformed_input_is_refused_with_the_reason() {
        for (text, words) in [
            ("a,,b", "an empty file name"),
            ("i64:", "nothing stands behind \"i64:\""),
            ("i64[2,x]:1,2", "a shape of \"[2,x]\""),
            ("i64[3]:1,2", "2 numbers for i64[3], which has 3 elements"),
            ("u8:1,256", "256 does not fit u8"),
            ("i64:1,a.npy", "\"a.npy\" is no i64"),
            ("f16:1.5", "f16"),
            (
                "float32[2,2]:1,2,3,4",
                "\"float32\" is no type: expected f32[2,2]; a file of that name is written ./float32[2,2]:1,2,3,4",
            ),
            ("Int:5", "\"Int\" is no type: expected i32;"),
            ("I64:5", "expected i64;"),
            (
                "i65[2]:1,2",
                "expected u8, i8, u16, i16, u32, i32, u64, i64, f16, bf16, f8e4m3fn, f8e5m2, f32, f64, bool;",
            ),
        ] {
            let why = text.parse::<Spec>().unwrap_err().to_string();
            assert!(why.contains(words), "{text}: {why}");
        }
    }
}
