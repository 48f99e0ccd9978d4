// Projections of few tokens: a warp for each output. Bytes of weights are what it costs, so every
// row is read once, in f32 with a proven bound; the rows in doubt are read again.
#include "rows.cuh"

const u32 BLOCK_WARPS = 8;
// Inputs up to this width lie in shared memory as f32, the others are read where they are.
const u32 SHARED_COLS = 12288;

// Rows that a warp takes: side by side where that pays, so that what they share of x is read once
// and one's end hides behind the other's.
const u32 TOGETHER = 2;
// Pieces of 16 bytes of a row that are asked for at a time; then the f32 sums are folded.
const u32 AHEAD = 4;

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

// Eights of rows: chunk c of a row meets chunk c of x, whose halves lie apart in shared memory
// so that neighbouring lanes read neighbouring banks.
__device__ inline void sum_plain(const uint4* const* rows, const float4* x, u32 chunks,
                                 Partial* p) {
    u32 c = lane();
    for (; c + (AHEAD - 1) * WARP < chunks; c += AHEAD * WARP) {
        uint4 w[TOGETHER][AHEAD];
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) {
#pragma unroll
            for (u32 r = 0; r < TOGETHER; r++) w[r][i] = __ldcs(rows[r] + c + i * WARP);
        }
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) {
            float4 x0 = x[c + i * WARP], x1 = x[chunks + c + i * WARP];
#pragma unroll
            for (u32 r = 0; r < TOGETHER; r++) add_eight(w[r][i], x0, x1, p + r);
        }
#pragma unroll
        for (u32 r = 0; r < TOGETHER; r++) fold(p + r);
    }
    for (; c < chunks; c += WARP) {
        float4 x0 = x[c], x1 = x[chunks + c];
#pragma unroll
        for (u32 r = 0; r < TOGETHER; r++) add_eight(__ldcs(rows[r] + c), x0, x1, p + r);
    }
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

// The bound: between two folds a sum takes AHEAD = 4 products, of which the first is added to
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
    double unit = (AHEAD - 1) * 0x1p-24 + (cols / 32 + 64) * 0x1p-53;
    return decide_bf16(y, unit * 1.01 * (double)absolute + (double)cols * 0x1p-149, out);
}

__device__ inline void clear(Partial* p) {
    for (u32 i = 0; i < 8; i++) p->sum[i] = 0.0f;
    p->absolute = 0.0f;
    p->folded = 0.0;
}

// The fast stage, for layouts that can be read 16 bytes at a time.
__device__ inline void fast_rows(const Job& job, const u32* rows, const float4* x, const u16* plain,
                                 u16* out, bool* decided) {
    const Matrix& w = job.weights;
    if (w.kind == KIND_BF16) {
        Partial p[TOGETHER];
        const uint4* from[TOGETHER];
        u32 chunks = w.cols / 8;
#pragma unroll
        for (u32 r = 0; r < TOGETHER; r++) {
            clear(p + r);
            from[r] = (const uint4*)w.data + (u64)rows[r] * chunks;
        }
        sum_plain(from, x, chunks, p);
#pragma unroll
        for (u32 r = 0; r < TOGETHER; r++) decided[r] = decide_partial(p[r], w.cols, out + r);
        return;
    }
#pragma unroll
    for (u32 r = 0; r < TOGETHER; r++) {
        Partial p;
        clear(&p);
        sum_packed(w, rows[r], x, plain, &p);
        decided[r] = decide_partial(p, w.cols, out + r);
    }
}

// Eight weights of each row with their inputs, which lie `chunks` apart.
__device__ inline void add_eights(const uint4* v, const double* x, u32 chunks, u32 c,
                                  double (*sums)[4], float* absolute) {
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        double input = x[i * chunks + c];
        float size = fabsf(__double2float_rn(input));
#pragma unroll
        for (u32 r = 0; r < TOGETHER; r++) {
            u32 pair = i / 2 == 0 ? v[r].x : i / 2 == 1 ? v[r].y : i / 2 == 2 ? v[r].z : v[r].w;
            float weight = i % 2 == 0 ? low(pair) : high(pair);
            sums[r][i % 4] = __fma_rn((double)weight, input, sums[r][i % 4]);
            absolute[r] = __fmaf_rn(fabsf(weight), size, absolute[r]);
        }
    }
}

