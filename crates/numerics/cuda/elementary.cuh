// Correctly rounded exp32 and log1p32, and the activations built from them: the arithmetic and
// the bounds of src/elementary, where they are proven, with + - * / in f64 and no fma.
#pragma once
#include "round.cuh"

typedef unsigned __int128 u128;
typedef __int128 i128;

__device__ inline float canonical_nan() { return __uint_as_float(0x7fc00000u); }

__device__ inline u128 join(u64 high, u64 low) { return (u128)high << 64 | low; }

// floor(a * b / 2^128).
__device__ inline u128 mul_high(u128 a, u128 b) {
    u64 a_low = (u64)a, b_low = (u64)b, a_high = (u64)(a >> 64), b_high = (u64)(b >> 64);
    u128 middle = (u128)a_high * b_low + __umul64hi(a_low, b_low);
    u128 other = (u128)a_low * b_high + (u64)middle;
    return (u128)a_high * b_high + (u64)(middle >> 64) + (u64)(other >> 64);
}

// floor(numerator / denominator * 2^127), the numerator below the denominator below 2^127.
__device__ inline u128 divide_q127(u128 numerator, u128 denominator) {
    u128 remainder = numerator, quotient = 0;
    for (i32 i = 0; i < 127; i++) {
        remainder <<= 1;
        quotient <<= 1;
        if (remainder >= denominator) {
            remainder -= denominator;
            quotient |= 1;
        }
    }
    return quotient;
}

// floor(a / n) for a small n, by digits: no division of 128 bits is at hand on a device.
__device__ inline u128 divide_small(u128 a, u32 n) {
    u64 rest = 0;
    u128 quotient = 0;
    for (i32 i = 3; i >= 0; i--) {
        u64 digit = rest << 32 | (u32)(a >> (32 * i));
        quotient |= (u128)(digit / n) << (32 * i);
        rest = digit % n;
    }
    return quotient;
}

__device__ inline i32 leading_zeros(u128 v) {
    u64 high = (u64)(v >> 64);
    return high != 0 ? __clzll((i64)high) : 64 + __clzll((i64)(u64)v);
}

// A finite x other than zero: |x| = the result, in [2^23, 2^24), times 2^exponent.
__device__ inline u128 decompose(float x, i32* exponent) {
    u32 bits = __float_as_uint(x), fraction = bits & 0x7fffffu;
    i32 biased = (i32)(bits >> 23 & 0xffu);
    if (biased > 0) {
        *exponent = biased - 150;
        return fraction | 0x800000u;
    }
    i32 shift = __clz((i32)fraction) - 8;
    *exponent = -149 - shift;
    return fraction << shift;
}

// mantissa * 2^exponent; relative error below 2^-100; never zero.
struct Unrounded {
    bool negative;
    u128 mantissa;
    i32 exponent;
};

// The sweep over all inputs of `cargo xtask verify-elementary` shows that no rest comes as near
// to a midpoint as the error.
__device__ inline float rounded(const Unrounded& v) {
    u32 sign = v.negative ? 0x80000000u : 0u;
    i32 leading = leading_zeros(v.mantissa);
    u128 mantissa = v.mantissa << leading >> 2;
    i32 exponent = v.exponent - leading + 2, top = exponent + 125;
    if (top > 127) return __uint_as_float(sign | 0x7f800000u);
    i32 quantum = max(top - 23, -149), shift = quantum - exponent;
    if (shift > 127) return __uint_as_float(sign);
    u128 half = (u128)1 << (shift - 1);
    u32 kept = (u32)(mantissa >> shift) + ((mantissa & (2 * half - 1)) > half ? 1 : 0);
    u32 magnitude = top < -126 ? kept : ((u32)(top + 127) << 23) + (kept - (1u << 23));
    return __uint_as_float(sign | magnitude);
}

const double INV_LN2 = 0x1.71547652b82fep+0;
const double LN2_HI = 0x1.62e42fefa3800p-1;
const double LN2_LO = 0x1.ef35793c76730p-45;
const double LN2 = 0x1.62e42fefa39efp-1;
// 1.5 * 2^52: adding it rounds to an integer and leaves that integer in the low bits.
const double ROUNDER = 6755399441055744.0;

