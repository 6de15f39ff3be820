//! Types that the format, the planner and plans share.

use serde::Serialize;

/// The type of a buffer's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names say it all")]
pub enum DType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F16,
    Bf16,
    F8E4M3FN,
    F8E5M2,
    F32,
    F64,
    Bool,
}

impl DType {
    /// Every type.
    pub const ALL: [Self; 15] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::U64,
        Self::I64,
        Self::F16,
        Self::Bf16,
        Self::F8E4M3FN,
        Self::F8E5M2,
        Self::F32,
        Self::F64,
        Self::Bool,
    ];

    /// True if the type is a float.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F8E4M3FN | Self::F8E5M2 | Self::F16 | Self::Bf16 | Self::F32 | Self::F64)
    }

    /// Bytes of one element.
    pub fn bytes(self) -> u64 {
        match self {
            DType::U8 | DType::I8 | DType::F8E4M3FN | DType::F8E5M2 | DType::Bool => 1,
            DType::U16 | DType::I16 | DType::F16 | DType::Bf16 => 2,
            DType::U32 | DType::I32 | DType::F32 => 4,
            DType::U64 | DType::I64 | DType::F64 => 8,
        }
    }

    /// The type of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    /// Its name in the blueprint.
    pub fn name(self) -> &'static str {
        match self {
            DType::U8 => "u8",
            DType::I8 => "i8",
            DType::U16 => "u16",
            DType::I16 => "i16",
            DType::U32 => "u32",
            DType::I32 => "i32",
            DType::U64 => "u64",
            DType::I64 => "i64",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
            DType::F8E4M3FN => "f8e4m3fn",
            DType::F8E5M2 => "f8e5m2",
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::Bool => "bool",
        }
    }
}

/// How a box of a tensor map is arranged in shared memory, so that accesses meet no bank twice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum Swizzle {
    /// As it lies in memory.
    #[default]
    #[cfg_attr(test, schemars(rename = "none"))]
    None,
    /// Within 32 bytes.
    #[cfg_attr(test, schemars(rename = "32B"))]
    Bytes32,
    /// Within 64 bytes.
    #[cfg_attr(test, schemars(rename = "64B"))]
    Bytes64,
    /// Within 128 bytes.
    #[cfg_attr(test, schemars(rename = "128B"))]
    Bytes128,
}

impl Swizzle {
    /// The most bytes that the box's innermost dimension may have, where that is limited.
    pub(crate) fn span(self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Bytes32 => Some(32),
            Self::Bytes64 => Some(64),
            Self::Bytes128 => Some(128),
        }
    }
}

/// What is said of workers that tenants share.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// Calls may run there, if device, owner and caller let them.
    #[default]
    Auto,
    /// No call runs there.
    Process,
    /// A call that may not run there is refused.
    Shared,
}

impl Isolation {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Process, Self::Shared];

    /// As configurations say it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Process => "process",
            Self::Shared => "shared",
        }
    }
}

impl std::str::FromStr for Isolation {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|isolation| isolation.name() == name).ok_or(())
    }
}

/// What is read where a box lies beyond its array.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename_all = "lowercase"))]
pub enum BoxFill {
    /// Zeroes.
    #[default]
    Zero,
    /// Floats that are no numbers.
    Nan,
}

/// What a parameter is. Device code for 32-bit addresses narrows pointers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it all")]
pub enum ParamKind {
    Pointer,
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    F16,
    Bf16,
    F32,
    F64,
    Bool,
    Struct,
    TensorMap,
}

impl ParamKind {
    /// True if the parameter is an integer or an address: code that declares a float for it would misread it.
    pub fn is_whole(self) -> bool {
        !matches!(self, Self::Struct | Self::TensorMap | Self::F16 | Self::Bf16) && !self.is_float()
    }

    /// True if the parameter is a float that code with an integer in its place would misread. Floats of two bytes are
    /// none of these: compilers declare them as integers, as bits and as structs.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }

    /// Its name, for people.
    pub fn name(self) -> &'static str {
        match self {
            ParamKind::Pointer => "pointer",
            ParamKind::I8 => "i8",
            ParamKind::U8 => "u8",
            ParamKind::I16 => "i16",
            ParamKind::U16 => "u16",
            ParamKind::I32 => "i32",
            ParamKind::U32 => "u32",
            ParamKind::I64 => "i64",
            ParamKind::U64 => "u64",
            ParamKind::F16 => "f16",
            ParamKind::Bf16 => "bf16",
            ParamKind::F32 => "f32",
            ParamKind::F64 => "f64",
            ParamKind::Bool => "bool",
            ParamKind::Struct => "struct",
            ParamKind::TensorMap => "tensor map",
        }
    }
}

/// The memory a list has reserved.
pub(crate) fn heap_bytes<T>(list: &Vec<T>) -> usize {
    list.capacity() * size_of::<T>()
}
