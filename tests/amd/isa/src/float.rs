//! Arithmetic of floats: round to nearest even, denormals kept, IEEE_MODE and DX10_CLAMP on, as compilers set them for
//! compute. Section "Vector ALU" and the pseudo-code of each instruction.

/// The same functions for both widths.
macro_rules! width {
    ($module:ident, $float:ty, $bits:ty, $int:ty, $quiet:literal, $default:literal, $fraction:literal, $bias:literal) => {
        /// For this width.
        pub mod $module {
            /// The bit that makes a NaN quiet.
            pub const QUIET: $bits = $quiet;

            /// A NaN as results have it.
            #[inline(always)]
            pub fn quiet(x: $float) -> $float {
                <$float>::from_bits(x.to_bits() | QUIET)
            }

            fn signals(x: $float) -> bool {
                x.is_nan() && x.to_bits() & QUIET == 0
            }

            /// `result` of an operation on `a` and `b`; a NaN is that of a source, or the default one.
            #[inline(always)]
            fn of2(a: $float, b: $float, result: $float) -> $float {
                let made = if b.is_nan() { quiet(b) } else { <$float>::from_bits($default) };
                let made = if a.is_nan() { quiet(a) } else { made };
                if result.is_nan() { made } else { result }
            }

            /// The sum.
            #[inline(always)]
            pub fn add(a: $float, b: $float) -> $float {
                of2(a, b, a + b)
            }

            /// The product.
            #[inline(always)]
            pub fn mul(a: $float, b: $float) -> $float {
                of2(a, b, a * b)
            }

            /// `a * b + c` in one rounding.
            #[inline(always)]
            pub fn fma(a: $float, b: $float, c: $float) -> $float {
                let made = if c.is_nan() && !b.is_nan() { quiet(c) } else { of2(a, b, <$float>::NAN) };
                let made = if a.is_nan() { quiet(a) } else { made };
                let result = a.mul_add(b, c);
                if result.is_nan() { made } else { result }
            }

            /// The smaller; a number before a NaN, -0 before +0.
            #[inline(always)]
            pub fn min(a: $float, b: $float) -> $float {
                extreme(a, b, if a < b || (a == b && a.is_sign_negative()) { a } else { b })
            }

            /// The larger; a number before a NaN, +0 before -0.
            #[inline(always)]
            pub fn max(a: $float, b: $float) -> $float {
                extreme(a, b, if a > b || (a == b && a.is_sign_positive()) { a } else { b })
            }

            #[inline(always)]
            fn extreme(a: $float, b: $float, number: $float) -> $float {
                if a.is_nan() || b.is_nan() { extreme_of_nan(a, b) } else { number }
            }

            fn extreme_of_nan(a: $float, b: $float) -> $float {
                if signals(a) || (a.is_nan() && b.is_nan() && !signals(b)) {
                    quiet(a)
                } else if signals(b) {
                    quiet(b)
                } else if a.is_nan() {
                    b
                } else {
                    a
                }
            }

            /// The middle one; with a NaN the smallest.
            pub fn med3(a: $float, b: $float, c: $float) -> $float {
                if a.is_nan() || b.is_nan() || c.is_nan() {
                    return min(min(a, b), c);
                }
                let largest = max(max(a, b), c);
                if largest == a {
                    max(b, c)
                } else if largest == b {
                    max(a, c)
                } else {
                    max(a, b)
                }
            }

            /// Between 0 and 1; a NaN becomes 0.
            #[inline(always)]
            pub fn clamp(x: $float) -> $float {
                if x > 0.0 { if x < 1.0 { x } else { 1.0 } } else { 0.0 }
            }

            /// `x * 2^exponent`, rounded once.
            pub fn ldexp(x: $float, exponent: i32) -> $float {
                if x.is_nan() {
                    return quiet(x);
                }
                if x == 0.0 || x.is_infinite() {
                    return x;
                }
                let (mantissa, own) = split(x);
                let exponent = own.saturating_add(exponent);
                if exponent > 2 * $bias {
                    return <$float>::INFINITY.copysign(x);
                }
                // Down to where a denormal begins in exact steps, then one that rounds.
                let least = 1 - $bias;
                if exponent >= least {
                    let half = <$float>::from_bits((($bias + exponent / 2) as $bits) << $fraction);
                    let rest = <$float>::from_bits((($bias + exponent - exponent / 2) as $bits) << $fraction);
                    return mantissa * half * rest;
                }
                let tiny = <$float>::MIN_POSITIVE;
                let below = (least - exponent).min($fraction + 3);
                mantissa * tiny * <$float>::from_bits((($bias - below) as $bits) << $fraction)
            }

            /// A finite number other than 0 as a mantissa from 1 to below 2 and an exponent.
            fn split(x: $float) -> ($float, i32) {
                let scale = <$float>::from_bits((($bias + $fraction + 1) as $bits) << $fraction);
                let (x, less) = if x.is_subnormal() { (x * scale, $fraction + 1) } else { (x, 0) };
                let mask: $bits = ((1 << ($bias as u32).count_ones() + 1) - 1) << $fraction;
                let exponent = ((x.to_bits() & mask) >> $fraction) as i32 - $bias;
                let mantissa = (x.to_bits() & !mask) | (($bias as $bits) << $fraction);
                (<$float>::from_bits(mantissa), exponent - less)
            }

            /// The mantissa from 0.5 to below 1; itself where there is none.
            pub fn frexp_mantissa(x: $float) -> $float {
                if x.is_nan() {
                    quiet(x)
                } else if x == 0.0 || x.is_infinite() {
                    x
                } else {
                    split(x).0 * 0.5
                }
            }

            /// The exponent that goes with [`frexp_mantissa`]; 0 where there is none.
            pub fn frexp_exponent(x: $float) -> i32 {
                if x == 0.0 || !x.is_finite() { 0 } else { split(x).1 + 1 }
            }

            /// The biased exponent.
            fn exponent(x: $float) -> i32 {
                ((x.to_bits() << 1) >> ($fraction + 1)) as i32
            }

            /// Section V_CMP_CLASS: the bit of the class that `x` is in.
            pub fn class(x: $float) -> u32 {
                let negative = x.is_sign_negative();
                match x.classify() {
                    std::num::FpCategory::Nan => u32::from(!signals(x)),
                    std::num::FpCategory::Infinite => {
                        if negative {
                            2
                        } else {
                            9
                        }
                    }
                    std::num::FpCategory::Normal => {
                        if negative {
                            3
                        } else {
                            8
                        }
                    }
                    std::num::FpCategory::Subnormal => {
                        if negative {
                            4
                        } else {
                            7
                        }
                    }
                    std::num::FpCategory::Zero => {
                        if negative {
                            5
                        } else {
                            6
                        }
                    }
                }
            }

            /// V_DIV_SCALE: the source `x` (the denominator or the numerator) scaled so that the steps of a division
            /// neither overflow nor lose bits, and whether V_DIV_FMAS must scale back.
            pub fn div_scale(x: $float, denominator: $float, numerator: $float) -> ($float, bool) {
                const UP: i32 = if $fraction == 23 { 64 } else { 128 };
                const FAR: i32 = if $fraction == 23 { 96 } else { 768 };
                const SMALL: i32 = $fraction + if $fraction == 23 { 0 } else { 1 };
                let is_denominator = x.to_bits() == denominator.to_bits();
                let is_numerator = x.to_bits() == numerator.to_bits();
                let denormal = |x: $float| x.is_subnormal();
                if numerator == 0.0 || denominator == 0.0 {
                    (<$float>::NAN, false)
                } else if exponent(numerator) - exponent(denominator) >= FAR {
                    (if is_denominator { ldexp(x, UP) } else { x }, true)
                } else if denormal(denominator) {
                    (ldexp(x, UP), false)
                } else if denormal(1.0 / denominator) && denormal(numerator / denominator) {
                    // The denominator is at the upper end: scaled down, it makes the quotient larger.
                    (if is_denominator { ldexp(x, -UP) } else { x }, true)
                } else if denormal(1.0 / denominator) {
                    (ldexp(x, -UP), false)
                } else if denormal(numerator / denominator) {
                    (if is_numerator { ldexp(x, UP) } else { x }, true)
                } else if exponent(numerator) <= SMALL {
                    (ldexp(x, UP), false)
                } else {
                    (x, false)
                }
            }

            /// V_DIV_FMAS: the last step of a division, scaled back if V_DIV_SCALE said so.
            pub fn div_fmas(a: $float, b: $float, c: $float, scaled: bool) -> $float {
                const BACK: i32 = if $fraction == 23 { 64 } else { 128 };
                let result = fma(a, b, c);
                match scaled {
                    false => result,
                    true if exponent(c) > $bias => ldexp(result, BACK),
                    true => scale_down(result, -BACK, a.mul_add(b, c - result)),
                }
            }

            /// `x * 2^by` of what was `x + error` before it was rounded, as if it were rounded now only. In a division
            /// `c - result` is exact, so the sign of `error` is right.
            fn scale_down(x: $float, by: i32, error: $float) -> $float {
                let scaled = ldexp(x, by);
                let unit = <$float>::from_bits(1);
                let rest = x - ldexp(scaled, -by);
                let is_tie = scaled.abs() <= <$float>::MIN_POSITIVE && rest.abs() == ldexp(unit, -by - 1);
                let is_beyond = error != 0.0 && (rest > 0.0) == (error > 0.0);
                if is_tie && is_beyond { scaled + unit.copysign(rest) } else { scaled }
            }

            /// V_DIV_FIXUP: the quotient, or what a division gives where the steps before do not.
            pub fn div_fixup(quotient: $float, denominator: $float, numerator: $float) -> $float {
                const LEAST: i32 = if $fraction == 23 { -150 } else { -1075 };
                let negative = denominator.is_sign_negative() != numerator.is_sign_negative();
                let signed = |x: $float| if negative { -x } else { x };
                if numerator.is_nan() {
                    quiet(numerator)
                } else if denominator.is_nan() {
                    quiet(denominator)
                } else if (numerator == 0.0 && denominator == 0.0)
                    || (numerator.is_infinite() && denominator.is_infinite())
                {
                    -<$float>::from_bits($default)
                } else if denominator == 0.0 || numerator.is_infinite() {
                    signed(<$float>::INFINITY)
                } else if denominator.is_infinite() || numerator == 0.0 {
                    signed(0.0)
                } else if exponent(numerator) - exponent(denominator) < LEAST {
                    signed(0.0)
                } else if exponent(numerator) - exponent(denominator) > $bias + 2 {
                    // The documents' condition for overflow is one that cannot hold: this is what IEEE 754 says.
                    signed(<$float>::INFINITY)
                } else {
                    signed(quotient.abs())
                }
            }
        }
    };
}

