// Projections of many tokens on tensor cores, with what proves their rounding.
// Needs compute capability 8.0.
//
// A tile's product is taken 16 columns at a time with nothing added to it, and these parts are
// summed in f32 by IEEE additions. With M = max |w| max |x| over 16 columns, D their 16 products'
// sum, s the running sum and u = 2^-24 an output is off by at most
//     sum over parts of (16 * 2u * M + 2u * |D|)    (see tensor.cuh)
//   + sum over parts of u * |s|                     (each addition is rounded to nearest).
// By Cauchy and Schwarz the sums of M and |D| are below products of lengths that each row and
// each token has: of its maxima over 16 columns, and of itself. The sum of |s| is taken beside s.
// What is in doubt is marked, and done anew by `product_doubts`.
#include "product.cuh"
#include "tensor.cuh"

const u32 TILE_ROWS = 128;
const u32 TILE_TOKENS = 64;
const u32 PRODUCT_BLOCK = 128;
// Columns of a stage, and stages of which one is used while the others come.
const u32 TILE_COLS = 64;
const u32 STAGES = 3;
const u32 CHUNKS = TILE_COLS / 8;
const u32 PART = 16;

// Lengths of rows [n, cols] of bf16 with cols a multiple of 8. The floor of 2^-60 keeps squares
// from underflowing. Grid (ceil(n / 8)), block 256.
extern "C" __global__ void row_lengths(const u16* values, u32 n, u32 cols, Lengths* out) {
    u32 row = blockIdx.x * 8 + threadIdx.x / WARP;
    if (row >= n) return;
    const uint4* eights = (const uint4*)(values + (u64)row * cols);
    float maxima = 0.0f, squares = 0.0f;
    for (u32 part = lane(); part * PART < cols; part += WARP) {
        float most = 0x1p-60f;
        for (u32 i = part * 2; i < min(part * 2 + 2, cols / 8); i++) {
            uint4 v = eights[i];
            u32 pairs[4] = {v.x, v.y, v.z, v.w};
            for (u32 j = 0; j < 4; j++) {
                float a = low(pairs[j]), b = high(pairs[j]);
                most = fmaxf(most, fmaxf(fabsf(a), fabsf(b)));
                squares = __fadd_rn(squares, __fadd_rn(__fmul_rn(a, a), __fmul_rn(b, b)));
            }
        }
        maxima = __fadd_rn(maxima, __fmul_rn(most, most));
        squares = __fadd_rn(squares, 0x1p-110f);
    }
    for (u32 step = WARP / 2; step > 0; step /= 2) {
        maxima = __fadd_rn(maxima, __shfl_xor_sync(ALL_LANES, maxima, step));
        squares = __fadd_rn(squares, __shfl_xor_sync(ALL_LANES, squares, step));
    }
    // Fewer than 2^16 roundings: 1 + 2^-7 before the root.
    if (lane() == 0) {
        out[row] =
            Lengths{__fsqrt_rn(__fmul_rn(maxima, 1.01f)), __fsqrt_rn(__fmul_rn(squares, 1.01f))};
    }
}

// Where chunk c of 8 columns of a row lies in a tile: rows that a warp reads together meet
// different banks.
__device__ inline uint4* tile_chunk(uint4* tile, u32 row, u32 c) {
    return tile + row * CHUNKS + (c ^ row % 8);
}

// What a block works on.
struct Tile {
    const Job& job;
    u32 first_row;
    u32 first_token;

    __device__ u32 source(u32 token) const { return job.tokens ? job.tokens[token] : token; }
};

// Asks for columns [64 stage, 64 stage + 64) of both tiles; beyond the edges come zeros.
__device__ inline void ask_stage(const Tile& tile, u32 stage, const u16* const* x_rows, uint4* a,
                                 uint4* b) {
    const Matrix& w = tile.job.weights;
    u32 c = threadIdx.x % CHUNKS, col = stage * TILE_COLS + c * 8;
    for (u32 row = threadIdx.x / CHUNKS; row < TILE_ROWS; row += PRODUCT_BLOCK / CHUNKS) {
        bool there = col < w.cols && tile.first_row + row < w.rows;
        const u16* from = (const u16*)w.data;
        if (there) from += (u64)(tile.first_row + row) * w.cols + col;
        copy_sixteen(tile_chunk(a, row, c), from, there);
    }
    for (u32 i = 0; i < TILE_TOKENS * CHUNKS / PRODUCT_BLOCK; i++) {
        bool there = col < w.cols && x_rows[i] != nullptr;
        const u16* from = there ? x_rows[i] + col : (const u16*)w.data;
        copy_sixteen(tile_chunk(b, threadIdx.x / CHUNKS + i * (PRODUCT_BLOCK / CHUNKS), c), from,
                     there);
    }
    close_copies();
}

// A warp's 32 rows by 64 tokens: sums, and the sums of their magnitudes on the way.
struct Outputs {
    float sum[2][8][4];
    float size[2][8][4];
};

