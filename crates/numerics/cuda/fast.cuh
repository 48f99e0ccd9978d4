// The first stage of a row against one token, by a warp: every weight is read once.
#pragma once
#include "rows.cuh"

// Products of a sum between two folds into f64.
const u32 RUN = 4;
// Pieces of 16 bytes that are asked for at a time, of all rows together.
const u32 AHEAD = 8;

// A sum of the fast stage: short f32 sums of a lane, what they were folded into, and what bounds
// their error.
struct Partial {
    float sum[8];
    float absolute;
    double folded;
};

__device__ inline void fold(Partial* p) {
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        p->folded += (double)p->sum[i];
        p->sum[i] = 0.0f;
    }
}

// Products of bf16 values are exact in f32 but for underflow, so product and sum are two steps and
// only the sum rounds.
__device__ inline void add_product(float w, float x, float* sum, float* absolute) {
    float p = __fmul_rn(w, x);
    *sum = __fadd_rn(*sum, p);
    *absolute = __fadd_rn(*absolute, fabsf(p));
}

// Four pairs of weights with eight inputs.
__device__ inline void add_eight(uint4 w, float4 x0, float4 x1, Partial* p) {
    float absolute = 0.0f;
    add_product(low(w.x), x0.x, &p->sum[0], &absolute);
    add_product(high(w.x), x0.y, &p->sum[1], &absolute);
    add_product(low(w.y), x0.z, &p->sum[2], &absolute);
    add_product(high(w.y), x0.w, &p->sum[3], &absolute);
    add_product(low(w.z), x1.x, &p->sum[4], &absolute);
    add_product(high(w.z), x1.y, &p->sum[5], &absolute);
    add_product(low(w.w), x1.z, &p->sum[6], &absolute);
    add_product(high(w.w), x1.w, &p->sum[7], &absolute);
    p->absolute = __fadd_rn(p->absolute, absolute);
}

// The next EACH eights of N rows, which share what is read of x: chunk c of a row meets chunk c of
// x, whose halves lie apart in shared memory so that neighbouring lanes read neighbouring banks.
template <u32 N, u32 EACH>
__device__ inline void sum_some(const uint4* const* rows, const float4* x, u32 chunks, u32 c,
                                Partial* p) {
    uint4 w[N][EACH];
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
#pragma unroll
        for (u32 r = 0; r < N; r++) w[r][i] = __ldcs(rows[r] + c + i * WARP);
    }
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        float4 x0 = x[c + i * WARP], x1 = x[chunks + c + i * WARP];
#pragma unroll
        for (u32 r = 0; r < N; r++) {
            add_eight(w[r][i], x0, x1, p + r);
            if (i % RUN == RUN - 1 || i == EACH - 1) fold(p + r);
        }
    }
}

template <u32 N>
__device__ inline void sum_plain(const uint4* const* rows, const float4* x, u32 chunks,
                                 Partial* p) {
    const u32 EACH = AHEAD / N, HALF = EACH / 2;
    u32 c = lane();
    for (; c + (EACH - 1) * WARP < chunks; c += EACH * WARP) {
        sum_some<N, EACH>(rows, x, chunks, c, p);
    }
    if (c + (HALF - 1) * WARP < chunks) {
        sum_some<N, HALF>(rows, x, chunks, c, p);
        c += HALF * WARP;
    }
    for (; c < chunks; c += WARP) sum_some<N, 1>(rows, x, chunks, c, p);
}

// A quarter of a group: eight lanes of its three planes, and the fourth plane from them. Inputs:
// half h of plane p of quarter g at x[(2 p + h) * quarters + g].
__device__ inline void add_quarter(const uint4* group, u32 base, const float4* x, u32 quarters,
                                   Partial* p) {
    uint4 a = __ldcs(group), b = __ldcs(group + 4), c = __ldcs(group + 8);
    uint4 d = make_uint4(fourth(a.x, b.x, c.x) + base, fourth(a.y, b.y, c.y) + base,
                         fourth(a.z, b.z, c.z) + base, fourth(a.w, b.w, c.w) + base);
    add_eight(decoded(a, base), x[0], x[quarters], p);
    add_eight(decoded(b, base), x[2 * quarters], x[3 * quarters], p);
    add_eight(decoded(c, base), x[4 * quarters], x[5 * quarters], p);
    add_eight(d, x[6 * quarters], x[7 * quarters], p);
}

// Escapes: what they are in place of what their group holds. `absolute` takes both.
__device__ inline void add_escapes(const Matrix& w, u32 row, const u16* x, Partial* p) {
    u32 end = w.escape_starts[row + 1];
    for (u32 e = w.escape_starts[row] + lane(); e < end; e += WARP) {
        u64 place = w.escape_places[e];
        double input = widen(x[place - (u64)row * w.cols]);
        double is = widen(w.escape_values[e]), was = widen(in_group(w, row, place));
        p->folded += is * input - was * input;
        p->absolute += (float)((fabs(is) + fabs(was)) * fabs(input));
    }
}

