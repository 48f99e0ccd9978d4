// RMSNorm over rows, gated norm over value heads, and heads of unit length.
#include "elementary.cuh"
#include "wide.cuh"

const u32 NORM_BLOCK = 256;

// S_f32(x*x) of a row by the whole block, every thread with the same result. Each thread sums its
// part, its warp the parts, and every thread the eight warps' sums in the same order; a `merge`
// counts as two products. In doubt every warp does the whole row.
template <class W>
__device__ bool block_squares(const u16* x, u32 n, float* out) {
    __shared__ W totals[NORM_BLOCK / WARP];
    W total;
    total.clear();
#pragma unroll 4
    for (u32 i = threadIdx.x; i < n; i += NORM_BLOCK) {
        float v = widen(x[i]);
        total.add_short(v, v);
    }
    total.merge_warp();
    if (lane() == 0) totals[threadIdx.x / WARP] = total;
    __syncthreads();
    total = totals[0];
    for (u32 i = 1; i < NORM_BLOCK / WARP; i++) total.merge(totals[i]);
    u32 count = n / NORM_BLOCK + 1 + 2 * (NORM_BLOCK / WARP - 1);
    if (decide_f32(total.value(), total.short_bound(count) + n * 0x1p-150, out)) return true;
    auto pair = [&](u32 i, float* a, float* b) { *a = *b = widen(x[i]); };
    return warp_exact_f32(pair, n, out);
}

// 1 / sqrt(s / n + eps).
__device__ inline float inverse_rms(float squares, u32 n, float eps) {
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(squares, (float)n), eps)));
}

template <class W>
__device__ void rms_norm(const u16* x, const float* weight, float eps, u32 n, u16* y,
                         Failure* failure, u32 site) {
    x += (u64)blockIdx.x * n;
    y += (u64)blockIdx.x * n;
    float squares;
    if (!block_squares<W>(x, n, &squares) && threadIdx.x == 0) report(failure, site, blockIdx.x, 0);
    float r = inverse_rms(squares, n, eps);
#pragma unroll 4
    for (u32 i = threadIdx.x; i < n; i += NORM_BLOCK) {
        y[i] = store(__fmul_rn(__fmul_rn(widen(x[i]), r), weight[i]));
    }
}

// Grid (rows), block 256; y is not x.
extern "C" __global__ void rms_norm_f64(const u16* x, const float* weight, float eps, u32 n, u16* y,
                                        Failure* failure, u32 site) {
    rms_norm<WideF64>(x, weight, eps, n, y, failure, site);
}

extern "C" __global__ void rms_norm_pair(const u16* x, const float* weight, float eps, u32 n,
                                         u16* y, Failure* failure, u32 site) {
    rms_norm<WidePair>(x, weight, eps, n, y, failure, site);
}

template <class W>
__device__ bool warp_squares(const u16* x, u32 n, float* out) {
    auto pair = [&](u32 i, float* a, float* b) { *a = *b = widen(x[i]); };
    return warp_f32_short<W>(pair, n, out);
}

template <class W>
__device__ void gated_norm(const u16* o, const u16* z, const float* weight, float eps, u32 n,
                           u32 rows, u32 heads, u16* y, Failure* failure, u32 site) {
    u32 row = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (row >= rows) return;
    o += (u64)row * n;
    z += (u64)row * n;
    y += (u64)row * n;
    float squares;
    if (!warp_squares<W>(o, n, &squares) && lane() == 0) report(failure, site, row / heads, 0);
    float r = inverse_rms(squares, n, eps);
    for (u32 i = lane(); i < n; i += WARP) {
        float scaled = __fmul_rn(__fmul_rn(widen(o[i]), r), weight[i]);
        y[i] = store(__fmul_rn(scaled, silu32(widen(z[i]))));
    }
}

// A warp for each value head of each token.
extern "C" __global__ void gated_norm_f64(const u16* o, const u16* z, const float* weight,
                                          float eps, u32 n, u32 rows, u32 heads, u16* y,
                                          Failure* failure, u32 site) {
    gated_norm<WideF64>(o, z, weight, eps, n, rows, heads, y, failure, site);
}

extern "C" __global__ void gated_norm_pair(const u16* o, const u16* z, const float* weight,
                                           float eps, u32 n, u32 rows, u32 heads, u16* y,
                                           Failure* failure, u32 site) {
    gated_norm<WidePair>(o, z, weight, eps, n, rows, heads, y, failure, site);
}

template <class W>
__device__ void unit_heads(const u16* mixed, u32 channels, u32 first, u32 heads, u32 dim,
                           float divide_by, float* y, u32 tokens, Failure* failure, u32 site) {
    u32 head = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (head >= tokens * heads) return;
    const u16* x = mixed + (u64)(head / heads) * channels + first + head % heads * dim;
    float squares;
    if (!warp_squares<W>(x, dim, &squares) && lane() == 0) report(failure, site, head, 0);
    float r = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(squares, 1e-6f)));
    for (u32 i = lane(); i < dim; i += WARP) {
        float v = __fmul_rn(widen(x[i]), r);
        y[(u64)head * dim + i] = divide_by != 0.0f ? __fdiv_rn(v, divide_by) : v;
    }
}

// A warp for each head of each token: columns from `first` on; divided unless `divide_by` is 0.
extern "C" __global__ void unit_heads_f64(const u16* mixed, u32 channels, u32 first, u32 heads,
                                          u32 dim, float divide_by, float* y, u32 tokens,
                                          Failure* failure, u32 site) {
    unit_heads<WideF64>(mixed, channels, first, heads, dim, divide_by, y, tokens, failure, site);
}

extern "C" __global__ void unit_heads_pair(const u16* mixed, u32 channels, u32 first, u32 heads,
                                           u32 dim, float divide_by, float* y, u32 tokens,
                                           Failure* failure, u32 site) {
    unit_heads<WidePair>(mixed, channels, first, heads, dim, divide_by, y, tokens, failure, site);
}
