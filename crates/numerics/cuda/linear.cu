// Projections of few tokens: a warp for each output. Bytes of weights are what it costs, so every
// row is read once, in f32 with a proven bound; the rows in doubt are read again.
#include "fast.cuh"

const u32 BLOCK_WARPS = 8;
// Inputs up to this width lie in shared memory as f32, the others are read where they are.
const u32 SHARED_COLS = 12288;

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

// x times 2^896 as f64, element i of each eight together, as `wide_rows` reads it; `most` becomes
// the bits of the largest magnitude.
__device__ inline void lay_out_wide(const Matrix& w, const u16* x, double* shared, u32* most) {
    u32 chunks = w.cols / 8, largest = 0;
#pragma unroll 2
    for (u32 c = threadIdx.x; c < chunks; c += BLOCK_WARPS * WARP) {
        uint4 v = ((const uint4*)x)[c];
        u32 pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            shared[2 * i * chunks + c] = (double)low(pairs[i]) * 0x1p896;
            shared[(2 * i + 1) * chunks + c] = (double)high(pairs[i]) * 0x1p896;
            largest = max(largest, max(pairs[i] << 16 & 0x7fffffffu, pairs[i] & 0x7fff0000u));
        }
    }
    for (u32 step = WARP / 2; step > 0; step /= 2) {
        largest = max(largest, __shfl_xor_sync(ALL_LANES, largest, step));
    }
    if (lane() == 0) atomicMax(most, largest);
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

// What a warp takes of a job: rows `first`, `first + step` and so on.
struct Rows {
    u32 first;
    u32 step;
};

// Asks for the first rows of a warp before x is laid out, so that both come together.
__device__ inline void ask_ahead(const Matrix& w, Rows rows) {
#ifndef TARFA_EMULATOR
    u64 row_bytes = w.kind == KIND_PACKED ? (u64)w.cols / GROUP * GROUP_WORDS * 2 : (u64)w.cols * 2;
    for (u32 row = rows.first; row < min(w.rows, rows.first + 2 * rows.step); row += rows.step) {
        const u8* from = (const u8*)w.data + row * row_bytes;
        for (u64 at = lane() * 128ull; at < row_bytes; at += WARP * 128ull) {
            asm volatile("prefetch.global.L2 [%0];" ::"l"(from + at));
        }
    }
#endif
}

// Rows of a block that the first stage left in doubt; those beyond the room are settled at once.
// And the bits of the largest input.
const u32 DOUBTS_MAX = 16;
struct Doubts {
    u32 most;
    u32 count;
    u32 rows[DOUBTS_MAX];
};

// A token's inputs, and how rows of this job begin.
struct Input {
    u32 token;
    u32 source;
    const u16* x;
    bool in_eights;
    bool fast;
    bool wide;
};

template <class W>
__device__ inline void finish_row(const Job& job, const Input& in, u32 row, Failure* failure) {
    if (!slow_row<W>(job, in.in_eights, row, in.x, in.token) && lane() == 0) {
        report(failure, job.site, in.source, row);
    }
}

// N rows of a warp.
template <class W, u32 N>
__device__ inline void take_rows(const Job& job, const Input& in, const u32* rows,
                                 const void* shared, Doubts* doubts, Failure* failure) {
    u16 y[N];
    float y_f32[N];
    bool decided[N] = {};
    if (in.fast) fast_rows<N>(job, rows, (const float4*)shared, in.x, y, decided);
    if (in.wide) {
        float most = __uint_as_float(doubts->most);
        wide_rows<N>(job, rows, (const double*)shared, most, y_f32, decided);
    }
#pragma unroll
    for (u32 r = 0; r < N; r++) {
        u64 at = (u64)in.token * job.y_stride + rows[r];
        if (decided[r]) {
            if (lane() != 0) continue;
            if (in.wide)
                ((float*)job.y)[at] = y_f32[r];
            else
                ((u16*)job.y)[at] = y[r];
            continue;
        }
        u32 place = DOUBTS_MAX;
        if ((in.fast || in.wide) && lane() == 0) place = atomicAdd(&doubts->count, 1u);
        place = __shfl_sync(ALL_LANES, place, 0);
        if (place >= DOUBTS_MAX)
            finish_row<W>(job, in, rows[r], failure);
        else if (lane() == 0)
            doubts->rows[place] = rows[r];
    }
}