__device__ inline void sum_packed(const Matrix& w, u32 row, const float4* x, const u16* plain,
                                  Partial* p) {
    u32 quarters = w.cols / (GROUP / 4), base = (u32)w.bases[row] * 0x00800080u;
    const uint4* groups = (const uint4*)w.data + (u64)row * (w.cols / GROUP) * (GROUP_WORDS / 8);
    for (u32 q = lane(); q < quarters; q += WARP) {
        add_quarter(groups + q / 4 * (GROUP_WORDS / 8) + q % 4, base, x + q, quarters, p);
        fold(p);
    }
    add_escapes(w, row, plain, p);
}

// The bound: between two folds a sum takes RUN = 4 products, of which the first is added to
// zero; the other additions are off by 2^-24 each of an absolute sum that the whole `absolute`
// bounds. What follows is f64: below `cols` / 32 + 64 additions of 2^-53 on a way. The slack of
// 1.01 covers the f32 roundings of `absolute` up to 2^16 columns. A product that underflows is off
// by 2^-150.
__device__ inline bool decide_partial(const Partial& p, u32 cols, u16* out) {
    double y = p.folded;
    float absolute = p.absolute;
    for (u32 i = 0; i < 8; i++) y += (double)p.sum[i];
    for (u32 step = WARP / 2; step > 0; step /= 2) {
        y += __shfl_xor_sync(ALL_LANES, y, step);
        absolute = __fadd_rn(absolute, __shfl_xor_sync(ALL_LANES, absolute, step));
    }
    double unit = (RUN - 1) * 0x1p-24 + (cols / 32 + 64) * 0x1p-53;
    return decide_bf16(y, unit * 1.01 * (double)absolute + (double)cols * 0x1p-149, out);
}

__device__ inline void clear(Partial* p) {
    for (u32 i = 0; i < 8; i++) p->sum[i] = 0.0f;
    p->absolute = 0.0f;
    p->folded = 0.0;
}

// The fast stage of N rows, for layouts that can be read 16 bytes at a time.
template <u32 N>
__device__ inline void fast_rows(const Job& job, const u32* rows, const float4* x, const u16* plain,
                                 u16* out, bool* decided) {
    const Matrix& w = job.weights;
    if (w.kind == KIND_BF16) {
        Partial p[N];
        const uint4* from[N];
        u32 chunks = w.cols / 8;
#pragma unroll
        for (u32 r = 0; r < N; r++) {
            clear(p + r);
            from[r] = (const uint4*)w.data + (u64)rows[r] * chunks;
        }
        sum_plain<N>(from, x, chunks, p);
#pragma unroll
        for (u32 r = 0; r < N; r++) decided[r] = decide_partial(p[r], w.cols, out + r);
        return;
    }
#pragma unroll
    for (u32 r = 0; r < N; r++) {
        Partial p;
        clear(&p);
        sum_packed(w, rows[r], x, plain, &p);
        decided[r] = decide_partial(p, w.cols, out + r);
    }
}

// Eight weights of each row with their inputs, which lie `chunks` apart.
template <u32 N>
__device__ inline void add_eights(const uint4* v, const double* x, u32 chunks, u32 c,
                                  double (*sums)[4], float* absolute) {
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        double input = x[i * chunks + c];
        float size = fabsf(__double2float_rn(input));
#pragma unroll
        for (u32 r = 0; r < N; r++) {
            u32 pair = i / 2 == 0 ? v[r].x : i / 2 == 1 ? v[r].y : i / 2 == 2 ? v[r].z : v[r].w;
            float weight = i % 2 == 0 ? low(pair) : high(pair);
            sums[r][i % 4] = __fma_rn((double)weight, input, sums[r][i % 4]);
            absolute[r] = __fmaf_rn(fabsf(weight), size, absolute[r]);
        }
    }
}

// Sums to be rounded to f32, where f32 proves nothing: f64 from the start, of plain rows. The
// products are fused with their sums, each exact but for the sum's rounding.
template <u32 N>
__device__ inline void wide_rows(const Job& job, const u32* rows, const double* x, float* out,
                                 bool* decided) {
    const Matrix& w = job.weights;
    u32 chunks = w.cols / 8;
    double sums[N][4] = {};
    float absolute[N] = {};
    u32 c = lane();
    for (; c + WARP < chunks; c += 2 * WARP) {
        uint4 v[N], next[N];
#pragma unroll
        for (u32 r = 0; r < N; r++) {
            const uint4* row = (const uint4*)w.data + (u64)rows[r] * chunks + c;
            v[r] = __ldcs(row);
            next[r] = __ldcs(row + WARP);
        }
        add_eights<N>(v, x, chunks, c, sums, absolute);
        add_eights<N>(next, x, chunks, c + WARP, sums, absolute);
    }
    if (c < chunks) {
        uint4 v[N];
#pragma unroll
        for (u32 r = 0; r < N; r++) {
            v[r] = __ldcs((const uint4*)w.data + (u64)rows[r] * chunks + c);
        }
        add_eights<N>(v, x, chunks, c, sums, absolute);
    }
#pragma unroll
    for (u32 r = 0; r < N; r++) {
        WideF64 total = {(sums[r][0] + sums[r][1]) + (sums[r][2] + sums[r][3]), absolute[r]};
        total.merge_warp();
        u32 count = (chunks + WARP - 1) / WARP * 8 + 4;
        decided[r] = decide_f32(total.value(), total.short_bound(count), out + r);
    }
}
