//! Floats of 8 and 16 bits: the nearest one to a number. They are arguments and constants only, so nothing else is needed of
//! them.

/// A layout: a sign, an exponent, and what is left for the fraction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SmallFloat {
    bits: u32,
    exponent_bits: u32,
    /// True if numbers go on where others have infinity; only the last of all bits are no number.
    is_finite: bool,
}

/// The exponent of the number 1 in an `f64`, and the bits of its fraction.
const F64_BIAS: i32 = 1023;
const F64_FRACTION_BITS: u32 = 52;

impl SmallFloat {
    /// IEEE 754's binary16.
    pub(crate) const F16: Self = Self { bits: 16, exponent_bits: 5, is_finite: false };
    /// The upper half of an `f32`.
    pub(crate) const BF16: Self = Self { bits: 16, exponent_bits: 8, is_finite: false };
    /// E4M3 of the Open Compute Project's "OCP 8-bit Floating Point Specification".
    pub(crate) const F8E4M3FN: Self = Self { bits: 8, exponent_bits: 4, is_finite: true };
    /// E5M2 of the same: the upper half of a binary16.
    pub(crate) const F8E5M2: Self = Self { bits: 8, exponent_bits: 5, is_finite: false };

    fn fraction_bits(self) -> u32 {
        self.bits - 1 - self.exponent_bits
    }

    /// The exponent of the smallest number of full precision.
    fn least_exponent(self) -> i32 {
        2 - (1 << (self.exponent_bits - 1))
    }

    /// The first bits, without a sign, that are no number: infinity, where there is one.
    fn end(self) -> u64 {
        match self.is_finite {
            true => (1 << (self.bits - 1)) - 1,
            false => ((1 << self.exponent_bits) - 1) << self.fraction_bits(),
        }
    }

    /// The bits of the nearest number, of two the even one; none where it has no such number.
    pub(crate) fn nearest(self, value: f64) -> Option<u16> {
        if !value.is_finite() {
            return None;
        }
        let exponent = (value.abs().to_bits() >> F64_FRACTION_BITS) as i32 - F64_BIAS;
        let exponent = exponent.max(self.least_exponent());
        // Counted in units of the last bit. Multiplying by a power of two is exact.
        let units = value.abs() * power_of_two(self.fraction_bits() as i32 - exponent)?;
        // A fraction that is rounded up to the next power of two adds one to the exponent by itself.
        let binade = (exponent - self.least_exponent()) as u64;
        let bits = (binade << self.fraction_bits()) + units.round_ties_even() as u64;
        (bits < self.end()).then(|| bits as u16 | u16::from(value.is_sign_negative()) << (self.bits - 1))
    }

    /// The largest number.
    pub(crate) fn max(self) -> f64 {
        let last = self.end() - 1;
        let exponent = (last >> self.fraction_bits()) as i32 - 1 + self.least_exponent();
        let fraction = (last & ((1 << self.fraction_bits()) - 1)) as f64;
        let unit = power_of_two(-(self.fraction_bits() as i32)).unwrap_or_default();
        (1.0 + fraction * unit) * power_of_two(exponent).unwrap_or_default()
    }
}

/// None where it is out of an `f64`'s range of full precision.
fn power_of_two(exponent: i32) -> Option<f64> {
    let biased = u64::try_from(exponent + F64_BIAS).ok().filter(|biased| (1..2047).contains(biased))?;
    Some(f64::from_bits(biased << F64_FRACTION_BITS))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [SmallFloat; 4] =
        [SmallFloat::F16, SmallFloat::BF16, SmallFloat::F8E4M3FN, SmallFloat::F8E5M2];

    /// What bits mean, by the definition.
    fn value(format: SmallFloat, bits: u16) -> f64 {
        let fraction_bits = format.fraction_bits();
        let magnitude = i32::from(bits & ((1 << (format.bits - 1)) - 1));
        let (exponent, fraction) = (magnitude >> fraction_bits, magnitude & ((1 << fraction_bits) - 1));
        let leading = if exponent == 0 { 0 } else { 1 << fraction_bits };
        let scale = exponent.max(1) - 1 + format.least_exponent() - fraction_bits as i32;
        let sign = if bits >> (format.bits - 1) == 1 { -1.0 } else { 1.0 };
        sign * f64::from(leading + fraction) * 2f64.powi(scale)
    }

    /// All bits that are numbers, from the smallest upwards.
    fn positive(format: SmallFloat) -> std::ops::Range<u16> {
        0..format.end() as u16
    }

    #[test]
    fn every_number_is_the_nearest_to_itself() {
        for format in ALL {
            for bits in positive(format) {
                for bits in [bits, bits | 1 << (format.bits - 1)] {
                    assert_eq!(format.nearest(value(format, bits)), Some(bits), "{format:?} {bits:#x}");
                }
            }
        }
    }

    #[test]
    fn what_lies_in_the_middle_goes_to_the_even_one() {
        for format in ALL {
            for bits in positive(format).skip(1) {
                let (below, above) = (value(format, bits - 1), value(format, bits));
                let middle = below + (above - below) / 2.0;
                let even = bits - bits % 2;
                assert_eq!(format.nearest(middle), Some(even));
                assert_eq!(format.nearest(middle.next_down()), Some(bits - 1));
                assert_eq!(format.nearest(-middle.next_up()), Some(bits | 1 << (format.bits - 1)));
            }
        }
    }

    #[test]
    fn what_is_too_large_is_none() {
        assert_eq!((SmallFloat::F16.max(), SmallFloat::F16.nearest(65504.0)), (65504.0, Some(0x7bff)));
        assert_eq!(
            (SmallFloat::F16.nearest(65520f64.next_down()), SmallFloat::F16.nearest(65520.0)),
            (Some(0x7bff), None)
        );
        assert_eq!(SmallFloat::BF16.max(), f64::from(f32::from_bits(0x7f7f_0000)));
        for huge in [1e39, f64::MAX, -f64::MAX, f64::INFINITY, f64::NAN] {
            assert_eq!(ALL.map(|format| format.nearest(huge)), [None; 4], "{huge}");
        }
        assert_eq!((SmallFloat::F8E4M3FN.max(), SmallFloat::F8E5M2.max()), (448.0, 57344.0));
        // In the middle of it and what is no number.
        assert_eq!(SmallFloat::F8E4M3FN.nearest(464.0), Some(0x7e));
        assert_eq!(SmallFloat::F8E4M3FN.nearest(464f64.next_up()), None);
        assert_eq!(SmallFloat::BF16.nearest(f64::MIN_POSITIVE / 4.0), Some(0));
    }

    proptest! {
        /// Two roundings, through an f32, could differ from one; a bf16 of an f32 is told by its bits.
        #[test]
        fn a_bf16_is_the_upper_half_of_an_f32(bits: u32) {
            let number = f32::from_bits(bits);
            prop_assume!(number.is_finite());
            let upper = (u64::from(bits) + 0x7fff + u64::from(bits >> 16 & 1)) >> 16;
            let expected = Some(upper as u16).filter(|bits| bits & 0x7fff < 0x7f80);
            prop_assert_eq!(SmallFloat::BF16.nearest(number.into()), expected);
        }
    }
}
