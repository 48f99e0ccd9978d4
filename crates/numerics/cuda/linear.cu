// Projections of few tokens: a warp for each output. Bytes of weights are what it costs, so every
// row is read once, in f32 with a proven bound; the rows in doubt are read again.
#include "rows.cuh"

const u32 BLOCK_WARPS = 8;
// Inputs up to this width lie in shared memory as f32, the others are read where they are.
const u32 SHARED_COLS = 12288;

// A sum of the fast stage: f32 partial sums of a lane and what bounds their error.
struct Partial {
    float sum[8];
    float absolute;
    double corrections;
};

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

// Eights of a row: chunk c of the row meets chunk c of x, whose halves lie apart in shared memory
// so that neighbouring lanes read neighbouring banks.
__device__ inline void sum_plain(const uint4* row, const float4* x, u32 chunks, Partial* p) {
    u32 c = lane();
    for (; c + 3 * WARP < chunks; c += 4 * WARP) {
        uint4 w0 = __ldcs(row + c), w1 = __ldcs(row + c + WARP);
        uint4 w2 = __ldcs(row + c + 2 * WARP), w3 = __ldcs(row + c + 3 * WARP);
        add_eight(w0, x[c], x[chunks + c], p);
        add_eight(w1, x[c + WARP], x[chunks + c + WARP], p);
        add_eight(w2, x[c + 2 * WARP], x[chunks + c + 2 * WARP], p);
        add_eight(w3, x[c + 3 * WARP], x[chunks + c + 3 * WARP], p);
    }
    for (; c < chunks; c += WARP) add_eight(__ldcs(row + c), x[c], x[chunks + c], p);
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
        p->corrections += is * input - was * input;
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

__device__ inline double sum_over_warp(double v) {
    for (u32 step = WARP / 2; step > 0; step /= 2) v += __shfl_xor_sync(ALL_LANES, v, step);
    return v;
}

// The bound: an accumulator of a lane meets at most `chain` f32 additions, each off by 2^-24 of an
// absolute sum that the whole `absolute` bounds; what follows is f64 (below 60 additions of 2^-53,
// far under the slack of 1.01, which also covers the f32 roundings of `absolute`). A product that
// underflows is off by 2^-150 at most. More than 2^16 columns would outgrow the slack.
__device__ inline bool decide_partial(const Partial& p, u32 chain, u32 cols, u16* out) {
    double lane_sum = p.corrections, absolute = p.absolute;
    for (u32 i = 0; i < 8; i++) lane_sum += p.sum[i];
    double y = sum_over_warp(lane_sum);
    absolute = sum_over_warp(absolute);
    double bound =
        (chain + 1) * 1.01 * 5.9604644775390625e-08 * absolute + cols * 1.401298464324817e-45;
    return decide_bf16(y, bound, out);
}

// The fast stage, for layouts that can be read 16 bytes at a time.
__device__ inline bool fast_row(const Job& job, u32 row, const float4* x, const u16* plain,
                                u16* out) {
    const Matrix& w = job.weights;
    Partial p;
    for (u32 i = 0; i < 8; i++) p.sum[i] = 0.0f;
    p.absolute = 0.0f;
    p.corrections = 0.0;
    u32 chunks = w.cols / 8;
    if (w.kind == KIND_BF16) {
        sum_plain((const uint4*)w.data + (u64)row * chunks, x, chunks, &p);
    } else {
        sum_packed(w, row, x, plain, &p);
    }
    return decide_partial(p, (chunks + WARP - 1) / WARP + 3, w.cols, out);
}

// Writes x as f32 the way that the fast stage of this kind of weights reads it.
__device__ inline void lay_out(const Matrix& w, const u16* x, float* shared) {
    u32 chunks = w.cols / 8, quarters = w.cols / (GROUP / 4);
    for (u32 i = threadIdx.x; i < w.cols; i += blockDim.x) {
        u32 at;
        if (w.kind == KIND_BF16) {
            at = ((i / 4 % 2) * chunks + i / 8) * 4 + i % 4;
        } else {
            u32 plane = i % GROUP / PLANE, quarter = i / GROUP * 4 + i % PLANE / 8;
            at = ((plane * 2 + i / 4 % 2) * quarters + quarter) * 4 + i % 4;
        }
        shared[at] = widen(x[i]);
    }
}

template <class W>
__device__ void linear(const Job* jobs, Failure* failure) {
    SHARED_BYTES(shared);
    const Job& job = jobs[blockIdx.y];
    u32 rows = job.weights.rows, first = blockIdx.x * BLOCK_WARPS;
    if (first >= rows) return;
    bool in_eights = is_in_eights(job.weights);
    bool fast = in_eights && job.output == OUTPUT_BF16 && job.weights.cols <= SHARED_COLS;
    for (u32 token = blockIdx.z; token < job.token_count; token += gridDim.z) {
        u32 source = job.tokens ? job.tokens[token] : token;
        const u16* x = job.x + (u64)source * job.weights.cols;
        if (fast) {
            __syncthreads();
            lay_out(job.weights, x, (float*)shared);
            __syncthreads();
        }
        for (u32 row = first + threadIdx.x / WARP; row < rows; row += gridDim.x * BLOCK_WARPS) {
            u16 y;
            if (fast && fast_row(job, row, (const float4*)shared, x, &y)) {
                if (lane() == 0) ((u16*)job.y)[(u64)token * job.y_stride + row] = y;
            } else if (!slow_row<W>(job, in_eights, row, x, token) && lane() == 0) {
                report(failure, job.site, source, row);
            }
        }
    }
}

// Grid (blocks of 8 rows or fewer blocks that stride, jobs, tokens or fewer); block 256; dynamic
// shared memory 4 bytes for each column of the widest job that has at most 12288.
extern "C" __global__ void __launch_bounds__(256) linear_f64(const Job* jobs, Failure* failure) {
    linear<WideF64>(jobs, failure);
}

extern "C" __global__ void __launch_bounds__(256) linear_pair(const Job* jobs, Failure* failure) {
    linear<WidePair>(jobs, failure);
}
