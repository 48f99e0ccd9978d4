// Attention of many tokens of a chunk on the tensor cores' f64, whose sums are those of IEEE
// multiply-adds: layouts and order as attention.cu.
// Needs compute capability 8.0.
//
// Both products are tiles of 64 by 64. A factor of one side is taken as bf16 bits shifted into f64,
// which is 2^-896 times its value, so the sums are, and are scaled back at the end.
#include "elementary.cuh"
#include "tensor.cuh"
#include "wide.cuh"

const u32 TILE = 64;
// A row of a tile in shared memory: rows that a warp reads together meet different banks.
const u32 LINE = TILE + 8;
const u32 TILE_BLOCK = 128;

// What of the sequence a token sees.
__device__ inline u32 seen_by(const u32* position, u32 token_first, u32 token) {
    return *position + token_first + token + 1;
}

// Of a row: a bound of its length, and the grid that its values lie on.
struct RowNote {
    float length;
    i32 grid;
};

// Grid (ceil(rows / 8), groups), block 256; rows of `dim` values, groups `group_stride` rows apart.
extern "C" __global__ void row_notes(const u16* values, u32 rows, u32 group_stride, u32 dim,
                                     RowNote* out) {
    u32 row = blockIdx.x * 8 + threadIdx.x / WARP;
    if (row >= rows) return;
    u64 at = (u64)blockIdx.y * group_stride + row;
    float squares = 0x1p-110f;
    i32 grid = NO_GRID;
    for (u32 i = lane(); i < dim; i += WARP) {
        float v = widen(values[at * dim + i]);
        squares = __fadd_rn(squares, __fmul_rn(v, v));
        grid = min(grid, grid_of(v));
    }
    for (u32 step = WARP / 2; step > 0; step /= 2) {
        squares = __fadd_rn(squares, __shfl_xor_sync(ALL_LANES, squares, step));
        grid = min(grid, __shfl_xor_sync(ALL_LANES, grid, step));
    }
    // Fewer than 2^16 roundings: 1 + 2^-7 before the root.
    if (lane() == 0) out[at] = RowNote{__fsqrt_rn(__fmul_rn(squares, 1.01f)), grid};
}

// A warp's 32 by 32 outputs.
struct Sums {
    double of[4][4][2];
};

__device__ inline double scaled(u16 v) {
    return __hiloint2double((i32)((u32)v << 16) >> 3 & (i32)0x8fffe000u, 0);
}

// Adds the products over a slice: a by row and then k; b by column and then k, or the other way
// round.
template <bool BY_K>
__device__ inline void add_slice(const u16* a, const u16* b, u32 rows, u32 cols, Sums* sums) {
    u32 outer = lane() / 4, k = lane() % 4;
#pragma unroll 2
    for (u32 first = 0; first < TILE; first += 4) {
        double left[4], right[4];
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            left[i] = scaled(a[(rows + i * 8 + outer) * LINE + first + k]);
            u32 col = cols + i * 8 + outer;
            right[i] =
                (double)widen(BY_K ? b[(first + k) * LINE + col] : b[col * LINE + first + k]);
        }
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
#pragma unroll
            for (u32 j = 0; j < 4; j++) mma_f64(sums->of[i][j], left[i], right[j]);
        }
    }
}

// Calls `f(row, col, sum)` with all lanes for every output of the warp, each with its own.
template <class F>
__device__ inline void each_output(const Sums& sums, u32 rows, u32 cols, F f) {
#pragma unroll
    for (u32 o = 0; o < 32; o++) {
        u32 i = o / 8, j = o / 2 % 4, n = o % 2;
        f(rows + i * 8 + lane() / 4, cols + j * 8 + lane() % 4 * 2 + n, sums.of[i][j][n] * 0x1p896);
    }
}

