// One output of a projection by a whole warp, in the wide and then the exact stage.
#pragma once
#include "matrix.cuh"
#include "wide.cuh"

__device__ inline float low(u32 pair) { return __uint_as_float(pair << 16); }
__device__ inline float high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

__device__ inline uint4 decoded(uint4 w, u32 base) {
    return make_uint4((w.x & CODE_PAIR) + base, (w.y & CODE_PAIR) + base, (w.z & CODE_PAIR) + base,
                      (w.w & CODE_PAIR) + base);
}

// Two elements of the fourth plane from what the other three have left; see op/linear/packed.rs.
__device__ inline u32 fourth(u32 a, u32 b, u32 c) {
    u32 twelve = a << 1 ^ (b >> 3 & 0x1fff1fffu) ^ (c >> 7 & 0x01ff01ffu);
    return (twelve & 0x80008000u) | (twelve >> 4 & 0x07ff07ffu);
}

// Whether rows can be read 16 bytes at a time.
__device__ inline bool is_in_eights(const Matrix& w) {
    return w.kind != KIND_F32 && w.cols % (w.kind == KIND_BF16 ? 8 : GROUP) == 0;
}

// Sums of a lane that do not wait for one another.
const u32 PARTS = 4;

// Eight weights, as pairs, with eight inputs.
template <class W>
__device__ inline void add_wide(uint4 w, const u16* x, W* parts) {
    uint4 v = *(const uint4*)x;
    parts[0].add_short(low(w.x), low(v.x));
    parts[1].add_short(low(w.y), low(v.y));
    parts[2].add_short(low(w.z), low(v.z));
    parts[3].add_short(low(w.w), low(v.w));
    parts[0].add_short(high(w.x), high(v.x));
    parts[1].add_short(high(w.y), high(v.y));
    parts[2].add_short(high(w.z), high(v.z));
    parts[3].add_short(high(w.w), high(v.w));
}

template <class W>
__device__ inline void add_wide_packed(const Matrix& w, u32 row, const u16* x, W* parts) {
    u32 quarters = w.cols / (GROUP / 4), base = (u32)w.bases[row] * 0x00800080u;
    const uint4* groups = (const uint4*)w.data + (u64)row * (w.cols / GROUP) * (GROUP_WORDS / 8);
    for (u32 q = lane(); q < quarters; q += WARP) {
        const uint4* group = groups + q / 4 * (GROUP_WORDS / 8) + q % 4;
        const u16* inputs = x + q / 4 * GROUP + q % 4 * 8;
        uint4 a = group[0], b = group[4], c = group[8];
        add_wide(decoded(a, base), inputs, parts);
        add_wide(decoded(b, base), inputs + PLANE, parts);
        add_wide(decoded(c, base), inputs + 2 * PLANE, parts);
        uint4 d = make_uint4(fourth(a.x, b.x, c.x) + base, fourth(a.y, b.y, c.y) + base,
                             fourth(a.z, b.z, c.z) + base, fourth(a.w, b.w, c.w) + base);
        add_wide(d, inputs + 3 * PLANE, parts);
    }
    for (u32 e = w.escape_starts[row] + lane(); e < w.escape_starts[row + 1]; e += WARP) {
        u64 place = w.escape_places[e];
        float input = widen(x[place - (u64)row * w.cols]);
        parts[0].add_short(widen(w.escape_values[e]), input);
        parts[1].add_short(-widen(in_group(w, row, place)), input);
    }
}

// The wide stage of a row that can be read 16 bytes at a time; the result is on every lane.
template <class W>
__device__ W wide_row(const Matrix& w, u32 row, const u16* x) {
    W parts[PARTS];
    for (u32 i = 0; i < PARTS; i++) parts[i].clear();
    if (w.kind == KIND_BF16) {
        u32 chunks = w.cols / 8, c = lane();
        const uint4* weights = (const uint4*)w.data + (u64)row * chunks;
        for (; c + 3 * WARP < chunks; c += 4 * WARP) {
            uint4 w0 = weights[c], w1 = weights[c + WARP];
            uint4 w2 = weights[c + 2 * WARP], w3 = weights[c + 3 * WARP];
            add_wide(w0, x + c * 8, parts);
            add_wide(w1, x + (c + WARP) * 8, parts);
            add_wide(w2, x + (c + 2 * WARP) * 8, parts);
            add_wide(w3, x + (c + 3 * WARP) * 8, parts);
        }
        for (; c < chunks; c += WARP) add_wide(weights[c], x + c * 8, parts);
    } else {
        add_wide_packed(w, row, x, parts);
    }
    for (u32 i = 1; i < PARTS; i++) parts[0].merge(parts[i]);
    parts[0].merge_warp();
    return parts[0];
}

// Products that a lane of `wide_row` adds at most, its merges included.
__device__ inline u32 wide_count(const Matrix& w, u32 row) {
    u32 escapes = w.kind == KIND_PACKED ? w.escape_starts[row + 1] - w.escape_starts[row] : 0;
    return (w.cols / GROUP + 2) * GROUP / WARP + GROUP / 4 + 2 * (escapes / WARP + 1) + 2 * PARTS;
}

// The slower stages; false if the sum is not finite.
template <class W>
__device__ __noinline__ bool slow_row(const Job& job, bool in_eights, u32 row, const u16* x,
                                      u32 token) {
    const Matrix& w = job.weights;
    u64 at = (u64)token * job.y_stride + row;
    float y_f32;
    u16 y_bf16;
    bool f32 = job.output == OUTPUT_F32, decided = false;
    if (in_eights) {
        W total = wide_row<W>(w, row, x);
        double bound = total.short_bound(wide_count(w, row));
        decided = f32 ? decide_f32(total.value(), bound, &y_f32)
                      : decide_bf16(total.value(), bound, &y_bf16);
    }
    if (!decided && w.kind == KIND_BF16) {
        // Nearly all: what waits for nothing but its two loads.
        const u16* weights = (const u16*)w.data + (u64)row * w.cols;
        auto pair = [weights, x](u32 k, float* a, float* b) {
            *a = widen(weights[k]);
            *b = widen(x[k]);
        };
        decided =
            f32 ? warp_exact_f32(pair, w.cols, &y_f32) : warp_exact_bf16(pair, w.cols, &y_bf16);
    } else if (!decided) {
        auto pair = [&](u32 k, float* a, float* b) {
            *a = weight_at(w, row, k);
            *b = widen(x[k]);
        };
        decided = f32 ? warp_f32<W>(pair, w.cols, &y_f32) : warp_bf16<W>(pair, w.cols, &y_bf16);
    }
    if (decided && lane() == 0) {
        if (f32)
            ((float*)job.y)[at] = y_f32;
        else
            ((u16*)job.y)[at] = y_bf16;
    }
    return decided;
}
