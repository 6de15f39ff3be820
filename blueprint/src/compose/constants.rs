//! Constants of a composition: numbers as written become the bytes of an array.

use super::written::{Constant, Literal};
use crate::error::{Notes, Path};
use crate::limits::{CONSTANT_BYTES, MEMORY_BYTES, RANK};
use crate::small_float::SmallFloat;
use crate::types::DType;

/// An array that is always the same.
pub(super) struct Array {
    pub(super) dtype: DType,
    pub(super) shape: Vec<u64>,
    pub(super) bytes: Vec<u8>,
}

impl Array {
    /// Notes what is wrong with a constant. `used` counts the bytes of all constants.
    pub(super) fn of(
        written: &Constant,
        used: &mut u64,
        place: &Path<'_>,
        notes: &mut Notes<'_>,
    ) -> Option<Self> {
        let (dtype, count) = (written.dtype, written.values.len() as u64);
        let shape = written.shape.clone().unwrap_or_else(|| vec![count]);
        if shape.len() > RANK || shape.iter().any(|dim| *dim > MEMORY_BYTES) {
            let message =
                format_args!("expected at most {RANK} dimensions of at most {MEMORY_BYTES} elements");
            notes.note(&place.key("shape"), message);
            return None;
        }
        let wanted = shape.iter().fold(1u64, |all, dim| all.saturating_mul(*dim));
        if wanted != count {
            notes.note(
                &place.key("values"),
                format_args!("{count} values, expected the {wanted} of its shape"),
            );
            return None;
        }
        *used = used.saturating_add(count.saturating_mul(dtype.bytes()));
        if *used > CONSTANT_BYTES {
            let message =
                format_args!("{used} bytes with the constants before, expected at most {CONSTANT_BYTES}");
            notes.note(place, message);
            return None;
        }
        let mut bytes = Vec::with_capacity((count * dtype.bytes()) as usize);
        let mut whole = true;
        for (at, value) in written.values.iter().enumerate() {
            match bits(dtype, value) {
                Some(bits) => bytes.extend(&bits.to_le_bytes()[..dtype.bytes() as usize]),
                None => {
                    let value = match value {
                        Literal::Number(text) => text.as_str(),
                        Literal::Bool(true) => "true",
                        Literal::Bool(false) => "false",
                    };
                    let message = format_args!("{value} is no value of type {}", dtype.name());
                    notes.note(&place.key("values").index(at), message);
                    whole = false;
                }
            }
        }
        whole.then_some(Self { dtype, shape, bytes })
    }

    /// An unsigned 64-bit little-endian word of its bytes, if it has so many.
    pub(super) fn word(&self, index: u64) -> Option<u64> {
        let start = usize::try_from(index).ok()?.checked_mul(8)?;
        let bytes = self.bytes.get(start..start.checked_add(8)?)?;
        bytes.try_into().ok().map(u64::from_le_bytes)
    }
}

/// The little-endian bits of a value, as wide as its type.
fn bits(dtype: DType, value: &Literal) -> Option<u64> {
    let text = match (dtype, value) {
        (DType::Bool, Literal::Bool(value)) => return Some((*value).into()),
        (DType::Bool, _) | (_, Literal::Bool(_)) => return None,
        (_, Literal::Number(text)) => text.as_str(),
    };
    let whole = |min: i128, max: i128| {
        let value = text.parse::<i128>().ok().filter(|value| (min..=max).contains(value))?;
        // Two's complement, cut to the width of the type where its bytes are taken.
        Some(value as u64)
    };
    let float = || text.parse::<f64>().ok().filter(|value| value.is_finite());
    match dtype {
        DType::U8 => whole(0, u8::MAX.into()),
        DType::I8 => whole(i8::MIN.into(), i8::MAX.into()),
        DType::U16 => whole(0, u16::MAX.into()),
        DType::I16 => whole(i16::MIN.into(), i16::MAX.into()),
        DType::U32 => whole(0, u32::MAX.into()),
        DType::I32 => whole(i32::MIN.into(), i32::MAX.into()),
        DType::U64 => whole(0, u64::MAX.into()),
        DType::I64 => whole(i64::MIN.into(), i64::MAX.into()),
        DType::F16 => SmallFloat::F16.nearest(float()?).map(u64::from),
        DType::Bf16 => SmallFloat::BF16.nearest(float()?).map(u64::from),
        DType::F8E4M3FN => SmallFloat::F8E4M3FN.nearest(float()?).map(u64::from),
        DType::F8E5M2 => SmallFloat::F8E5M2.nearest(float()?).map(u64::from),
        DType::F32 => {
            // From the text at once: by way of a double, what lies next to the middle of two would be rounded twice.
            let value = text.parse::<f32>().ok().filter(|value| value.is_finite());
            value.map(|value| value.to_bits().into())
        }
        DType::F64 => float().map(f64::to_bits),
        DType::Bool => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_become_the_bytes_of_their_type() {
        let number = |text: &str| Literal::Number(text.into());
        for (dtype, text, wanted) in [
            (DType::I8, "-1", Some(0xff)),
            (DType::I64, "-2", Some(u64::MAX - 1)),
            (DType::U64, "18446744073709551615", Some(u64::MAX)),
            (DType::F32, "1.5", Some(0x3fc0_0000)),
            (DType::F32, "1.000000059604644775390626", Some(0x3f80_0001)),
            (DType::F32, "3.5e38", None),
            (DType::F64, "2", Some(0x4000_0000_0000_0000)),
            (DType::F16, "1", Some(0x3c00)),
            (DType::Bf16, "-1", Some(0xbf80)),
            (DType::F8E4M3FN, "-448", Some(0xfe)),
            (DType::F8E5M2, "1", Some(0x3c)),
            (DType::F8E4M3FN, "465", None),
            (DType::U8, "256", None),
            (DType::U8, "1.5", None),
            (DType::F32, "1e39", None),
            (DType::F16, "65536", None),
            (DType::Bool, "1", None),
        ] {
            let found = bits(dtype, &number(text)).map(|bits| bits & (u64::MAX >> (64 - 8 * dtype.bytes())));
            assert_eq!(found, wanted, "{text} as {}", dtype.name());
        }
        assert_eq!(bits(DType::Bool, &Literal::Bool(true)), Some(1));
        assert_eq!(bits(DType::I32, &Literal::Bool(true)), None);
    }
}