// S_f32 of a dot product from its f64 sum, whose additions each round by 2^-53 at most, taken
// twice. On a grid of 2^g below 2^(g + 53) nothing rounded; the scale leaves room for that where
// g >= -170.
__device__ inline bool decide_score(double sum, u32 dim, RowNote q, RowNote k, float* out) {
    double absolute = (double)q.length * (double)k.length;
    i32 grid = q.grid + k.grid;
    if (grid >= -170 && absolute * 1.01 < power_of_two(min(grid + 53, 1023))) {
        *out = __double2float_rn(sum);
        return is_finite_f32(*out);
    }
    return decide_f32(sum, wide_bound(2 * dim, absolute), out);
}

// Grid (ceil(positions / 64), heads, ceil(tokens / 64)), block 128; dim a multiple of 8.
extern "C" __global__ void __launch_bounds__(TILE_BLOCK, 3)
    tile_scores(const u16* q, const u16* keys, const RowNote* q_notes, const RowNote* key_notes,
                u32 heads, u32 kv_heads, u32 dim, u32 capacity, u32 tokens, const u32* position,
                u32 token_first, float scale, float* scores, u32 stride, Failure* failure,
                u32 site) {
    __shared__ uint4 a_lines[TILE * LINE / 8], b_lines[TILE * LINE / 8];
    u16 *a = (u16*)a_lines, *b = (u16*)b_lines;
    u32 head = blockIdx.y, kv_head = head / (heads / kv_heads);
    u32 first_key = blockIdx.x * TILE, first_token = blockIdx.z * TILE;
    u32 end = seen_by(position, token_first, min(first_token + TILE, tokens) - 1);
    if (first_key >= end) return;
    const u16* rows = keys + (u64)kv_head * capacity * dim;
    u32 warp = threadIdx.x / WARP, row = warp / 2 * 32, col = warp % 2 * 32;
    Sums sums = {};
    for (u32 d = 0; d < dim; d += TILE) {
        __syncthreads();
        u32 c = threadIdx.x % 8 * 8;
        for (u32 r = threadIdx.x / 8; r < TILE; r += TILE_BLOCK / 8) {
            uint4 zero = make_uint4(0, 0, 0, 0);
            bool there = d + c < dim;
            u64 of_q = ((u64)(first_token + r) * heads + head) * dim + d + c;
            u64 of_key = (u64)(first_key + r) * dim + d + c;
            *(uint4*)(a + r * LINE + c) =
                there && first_token + r < tokens ? *(const uint4*)(q + of_q) : zero;
            *(uint4*)(b + r * LINE + c) =
                there && first_key + r < end ? *(const uint4*)(rows + of_key) : zero;
        }
        __syncthreads();
        add_slice<false>(a, b, row, col, &sums);
    }
    each_output(sums, row, col, [&](u32 r, u32 c, double sum) {
        u32 token = first_token + r, key = first_key + c;
        bool there = token < tokens && key < seen_by(position, token_first, token);
        u64 of_q = (u64)token * heads + head;
        float t = 0.0f;
        bool finite = true, decided = false;
        if (there) {
            RowNote of_key = key_notes[(u64)kv_head * capacity + key];
            decided = decide_score(sum, dim, q_notes[of_q], of_key, &t);
        }
        warp_each_doubtful(there && !decided, [&](u32 source) {
            const u16* x = q + __shfl_sync(ALL_LANES, of_q, source) * dim;
            const u16* y = rows + (u64)__shfl_sync(ALL_LANES, key, source) * dim;
            auto pair = [x, y](u32 i, float* v, float* w) {
                *v = widen(x[i]);
                *w = widen(y[i]);
            };
            float exact;
            bool is_finite = warp_exact_f32(pair, dim, &exact);
            if (lane() == source) {
                t = exact;
                finite = is_finite;
            }
        });
        if (!finite) report(failure, site, token_first + token, head);
        if (there) scores[of_q * stride + key] = __fmul_rn(t, scale);
    });
}

// The largest magnitude among eight values, as bits.
__device__ inline u32 largest_of(uint4 v) {
    u32 pairs[4] = {v.x, v.y, v.z, v.w}, most = 0;
    for (u32 i = 0; i < 4; i++) most = max(most, max(pairs[i] & 0x7fffu, pairs[i] >> 16 & 0x7fffu));
    return most;
}

