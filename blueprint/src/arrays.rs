//! Arrays that a call brings, and what a function declares of its inputs: whether one fits the other, and the free
//! dimensions that arrays tell, or bytes. What is declared is told to callers, too, who check the same before they call.

use std::fmt;

use crate::limits;
use crate::types::DType;

/// An array that comes with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Array<'a> {
    /// The type of its elements.
    pub dtype: DType,
    /// Elements along each dimension, outermost first.
    pub shape: &'a [u64],
}

/// A dimension as it is declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dimension {
    /// Always so many elements.
    Fixed(u64),
    /// As many as the call's array has: an index among the names of free dimensions.
    Free(u32),
    /// Computed from what the call brings.
    Computed,
}

/// What a function declares of an input or an output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declared {
    /// The type of its elements.
    pub dtype: DType,
    /// The dimensions; without them, an array of any shape and any number of elements fits.
    pub shape: Option<Vec<Dimension>>,
}

/// Why an array does not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// More dimensions than an array has.
    #[error("an array of {0} dimensions, expected at most {max}", max = limits::RANK)]
    Rank(usize),
    /// A dimension longer than memory.
    #[error("a dimension of {0} elements, expected at most {max}", max = limits::MEMORY_BYTES)]
    Long(u64),
    /// Another number of bytes.
    #[error("{given} takes {needed} bytes, {bytes} came")]
    Bytes {
        /// The array.
        given: String,
        /// Bytes of such an array.
        needed: u64,
        /// Bytes that came.
        bytes: u64,
    },
    /// Another type or shape.
    #[error("{wanted} is wanted, {given} came")]
    Type {
        /// As it is declared.
        wanted: String,
        /// The array.
        given: String,
    },
    /// A free dimension that another input, or another dimension, told otherwise.
    #[error("{wanted} is wanted with {name} = {before}, which came before; {given} came")]
    Free {
        /// As it is declared.
        wanted: String,
        /// The free dimension.
        name: String,
        /// What it is.
        before: u64,
        /// The array.
        given: String,
    },
    /// Bytes without a shape, where more dimensions are free than bytes tell.
    #[error("{wanted} is wanted: the shape must come with the call")]
    NoShape {
        /// As it is declared.
        wanted: String,
    },
    /// Bytes without a shape, which no number of elements along the free dimension needs.
    #[error("{wanted} is wanted, {bytes} bytes came: no {name} has so many")]
    Ragged {
        /// As it is declared.
        wanted: String,
        /// The free dimension.
        name: String,
        /// Bytes that came.
        bytes: u64,
    },
}

impl Array<'_> {
    /// Checks what holds for every array of so many bytes, whatever is declared.
    pub fn check(&self, bytes: u64) -> Result<(), Misfit> {
        if self.shape.len() > limits::RANK {
            return Err(Misfit::Rank(self.shape.len()));
        }
        if let Some(&long) = self.shape.iter().find(|dim| **dim > limits::MEMORY_BYTES) {
            return Err(Misfit::Long(long));
        }
        // A product beyond 64 bits is more than any input has.
        let needed = self.shape.iter().fold(self.dtype.bytes(), |all, dim| all.saturating_mul(*dim));
        match needed == bytes {
            true => Ok(()),
            false => Err(Misfit::Bytes { given: self.to_string(), needed, bytes }),
        }
    }
}

/// Finds the free dimensions that bytes tell, of arrays whose shapes did not come: what they are declared as, and their bytes. The
/// arrays are looked at twice, since one may be told by what stands behind. An error comes with the position of its array: of
/// one whose bytes do not fit, or of the first one that has a dimension that nothing tells.
pub fn fit_all_bytes<'a>(
    arrays: impl Iterator<Item = (usize, &'a Declared, u64)> + Clone,
    names: &[impl AsRef<str>],
    free: &mut [Option<u64>],
) -> Result<(), (usize, Misfit)> {
    for (at, declared, bytes) in arrays.clone().chain(arrays.clone()) {
        declared.fit_bytes(bytes, names, free).map_err(|why| (at, why))?;
    }
    match arrays.clone().find(|(_, declared, _)| !declared.is_told(free)) {
        Some((at, declared, _)) => Err((at, Misfit::NoShape { wanted: declared.text(names) })),
        None => Ok(()),
    }
}

