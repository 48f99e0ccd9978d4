// The first stage of a row against one token, by a warp: every weight is read once.
#pragma once
#include "rows.cuh"

// Pieces of 16 bytes that are asked for at a time, of all rows together.
const u32 AHEAD = 8;

// A sum of the fast stage: fours of products, each summed in f32 as (a + b) + (c + d), in f64; and
// what bounds their error.
struct Partial {
    double sum[2];
    float absolute;
};

// Products of bf16 values are exact in f32 but for underflow, so that only their sums round.
__device__ inline void add_four(u32 w01, u32 w23, float4 x, double* sum, float* absolute) {
    float a = __fmul_rn(low(w01), x.x), b = __fmul_rn(high(w01), x.y);
    float c = __fmul_rn(low(w23), x.z), d = __fmul_rn(high(w23), x.w);
    *sum += (double)__fadd_rn(__fadd_rn(a, b), __fadd_rn(c, d));
    *absolute = __fadd_rn(__fadd_rn(fabsf(a), fabsf(b)), __fadd_rn(fabsf(c), fabsf(d)));
}

// Four pairs of weights with eight inputs.
__device__ inline void add_eight(uint4 w, float4 x0, float4 x1, Partial* p) {
    float first, second;
    add_four(w.x, w.y, x0, &p->sum[0], &first);
    add_four(w.z, w.w, x1, &p->sum[1], &second);
    p->absolute = __fadd_rn(p->absolute, __fadd_rn(first, second));
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
        for (u32 r = 0; r < N; r++) add_eight(w[r][i], x0, x1, p + r);
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
        p->sum[0] += is * input - was * input;
        p->absolute += (float)((fabs(is) + fabs(was)) * fabs(input));
    }
}

__device__ inline void sum_packed(const Matrix& w, u32 row, const float4* x, const u16* plain,
                                  Partial* p) {
    u32 quarters = w.cols / (GROUP / 4), base = (u32)w.bases[row] * 0x00800080u;
    const uint4* groups = (const uint4*)w.data + (u64)row * (w.cols / GROUP) * (GROUP_WORDS / 8);
    for (u32 q = lane(); q < quarters; q += WARP) {
        add_quarter(groups + q / 4 * (GROUP_WORDS / 8) + q % 4, base, x + q, quarters, p);
    }
    add_escapes(w, row, plain, p);
}

// The bound: of a four, each pair rounds once and their sum once more, each by 2^-24 of what it is,
// so all fours together by 2 * 2^-24 of the absolute sum. What follows is f64: below `cols` / 32 +
// 64 additions of 2^-53 on a way. The slack of 1.01 covers the f32 roundings of `absolute` up to
// 2^16 columns. A product that underflows is off by 2^-150.
__device__ inline bool decide_partial(const Partial& p, u32 cols, u16* out) {
    double y = p.sum[0] + p.sum[1];
    float absolute = p.absolute;
    for (u32 step = WARP / 2; step > 0; step /= 2) {
        y += __shfl_xor_sync(ALL_LANES, y, step);
        absolute = __fadd_rn(absolute, __shfl_xor_sync(ALL_LANES, absolute, step));
    }
    double unit = 2.0 * 0x1p-24 + (cols / 32 + 64) * 0x1p-53;
    return decide_bf16(y, unit * 1.01 * (double)absolute + (double)cols * 0x1p-149, out);
}

__device__ inline void clear(Partial* p) {
    p->sum[0] = p->sum[1] = 0.0;
    p->absolute = 0.0f;
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

// A bf16 value times 2^-896 as f64, whose exponent has three bits more: no conversion. What is not
// finite becomes finite here, and `absolute` not.
__device__ inline double scaled_high(u32 pair) {
    return __hiloint2double((i32)pair >> 3 & (i32)0x8fffe000u, 0);
}
__device__ inline double scaled_low(u32 pair) { return scaled_high(pair << 16); }

// Eight weights of each row with their inputs times 2^896, which lie `chunks` apart; `sizes` takes
// the weights' magnitudes.
template <u32 N>
__device__ inline void add_eights(const uint4* v, const double* x, u32 chunks, u32 c,
                                  double (*sums)[4], float* sizes) {
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        double input = x[i * chunks + c];
#pragma unroll
        for (u32 r = 0; r < N; r++) {
            u32 pair = i / 2 == 0 ? v[r].x : i / 2 == 1 ? v[r].y : i / 2 == 2 ? v[r].z : v[r].w;
            double weight = i % 2 == 0 ? scaled_low(pair) : scaled_high(pair);
            sums[r][i % 4] = __fma_rn(weight, input, sums[r][i % 4]);
            float size = i % 2 == 0 ? low(pair) : high(pair);
            sizes[r] = __fadd_rn(sizes[r], fabsf(size));
        }
    }
}

// Sums to be rounded to f32, where f32 proves nothing: f64 from the start, of plain rows. The
// products are fused with their sums, each exact but for the sum's rounding. The absolute sum is
// bounded by that of the weights times the largest input, `most`.
template <u32 N>
__device__ inline void wide_rows(const Job& job, const u32* rows, const double* x, float most,
                                 float* out, bool* decided) {
    const Matrix& w = job.weights;
    u32 chunks = w.cols / 8;
    double sums[N][4] = {};
    float sizes[N] = {};
    u32 c = lane();
    for (; c + WARP < chunks; c += 2 * WARP) {
        uint4 v[N], next[N];
#pragma unroll
        for (u32 r = 0; r < N; r++) {
            const uint4* row = (const uint4*)w.data + (u64)rows[r] * chunks + c;
            v[r] = __ldcs(row);
            next[r] = __ldcs(row + WARP);
        }
        add_eights<N>(v, x, chunks, c, sums, sizes);
        add_eights<N>(next, x, chunks, c + WARP, sums, sizes);
    }
    if (c < chunks) {
        uint4 v[N];
#pragma unroll
        for (u32 r = 0; r < N; r++) {
            v[r] = __ldcs((const uint4*)w.data + (u64)rows[r] * chunks + c);
        }
        add_eights<N>(v, x, chunks, c, sums, sizes);
    }
#pragma unroll
    for (u32 r = 0; r < N; r++) {
        float absolute = __fmul_rn(sizes[r], most);
        WideF64 total = {(sums[r][0] + sums[r][1]) + (sums[r][2] + sums[r][3]), absolute};
        total.merge_warp();
        u32 count = (chunks + WARP - 1) / WARP * 8 + 4;
        decided[r] = decide_f32(total.value(), total.short_bound(count), out + r);
    }
}
