//! Element types, by Pappus's names and by those of the protocol, and numbers as their bytes: little-endian, row by row.

use std::fmt;

use pappus_blueprint::DType;

/// The protocol's name of a type.
pub fn name_of(dtype: DType) -> &'static str {
    match dtype {
        DType::U8 => "UINT8",
        DType::I8 => "INT8",
        DType::U16 => "UINT16",
        DType::I16 => "INT16",
        DType::U32 => "UINT32",
        DType::I32 => "INT32",
        DType::U64 => "UINT64",
        DType::I64 => "INT64",
        DType::F16 => "FP16",
        DType::Bf16 => "BF16",
        // The protocol has no names for these.
        DType::F8E4M3FN => "FP8E4M3FN",
        DType::F8E5M2 => "FP8E5M2",
        DType::F32 => "FP32",
        DType::F64 => "FP64",
        DType::Bool => "BOOL",
    }
}

/// The type that the protocol calls so; none for `BYTES`, whose elements have no fixed size, and for what is no type.
pub fn named(name: &str) -> Option<DType> {
    DType::ALL.into_iter().find(|dtype| name_of(*dtype) == name)
}

/// A number of a request in JSON.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// A whole one.
    Int(i64),
    /// One that is larger than those.
    UInt(u64),
    /// Any other.
    Float(f64),
    /// True or false.
    Bool(bool),
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(number) => number.fmt(f),
            Self::UInt(number) => number.fmt(f),
            // With a point, also where nothing follows.
            Self::Float(number) => write!(f, "{number:?}"),
            Self::Bool(is_true) => is_true.fmt(f),
        }
    }
}

/// Appends a number as an element of this type; false if the type has no such number.
pub fn push(out: &mut Vec<u8>, dtype: DType, number: Number) -> bool {
    macro_rules! whole {
        ($type:ty) => {
            match number {
                Number::Int(value) => <$type>::try_from(value).ok(),
                Number::UInt(value) => <$type>::try_from(value).ok(),
                Number::Float(_) | Number::Bool(_) => None,
            }
            .map(|value| out.extend_from_slice(&value.to_le_bytes()))
            .is_some()
        };
    }
    // A whole number is that number, or none; others become the nearest one, unless that is infinite, or nothing is left.
    macro_rules! float {
        ($type:ty) => {
            match number {
                Number::Int(value) => Some(value as $type).filter(|float| *float as i128 == value.into()),
                Number::UInt(value) => Some(value as $type).filter(|float| *float as i128 == value.into()),
                Number::Float(value) => Some(value as $type)
                    .filter(|float| float.is_finite() && (*float == 0.0) == (value == 0.0)),
                Number::Bool(_) => None,
            }
            .map(|float| out.extend_from_slice(&float.to_le_bytes()))
            .is_some()
        };
    }
    match dtype {
        DType::U8 => whole!(u8),
        DType::I8 => whole!(i8),
        DType::U16 => whole!(u16),
        DType::I16 => whole!(i16),
        DType::U32 => whole!(u32),
        DType::I32 => whole!(i32),
        DType::U64 => whole!(u64),
        DType::I64 => whole!(i64),
        DType::F32 => float!(f32),
        DType::F64 => float!(f64),
        DType::Bool => match number {
            Number::Bool(value) => {
                out.push(value.into());
                true
            }
            Number::Int(value @ (0 | 1)) => {
                out.push(value as u8);
                true
            }
            _ => false,
        },
        // JSON has no form for these on which clients agree.
        DType::F16 | DType::Bf16 | DType::F8E4M3FN | DType::F8E5M2 => false,
    }
}

/// True if numbers of this type can be written in JSON.
pub fn has_json(dtype: DType) -> bool {
    !matches!(dtype, DType::F16 | DType::Bf16 | DType::F8E4M3FN | DType::F8E5M2)
}