__device__ inline i128 ln2_q120() {
    return (i128)join(0x00b17217f7d1cf79ull, 0xabc9e3b39803f2f7ull);
}

__device__ inline double exp_reduced(double r) {
    double r2 = r * r, r4 = r2 * r2;
    double low = (1.0 + r) + r2 * (1.0 / 2.0 + 1.0 / 6.0 * r);
    double middle = (1.0 / 24.0 + 1.0 / 120.0 * r) + r2 * (1.0 / 720.0 + 1.0 / 5040.0 * r);
    double high =
        (1.0 / 40320.0 + 1.0 / 362880.0 * r) + r2 * (1.0 / 3628800.0 + 1.0 / 39916800.0 * r);
    return low + r4 * (middle + r4 * high);
}

__device__ inline i128 mul_q120(i128 a, i128 b) {
    i128 magnitude = (i128)mul_high((u128)(a < 0 ? -a : a) << 4, (u128)b << 4);
    return a < 0 ? -magnitude : magnitude;
}

__device__ __noinline__ static float exp32_slow(float x) {
    double nearest = ((double)x * INV_LN2 + ROUNDER) - ROUNDER;
    i32 k = __double2int_rn(nearest), exponent;
    u128 significand = decompose(x, &exponent);
    i32 shift = exponent + 120;
    u128 magnitude = shift >= 0 ? significand << shift : significand >> min(-shift, 127);
    i128 r = (x < 0.0f ? -(i128)magnitude : (i128)magnitude) - (i128)k * ln2_q120();
    i128 one = (i128)1 << 120, p = one;
    for (i32 n = 26; n > 0; n--) {
        i128 product = mul_q120(r, p);
        i128 part = (i128)divide_small((u128)(product < 0 ? -product : product), (u32)n);
        p = one + (product < 0 ? -part : part);
    }
    return rounded(Unrounded{false, (u128)p, k - 120});
}

// The correctly rounded e^x; NaN gives the canonical NaN.
__device__ inline float exp32(float x) {
    if (!(x >= -104.0f && x <= 89.0f)) {
        if (x != x) return canonical_nan();
        return x > 0.0f ? __uint_as_float(0x7f800000u) : 0.0f;
    }
    double wide = (double)x;
    double shifted = wide * INV_LN2 + ROUNDER;
    double k = shifted - ROUNDER;
    double p = exp_reduced((wide - k * LN2_HI) - k * LN2_LO);
    // The integer k sits in the low bits of `shifted`: adding it to the exponent scales by 2^k.
    u64 k_exponent = (u64)__double_as_longlong(shifted) << 52;
    u64 below_bits = (u64)__double_as_longlong(1.0 - 0x1p-45) + k_exponent;
    u64 above_bits = (u64)__double_as_longlong(1.0 + 0x1p-45) + k_exponent;
    float below = __double2float_rn(p * __longlong_as_double((i64)below_bits));
    float above = __double2float_rn(p * __longlong_as_double((i64)above_bits));
    return below == above ? above : exp32_slow(x);
}

// g = sum of s^2j / (2j+1) in units of 2^-126.
__device__ inline u128 log_series_q126(u128 s_q127) {
    u128 t = mul_high(s_q127, s_q127), one = (u128)1 << 126, g = 0;
    for (i32 j = 23; j >= 0; j--) {
        g = mul_high(t << 1, g << 1) + divide_small(one, (u32)(2 * j + 1));
    }
    return g;
}

__device__ __noinline__ static float log1p32_near_zero(float x) {
    i32 exponent;
    u128 numerator = decompose(x, &exponent) << 101;
    u128 x_q125 = numerator >> min(-(exponent + 24), 127), two = (u128)1 << 126;
    u128 denominator = x < 0.0f ? two - x_q125 : two + x_q125;
    u128 quotient = divide_q127(numerator, denominator);
    u128 s_q127 = quotient >> min(-(exponent + 24), 127);
    u128 mantissa = mul_high(quotient, log_series_q126(s_q127) << 1);
    return rounded(Unrounded{x < 0.0f, mantissa, exponent - 101});
}

