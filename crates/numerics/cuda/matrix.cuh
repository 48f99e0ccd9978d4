// Projections in device memory, and the jobs that multiply them with tokens.
#pragma once
#include "device.cuh"
#include "round.cuh"

const u32 KIND_BF16 = 0;
const u32 KIND_F32 = 1;
const u32 KIND_PACKED = 2;

// A projection [rows, cols]. The parts of a packed one are those of op/linear/packed.rs, and
// `escape_starts` [rows + 1] says which escapes lie in which row.
struct Matrix {
    const void* data;
    const u8* bases;
    const u32* escape_starts;
    const u32* escape_places;
    const u16* escape_values;
    u32 rows;
    u32 cols;
    u32 kind;
    u32 unused;
};

const u32 OUTPUT_BF16 = 0;
const u32 OUTPUT_F32 = 1;

// y[i, r] = S(k: W[r, k] * x[tokens[i], k]) for i below `token_count`; without `tokens`, x[i].
struct Job {
    Matrix weights;
    const u16* x;
    const u32* tokens;
    void* y;
    u32 token_count;
    u32 y_stride;
    u32 output;
    u32 site;
    // Which blocks of a launch work on it.
    u32 first_block;
    u32 blocks;
};

// Elements of a group of packed weights, lanes of a plane, words of a group.
const u32 GROUP = 128;
const u32 PLANE = 32;
const u32 GROUP_WORDS = 96;
const u32 CODE_PAIR = 0x87ff87ffu;

// What a group holds at a place, escape or not, as bf16 bits.
__device__ inline u16 in_group(const Matrix& w, u32 row, u64 place) {
    const u16* group = (const u16*)w.data + place / GROUP * GROUP_WORDS;
    u32 plane = (u32)(place % GROUP) / PLANE, at = (u32)(place % PLANE);
    u32 code;
    if (plane < 3) {
        code = group[plane * PLANE + at] & 0x87ffu;
    } else {
        u32 twelve =
            (u32)group[at] << 1 ^ (u32)group[PLANE + at] >> 3 ^ (u32)group[2 * PLANE + at] >> 7;
        code = (twelve & 0x8000u) | (twelve >> 4 & 0x7ffu);
    }
    return (u16)(code + ((u32)w.bases[row] << 7));
}

// One weight as f32, whatever the kind; for the slower stages.
__device__ inline float weight_at(const Matrix& w, u32 row, u32 col) {
    u64 place = (u64)row * w.cols + col;
    if (w.kind == KIND_BF16) return widen(((const u16*)w.data)[place]);
    if (w.kind == KIND_F32) return ((const float*)w.data)[place];
    for (u32 e = w.escape_starts[row]; e < w.escape_starts[row + 1]; e++) {
        if (w.escape_places[e] == place) return widen(w.escape_values[e]);
    }
    return widen(in_group(w, row, place));
}