// Eight weights, as pairs, with eight inputs of the fast stage's layout.
template <class W>
__device__ inline void add_wide(uint4 w, float4 x0, float4 x1, W* parts) {
    parts[0].add_short(low(w.x), x0.x);
    parts[1].add_short(high(w.x), x0.y);
    parts[2].add_short(low(w.y), x0.z);
    parts[3].add_short(high(w.y), x0.w);
    parts[0].add_short(low(w.z), x1.x);
    parts[1].add_short(high(w.z), x1.y);
    parts[2].add_short(low(w.w), x1.z);
    parts[3].add_short(high(w.w), x1.w);
}

// A warp's share of a row in doubt, of which every warp of the block takes one.
template <class W>
__device__ inline W wide_share(const Matrix& w, u32 row, const float4* x, const u16* plain) {
    W parts[PARTS];
    for (u32 i = 0; i < PARTS; i++) parts[i].clear();
    if (w.kind == KIND_BF16) {
        u32 chunks = w.cols / 8;
        const uint4* from = (const uint4*)w.data + (u64)row * chunks;
#pragma unroll 4
        for (u32 c = threadIdx.x; c < chunks; c += BLOCK_WARPS * WARP) {
            add_wide(from[c], x[c], x[chunks + c], parts);
        }
    } else {
        u32 quarters = w.cols / (GROUP / 4), base = (u32)w.bases[row] * 0x00800080u;
        const uint4* groups = (const uint4*)w.data + (u64)row * (w.cols / GROUP) * GROUP_WORDS / 8;
        for (u32 q = threadIdx.x; q < quarters; q += BLOCK_WARPS * WARP) {
            const uint4* group = groups + q / 4 * (GROUP_WORDS / 8) + q % 4;
            uint4 a = group[0], b = group[4], c = group[8];
            uint4 d = make_uint4(fourth(a.x, b.x, c.x) + base, fourth(a.y, b.y, c.y) + base,
                                 fourth(a.z, b.z, c.z) + base, fourth(a.w, b.w, c.w) + base);
            const float4* of = x + q;
            add_wide(decoded(a, base), of[0], of[quarters], parts);
            add_wide(decoded(b, base), of[2 * quarters], of[3 * quarters], parts);
            add_wide(decoded(c, base), of[4 * quarters], of[5 * quarters], parts);
            add_wide(d, of[6 * quarters], of[7 * quarters], parts);
        }
        u32 end = w.escape_starts[row + 1];
        for (u32 e = w.escape_starts[row] + threadIdx.x; e < end; e += BLOCK_WARPS * WARP) {
            u64 place = w.escape_places[e];
            float input = widen(plain[place - (u64)row * w.cols]);
            parts[0].add_short(widen(w.escape_values[e]), input);
            parts[1].add_short(-widen(in_group(w, row, place)), input);
        }
    }
    for (u32 i = 1; i < PARTS; i++) parts[0].merge(parts[i]);
    parts[0].merge_warp();
    return parts[0];
}

// The same of a plain row whose sum is to be rounded to f32: nearly all that are in doubt are ties,
// which f64 holds.
__device__ inline F64Sum exact_share(const Matrix& w, u32 row, const double* x) {
    F64Sum sum;
    sum.clear();
    u32 chunks = w.cols / 8;
    const uint4* from = (const uint4*)w.data + (u64)row * chunks;
    for (u32 c = threadIdx.x; c < chunks; c += BLOCK_WARPS * WARP) {
        uint4 v = from[c];
        u32 pairs[4] = {v.x, v.y, v.z, v.w};
        for (u32 i = 0; i < 4; i++) {
            sum.add(low(pairs[i]), (float)(x[2 * i * chunks + c] * 0x1p-896));
            sum.add(high(pairs[i]), (float)(x[(2 * i + 1) * chunks + c] * 0x1p-896));
        }
    }
    sum.merge_warp();
    return sum;
}