// Grid (ceil(dim / 64), heads, ceil(tokens / 64)), block 128; dim a multiple of 8. Weights of a
// token are bf16 values that add up to less than 1.01.
extern "C" __global__ void __launch_bounds__(TILE_BLOCK, 3)
    tile_mix(const float* weights, const u16* values, u32 heads, u32 kv_heads, u32 dim,
             u32 capacity, u32 tokens, const u32* position, u32 token_first, u32 stride,
             const u16* gate, u16* out, Failure* failure, u32 site) {
    __shared__ uint4 a_lines[TILE * LINE / 8], b_lines[TILE * LINE / 8];
    u16 *a = (u16*)a_lines, *b = (u16*)b_lines;
    __shared__ u32 largest;
    u32 head = blockIdx.y, first_channel = blockIdx.x * TILE, first_token = blockIdx.z * TILE;
    u32 end = seen_by(position, token_first, min(first_token + TILE, tokens) - 1);
    const u16* rows = values + (u64)(head / (heads / kv_heads)) * capacity * dim;
    u32 warp = threadIdx.x / WARP, row = warp / 2 * 32, col = warp % 2 * 32, most = 0;
    Sums sums = {};
    if (threadIdx.x == 0) largest = 0;
    for (u32 j = 0; j < end; j += TILE) {
        __syncthreads();
        u32 c = threadIdx.x % 8 * 8;
        for (u32 r = threadIdx.x / 8; r < TILE; r += TILE_BLOCK / 8) {
            uint4 value = make_uint4(0, 0, 0, 0);
            if (first_channel + c < dim && j + r < end) {
                value = *(const uint4*)(rows + (u64)(j + r) * dim + first_channel + c);
            }
            most = max(most, largest_of(value));
            *(uint4*)(b + r * LINE + c) = value;
        }
        for (u32 i = threadIdx.x; i < TILE * TILE; i += TILE_BLOCK) {
            u32 r = i / TILE, token = first_token + r, at = j + i % TILE;
            float w = 0.0f;
            if (token < tokens && at < seen_by(position, token_first, token)) {
                w = weights[((u64)token * heads + head) * stride + at];
            }
            a[r * LINE + i % TILE] = (u16)(__float_as_uint(w) >> 16);
        }
        __syncthreads();
        add_slice<true>(a, b, row, col, &sums);
    }
    atomicMax(&largest, most);
    __syncthreads();
    // 2^-896 times a product can underflow, as those of tiny values do.
    double absolute = 1.01 * (double)widen((u16)largest);
    double bound = wide_bound(2 * end, absolute) + underflows(end);
    each_output(sums, row, col, [&](u32 r, u32 c, double sum) {
        u32 token = first_token + r, channel = first_channel + c;
        bool there = token < tokens && channel < dim;
        u64 of_token = (u64)token * heads + head;
        u16 o = 0;
        bool finite = true, decided = decide_bf16(sum, bound, &o);
        warp_each_doubtful(there && !decided, [&](u32 source) {
            u32 of_source = __shfl_sync(ALL_LANES, token, source);
            const float* w = weights + ((u64)of_source * heads + head) * stride;
            const u16* v = rows + __shfl_sync(ALL_LANES, channel, source);
            auto pair = [=](u32 i, float* x, float* y) {
                *x = w[i];
                *y = widen(v[(u64)i * dim]);
            };
            u16 exact;
            u32 seen = seen_by(position, token_first, of_source);
            bool is_finite = warp_exact_bf16(pair, seen, &exact);
            if (lane() == source) {
                o = exact;
                finite = is_finite;
            }
        });
        if (!finite) report(failure, site, token_first + token, head);
        if (!there) return;
        u64 i = of_token * dim + channel;
        out[i] = gate ? store(__fmul_rn(widen(o), sig32(widen(gate[i])))) : o;
    });
}
