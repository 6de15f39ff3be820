/* Functions of f32 that give the same bits on every device, and natively: each is made of additions, multiplications,
 * divisions, conversions and integer arithmetic, which IEEE 754 defines to the bit, in an order that nothing changes (no
 * contraction, no reassociation). Only a NaN's sign and payload may differ. Include pappus.h, not this.
 *
 *   f32_abs f32_copysign f32_floor f32_ceil f32_trunc f32_round (halves away from 0) f32_min f32_max f32_sqrt   exact
 *   f32_rsqrt                                                                    1.5 units in the last place
 *   f32_exp f32_exp2 f32_log f32_log2 f32_pow f32_sin f32_cos f32_tanh f32_erf   0.51 units, for all arguments
 *
 * Special values are those of C's functions; f32_min and f32_max give the other argument where one is a NaN. The functions of
 * the last line work in f64 inside, with polynomials that interpolate the function in the Chebyshev nodes of the interval, made
 * with 60 digits and rounded once; how far each is from its function stands beside it, relative to the function. f64 is about
 * half as fast as f32 on the CPU device and on data centre GPUs, and a 64th on GPUs for games.
 */

INLINE f64 pappus_as_f64(u64 bits)
{
    f64 value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE u64 pappus_as_u64(f64 value)
{
    u64 bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    return bits;
}

INLINE f32 pappus_as_f32(u32 bits)
{
    f32 value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE u32 pappus_as_u32(f32 value)
{
    u32 bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    return bits;
}

#define PAPPUS_INFINITY pappus_as_f32(0x7f800000u)
#define PAPPUS_NAN pappus_as_f32(0x7fc00000u)
/* 1.5 * 2^52: what is added to it is rounded to an integer, which then stands in the low bits. */
#define PAPPUS_ROUND 6755399441055744.0

INLINE f32 f32_abs(f32 x) { return __builtin_fabsf(x); }
INLINE f32 f32_copysign(f32 x, f32 sign) { return __builtin_copysignf(x, sign); }
INLINE f32 f32_floor(f32 x) { return __builtin_floorf(x); }
INLINE f32 f32_ceil(f32 x) { return __builtin_ceilf(x); }
INLINE f32 f32_trunc(f32 x) { return __builtin_truncf(x); }
INLINE f32 f32_sqrt(f32 x) { return __builtin_sqrtf(x); }
INLINE f32 f32_rsqrt(f32 x) { return 1.0f / f32_sqrt(x); }
INLINE f32 f32_min(f32 a, f32 b) { return a < b || b != b ? a : b; }
INLINE f32 f32_max(f32 a, f32 b) { return a > b || b != b ? a : b; }

INLINE f32 f32_round(f32 x)
{
    f32 whole = f32_trunc(x);
    f32 size = f32_abs(whole) + (f32_abs(x - whole) >= 0.5f ? 1.0f : 0.0f);
    return f32_copysign(size, x);
}

/* ---- powers and logarithms ----------------------------------------------------------------- */

/* 2^p is scale * (1 + rest). */
typedef struct {
    f64 scale, rest;
} pappus_power;

/* 2^p, for p of at most 200 either way (beyond that, and for 200 itself, an f32 is infinite or 0): 2^n for the nearest integer
 * n, and 2^f - 1 for what is left, at most 1/2 either way: f times a polynomial, 2^-37. */
INLINE pappus_power pappus_exp2(f64 p)
{
    p = p < -200.0 ? -200.0 : p;
    p = p > 200.0 ? 200.0 : p;
    f64 rounded = p + PAPPUS_ROUND;
    f64 f = p - (rounded - PAPPUS_ROUND);
    f64 q = 0x1.63b2d7971923fp-20;
    q = q * f + 0x1.00c0e4e15189cp-16;
    q = q * f + 0x1.4308c7183d6a2p-13;
    q = q * f + 0x1.5d877598350dep-10;
    q = q * f + 0x1.3b2ab70ad2565p-7;
    q = q * f + 0x1.c6b08da70cce3p-5;
    q = q * f + 0x1.ebfbdff82a734p-3;
    q = q * f + 0x1.62e42fef9cc69p-1;
    pappus_power power = {pappus_as_f64((pappus_as_u64(rounded) + 1023) << 52), q * f};
    return power;
}

INLINE f32 pappus_power_of_two(f64 p)
{
    pappus_power power = pappus_exp2(p);
    return (f32)(power.scale + power.scale * power.rest);
}

INLINE f32 f32_exp2(f32 x) { return pappus_power_of_two((f64)x); }
INLINE f32 f32_exp(f32 x) { return pappus_power_of_two((f64)x * 1.4426950408889634); }

/* (e^2x - 1) / (e^2x + 1), without a difference of what is nearly equal. */
INLINE f32 f32_tanh(f32 x)
{
    pappus_power power = pappus_exp2((f64)f32_abs(x) * 2.8853900817779268);
    f64 less_one = (power.scale - 1.0) + power.scale * power.rest;
    return f32_copysign((f32)(less_one / (less_one + 2.0)), x);
}

/* The binary logarithm of what an f32 other than 0 can be in size: the exponent, and that of a number m between the roots of 1/2
 * and 2, s = (m - 1) / (m + 1) times a polynomial in s^2, 2^-52. */
INLINE f64 pappus_log2(f64 size)
{
    u64 bits = pappus_as_u64(size);
    u64 above = bits - 0x3fe6a09e667f3bcd;
    f64 exponent = (f64)(i32)((i64)above >> 52);
    f64 m = pappus_as_f64(bits - (above & 0xfff0000000000000));
    f64 s = (m - 1.0) / (m + 1.0), z = s * s;
    f64 q = 0x1.f17dfd13ae0efp-3;
    q = q * z + 0x1.0bb80a92c80ccp-2;
    q = q * z + 0x1.484fa9965bc9cp-2;
    q = q * z + 0x1.a61756810b0f8p-2;
    q = q * z + 0x1.2776c516a083cp-1;
    q = q * z + 0x1.ec709dc39ca40p-1;
    q = q * z + 0x1.71547652b82ffp+1;
    return exponent + s * q;
}

/* The logarithm where that is no number between infinities. */
INLINE f32 pappus_log_of(f32 x, f32 logarithm)
{
    logarithm = x == 0.0f ? -PAPPUS_INFINITY : logarithm;
    logarithm = x == PAPPUS_INFINITY ? x : logarithm;
    return x < 0.0f || x != x ? PAPPUS_NAN : logarithm;
}

INLINE f32 f32_log2(f32 x) { return pappus_log_of(x, (f32)pappus_log2((f64)x)); }
INLINE f32 f32_log(f32 x) { return pappus_log_of(x, (f32)(pappus_log2((f64)x) * 0.6931471805599453)); }

INLINE f32 f32_pow(f32 x, f32 y)
{
    f32 size = f32_abs(x);
    f64 logarithm = pappus_log2((f64)size);
    logarithm = size == 0.0f || size == PAPPUS_INFINITY || x != x ? (f64)pappus_log_of(size, 0.0f) : logarithm;
    f32 power = pappus_power_of_two(logarithm * (f64)y);
    /* From 2^24 on, all are even. */
    i32 low = f32_abs(y) < 16777216.0f ? (i32)y : 0;
    int whole = f32_floor(y) == y, odd = whole && (low & 1);
    int plain = size == 0.0f || size == PAPPUS_INFINITY || whole;
    power = pappus_as_u32(x) >> 31 ? (odd ? -power : plain ? power : PAPPUS_NAN) : power;
    power = x != x || y != y ? PAPPUS_NAN : power;
    power = size == 1.0f && f32_abs(y) == PAPPUS_INFINITY ? 1.0f : power;
    return x == 1.0f || y == 0.0f ? 1.0f : power;
}

/* ---- angles -------------------------------------------------------------------------------- */

/* An angle as quarter turns and what is left, at most an eighth of a turn either way. */
typedef struct {
    f64 rest;
    u32 quarters;
} pappus_angle;

/* Of the bits of 1/(2 pi), the 64 from `at` on; `at` is below 192. Eight zeros stand in front of the first. */
INLINE u64 pappus_turn_bits(u32 at)
{
    const u64 a = 0x0028be60db939105, b = 0x4a7f09d5f47d4d37, c = 0x7036d8a5664f10e4, d = 0x107f9458eaf7aef1;
    u64 here = at < 64 ? a : at < 128 ? b : c, next = at < 64 ? b : at < 128 ? c : d;
    return here << (at & 63) | next >> 1 >> (63 - (at & 63));
}

/* Up to 2^20: n quarters are taken off in two steps, n times the first 33 bits of pi/2, which is exact, and n times the others.
 * Beyond, the angle is an integer times a power of 2: in turns, what counts of it is the fraction of the integer times the bits of
 * 1/(2 pi) from there on. */
INLINE pappus_angle pappus_reduced(f32 x)
{
    pappus_angle angle;
    if (f32_abs(x) <= 1048576.0f) {
        f64 rounded = (f64)x * 0.6366197723675814 + PAPPUS_ROUND;
        f64 n = rounded - PAPPUS_ROUND;
        angle.rest = ((f64)x - n * 0x1.921fb544p+0) - n * 0x1.0b4611a626331p-34;
        angle.quarters = (u32)pappus_as_u64(rounded);
        return angle;
    }
    u32 bits = pappus_as_u32(x), exponent = bits >> 23 & 255;
    u64 whole = (bits & 0x7fffff) | 0x800000;
    u32 at = exponent - 150 + 8;
    u64 turns = whole * pappus_turn_bits(at) + (whole * (pappus_turn_bits(at + 64) >> 32) >> 32);
    angle.quarters = (u32)((turns + ((u64)1 << 61)) >> 62);
    angle.rest = (f64)(i64)(turns - ((u64)angle.quarters << 62)) * 3.4061215800865545e-19; /* 2 pi / 2^64 */
    if (bits >> 31) {
        angle.rest = -angle.rest;
        angle.quarters = 0 - angle.quarters;
    }
    return angle;
}

/* The sine of an angle some quarters ahead, 2^-42 and 2^-40: odd ones have the cosine of the rest. */
INLINE f32 pappus_sine(f32 x, u32 ahead)
{
    pappus_angle angle = pappus_reduced(x);
    f64 r = angle.rest, z = r * r;
    f64 sine = -0x1.aa283bea75579p-26;
    sine = sine * z + 0x1.71d9a9b87993fp-19;
    sine = sine * z - 0x1.a019fd9ae7168p-13;
    sine = sine * z + 0x1.1111110fd3b3cp-7;
    sine = sine * z - 0x1.555555555516bp-3;
    sine = r * (1.0 + z * sine);
    f64 cosine = -0x1.2474cb416294ep-22;
    cosine = cosine * z + 0x1.a0129877a1cfcp-16;
    cosine = cosine * z - 0x1.6c16bae56f7d8p-10;
    cosine = cosine * z + 0x1.555555514f0e0p-5;
    cosine = cosine * z - 0x1.fffffffffe694p-2;
    cosine = 1.0 + z * cosine;
    u32 quarters = angle.quarters + ahead;
    f64 value = quarters & 1 ? cosine : sine;
    value = quarters & 2 ? -value : value;
    return f32_abs(x) < PAPPUS_INFINITY ? (f32)value : PAPPUS_NAN;
}

INLINE f32 f32_sin(f32 x) { return pappus_sine(x, 0); }
INLINE f32 f32_cos(f32 x) { return pappus_sine(x, 1); }

/* ---- the error function -------------------------------------------------------------------- */

/* x times a polynomial in x^2, 2^-32; from the root of 15.375 on it is 1. */
INLINE f32 f32_erf(f32 x)
{
    f64 z = (f64)x * (f64)x;
    z = z > 15.375 ? 15.375 : z;
    f64 u = z * (2 / 15.375) - 1.0;
    f64 q = 0x1.e8c12c426dca1p-15;
    q = q * u - 0x1.4b2c67da87c3bp-13;
    q = q * u + 0x1.18a8e99427a3fp-13;
    q = q * u - 0x1.1e6336296d52ap-12;
    q = q * u + 0x1.121c8016760ebp-10;
    q = q * u - 0x1.231819c90a96ap-9;
    q = q * u + 0x1.fed25e9c7a3b4p-9;
    q = q * u - 0x1.d18e342e456fcp-8;
    q = q * u + 0x1.9969f37acd976p-7;
    q = q * u - 0x1.4b5472fd88f0cp-6;
    q = q * u + 0x1.f4acdb19ffd55p-6;
    q = q * u - 0x1.63eb38a7adacdp-5;
    q = q * u + 0x1.dcdff5184020dp-5;
    q = q * u - 0x1.2f38fcf937d4fp-4;
    q = q * u + 0x1.732c3663f33d7p-4;
    q = q * u - 0x1.bf1ee7c420e0fp-4;
    q = q * u + 0x1.1288e2616b2e7p-3;
    q = q * u - 0x1.70c2f356371edp-3;
    q = q * u + 0x1.714a947278f72p-2;
    f32 value = (f32)((f64)x * q);
    return z == 15.375 ? f32_copysign(1.0f, x) : value;
}