// The rows that a block's warps left in doubt, each by all of them: what a warp by itself would
// need for one, everybody waits for.
template <class W>
__device__ inline void settle_wide(const Job& job, const Input& in, const double* shared,
                                   const Doubts& doubts, Failure* failure) {
    __shared__ F64Sum shares[DOUBTS_MAX][BLOCK_WARPS];
    __syncthreads();
    u32 count = min(doubts.count, DOUBTS_MAX), warp = threadIdx.x / WARP;
    if (count == 0) return;
    for (u32 i = 0; i < count; i++) {
        F64Sum share = exact_share(job.weights, doubts.rows[i], shared);
        if (lane() == 0) shares[i][warp] = share;
    }
    __syncthreads();
    for (u32 i = warp; i < count; i += BLOCK_WARPS) {
        F64Sum sum = shares[i][0];
        for (u32 k = 1; k < BLOCK_WARPS; k++) sum.merge(shares[i][k]);
        float y = __double2float_rn(sum.total);
        if (!sum.is_exact() || !is_finite_f32(y))
            finish_row<W>(job, in, doubts.rows[i], failure);
        else if (lane() == 0)
            ((float*)job.y)[(u64)in.token * job.y_stride + doubts.rows[i]] = y;
    }
}

// The same of sums to be rounded to bf16: f64 decides nearly all.
template <class W>
__device__ inline void settle(const Job& job, const Input& in, const float4* shared,
                              const Doubts& doubts, Failure* failure) {
    __shared__ W shares[DOUBTS_MAX][BLOCK_WARPS];
    __syncthreads();
    u32 count = min(doubts.count, DOUBTS_MAX), warp = threadIdx.x / WARP;
    if (count == 0) return;
    for (u32 i = 0; i < count; i++) {
        W share = wide_share<W>(job.weights, doubts.rows[i], shared, in.x);
        if (lane() == 0) shares[i][warp] = share;
    }
    __syncthreads();
    for (u32 i = warp; i < count; i += BLOCK_WARPS) {
        u32 row = doubts.rows[i];
        W total = shares[i][0];
        for (u32 k = 1; k < BLOCK_WARPS; k++) total.merge(shares[i][k]);
        // What a warp by itself adds is more; a merge counts as two products.
        double bound = total.short_bound(wide_count(job.weights, row) + 2 * BLOCK_WARPS);
        u16 y;
        if (!decide_bf16(total.value(), bound, &y))
            finish_row<W>(job, in, row, failure);
        else if (lane() == 0)
            ((u16*)job.y)[(u64)in.token * job.y_stride + row] = y;
    }
}

template <class W>
__device__ void linear(const Job* jobs, u32 job_count, Failure* failure) {
    SHARED_BYTES(shared);
    __shared__ Doubts doubts;
    u32 index = job_of_block(jobs, job_count);
    if (index == job_count) return;
    const Job& job = jobs[index];
    const Matrix& w = job.weights;
    Rows mine = {(blockIdx.x - job.first_block) * BLOCK_WARPS + threadIdx.x / WARP,
                 job.blocks * BLOCK_WARPS};
    Input in;
    in.in_eights = is_in_eights(w);
    in.fast = in.in_eights && job.output == OUTPUT_BF16 && w.cols <= SHARED_COLS;
    in.wide = in.in_eights && job.output == OUTPUT_F32 && w.kind == KIND_BF16 &&
              w.cols <= SHARED_COLS / 2 && W::IS_F64;
    if (in.fast || in.wide) ask_ahead(w, mine);
    for (in.token = blockIdx.z; in.token < job.token_count; in.token += gridDim.z) {
        in.source = job.tokens ? job.tokens[in.token] : in.token;
        in.x = job.x + (u64)in.source * w.cols;
        if (in.fast || in.wide) {
            // Nobody needs those of the token before any more.
            __syncthreads();
            if (threadIdx.x == 0) doubts.count = doubts.most = 0;
            __syncthreads();
            if (in.fast)
                lay_out(w, in.x, (float4*)shared);
            else
                lay_out_wide(w, in.x, (double*)shared, &doubts.most);
            __syncthreads();
        }
        u32 row = mine.first;
        for (; row + mine.step < w.rows; row += 2 * mine.step) {
            u32 rows[2] = {row, row + mine.step};
            take_rows<W, 2>(job, in, rows, shared, &doubts, failure);
        }
        if (row < w.rows) take_rows<W, 1>(job, in, &row, shared, &doubts, failure);
        if (in.fast) settle<W>(job, in, (const float4*)shared, doubts, failure);
        if (in.wide) settle_wide<W>(job, in, (const double*)shared, doubts, failure);
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