// Sums to be rounded to f32, where f32 proves nothing: f64 from the start, of plain rows. The
// products are fused with their sums, each exact but for the sum's rounding.
__device__ inline void wide_rows(const Job& job, const u32* rows, const double* x, float* out,
                                 bool* decided) {
    const Matrix& w = job.weights;
    u32 chunks = w.cols / 8;
    double sums[TOGETHER][4] = {};
    float absolute[TOGETHER] = {};
    u32 c = lane();
    for (; c + WARP < chunks; c += 2 * WARP) {
        uint4 v[TOGETHER], next[TOGETHER];
#pragma unroll
        for (u32 r = 0; r < TOGETHER; r++) {
            const uint4* row = (const uint4*)w.data + (u64)rows[r] * chunks + c;
            v[r] = __ldcs(row);
            next[r] = __ldcs(row + WARP);
        }
        add_eights(v, x, chunks, c, sums, absolute);
        add_eights(next, x, chunks, c + WARP, sums, absolute);
    }
    if (c < chunks) {
        uint4 v[TOGETHER];
#pragma unroll
        for (u32 r = 0; r < TOGETHER; r++) {
            v[r] = __ldcs((const uint4*)w.data + (u64)rows[r] * chunks + c);
        }
        add_eights(v, x, chunks, c, sums, absolute);
    }
#pragma unroll
    for (u32 r = 0; r < TOGETHER; r++) {
        WideF64 total = {(sums[r][0] + sums[r][1]) + (sums[r][2] + sums[r][3]), absolute[r]};
        total.merge_warp();
        u32 count = (chunks + WARP - 1) / WARP * 8 + 4;
        decided[r] = decide_f32(total.value(), total.short_bound(count), out + r);
    }
}

// Writes x as f32 the way that the fast stage of this kind of weights reads it, eight at a time.
__device__ inline void lay_out(const Matrix& w, const u16* x, float4* shared) {
    u32 chunks = w.cols / 8, quarters = w.cols / (GROUP / 4);
#pragma unroll 4
    for (u32 c = threadIdx.x; c < chunks; c += BLOCK_WARPS * WARP) {
        uint4 v = ((const uint4*)x)[c];
        u32 first = c, second = chunks + c;
        if (w.kind == KIND_PACKED) {
            u32 plane = c % (GROUP / 8) / (PLANE / 8), quarter = c / (GROUP / 8) * 4 + c % 4;
            first = plane * 2 * quarters + quarter;
            second = first + quarters;
        }
        shared[first] = make_float4(low(v.x), high(v.x), low(v.y), high(v.y));
        shared[second] = make_float4(low(v.z), high(v.z), low(v.w), high(v.w));
    }
}

// One output in the slower stages.
template <class W>
__device__ inline void finish_row(const Job& job, bool in_eights, u32 row, const u16* x, u32 token,
                                  u32 source, Failure* failure) {
    if (!slow_row<W>(job, in_eights, row, x, token) && lane() == 0) {
        report(failure, job.site, source, row);
    }
}

// x as f64, element i of each eight together, as `wide_rows` reads it.
__device__ inline void lay_out_wide(const Matrix& w, const u16* x, double* shared) {
    u32 chunks = w.cols / 8;
#pragma unroll 2
    for (u32 c = threadIdx.x; c < chunks; c += BLOCK_WARPS * WARP) {
        uint4 v = ((const uint4*)x)[c];
        u32 pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            shared[2 * i * chunks + c] = (double)low(pairs[i]);
            shared[(2 * i + 1) * chunks + c] = (double)high(pairs[i]);
        }
    }
}

