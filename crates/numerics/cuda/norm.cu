// RMSNorm over rows, and gated norm over value heads.
#include "elementary.cuh"
#include "wide.cuh"

const u32 NORM_BLOCK = 256;
// Eights that a thread holds: rows of up to 8192 are read once.
const u32 HELD = 4;

// S_f32(x*x) by the whole block, every thread with the same result: each brings its part, its warp
// sums the parts, and every thread the eight warps' sums in the same order; a `merge` counts as two
// products. In doubt every warp does the whole row.
template <class W>
__device__ bool block_squares(W total, u32 count, const u16* x, u32 n, float* out) {
    __shared__ W totals[NORM_BLOCK / WARP];
    total.merge_warp();
    if (lane() == 0) totals[threadIdx.x / WARP] = total;
    __syncthreads();
    total = totals[0];
    for (u32 i = 1; i < NORM_BLOCK / WARP; i++) total.merge(totals[i]);
    count += 1 + 2 * (NORM_BLOCK / WARP - 1);
    if (decide_f32(total.value(), total.short_bound(count) + n * 0x1p-150, out)) return true;
    auto pair = [&](u32 i, float* a, float* b) { *a = *b = widen(x[i]); };
    return warp_exact_f32(pair, n, out);
}

// 1 / sqrt(s / n + eps).
__device__ inline float inverse_rms(float squares, u32 n, float eps) {
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(squares, (float)n), eps)));
}

__device__ inline u32 both(u16 first, u16 second) { return (u32)first | (u32)second << 16; }
__device__ inline float first_of(u32 pair) { return __uint_as_float(pair << 16); }
__device__ inline float second_of(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

__device__ inline u32 add_pairs(u32 a, u32 b) {
    return both(store(__fadd_rn(first_of(a), first_of(b))),
                store(__fadd_rn(second_of(a), second_of(b))));
}

__device__ inline u32 scale_pair(u32 x, float r, float first_weight, float second_weight) {
    return both(store(__fmul_rn(__fmul_rn(first_of(x), r), first_weight)),
                store(__fmul_rn(__fmul_rn(second_of(x), r), second_weight)));
}

template <class W>
__device__ inline void add_square(u32 pair, W* total) {
    total->add_short(first_of(pair), first_of(pair));
    total->add_short(second_of(pair), second_of(pair));
}

// What is normalised: x, or x and `added` together, which then is the new x.
struct NormRow {
    u16* x;
    const u16* added;
    const float* weight;
    float eps;
    u32 n;
    u16* y;
};

// A row of eights that is held while it is summed.
template <class W>
__device__ bool norm_held(const NormRow& row) {
    uint4 held[HELD];
    float4 weights[HELD][2];
    u32 eights = row.n / 8;
#pragma unroll
    for (u32 j = 0; j < HELD; j++) {
        u32 c = threadIdx.x + j * NORM_BLOCK;
        held[j] = c < eights ? ((const uint4*)row.x)[c] : make_uint4(0, 0, 0, 0);
        if (c < eights && row.added) {
            uint4 y = ((const uint4*)row.added)[c];
            held[j] = make_uint4(add_pairs(held[j].x, y.x), add_pairs(held[j].y, y.y),
                                 add_pairs(held[j].z, y.z), add_pairs(held[j].w, y.w));
        }
    }
    W total;
    total.clear();
#pragma unroll
    for (u32 j = 0; j < HELD; j++) {
        u32 c = threadIdx.x + j * NORM_BLOCK;
        if (c >= eights) continue;
        if (row.added) ((uint4*)row.x)[c] = held[j];
        weights[j][0] = ((const float4*)row.weight)[2 * c];
        weights[j][1] = ((const float4*)row.weight)[2 * c + 1];
        add_square(held[j].x, &total);
        add_square(held[j].y, &total);
        add_square(held[j].z, &total);
        add_square(held[j].w, &total);
    }
    float squares;
    bool finite = block_squares(total, 8 * HELD, row.x, row.n, &squares);
    float r = inverse_rms(squares, row.n, row.eps);
#pragma unroll
    for (u32 j = 0; j < HELD; j++) {
        u32 c = threadIdx.x + j * NORM_BLOCK;
        if (c >= eights) continue;
        float4 a = weights[j][0], b = weights[j][1];
        ((uint4*)row.y)[c] =
            make_uint4(scale_pair(held[j].x, r, a.x, a.y), scale_pair(held[j].y, r, a.z, a.w),
                       scale_pair(held[j].z, r, b.x, b.y), scale_pair(held[j].w, r, b.z, b.w));
    }
    return finite;
}

// Any other row.
template <class W>
__device__ bool norm_in_memory(const NormRow& row) {
    W total;
    total.clear();
    for (u32 i = threadIdx.x; i < row.n; i += NORM_BLOCK) {
        if (row.added) row.x[i] = store(__fadd_rn(widen(row.x[i]), widen(row.added[i])));
        float v = widen(row.x[i]);
        total.add_short(v, v);
    }
    float squares;
    bool finite = block_squares(total, row.n / NORM_BLOCK + 1, row.x, row.n, &squares);
    float r = inverse_rms(squares, row.n, row.eps);
    for (u32 i = threadIdx.x; i < row.n; i += NORM_BLOCK) {
        row.y[i] = store(__fmul_rn(__fmul_rn(widen(row.x[i]), r), row.weight[i]));
    }
    return finite;
}

template <class W>
__device__ void rms_norm(NormRow row, Failure* failure, u32 site) {
    u64 first = (u64)blockIdx.x * row.n;
    row.x += first;
    row.y += first;
    if (row.added) row.added += first;
    bool is_held = row.n % 8 == 0 && row.n <= HELD * 8 * NORM_BLOCK;
    bool finite = is_held ? norm_held<W>(row) : norm_in_memory<W>(row);
    if (!finite && threadIdx.x == 0) report(failure, site, blockIdx.x, 0);
}

// y of x; of store(x + added), which is written to x, if there is `added`. Grid (rows), block 256;
// y is not x.
extern "C" __global__ void rms_norm_f64(u16* x, const u16* added, const float* weight, float eps,
                                        u32 n, u16* y, Failure* failure, u32 site) {
    rms_norm<WideF64>(NormRow{x, added, weight, eps, n, y}, failure, site);
}

extern "C" __global__ void rms_norm_pair(u16* x, const u16* added, const float* weight, float eps,
                                         u32 n, u16* y, Failure* failure, u32 site) {
    rms_norm<WidePair>(NormRow{x, added, weight, eps, n, y}, failure, site);
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
    auto pair = [&](u32 i, float* a, float* b) { *a = *b = widen(o[i]); };
    if (!warp_f32_short<W>(pair, n, &squares) && lane() == 0) report(failure, site, row / heads, 0);
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