// 1 + x as an integer below 2^125 and an exponent; exact but for x above 2^123.
__device__ inline u128 one_plus(float x, i32* exponent) {
    u128 significand = decompose(x, exponent);
    if (x < 0.0f) return ((u128)1 << -*exponent) - significand;
    if (*exponent <= 0) return ((u128)1 << -*exponent) + significand;
    if (*exponent > 100) return significand;
    significand <<= *exponent;
    *exponent = 0;
    return significand + 1;
}

__device__ __noinline__ static float log1p32_far(float x) {
    i32 exponent;
    u128 u = one_plus(x, &exponent), one = (u128)1 << 125;
    i32 top = 127 - leading_zeros(u), k = top + exponent;
    u128 m = u << (125 - top);
    u128 sqrt2 = (u128)0x16a09e667f3bcdull << 73;
    if (m > sqrt2) {
        m >>= 1;
        k++;
    }
    u128 s = divide_q127(m > one ? m - one : one - m, m + one);
    i128 log_m = (i128)(mul_high(s, log_series_q126(s) << 1) >> 5);
    i128 log = (i128)k * ln2_q120() + (m < one ? -log_m : log_m);
    return rounded(Unrounded{log < 0, (u128)(log < 0 ? -log : log), -120});
}

// ln((1+s)/(1-s)) for |s| < 0.1717.
__device__ inline double log_ratio(double s) {
    double t = s * s, t2 = t * t, t4 = t2 * t2;
    double low = (1.0 + t * (1.0 / 3.0)) + t2 * (1.0 / 5.0 + t * (1.0 / 7.0));
    double middle = (1.0 / 9.0 + t * (1.0 / 11.0)) + t2 * (1.0 / 13.0 + t * (1.0 / 15.0));
    double high = 1.0 / 17.0 + t * (1.0 / 19.0);
    return (2.0 * s) * (low + t4 * (middle + t4 * high));
}

// k * ln 2 + ln m for 1 + x = 2^k m.
__device__ inline double log1p_far(float x) {
    u64 bits = (u64)__double_as_longlong(1.0 + (double)x);
    i32 k = (i32)(bits >> 52) - 1023;
    double m = __longlong_as_double((i64)((bits & ((1ull << 52) - 1)) | 0x3ff0000000000000ull));
    if (m > 0x1.6a09e667f3bcdp+0) {
        m = m * 0.5;
        k++;
    }
    return (double)k * LN2 + log_ratio((m - 1.0) / (m + 1.0));
}

// The correctly rounded ln(1 + x); -1 gives -inf, below -1 the canonical NaN.
__device__ inline float log1p32(float x) {
    if (!(x > -1.0f && x < __uint_as_float(0x7f800000u)) || x == 0.0f) {
        if (x == 0.0f || x == __uint_as_float(0x7f800000u)) return x;
        return x == -1.0f ? __uint_as_float(0xff800000u) : canonical_nan();
    }
    bool near_zero = x >= -0.2925f && x < 0.414f;
    double y = near_zero ? log_ratio((double)x / (2.0 + (double)x)) : log1p_far(x);
    float below = __double2float_rn(y * (1.0 - 0x1p-46));
    float above = __double2float_rn(y * (1.0 + 0x1p-46));
    if (below == above) return above;
    return near_zero ? log1p32_near_zero(x) : log1p32_far(x);
}

__device__ inline float sig32(float x) { return __fdiv_rn(1.0f, __fadd_rn(1.0f, exp32(-x))); }

// A result that is not a number is the canonical one.
__device__ inline float silu32(float x) {
    float y = __fdiv_rn(x, __fadd_rn(1.0f, exp32(-x)));
    return y != y ? canonical_nan() : y;
}

__device__ inline float softplus32(float x) { return x > 20.0f ? x : log1p32(exp32(x)); }
