//! Module `math`: every function as near to the exact result as its header says, for all kinds of arguments.

use pappus_kernels::bytes::{from_elements, to_elements};

use crate::device::Device;
use crate::{SAMPLES, noise};

/// How far a result may be from the exact one, in units in the last place.
const MOST: f64 = 0.51;

/// Values at which something changes, and both neighbours of each.
fn special() -> Vec<f32> {
    let values = [
        0.0,
        f32::MIN_POSITIVE,
        f32::MIN_POSITIVE / 8.0,
        f32::MAX,
        f32::INFINITY,
        0.5,
        1.0,
        1.5,
        2.0,
        2.5,
        3.0,
        std::f32::consts::PI,
        std::f32::consts::FRAC_PI_2,
        std::f32::consts::FRAC_PI_4,
        std::f32::consts::LN_2,
        std::f32::consts::SQRT_2,
        std::f32::consts::FRAC_1_SQRT_2,
        // Where results leave the range of f32.
        88.722_84,
        87.336_54,
        103.972_08,
        128.0,
        126.0,
        149.0,
        150.0,
        200.0,
        // Where the error function is 1, and where angles are reduced in another way.
        3.921_097,
        1_048_576.0,
        8_388_608.0,
        16_777_216.0,
        // Nearest to a multiple of a quarter turn.
        16_367_173.0 * 4_722_366_482_869_645_000_000.0,
    ];
    let near = values.into_iter().flat_map(|x: f32| [x.next_down(), x, x.next_up()]);
    near.flat_map(|x| [x, -x]).chain([f32::NAN]).collect()
}

/// Special values, all bit patterns alike, and those of moderate size.
fn arguments(seed: u64) -> Vec<f32> {
    let any = noise(seed).map(|word| f32::from_bits((word >> 32) as u32)).take(SAMPLES / 2);
    let moderate = |size: f32| move |word: u64| ((word >> 40) as f32 / (1 << 23) as f32 - 1.0) * size;
    let small = noise(seed + 1).map(moderate(4.0)).take(SAMPLES / 4);
    let large = noise(seed + 2).map(moderate(110.0)).take(SAMPLES / 4);
    special().into_iter().chain(any).chain(small).chain(large).collect()
}

fn launched(kernel: &str, arguments: &[&[f32]]) -> Vec<f32> {
    let mut device = Device::load("math");
    let n = arguments[0].len();
    let mut slots: Vec<u64> =
        arguments.iter().map(|values| device.place(&from_elements(values)).address).collect();
    let result = device.zeroed(4 * n);
    slots.extend([result.address, n as u64]);
    device.launch(kernel, &slots, [n as u32 / 256 + 1, 1, 1], [256, 1, 1]);
    to_elements(&device.read(result))
}

/// How far apart floats are at a value.
fn unit(x: f32) -> f64 {
    let size = x.abs().min(f32::MAX.next_down());
    f64::from(size.next_up()) - f64::from(size)
}

#[track_caller]
fn judge(what: &dyn std::fmt::Debug, got: f32, exact: f64, most: f64) {
    let near = exact as f32;
    if exact.is_nan() || got.is_nan() {
        assert!(exact.is_nan() && got.is_nan(), "{what:?}: {got:e}, exactly {exact:e}");
    } else if got.to_bits() != near.to_bits() {
        let units = (f64::from(got) - exact).abs() / unit(near);
        let sign = got.is_sign_negative() == exact.is_sign_negative();
        assert!(sign && units <= most, "{what:?}: {got:e}, exactly {exact:e}: {units} units");
    }
}

fn check_one(kernel: &str, most: f64, exact: fn(f64) -> f64) {
    let x = arguments(kernel.len() as u64);
    for (x, got) in x.iter().zip(launched(kernel, &[&x])) {
        judge(&(kernel, x), got, exact(f64::from(*x)), most);
    }
}

/// A sum of positive parts: nothing cancels.
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 || x == 0.0 || x.is_nan() {
        return if x.abs() > 6.0 { 1f64.copysign(x) } else { x };
    }
    let (mut part, mut sum) = (x, x);
    for n in 1..200 {
        part *= 2.0 * x * x / f64::from(2 * n + 1);
        sum += part;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

#[test]
fn what_is_exact_is_exact() {
    check_one("abs_f", 0.0, f64::abs);
    check_one("floor_f", 0.0, f64::floor);
    check_one("ceil_f", 0.0, f64::ceil);
    check_one("trunc_f", 0.0, f64::trunc);
    check_one("round_f", 0.0, f64::round);
    check_one("sqrt_f", 0.5, f64::sqrt);
    check_one("rsqrt_f", 1.5, |x| 1.0 / x.sqrt());
}

#[test]
fn powers_and_logarithms() {
    check_one("exp_f", MOST, f64::exp);
    check_one("exp2_f", MOST, f64::exp2);
    check_one("log_f", MOST, f64::ln);
    check_one("log2_f", MOST, f64::log2);
    check_one("tanh_f", MOST, f64::tanh);
}

#[test]
fn angles_of_any_size() {
    check_one("sin_f", MOST, f64::sin);
    check_one("cos_f", MOST, f64::cos);
}

#[test]
fn the_error_function() {
    check_one("erf_f", MOST, erf);
}

#[test]
fn functions_of_two() {
    let special = special();
    let pairs = || special.iter().flat_map(|a| special.iter().map(move |b| (*a, *b)));
    let more: Vec<_> = arguments(5).into_iter().zip(arguments(9)).collect();
    // Bases near 1 with large exponents, whose logarithms need all their bits; and whole exponents.
    let near = noise(3).map(|word| {
        let base = 1.0 + ((word >> 40) as f32 / (1 << 23) as f32 - 1.0) / 64.0;
        (base, ((word & 0xffff) as f32 - 32768.0) / 3.0)
    });
    let whole = noise(4).map(|word| (((word >> 32) as i32) as f32 / 1e8, (word & 31) as f32 - 16.0));
    let all: Vec<(f32, f32)> =
        pairs().chain(more).chain(near.take(SAMPLES / 4)).chain(whole.take(SAMPLES / 4)).collect();
    let (a, b): (Vec<f32>, Vec<f32>) = all.iter().copied().unzip();
    let check = |kernel: &str, judge: &dyn Fn(f32, f32, f32)| {
        for ((a, b), got) in all.iter().zip(launched(kernel, &[&a, &b])) {
            judge(*a, *b, got);
        }
    };
    let same = |got: f32, expected: f32| got == expected || got.is_nan() && expected.is_nan();
    check("min_f", &|a, b, got| assert!(same(got, a.min(b)), "{a} {b}: {got}"));
    check("max_f", &|a, b, got| assert!(same(got, a.max(b)), "{a} {b}: {got}"));
    check("copysign_f", &|a, b, got| assert!(same(got, a.copysign(b)), "{a} {b}: {got}"));
    check("pow_f", &|a, b, got| judge(&("pow", a, b), got, f64::from(a).powf(f64::from(b)), MOST));
}
