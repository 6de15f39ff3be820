//! Numbers on the command line, as the bytes of an array, and the other way round.

use pappus_blueprint::DType;
use serde_json::Value;

/// What is wrong with a list of numbers.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LiteralError {
    #[error("{text:?} is no {dtype}; to name a file, write its path with a slash, such as ./{text}")]
    NoNumber { text: String, dtype: &'static str },
    #[error("{text} does not fit {dtype}")]
    Range { text: String, dtype: &'static str },
    #[error("{0} numbers cannot be written here: put them into a file")]
    Unsupported(&'static str),
}

/// The bytes of `NUMBER[,NUMBER...]`; `None` where the first part is no number, so that all are files.
pub(crate) fn read(dtype: DType, text: &str) -> Result<Option<Vec<u8>>, LiteralError> {
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    if !parts.first().is_some_and(|first| is_number(first)) {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    for part in parts {
        push(dtype, part, &mut bytes)?;
    }
    Ok(Some(bytes))
}

/// Numbers as they are read, of the bytes of an array; `None` where they cannot be written.
pub(crate) fn write(dtype: DType, bytes: &[u8]) -> Option<String> {
    fn joined<const N: usize, T: ToString>(bytes: &[u8], number: impl Fn([u8; N]) -> T) -> String {
        let numbers = bytes.as_chunks::<N>().0.iter().map(|bytes| number(*bytes).to_string());
        numbers.collect::<Vec<_>>().join(",")
    }
    Some(match dtype {
        DType::U8 => joined(bytes, u8::from_le_bytes),
        DType::I8 => joined(bytes, i8::from_le_bytes),
        DType::U16 => joined(bytes, u16::from_le_bytes),
        DType::I16 => joined(bytes, i16::from_le_bytes),
        DType::U32 => joined(bytes, u32::from_le_bytes),
        DType::I32 => joined(bytes, i32::from_le_bytes),
        DType::U64 => joined(bytes, u64::from_le_bytes),
        DType::I64 => joined(bytes, i64::from_le_bytes),
        DType::F32 => joined(bytes, f32::from_le_bytes),
        DType::F64 => joined(bytes, f64::from_le_bytes),
        DType::Bool => joined(bytes, |[byte]: [u8; 1]| byte != 0),
        DType::F16 | DType::Bf16 | DType::F8E4M3FN | DType::F8E5M2 => return None,
    })
}

/// The same as JSON; what is no number in JSON (`NaN`, `inf`) is text.
pub(crate) fn values(dtype: DType, bytes: &[u8]) -> Option<Vec<Value>> {
    let numbers = write(dtype, bytes)?;
    let numbers = numbers.split(',').filter(|number| !number.is_empty());
    Some(numbers.map(|number| serde_json::from_str(number).unwrap_or_else(|_| number.into())).collect())
}

/// True if the text is a number of any type.
pub(super) fn is_number(text: &str) -> bool {
    integer(text).is_some() || text.parse::<f64>().is_ok() || boolean(text).is_some()
}

fn push(dtype: DType, text: &str, out: &mut Vec<u8>) -> Result<(), LiteralError> {
    let name = dtype.name();
    let no_number = || LiteralError::NoNumber { text: text.to_owned(), dtype: name };
    let range = || LiteralError::Range { text: text.to_owned(), dtype: name };
    macro_rules! whole {
        ($kind:ty) => {{
            let value = integer(text).ok_or_else(no_number)?;
            out.extend(<$kind>::try_from(value).map_err(|_| range())?.to_le_bytes());
        }};
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
        DType::F32 => {
            let value: f32 = text.parse().map_err(|_| no_number())?;
            if is_lost(text, value.into(), value as i128) {
                return Err(range());
            }
            out.extend(value.to_le_bytes());
        }
        DType::F64 => {
            let value: f64 = text.parse().map_err(|_| no_number())?;
            if is_lost(text, value, value as i128) {
                return Err(range());
            }
            out.extend(value.to_le_bytes());
        }
        DType::Bool => out.push(boolean(text).ok_or_else(no_number)?.into()),
        DType::F16 | DType::Bf16 | DType::F8E4M3FN | DType::F8E5M2 => {
            return Err(LiteralError::Unsupported(name));
        }
    }
    Ok(())
}

/// True if a float, which is `whole` without its fraction, is another number than what is written. Fractions are rounded;
/// `1e39` is no infinity, `1e-99` no zero, and integers are held exactly or not at all.
fn is_lost(text: &str, value: f64, whole: i128) -> bool {
    let mantissa = text.split(['e', 'E']).next().unwrap_or_default();
    let has = |digits: &str| mantissa.contains(|digit| digits.contains(digit));
    value.is_infinite() && has("0123456789")
        || value == 0.0 && has("123456789")
        || integer(text).is_some_and(|written| written != whole)
}

/// Decimal, or hexadecimal behind `0x`.
fn integer(text: &str) -> Option<i128> {
    match text.strip_prefix("0x") {
        Some(digits) => i128::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn boolean(text: &str) -> Option<bool> {
    match text {
        "0" | "false" => Some(false),
        "1" | "true" => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_its_bytes() {
        let bytes = |dtype, text| read(dtype, text).unwrap().unwrap();
        assert_eq!(bytes(DType::U8, "0, 255"), [0, 255]);
        assert_eq!(bytes(DType::I8, "-128"), [128]);
        assert_eq!(bytes(DType::U16, "0xff00"), [0, 255]);
        assert_eq!(bytes(DType::I32, "-1"), [255; 4]);
        assert_eq!(bytes(DType::U64, "18446744073709551615"), [255; 8]);
        assert_eq!(bytes(DType::F32, "0.5,-inf"), [0.5f32, f32::NEG_INFINITY].map(f32::to_le_bytes).concat());
        assert_eq!(bytes(DType::F64, "1e300"), 1e300f64.to_le_bytes());
        assert_eq!(bytes(DType::Bool, "true,0"), [1, 0]);
    }

    #[test]
    fn what_is_written_is_read_again() {
        for (dtype, text) in [
            (DType::U8, "0,255"),
            (DType::I8, "-128,127"),
            (DType::U16, "1"),
            (DType::I16, "-2"),
            (DType::U32, "3"),
            (DType::I32, "-1,5"),
            (DType::U64, "18446744073709551615"),
            (DType::I64, "-9,9"),
            (DType::F32, "0.5,-inf,1"),
            (DType::F64, "1.25,-3"),
            (DType::Bool, "true,false"),
        ] {
            let bytes = read(dtype, text).unwrap().unwrap();
            assert_eq!(write(dtype, &bytes).as_deref(), Some(text), "{dtype:?}");
        }
        assert_eq!(write(DType::F16, &[0, 0]), None);
    }

    #[test]
    fn numbers_are_those_of_json() {
        let of = |dtype, text| values(dtype, &read(dtype, text).unwrap().unwrap()).unwrap();
        let floats = of(DType::F32, "0.1,-inf,NaN,1");
        assert_eq!(serde_json::to_string(&floats).unwrap(), r#"[0.1,"-inf","NaN",1]"#);
        let whole = of(DType::U64, "18446744073709551615");
        assert_eq!(serde_json::to_string(&whole).unwrap(), "[18446744073709551615]");
        assert_eq!(of(DType::Bool, "1,0"), [true, false]);
        assert_eq!(values(DType::F32, &[]).unwrap(), [0; 0]);
        assert_eq!(values(DType::F16, &[0, 0]), None);
    }

    #[test]
    fn what_is_no_number_of_the_type_is_refused() {
        let why = |dtype, text| read(dtype, text).unwrap_err().to_string();
        assert_eq!(why(DType::I8, "128"), "128 does not fit i8");
        assert_eq!(why(DType::U64, "-1"), "-1 does not fit u64");
        assert_eq!(why(DType::F32, "1e39"), "1e39 does not fit f32");
        for text in ["-1e39", "1e-99", "0.5e-60", "16777217"] {
            assert!(why(DType::F32, text).ends_with("does not fit f32"), "{text}");
        }
        for text in ["1e309", "1e-400", "9007199254740993"] {
            assert!(why(DType::F64, text).ends_with("does not fit f64"), "{text}");
        }
        for text in ["0", "-0.0", "0e5", "16777216", "1e-45", "inf", "NaN", "0.1"] {
            assert!(read(DType::F32, text).is_ok(), "{text}");
        }
        assert!(why(DType::I64, "1.5").starts_with("\"1.5\" is no i64"));
        assert!(why(DType::I64, "1,,2").starts_with("\"\" is no i64"));
        assert!(why(DType::Bf16, "1").starts_with("bf16 numbers cannot"));
    }

    #[test]
    fn names_of_files_are_no_numbers() {
        for name in ["a.npy", "1.npy", "./1", "i64", "-"] {
            assert_eq!(read(DType::F32, name), Ok(None), "{name}");
        }
    }
}
