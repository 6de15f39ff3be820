//! Facts about the kernels of a module, whatever its format: names, parameters, needs. Why a module is refused.

use serde::{Deserialize, Serialize};

/// Kernels of a module, and parameters of all of them: what one answer can tell.
const MAX_KERNELS: usize = 1024;
const MAX_PARAMS: usize = 8192;
/// Bytes of all kernels' names.
const MAX_NAME_BYTES: usize = 64 << 10;

/// Why a module is refused: it breaks the rules for modules, or is malformed. In words for its author.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CodeError(pub String);

impl From<&str> for CodeError {
    fn from(why: &str) -> Self {
        Self(why.to_owned())
    }
}

impl From<String> for CodeError {
    fn from(why: String) -> Self {
        Self(why)
    }
}

/// What is known of a module: a compiler's findings, or the module's own declarations.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeInfo {
    /// Kernels it offers.
    pub kernels: Vec<KernelInfo>,
    /// Targets of a module that was only described, as far as the file names them, such as `gfx90a:xnack-`; empty for PTX.
    pub targets: Vec<String>,
    /// True if the kernels cannot leave a window of addresses: strangers may run them beside each other in one process.
    #[serde(default)]
    pub fenced: bool,
    /// Bytes of variables that fenced kernels have in their window. They lie at the same place for every module, so of a
    /// function's modules in a shared worker at most one has any.
    #[serde(default)]
    pub window_variables: u64,
}

/// A kernel of a module.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelInfo {
    /// Its name.
    pub name: String,
    /// Its parameters, where the machine code tells them.
    #[serde(default)]
    pub params: Option<Vec<ParamInfo>>,
    /// Bytes of stack that each of its threads needs.
    #[serde(default)]
    pub local_bytes: u32,
    /// Device memory that the driver takes for the stacks of all threads that can be resident.
    #[serde(default)]
    pub stack_bytes: u64,
    /// Bytes of shared memory that the kernel declares.
    #[serde(default)]
    pub shared_bytes: u32,
    /// Most threads in a block of a launch; 0 if unknown.
    #[serde(default)]
    pub max_threads: u32,
}

impl KernelInfo {
    /// The kernel and its parameters: what is told of it is as many parts.
    pub fn details(&self) -> usize {
        1 + self.params.as_ref().map_or(0, Vec::len)
    }
}

/// A kernel's parameter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParamInfo {
    /// Its name in the source; empty where the module does not tell it.
    #[serde(default)]
    pub name: Box<str>,
    /// Its offset in the parameter memory.
    pub offset: u32,
    /// Its bytes.
    pub bytes: u32,
    /// What is known about its type.
    pub class: ParamClass,
}

/// What the source of a kernel tells about a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ParamClass {
    /// Nothing: bits of any meaning.
    Unknown,
    /// An integer or an address.
    Integer,
    /// A floating-point number.
    Float,
    /// Bytes: a struct by value.
    Bytes,
    /// An address, and nothing else.
    Pointer,
    /// A number or a struct, and no address.
    Value,
    /// An integer, and no address.
    Whole,
}

impl ParamClass {
    /// Its name in answers; empty where nothing is known.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "",
            Self::Integer | Self::Whole => "integer",
            Self::Float => "float",
            Self::Bytes => "struct",
            Self::Pointer => "pointer",
            Self::Value => "value",
        }
    }
}

/// Checks that one answer has room for all kernels.
pub fn check_size(kernels: &[KernelInfo]) -> Result<(), CodeError> {
    let params: usize = kernels.iter().flat_map(|kernel| &kernel.params).map(Vec::len).sum();
    let names: usize = kernels.iter().map(|kernel| kernel.name.len()).sum();
    match kernels.len() <= MAX_KERNELS && params <= MAX_PARAMS && names <= MAX_NAME_BYTES {
        true => Ok(()),
        false => Err(CodeError(format!(
            "{} kernels with {params} parameters and {names} bytes of names, allowed are {MAX_KERNELS}, \
             {MAX_PARAMS} and {MAX_NAME_BYTES}: split the module",
            kernels.len()
        ))),
    }
}