/// Appends elements to a list in JSON. What is no number there, such as a NaN, is null.
pub fn write_json(out: &mut String, dtype: DType, bytes: &[u8]) {
    use std::fmt::Write;
    out.push('[');
    let mut comma = false;
    macro_rules! each {
        ($type:ty, |$out:ident, $value:ident| $write:expr) => {
            for chunk in bytes.as_chunks::<{ size_of::<$type>() }>().0 {
                if std::mem::replace(&mut comma, true) {
                    out.push(',');
                }
                let ($out, $value) = (&mut *out, <$type>::from_le_bytes(*chunk));
                // Writing to memory does not fail.
                let _ = $write;
            }
        };
    }
    macro_rules! whole {
        ($type:ty) => {
            each!($type, |out, value| write!(out, "{value}"))
        };
    }
    macro_rules! float {
        ($type:ty) => {
            each!($type, |out, value| match value.is_finite() {
                true => write!(out, "{value:?}"),
                false => out.write_str("null"),
            })
        };
    }
    match dtype {
        DType::U8 | DType::F8E4M3FN | DType::F8E5M2 => whole!(u8),
        DType::I8 => whole!(i8),
        DType::U16 | DType::F16 | DType::Bf16 => whole!(u16),
        DType::I16 => whole!(i16),
        DType::U32 => whole!(u32),
        DType::I32 => whole!(i32),
        DType::U64 => whole!(u64),
        DType::I64 => whole!(i64),
        DType::F32 => float!(f32),
        DType::F64 => float!(f64),
        DType::Bool => each!(u8, |out, value| write!(out, "{}", value != 0)),
    }
    out.push(']');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(dtype: DType, number: Number) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        push(&mut out, dtype, number).then_some(out)
    }

    #[test]
    fn names_are_the_protocols() {
        for dtype in DType::ALL {
            assert_eq!(named(name_of(dtype)), Some(dtype));
        }
        assert_eq!((named("BYTES"), named("f32"), named("")), (None, None, None));
    }

    #[test]
    fn a_number_that_a_type_does_not_have_is_refused() {
        assert_eq!(bytes(DType::U8, Number::Int(255)), Some(vec![255]));
        assert_eq!(bytes(DType::I64, Number::UInt(u64::MAX)), None);
        for (dtype, number) in [
            (DType::U8, Number::Int(256)),
            (DType::U8, Number::Int(-1)),
            (DType::I32, Number::Float(1.5)),
            (DType::F32, Number::Bool(true)),
            (DType::F32, Number::Float(1e39)),
            (DType::F32, Number::Float(1e-50)),
            (DType::F32, Number::Int((1 << 24) + 1)),
            (DType::F64, Number::Int((1 << 53) + 1)),
            (DType::F64, Number::UInt(u64::MAX)),
            (DType::Bool, Number::Int(2)),
            (DType::F16, Number::Int(1)),
        ] {
            assert_eq!(bytes(dtype, number), None, "{dtype:?} {number:?}");
        }
        assert_eq!(bytes(DType::Bool, Number::Bool(true)), Some(vec![1]));
        assert_eq!(bytes(DType::F32, Number::Int(2)), Some(2f32.to_le_bytes().to_vec()));
        assert_eq!(bytes(DType::F32, Number::Float(-0.0)), Some((-0f32).to_le_bytes().to_vec()));
        assert_eq!(bytes(DType::F64, Number::Int(-1 << 60)), Some((-(2f64.powi(60))).to_le_bytes().to_vec()));
    }

    #[test]
    fn elements_are_written_as_json_reads_them() {
        let written = |dtype, bytes: &[u8]| {
            let mut out = String::new();
            write_json(&mut out, dtype, bytes);
            serde_json::from_str::<serde_json::Value>(&out).unwrap_or_else(|error| panic!("{out}: {error}"));
            out
        };
        let floats: Vec<u8> = [11f32, 0.5, 1e30, f32::NAN].iter().flat_map(|f| f.to_le_bytes()).collect();
        assert_eq!(written(DType::F32, &floats), "[11.0,0.5,1e30,null]");
        assert_eq!(written(DType::I8, &[255, 1]), "[-1,1]");
        assert_eq!(written(DType::Bool, &[0, 1]), "[false,true]");
        assert_eq!(written(DType::U64, &[]), "[]");
    }
}