impl fmt::Display for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.shape.iter().map(u64::to_string).collect();
        write!(f, "{}[{}]", self.dtype.name(), dims.join(","))
    }
}

impl Declared {
    /// True if each free dimension of the array is known.
    pub fn is_told(&self, free: &[Option<u64>]) -> bool {
        let known = |at: u32| free.get(at as usize).is_some_and(Option::is_some);
        self.shape.iter().flatten().all(|dim| !matches!(dim, Dimension::Free(at) if !known(*at)))
    }

    /// Checks that an array of so many bytes has this type and shape, as far as both are known; free dimensions, in the
    /// order of `names`, become known.
    pub fn fit(
        &self,
        array: &Array<'_>,
        bytes: u64,
        names: &[impl AsRef<str>],
        free: &mut [Option<u64>],
    ) -> Result<(), Misfit> {
        array.check(bytes)?;
        let misfit = || Misfit::Type { wanted: self.text(names), given: array.to_string() };
        if array.dtype != self.dtype {
            return Err(misfit());
        }
        let Some(dims) = &self.shape else { return Ok(()) };
        if dims.len() != array.shape.len() {
            return Err(misfit());
        }
        for (dim, &given) in dims.iter().zip(array.shape) {
            match *dim {
                Dimension::Fixed(wanted) if wanted != given => return Err(misfit()),
                Dimension::Fixed(_) | Dimension::Computed => {}
                Dimension::Free(at) => match free.get_mut(at as usize) {
                    Some(Some(before)) if *before != given => {
                        let (name, before) = (names[at as usize].as_ref().to_owned(), *before);
                        let (wanted, given) = (self.text(names), array.to_string());
                        return Err(Misfit::Free { wanted, name, before, given });
                    }
                    Some(value) => *value = Some(given),
                    None => return Err(misfit()),
                },
            }
        }
        Ok(())
    }

    /// Finds the free dimension that an array's bytes tell, if its shape did not come: the only one that is not known, beside others
    /// that are.
    fn fit_bytes(
        &self,
        bytes: u64,
        names: &[impl AsRef<str>],
        free: &mut [Option<u64>],
    ) -> Result<(), Misfit> {
        let mut unknown = None;
        let mut each = self.dtype.bytes();
        for dim in self.shape.iter().flatten() {
            let (known, at) = match *dim {
                Dimension::Fixed(elements) => (Some(elements), None),
                Dimension::Free(at) => (free.get(at as usize).copied().flatten(), Some(at as usize)),
                Dimension::Computed => return Ok(()),
            };
            match known {
                Some(elements) => each = each.saturating_mul(elements),
                None if unknown.is_none() => unknown = at,
                None => return Ok(()),
            }
        }
        let Some(at) = unknown.filter(|_| each > 0) else { return Ok(()) };
        if !bytes.is_multiple_of(each) {
            let name = names[at].as_ref().to_owned();
            return Err(Misfit::Ragged { wanted: self.text(names), name, bytes });
        }
        free[at] = Some(bytes / each);
        Ok(())
    }

    /// `f32[batch,784]`; `…` stands for a dimension that is computed.
    pub fn text(&self, names: &[impl AsRef<str>]) -> String {
        let Some(dims) = &self.shape else { return self.dtype.name().to_owned() };
        let dims = dims.iter().map(|dim| match *dim {
            Dimension::Fixed(value) => value.to_string(),
            Dimension::Free(at) => names.get(at as usize).map_or("?", |name| name.as_ref()).to_owned(),
            Dimension::Computed => "…".to_owned(),
        });
        format!("{}[{}]", self.dtype.name(), dims.collect::<Vec<_>>().join(","))
    }
}