// Sixteen columns of a stage; of the tokens only the first `count`, in sixteens.
__device__ inline void add_part(Outputs* out, uint4* a, uint4* b, u32 rows, u32 count, u32 k) {
    u32 l = lane(), wa[2][4];
    for (u32 i = 0; i < 2; i++) {
        load_matrices(wa[i], tile_chunk(a, rows + i * 16 + l % 16, k * 2 + l / 16));
    }
#pragma unroll
    for (u32 pair = 0; pair < 4; pair++) {
        if (pair * 16 >= count) continue;
        u32 xb[4];
        load_matrices(xb, tile_chunk(b, pair * 16 + l / 16 * 8 + l % 8, k * 2 + l / 8 % 2));
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            float part[4], *sum = out->sum[i / 2][pair * 2 + i % 2];
            float* size = out->size[i / 2][pair * 2 + i % 2];
            mma_bf16(part, wa[i / 2], xb + i % 2 * 2);
#pragma unroll
            for (u32 o = 0; o < 4; o++) {
                sum[o] = __fadd_rn(sum[o], part[o]);
                size[o] = __fadd_rn(size[o], fabsf(sum[o]));
            }
        }
    }
}

// Writes an output, or marks it. 2^-126 for each product covers subnormals that are flushed; the
// two f32 additions of the test are covered by 2^-22 of the value.
__device__ inline void write_output(const Tile& tile, const Proof& proof, u32 row, u32 token,
                                    Lengths by_row, Lengths by_token, float sum, float size) {
    const Job& job = tile.job;
    float cut = __fadd_rn(__fmul_rn(16.0f, __fmul_rn(by_row.maxima, by_token.maxima)),
                          __fmul_rn(by_row.values, by_token.values));
    float flushed = __fmul_rn((float)job.weights.cols * 0x1p-125f,
                              __fadd_rn(1.0f, __fadd_rn(by_row.maxima, by_token.maxima)));
    float bound = __fadd_rn(__fmul_rn(cut, 0x1p-23f * 1.02f), __fmul_rn(size, 0x1p-24f * 1.02f));
    bound = __fadd_rn(__fadd_rn(bound, flushed), __fmul_rn(fabsf(sum), 0x1p-22f));
    u16 below = store(__fsub_rn(sum, bound)), above = store(__fadd_rn(sum, bound));
    if (below == above && is_finite_bf16(below)) {
        ((u16*)job.y)[(u64)token * job.y_stride + row] = below;
    } else {
        u32 words = (job.weights.rows + 31) / 32;
        atomicOr(proof.doubts + (u64)token * words + row / 32, 1u << row % 32);
    }
}

__device__ inline void write_outputs(const Tile& tile, const Proof& proof, const Outputs& out,
                                     u32 rows) {
    u32 row = tile.first_row + rows + lane() / 4, token = tile.first_token + lane() % 4 * 2;
#pragma unroll
    for (u32 j = 0; j < 16; j++) {
        u32 t = token + j / 2 * 8 + j % 2;
        if (t >= tile.job.token_count) continue;
        Lengths by_token = proof.tokens[tile.source(t)];
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 r = row + i / 2 * 16 + i % 2 * 8, o = i % 2 * 2 + j % 2;
            if (r >= tile.job.weights.rows) continue;
            write_output(tile, proof, r, t, proof.rows[r], by_token, out.sum[i / 2][j / 2][o],
                         out.size[i / 2][j / 2][o]);
        }
    }
}

// Grid (ceil(tokens / 64), ceil(rows / 128), jobs) for the most tokens and rows; block 128; dynamic
// shared memory for the stages: 3 * 24 KiB. Plain bf16 weights with cols a multiple of 8 only.
extern "C" __global__ void __launch_bounds__(PRODUCT_BLOCK, 3)
    product(const Job* jobs, const Proof* proofs) {
    SHARED_BYTES(shared);
    const Job& job = jobs[blockIdx.z];
    Tile tile = {job, blockIdx.y * TILE_ROWS, blockIdx.x * TILE_TOKENS};
    if (tile.first_row >= job.weights.rows || tile.first_token >= job.token_count) return;
    uint4* a = (uint4*)shared;
    uint4* b = a + STAGES * TILE_ROWS * CHUNKS;
    const u16* x_rows[TILE_TOKENS * CHUNKS / PRODUCT_BLOCK];
    for (u32 i = 0; i < TILE_TOKENS * CHUNKS / PRODUCT_BLOCK; i++) {
        u32 token = tile.first_token + threadIdx.x / CHUNKS + i * (PRODUCT_BLOCK / CHUNKS);
        bool there = token < job.token_count;
        x_rows[i] = there ? job.x + (u64)tile.source(token) * job.weights.cols : nullptr;
    }
    u32 rows = threadIdx.x / WARP * 32, count = job.token_count - tile.first_token;
    Outputs out = {};
    u32 stages = (job.weights.cols + TILE_COLS - 1) / TILE_COLS;
    for (u32 stage = 0; stage < STAGES - 1; stage++) {
        ask_stage(tile, stage, x_rows, a + stage * TILE_ROWS * CHUNKS,
                  b + stage * TILE_TOKENS * CHUNKS);
    }
    for (u32 stage = 0; stage < stages; stage++) {
        wait_copies<STAGES - 2>();
        __syncthreads();
        u32 next = stage + STAGES - 1, at = next % STAGES, now = stage % STAGES;
        ask_stage(tile, next, x_rows, a + at * TILE_ROWS * CHUNKS, b + at * TILE_TOKENS * CHUNKS);
        uint4 *w = a + now * TILE_ROWS * CHUNKS, *x = b + now * TILE_TOKENS * CHUNKS;
        for (u32 k = 0; k < TILE_COLS / PART; k++) add_part(&out, w, x, rows, count, k);
    }
    write_outputs(tile, proofs[blockIdx.z], out, rows);
}
