// The outputs that `product` left in doubt, one by one: a tile's tokens lie in shared memory, and a
// warp reads a row once for all of them. Needs what `product` needs.
//
// Products of bf16 values are summed in pairs in f32, and the pairs in f64. A pair rounds once, by
// 2^-24 of what it is; so the whole is off by 2^-24 of the absolute sum, which by Cauchy and
// Schwarz is below the product of the lengths. The rest is f64 and underflows.
#include "product.cuh"

const u32 BLOCK_WARPS = 32;
// Rows that a warp takes at a time: half of a word of marks.
const u32 UNIT_ROWS = 16;
// Pieces of 16 bytes of a row that are asked for at a time.
const u32 AHEAD = 4;

// Where a block works.
struct Place {
    const Job& job;
    const Proof& proof;
    u32 first_token;
    // Inputs [tile tokens, cols / 8] in shared memory.
    const uint4* x;

    __device__ u32 source(u32 token) const { return job.tokens ? job.tokens[token] : token; }
};

__device__ inline float pair_sum(u32 w, u32 x) {
    return __fmaf_rn(high(w), high(x), __fmul_rn(low(w), low(x)));
}

__device__ inline void add_pairs(uint4 w, uint4 x, double* sums) {
    sums[0] += (double)pair_sum(w.x, x.x);
    sums[1] += (double)pair_sum(w.y, x.y);
    sums[0] += (double)pair_sum(w.z, x.z);
    sums[1] += (double)pair_sum(w.w, x.w);
}

// N tokens of the tile against a row.
template <class W, u32 N>
__device__ inline void settle(const Place& at, u32 row, const u32* tokens, Failure* failure) {
    const Matrix& w = at.job.weights;
    u32 chunks = w.cols / 8, c = lane();
    const uint4* weights = (const uint4*)w.data + (u64)row * chunks;
    const uint4* inputs[N];
    double sums[N][2] = {};
#pragma unroll
    for (u32 i = 0; i < N; i++) inputs[i] = at.x + tokens[i] * chunks;
    for (; c + (AHEAD - 1) * WARP < chunks; c += AHEAD * WARP) {
        uint4 v[AHEAD];
#pragma unroll
        for (u32 k = 0; k < AHEAD; k++) v[k] = weights[c + k * WARP];
#pragma unroll
        for (u32 k = 0; k < AHEAD; k++) {
#pragma unroll
            for (u32 i = 0; i < N; i++) add_pairs(v[k], inputs[i][c + k * WARP], sums[i]);
        }
    }
    for (; c < chunks; c += WARP) {
#pragma unroll
        for (u32 i = 0; i < N; i++) add_pairs(weights[c], inputs[i][c], sums[i]);
    }
    double totals[N];
#pragma unroll
    for (u32 i = 0; i < N; i++) totals[i] = sums[i][0] + sums[i][1];
    for (u32 step = WARP / 2; step > 0; step /= 2) {
#pragma unroll
        for (u32 i = 0; i < N; i++) totals[i] += __shfl_xor_sync(ALL_LANES, totals[i], step);
    }
    double unit = 0x1p-24 + (w.cols / 32 + 64) * 0x1p-53;
    double length = at.proof.rows[row].values;
#pragma unroll
    for (u32 i = 0; i < N; i++) {
        u32 token = at.first_token + tokens[i], source = at.source(token);
        double absolute = length * (double)at.proof.tokens[source].values;
        u16 y;
        if (decide_bf16(totals[i], unit * 1.01 * absolute + (double)w.cols * 0x1p-148, &y)) {
            if (lane() == 0) ((u16*)at.job.y)[(u64)token * at.job.y_stride + row] = y;
        } else if (!slow_row<W>(at.job, true, row, (const u16*)inputs[i], token) && lane() == 0) {
            report(failure, at.job.site, source, row);
        }
    }
}

// The tokens of a row that are marked, as bits.
template <class W>
__device__ inline void settle_row(const Place& at, u32 row, u32 marked, Failure* failure) {
    while (marked != 0) {
        u32 tokens[2] = {(u32)__ffs((i32)marked) - 1, 0};
        marked &= marked - 1;
        if (marked == 0) {
            settle<W, 1>(at, row, tokens, failure);
        } else {
            tokens[1] = (u32)__ffs((i32)marked) - 1;
            marked &= marked - 1;
            settle<W, 2>(at, row, tokens, failure);
        }
    }
}

template <class W>
__device__ void doubts(const Job* jobs, const Proof* proofs, u32 tile_tokens, u32 block_rows,
                       Failure* failure) {
    SHARED_BYTES(shared);
    const Job& job = jobs[blockIdx.z];
    u32 first_row = blockIdx.x * block_rows, warp = threadIdx.x / WARP;
    Place at = {job, proofs[blockIdx.z], blockIdx.y * tile_tokens, (const uint4*)shared};
    if (first_row >= job.weights.rows || at.first_token >= job.token_count) return;
    u32 tokens = min(tile_tokens, job.token_count - at.first_token), chunks = job.weights.cols / 8;
    for (u32 t = warp; t < tokens; t += BLOCK_WARPS) {
        const uint4* x = (const uint4*)job.x + (u64)at.source(at.first_token + t) * chunks;
#pragma unroll 4
        for (u32 c = lane(); c < chunks; c += WARP) ((uint4*)shared)[t * chunks + c] = x[c];
    }
    __syncthreads();
    u32 words = (job.weights.rows + 31) / 32, end = min(first_row + block_rows, job.weights.rows);
    for (u32 unit = first_row + warp * UNIT_ROWS; unit < end; unit += BLOCK_WARPS * UNIT_ROWS) {
        u32 marks = 0;
        if (lane() < tokens) {
            marks = at.proof.doubts[(u64)(at.first_token + lane()) * words + unit / 32];
        }
        for (u32 row = unit; row < min(unit + UNIT_ROWS, end); row++) {
            settle_row<W>(at, row, __ballot_sync(ALL_LANES, marks >> row % 32 & 1), failure);
        }
    }
}

// Grid (ceil(rows / block_rows), ceil(tokens / tile_tokens), jobs) for the most of both; block
// 1024; dynamic shared memory for `tile_tokens` rows, at most 32, of the widest x; block_rows a
// multiple of 32.
extern "C" __global__ void __launch_bounds__(1024, 1)
    product_doubts_f64(const Job* jobs, const Proof* proofs, u32 tile_tokens, u32 block_rows,
                       Failure* failure) {
    doubts<WideF64>(jobs, proofs, tile_tokens, block_rows, failure);
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    product_doubts_pair(const Job* jobs, const Proof* proofs, u32 tile_tokens, u32 block_rows,
                        Failure* failure) {
    doubts<WidePair>(jobs, proofs, tile_tokens, block_rows, failure);
}
