//! What an array may be: the one rule for inputs and weights alike, in the library and in the command.
//!
//! - Its elements are plain numbers of a type that devices know, or bytes of no type.
//! - Where a type is declared, the elements are of that type; another one is refused, with both named.
//! - Where a shape is declared, the array has that shape; one dimension says only how many elements there are, and a file
//!   that says nothing of itself only how many bytes.
//! - Order of bytes and of dimensions are the file's affair: what is sent is little-endian, one row behind the other.
//!
//! `python/src/pappus/_arrays.py` has the same rule, and `tests/npy/cases.json` what both make of the same files.

use std::fmt;

use pappus_blueprint::{Amount, BufferDescription, DType};

/// What elements are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// Of a type that blueprints have a name for.
    Of(DType),
    /// A pair of floats, each of so many bytes.
    Complex(u64),
    /// So many bytes of no type. NumPy's files have bf16 as two of them, and floats of eight bits as one.
    Bytes(u64),
}

/// The array of a file, or numbers of the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Array {
    /// The type of its elements.
    pub element: Element,
    /// Elements along each dimension, outermost first.
    pub shape: Vec<u64>,
}

/// What is declared: a type, and the dimensions, as far as they are known already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The type.
    pub dtype: DType,
    /// The dimensions, if declared; an unknown one is its name for people.
    pub dims: Option<Vec<Result<u64, String>>>,
}

/// Why something is not what is declared.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// Another type or shape.
    #[error("{came} came, {wanted} is expected")]
    Other {
        /// What came.
        came: String,
        /// What is declared.
        wanted: String,
    },
    /// Bytes that end within an element.
    #[error("{bytes} bytes came, expected a multiple of {} ({})", .dtype.bytes(), .dtype.name())]
    Rest {
        /// What came.
        bytes: u64,
        /// What is declared.
        dtype: DType,
    },
}

impl Element {
    /// Bytes of one.
    pub fn bytes(self) -> u64 {
        match self {
            Self::Of(dtype) => dtype.bytes(),
            Self::Complex(part) => 2 * part,
            Self::Bytes(bytes) => bytes,
        }
    }

    /// Bytes that change places where the order of bytes is another one.
    pub fn unit(self) -> u64 {
        match self {
            Self::Of(dtype) => dtype.bytes(),
            Self::Complex(part) => part,
            Self::Bytes(_) => 1,
        }
    }

    /// True if such elements are of this type.
    pub fn is(self, dtype: DType) -> bool {
        self == Self::Of(dtype)
            || matches!(dtype, DType::Bf16 | DType::F8E4M3FN | DType::F8E5M2)
                && self == Self::Bytes(dtype.bytes())
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Of(dtype) => f.write_str(dtype.name()),
            Self::Complex(part) => write!(f, "<c{}", 2 * part),
            Self::Bytes(bytes) => write!(f, "|V{bytes}"),
        }
    }
}

impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.shape.iter().map(u64::to_string).collect();
        write!(f, "{}[{}]", self.element, dims.join(","))
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.dtype.name())?;
        let Some(dims) = &self.dims else { return Ok(()) };
        let dims = dims.iter().map(|dim| match dim {
            Ok(value) => value.to_string(),
            Err(name) => name.clone(),
        });
        write!(f, "[{}]", dims.collect::<Vec<_>>().join(","))
    }
}

impl Wanted {
    /// What a blueprint declares of a buffer.
    pub fn of(buffer: &BufferDescription) -> Option<Self> {
        let dim = |dim: &Amount| dim.value().ok_or_else(|| dim.to_string());
        let dims = buffer.shape.as_ref().map(|dims| dims.iter().map(dim).collect());
        Some(Self { dtype: buffer.dtype?, dims })
    }

    /// Checks that an array has the known type and dimensions.
    pub fn fits(&self, array: &Array) -> Result<(), Misfit> {
        let elements = array.shape.iter().fold(1, |all: u64, dim| all.saturating_mul(*dim));
        let shape_fits = match &self.dims {
            Some(dims) if dims.len() > 1 => {
                let mut pairs = dims.iter().zip(&array.shape);
                dims.len() == array.shape.len()
                    && pairs.all(|(dim, found)| dim.as_ref().map_or(true, |dim| dim == found))
            }
            _ => self.elements().is_none_or(|wanted| wanted == elements),
        };
        match array.element.is(self.dtype) && shape_fits {
            true => Ok(()),
            false => Err(Misfit::Other { came: array.to_string(), wanted: self.to_string() }),
        }
    }

    /// Checks that bytes of unknown type and shape can be this array.
    pub fn fits_bytes(&self, bytes: u64) -> Result<(), Misfit> {
        if !bytes.is_multiple_of(self.dtype.bytes()) {
            return Err(Misfit::Rest { bytes, dtype: self.dtype });
        }
        match self.elements() {
            Some(wanted) if wanted != bytes / self.dtype.bytes() => {
                Err(Misfit::Other { came: format!("{bytes} bytes"), wanted: self.to_string() })
            }
            _ => Ok(()),
        }
    }

    /// Its elements, where they are known; as many as there can be where there are too many to count.
    fn elements(&self) -> Option<u64> {
        let dims = self.dims.as_ref()?.iter();
        dims.map(|dim| dim.as_ref().ok()).try_fold(1, |all: u64, dim| Some(all.saturating_mul(*dim?)))
    }
}
