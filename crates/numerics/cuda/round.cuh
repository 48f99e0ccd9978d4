// The one narrowing and the one widening point between the formats, and the decision from a
// proven bound. The twin of src/round.rs and src/bound.rs.
#pragma once
#include "device.cuh"

__device__ inline float widen(u16 v) { return __uint_as_float((u32)v << 16); }

// Nearest, ties to even; subnormals and the sign of zero are kept, NaN stays NaN.
__device__ inline u16 store(float v) {
    u32 bits = __float_as_uint(v);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (u16)(bits >> 16 | 0x40u);
    return (u16)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

__device__ inline bool is_finite_bf16(u16 v) { return (v & 0x7f80u) != 0x7f80u; }

__device__ inline bool is_finite_f32(float v) {
    return (__float_as_uint(v) & 0x7f800000u) != 0x7f800000u;
}

// One rounding from f64. Above the smallest normal f32 the bits of the f64 are rounded to 8
// significant ones, so that the conversion to f32 is exact or overflows as it must; below, the
// grid is uniform with step 2^-133.
__device__ inline u16 bf16_from_f64(double v) {
    if (fabs(v) >= 0x1p-126) {
        u64 bits = (u64)__double_as_longlong(v);
        bits = (bits + ((1ull << 44) - 1) + (bits >> 45 & 1)) & ~((1ull << 45) - 1);
        return (u16)(__float_as_uint(__double2float_rn(__longlong_as_double((i64)bits))) >> 16);
    }
    double scaled = rint(v * 0x1p133);
    u32 magnitude = __float_as_uint(__double2float_rn(fabs(scaled * 0x1p-133)));
    u64 sign = (u64)__double_as_longlong(v) >> 63;
    return (u16)(magnitude >> 16 | (u32)sign << 15);
}

// The value that every real number within `bound` of `y` rounds to, if there is one.
__device__ inline bool decide_bf16(double y, double bound, u16* out) {
    u16 below = bf16_from_f64(y - bound), above = bf16_from_f64(y + bound);
    *out = below;
    return below == above && is_finite_bf16(below);
}

__device__ inline bool decide_f32(double y, double bound, float* out) {
    float below = __double2float_rn(y - bound), above = __double2float_rn(y + bound);
    *out = below;
    return __float_as_uint(below) == __float_as_uint(above) && is_finite_f32(below);
}

// Bound on the error of an f64 sum of exact products of which none passes through more than
// `roundings` additions. Two more are for the ends of the interval, one for the bound itself; the
// factor covers the second order and the error of `absolute`.
__device__ inline double wide_bound(u32 roundings, double absolute) {
    return ((double)roundings + 3.0) * 0x1p-53 * 1.02 * absolute;
}