// The job of this block; several warps look at 32 jobs at a time.
__device__ inline u32 job_of_block(const Job* jobs, u32 count) {
    for (u32 first = 0;; first += WARP) {
        u32 i = min(first + lane(), count - 1);
        bool here = blockIdx.x - jobs[i].first_block < jobs[i].blocks;
        u32 found = __ballot_sync(ALL_LANES, here);
        if (found != 0) return first + (u32)__ffs((i32)found) - 1;
        if (first + WARP >= count) return count;
    }
}

// Asks for the first rows of a warp before x is laid out, so that both come together.
__device__ inline void ask_ahead(const Matrix& w, u32 row) {
#ifndef TARFA_EMULATOR
    u64 row_bytes = w.kind == KIND_PACKED ? (u64)w.cols / GROUP * GROUP_WORDS * 2 : (u64)w.cols * 2;
    const u8* from = (const u8*)w.data + row * row_bytes;
    u64 bytes = min((u64)(w.rows - min(row, w.rows)), (u64)TOGETHER) * row_bytes;
    for (u64 at = lane() * 128ull; at < bytes; at += WARP * 128ull) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(from + at));
    }
#endif
}

template <class W>
__device__ void linear(const Job* jobs, u32 job_count, Failure* failure) {
    SHARED_BYTES(shared);
    u32 index = job_of_block(jobs, job_count);
    if (index == job_count) return;
    const Job& job = jobs[index];
    const u32 step = BLOCK_WARPS * TOGETHER;
    u32 rows = job.weights.rows, cols = job.weights.cols;
    u32 first = (blockIdx.x - job.first_block) * step + threadIdx.x / WARP * TOGETHER;
    bool in_eights = is_in_eights(job.weights);
    bool fast = in_eights && job.output == OUTPUT_BF16 && cols <= SHARED_COLS;
    bool wide = in_eights && job.output == OUTPUT_F32 && job.weights.kind == KIND_BF16 &&
                cols <= SHARED_COLS / 2 && W::IS_F64;
    if (fast || wide) ask_ahead(job.weights, first);
    for (u32 token = blockIdx.z; token < job.token_count; token += gridDim.z) {
        u32 source = job.tokens ? job.tokens[token] : token;
        const u16* x = job.x + (u64)source * cols;
        if (fast || wide) {
            __syncthreads();
            if (fast)
                lay_out(job.weights, x, (float4*)shared);
            else
                lay_out_wide(job.weights, x, (double*)shared);
            __syncthreads();
        }
        for (u32 row = first; row < rows; row += job.blocks * step) {
            u32 of[TOGETHER];
            u16 y[TOGETHER];
            float y_f32[TOGETHER];
            bool decided[TOGETHER] = {};
#pragma unroll
            for (u32 r = 0; r < TOGETHER; r++) of[r] = min(row + r, rows - 1);
            if (fast) fast_rows(job, of, (const float4*)shared, x, y, decided);
            if (wide) wide_rows(job, of, (const double*)shared, y_f32, decided);
#pragma unroll
            for (u32 r = 0; r < TOGETHER; r++) {
                if (row + r >= rows) continue;
                u64 at = (u64)token * job.y_stride + of[r];
                if (!decided[r]) {
                    finish_row<W>(job, in_eights, of[r], x, token, source, failure);
                } else if (lane() == 0 && wide) {
                    ((float*)job.y)[at] = y_f32[r];
                } else if (lane() == 0) {
                    ((u16*)job.y)[at] = y[r];
                }
            }
        }
    }
}

// Grid (the jobs' blocks, 1, tokens or fewer); block 256; dynamic shared memory 4 bytes for each
// column of the widest job that has at most 12288, 8 where f32 is asked for.
extern "C" __global__ void __launch_bounds__(256, 3)
    linear_f64(const Job* jobs, u32 job_count, Failure* failure) {
    linear<WideF64>(jobs, job_count, failure);
}

extern "C" __global__ void __launch_bounds__(256, 3)
    linear_pair(const Job* jobs, u32 job_count, Failure* failure) {
    linear<WidePair>(jobs, job_count, failure);
}
