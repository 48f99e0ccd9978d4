// The stage that is always right, by a whole warp: f64 where it can be shown to be exact, else a
// fixed-point accumulator wide enough for any f32 product. The twin of src/exact.rs.
//
// `pair(i, &a, &b)` yields the factors of product i, for i below n < 2^29.
#pragma once
#include "round.cuh"

// The grid of no values at all: nothing rounds.
const i32 NO_GRID = 4096;
// Slots of 32 bits: products of f32 span 2^-298 to 2^256. A slot is a signed 64-bit count of
// 2^(32 i - 298), so carries wait until the end.
const i32 SLOTS = 20;
const i32 LOWEST = -298;

// |v| = mantissa * 2^exponent for a finite v.
__device__ inline u32 split_f32(float v, i32* exponent) {
    u32 bits = __float_as_uint(v), biased = bits >> 23 & 0xffu, fraction = bits & 0x7fffffu;
    *exponent = biased == 0 ? -149 : (i32)biased - 150;
    return biased == 0 ? fraction : fraction | 0x800000u;
}

// The largest g for which v is known to be a multiple of 2^g.
__device__ inline i32 grid_of(float v) {
    i32 exponent;
    u32 mantissa = split_f32(v, &exponent);
    return mantissa == 0 ? NO_GRID : exponent + __ffs((i32)mantissa) - 1;
}

__device__ inline double power_of_two(i32 e) { return __longlong_as_double((i64)(1023 + e) << 52); }

// Its functions are called, not inlined: they are rare, and a driver compiles every copy of them.
struct ExactSum {
    i64 slots[SLOTS];
    bool finite;

    __device__ void clear() {
        for (i32 i = 0; i < SLOTS; i++) slots[i] = 0;
        finite = true;
    }

    __device__ __noinline__ void add_product(float a, float b) {
        i32 ea, eb;
        u64 mantissa = (u64)split_f32(a, &ea) * split_f32(b, &eb);
        finite = finite && is_finite_f32(a) && is_finite_f32(b);
        if (mantissa == 0 || !finite) return;
        u32 at = (u32)(ea + eb - LOWEST), shift = at % 32;
        i64 sign = ((__float_as_uint(a) ^ __float_as_uint(b)) >> 31) ? -1 : 1;
        u64 low = mantissa << shift;
        u64 high = shift == 0 ? 0 : mantissa >> (64 - shift);
        slots[at / 32] += sign * (i64)(low & 0xffffffffull);
        slots[at / 32 + 1] += sign * (i64)(low >> 32);
        // The product has 48 bits, so a third part is there only if it may be nonzero.
        if (high != 0) slots[at / 32 + 2] += sign * (i64)high;
    }

    __device__ __noinline__ void merge_warp() {
        for (i32 i = 0; i < SLOTS; i++) {
            for (u32 step = WARP / 2; step > 0; step /= 2) {
                slots[i] += __shfl_xor_sync(ALL_LANES, slots[i], step);
            }
        }
        finite = __all_sync(ALL_LANES, finite);
    }

    // Sign and magnitude with carries resolved, in place; whether the sum is negative.
    __device__ bool resolve() {
        i64 carry = 0;
        for (i32 i = 0; i < SLOTS; i++) carry = (carry + slots[i]) >> 32;
        bool negative = carry < 0;
        carry = 0;
        for (i32 i = 0; i < SLOTS; i++) {
            i64 total = carry + (negative ? -slots[i] : slots[i]);
            slots[i] = total & 0xffffffffll;
            carry = total >> 32;
        }
        return negative;
    }

