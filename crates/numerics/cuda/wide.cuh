// The wide stage: accumulators of products with a proven bound, one for each thread, and the sums
// that a warp makes with them.
#pragma once
#include "exact.cuh"

// Bound on what products that underflow in f32 lose: half of 2^-149 each, on all lanes of a warp.
__device__ inline double underflows(u32 count) { return (double)count * WARP * 0x1p-150; }

// Totals of a warp for N accumulators, whose waits overlap.
template <u32 N, class W>
__device__ inline void merge_warps(W* all) {
    for (u32 step = WARP / 2; step > 0; step /= 2) {
#pragma unroll
        for (u32 i = 0; i < N; i++) all[i].merge_step(step);
    }
}

// Where f64 is fast. Products of f32 are exact in f64. The absolute sum only bounds: it is f32, and
// what underflows or rounds in it is covered by `bound` up to 2^16 products.
struct WideF64 {
    static const bool IS_F64 = true;
    double sum;
    float absolute;

    __device__ void clear() {
        sum = 0.0;
        absolute = 0.0f;
    }

    __device__ void add(float a, float b) {
        sum += (double)a * (double)b;
        absolute = __fadd_rn(absolute, fabsf(__fmul_rn(a, b)));
    }

    // Factors whose product is exact in f32 but for an underflow, which `short_bound` covers.
    __device__ void add_short(float a, float b) { add_value(__fmul_rn(a, b)); }

    __device__ void add_value(float v) {
        sum += (double)v;
        absolute = __fadd_rn(absolute, fabsf(v));
    }

    __device__ void merge(const WideF64& other) {
        sum += other.sum;
        absolute = __fadd_rn(absolute, other.absolute);
    }

    // A level of the butterfly: addition commutes, so all lanes end with the same totals.
    __device__ void merge_step(u32 step) {
        sum += __shfl_xor_sync(ALL_LANES, sum, step);
        absolute = __fadd_rn(absolute, __shfl_xor_sync(ALL_LANES, absolute, step));
    }

    __device__ void merge_warp() { merge_warps<1>(this); }

    __device__ double value() const { return sum; }

    // Of |value - exact| where no lane added more than `count` products, `merge_warp` included.
    // A further `merge` counts as two products. What `absolute` lost by underflows is added to it.
    __device__ double bound(u32 count) const {
        if (count > 65536) return __longlong_as_double(0x7ff0000000000000ll);
        return wide_bound(count + 5, (double)absolute + underflows(count));
    }

    // The same where some were short.
    __device__ double short_bound(u32 count) const { return bound(count) + underflows(count); }
};

// Where f64 is slow: an unevaluated pair of f32.
//
// With u = 2^-24, A the absolute sum and n = count: the transformations of `two_sum` and
// `two_product` are exact. What they leave over is at most u A each step, together u (n + 1) A,
// and is summed in f32 with n + 1 roundings: u^2 (n + 1)^2 A. The five levels of the tree add
// 10 u^2 (n + 6) A. (n + 8)^2 is above both together with the f64 rounding of `value`; the factor
// covers the second order and the roundings of `absolute` as long as n <= 2^16.
struct WidePair {
    static const bool IS_F64 = false;
    float high, low, absolute;

    __device__ void clear() { high = low = absolute = 0.0f; }

    __device__ void add(float a, float b) {
        float p = __fmul_rn(a, b);
        add_parts(p, __fmaf_rn(a, b, -p));
    }

    __device__ void add_short(float a, float b) { add_value(__fmul_rn(a, b)); }

    __device__ void add_value(float v) { add_parts(v, 0.0f); }

    // The sum takes p + rest, of which rest is at most half a unit of p.
    __device__ void add_parts(float p, float rest) {
        float left = two_sum(p);
        low = __fadd_rn(low, __fadd_rn(left, rest));
        absolute = __fadd_rn(absolute, fabsf(p));
    }

    __device__ void merge(const WidePair& other) {
        float lows = __fadd_rn(low, other.low);
        low = __fadd_rn(lows, two_sum(other.high));
        absolute = __fadd_rn(absolute, other.absolute);
    }

    // Symmetric in the two lanes, so all end with the same totals.
    __device__ void merge_step(u32 step) {
        WidePair other;
        other.high = __shfl_xor_sync(ALL_LANES, high, step);
        other.low = __shfl_xor_sync(ALL_LANES, low, step);
        other.absolute = __shfl_xor_sync(ALL_LANES, absolute, step);
        merge(other);
    }

    __device__ void merge_warp() { merge_warps<1>(this); }

    __device__ double value() const { return (double)high + (double)low; }

    __device__ double bound(u32 count) const {
        if (count > 65536) return __longlong_as_double(0x7ff0000000000000ll);
        double chain = (double)count + 8.0;
        return chain * chain * 0x1p-48 * 1.02 * (double)absolute + underflows(count);
    }

    __device__ double short_bound(u32 count) const { return bound(count); }

  private:
    // high + p as the new high and, exactly, what it leaves over.
    __device__ float two_sum(float p) {
        float sum = __fadd_rn(high, p);
        float from_p = __fsub_rn(sum, high);
        float left = __fadd_rn(__fsub_rn(high, __fsub_rn(sum, from_p)), __fsub_rn(p, from_p));
        high = sum;
        return left;
    }
};

// The sum of n products over the warp.
template <class W, class F>
__device__ W lane_products(F pair, u32 n) {
    W total;
    total.clear();
    for (u32 i = lane(); i < n; i += WARP) {
        float a, b;
        pair(i, &a, &b);
        total.add(a, b);
    }
    total.merge_warp();
    return total;
}

template <class W, class F>
__device__ W lane_short_products(F pair, u32 n) {
    W total;
    total.clear();
    for (u32 i = lane(); i < n; i += WARP) {
        float a, b;
        pair(i, &a, &b);
        total.add_short(a, b);
    }
    total.merge_warp();
    return total;
}

// S_f32 of n products by the whole warp, every lane with the same result; false if it is not
// finite. `pair(i, &a, &b)` yields the factors of product i.
template <class W, class F>
__device__ bool warp_f32(F pair, u32 n, float* out) {
    W total = lane_products<W>(pair, n);
    if (decide_f32(total.value(), total.bound(n / WARP + 1), out)) return true;
    return warp_exact_f32(pair, n, out);
}

// S_bf16 likewise.
template <class W, class F>
__device__ bool warp_bf16(F pair, u32 n, u16* out) {
    W total = lane_products<W>(pair, n);
    if (decide_bf16(total.value(), total.bound(n / WARP + 1), out)) return true;
    return warp_exact_bf16(pair, n, out);
}

// S_f32 where the factors are bf16 values.
template <class W, class F>
__device__ bool warp_f32_short(F pair, u32 n, float* out) {
    W total = lane_short_products<W>(pair, n);
    if (decide_f32(total.value(), total.short_bound(n / WARP + 1), out)) return true;
    return warp_exact_f32(pair, n, out);
}

// S_bf16 where the factors are bf16 values.
template <class W, class F>
__device__ bool warp_bf16_short(F pair, u32 n, u16* out) {
    W total = lane_short_products<W>(pair, n);
    if (decide_bf16(total.value(), total.short_bound(n / WARP + 1), out)) return true;
    return warp_exact_bf16(pair, n, out);
}