width!(single, f32, u32, i32, 0x0040_0000, 0x7fc0_0000, 23, 127);
width!(double, f64, u64, i64, 0x0008_0000_0000_0000, 0x7ff8_0000_0000_0000, 52, 1023);

/// A denormal as the zero of its sign: V_RCP_F32 and its kin neither take nor give any.
pub fn flush(x: f32) -> f32 {
    if x.is_subnormal() { 0f32.copysign(x) } else { x }
}

/// The 16-bit float nearest to `x`.
pub fn to_half(x: f32) -> u32 {
    let sign = (x.to_bits() >> 16) & 0x8000;
    let magnitude = x.to_bits() & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return sign | 0x7e00 | ((magnitude >> 13) & 0x1ff);
    }
    if magnitude >= 0x4780_0000 {
        return sign | 0x7c00;
    }
    // The value in units of the last place that the result has, rounded to even.
    let least = if magnitude < 0x3880_0000 { 113 } else { magnitude >> 23 };
    let scaled = f64::from(f32::from_bits(magnitude)) * 2f64.powi(127 + 10 - least as i32);
    let units = scaled.round_ties_even() as u32;
    let base = if magnitude < 0x3880_0000 { 0 } else { (least - 113) << 10 };
    sign | (base + units)
}

/// A 16-bit float as one of 32 bits.
pub fn from_half(bits: u32) -> f32 {
    let (sign, exponent, fraction) = (bits >> 15 & 1, bits >> 10 & 0x1f, bits & 0x3ff);
    let magnitude = match exponent {
        0 => fraction as f32 * 2f32.powi(-24),
        31 if fraction == 0 => f32::INFINITY,
        31 => f32::from_bits(0x7fc0_0000 | fraction << 13),
        _ => (1024 + fraction) as f32 * 2f32.powi(exponent as i32 - 25),
    };
    if sign == 1 { -magnitude } else { magnitude }
}