    // Rounded to `precision` bits, never below the format's subnormal grid; resolves the sum.
    __device__ __noinline__ bool round(i32 precision, float* out) {
        bool negative = resolve();
        i32 top = SLOTS - 1;
        while (top >= 0 && slots[top] == 0) top--;
        *out = 0.0f;
        if (top < 0) return finite;
        i32 highest = 32 * top + 31 - __clz((i32)slots[top]);
        i32 lowest = max(highest - (precision - 1), -126 - (precision - 1) - LOWEST);
        u64 kept = (u64)slots[lowest / 32];
        if (lowest / 32 + 1 < SLOTS) kept |= (u64)slots[lowest / 32 + 1] << 32;
        kept >>= lowest % 32;
        i32 half = lowest - 1;
        u64 rest = (u64)slots[half / 32] & ((2ull << (half % 32)) - 1);
        u64 middle = 1ull << (half % 32);
        bool sticky = (rest & (middle - 1)) != 0;
        for (i32 i = 0; i < half / 32; i++) sticky = sticky || slots[i] != 0;
        if (rest >= middle && (sticky || (kept & 1))) kept++;
        // At most 24 bits times a power of two: exact, or an overflow.
        *out = __double2float_rn((double)(i64)kept * power_of_two(lowest + LOWEST));
        if (negative) *out = -*out;
        return finite && is_finite_f32(*out);
    }
};

// A sum of products in f64, in any order, with what tells whether it is exact: they are multiples
// of 2^grid, and their absolute sum, which may have rounded down by less than one part in 2^20, is
// below 2^(grid + 53).
struct F64Sum {
    double total;
    double absolute;
    i32 grid;

    __device__ void clear() {
        total = absolute = 0.0;
        grid = NO_GRID;
    }

    __device__ void add(float a, float b) {
        double p = (double)a * (double)b;
        total += p;
        absolute += fabs(p);
        grid = min(grid, grid_of(a) + grid_of(b));
    }

    __device__ void merge(const F64Sum& other) {
        total += other.total;
        absolute += other.absolute;
        grid = min(grid, other.grid);
    }

    __device__ void merge_warp() {
        for (u32 step = WARP / 2; step > 0; step /= 2) {
            total += __shfl_xor_sync(ALL_LANES, total, step);
            absolute += __shfl_xor_sync(ALL_LANES, absolute, step);
            grid = min(grid, __shfl_xor_sync(ALL_LANES, grid, step));
        }
    }

    __device__ bool is_exact() const {
        return grid > -1000 && absolute * (1.0 + 0x1p-20) < power_of_two(min(grid + 53, 1023));
    }
};

template <class F>
__device__ bool warp_exact_f64(F pair, u32 n, double* sum) {
    F64Sum all;
    all.clear();
#pragma unroll 4
    for (u32 i = lane(); i < n; i += WARP) {
        float a, b;
        pair(i, &a, &b);
        all.add(a, b);
    }
    all.merge_warp();
    *sum = all.total;
    return all.is_exact();
}

template <class F>
__device__ __noinline__ bool warp_exact_slots(F pair, u32 n, i32 precision, float* out) {
    ExactSum sum;
    sum.clear();
    for (u32 i = lane(); i < n; i += WARP) {
        float a, b;
        pair(i, &a, &b);
        sum.add_product(a, b);
    }
    sum.merge_warp();
    return sum.round(precision, out);
}

// S_f32 by all lanes together; false if it is not finite.
template <class F>
__device__ bool warp_exact_f32(F pair, u32 n, float* out) {
    double sum;
    if (warp_exact_f64(pair, n, &sum)) {
        *out = __double2float_rn(sum);
        return is_finite_f32(*out);
    }
    return warp_exact_slots(pair, n, 24, out);
}

// S_bf16 likewise.
template <class F>
__device__ bool warp_exact_bf16(F pair, u32 n, u16* out) {
    double sum;
    if (warp_exact_f64(pair, n, &sum)) {
        *out = bf16_from_f64(sum);
        return is_finite_bf16(*out);
    }
    float rounded;
    bool finite = warp_exact_slots(pair, n, 8, &rounded);
    *out = (u16)(__float_as_uint(rounded) >> 16);
    return finite;
}

// Calls `f(source)` with all lanes for every lane that is in doubt.
template <class F>
__device__ void warp_each_doubtful(bool doubtful, F f) {
    for (u32 todo = __ballot_sync(ALL_LANES, doubtful); todo != 0; todo &= todo - 1) {
        f((u32)__ffs((i32)todo) - 1);
    }
}
