// Causal attention of some tokens of a chunk, the first of which is `token_first` behind
// `position`; caches [kv_heads, capacity, dim], scores [tokens, heads, stride].
#include "elementary.cuh"
#include "wide.cuh"

const u32 ATTENTION_BLOCK = 256;
const u32 ATTENTION_WARPS = ATTENTION_BLOCK / WARP;
const u32 SCORE_BLOCK = 64;

// What of the sequence a token sees.
__device__ inline u32 seen_by(const u32* position, u32 token_first, u32 token) {
    return *position + token_first + token + 1;
}

// Keys that a warp takes side by side, so that their waits overlap.
const u32 KEYS = 4;

// What a warp of `scores_of` needs for one query.
struct ScorePlace {
    const u16* query;
    const u16* keys;
    u32 dim;
    float scale;
    float* out;

    // Doubtful sums of a key; false if one is not finite.
    __device__ bool exact(u32 j, float* t) const {
        const u16 *q = query, *key = keys + (u64)j * dim;
        auto pair = [q, key](u32 i, float* a, float* b) {
            *a = widen(q[i]);
            *b = widen(key[i]);
        };
        return warp_exact_f32(pair, dim, t);
    }
};

// Scores of keys j to j + KEYS below `end`; false if one is not finite.
template <class W>
__device__ bool score_keys(const ScorePlace& at, u32 j, u32 end) {
    W totals[KEYS];
#pragma unroll
    for (u32 n = 0; n < KEYS; n++) totals[n].clear();
    for (u32 i = lane(); i < at.dim; i += WARP) {
        float q = widen(at.query[i]);
#pragma unroll
        for (u32 n = 0; n < KEYS; n++) {
            totals[n].add_short(q, widen(at.keys[(u64)min(j + n, end - 1) * at.dim + i]));
        }
    }
    merge_warps<KEYS>(totals);
    bool finite = true;
#pragma unroll
    for (u32 n = 0; n < KEYS; n++) {
        if (j + n >= end) continue;
        float t;
        double bound = totals[n].short_bound(at.dim / WARP + 1);
        if (!decide_f32(totals[n].value(), bound, &t)) finite = at.exact(j + n, &t) && finite;
        if (lane() == 0) at.out[j + n] = __fmul_rn(t, at.scale);
    }
    return finite;
}

template <class W>
__device__ void scores_of(const u16* q, const u16* keys, u32 heads, u32 kv_heads, u32 dim,
                          u32 capacity, const u32* position, u32 token_first, float scale,
                          float* scores, u32 stride, Failure* failure, u32 site) {
    u32 head = blockIdx.y, token = blockIdx.z, seen = seen_by(position, token_first, token);
    u64 row = (u64)token * heads + head;
    const u16* rows = keys + (u64)(head / (heads / kv_heads)) * capacity * dim;
    ScorePlace at = {q + row * dim, rows, dim, scale, scores + row * stride};
    u32 end = min(seen, (blockIdx.x + 1) * SCORE_BLOCK);
    u32 j = blockIdx.x * SCORE_BLOCK + threadIdx.x / WARP * KEYS;
    for (; j < end; j += ATTENTION_WARPS * KEYS) {
        if (!score_keys<W>(at, j, end) && lane() == 0) {
            report(failure, site, token_first + token, head);
        }
    }
}

// t_j = S_f32(q*k_j) * scale. Grid (ceil(positions / 64), heads, tokens), block 256.
extern "C" __global__ void attention_scores_f64(const u16* q, const u16* keys, u32 heads,
                                                u32 kv_heads, u32 dim, u32 capacity, u32 tokens,
                                                const u32* position, u32 token_first, float scale,
                                                float* scores, u32 stride, Failure* failure,
                                                u32 site) {
    scores_of<WideF64>(q, keys, heads, kv_heads, dim, capacity, position, token_first, scale,
                       scores, stride, failure, site);
}

extern "C" __global__ void attention_scores_pair(const u16* q, const u16* keys, u32 heads,
                                                 u32 kv_heads, u32 dim, u32 capacity, u32 tokens,
                                                 const u32* position, u32 token_first, float scale,
                                                 float* scores, u32 stride, Failure* failure,
                                                 u32 site) {
    scores_of<WidePair>(q, keys, heads, kv_heads, dim, capacity, position, token_first, scale,
                        scores, stride, failure, site);
}

__device__ inline float block_maximum(const float* t, u32 n) {
    __shared__ float peaks[ATTENTION_WARPS];
    float most = __uint_as_float(0xff800000u);
    for (u32 i = threadIdx.x; i < n; i += ATTENTION_BLOCK) most = fmaxf(most, t[i]);
    for (u32 step = WARP / 2; step > 0; step /= 2) {
        most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, step));
    }
    if (lane() == 0) peaks[threadIdx.x / WARP] = most;
    __syncthreads();
    for (u32 i = 0; i < ATTENTION_WARPS; i++) most = fmaxf(most, peaks[i]);
    return most;
}

// S_f32 of values in global memory that this block wrote; as `block_squares` of norm.cu.
template <class W>
__device__ bool block_sum(W total, const float* values, u32 n, float* out) {
    __shared__ W totals[ATTENTION_WARPS];
    total.merge_warp();
    if (lane() == 0) totals[threadIdx.x / WARP] = total;
    __syncthreads();
    total = totals[0];
    for (u32 i = 1; i < ATTENTION_WARPS; i++) total.merge(totals[i]);
    u32 count = n / ATTENTION_BLOCK + 1 + 2 * (ATTENTION_WARPS - 1);
    if (decide_f32(total.value(), total.bound(count), out)) return true;
    auto pair = [&](u32 i, float* a, float* b) {
        *a = values[i];
        *b = 1.0f;
    };
    return warp_exact_f32(pair, n, out);
}

template <class W>
__device__ void soften(float* scores, u32 heads, const u32* position, u32 token_first, u32 stride,
                       Failure* failure, u32 site) {
    u32 head = blockIdx.x, token = blockIdx.y, seen = seen_by(position, token_first, token);
    float* t = scores + ((u64)token * heads + head) * stride;
    float most = block_maximum(t, seen);
    W total;
    total.clear();
    for (u32 i = threadIdx.x; i < seen; i += ATTENTION_BLOCK) {
        float e = exp32(__fsub_rn(t[i], most));
        t[i] = e;
        total.add_value(e);
    }
    float z;
    bool finite = block_sum<W>(total, t, seen, &z);
    if (!finite && threadIdx.x == 0) report(failure, site, token_first + token, head);
    __syncthreads();
    for (u32 i = threadIdx.x; i < seen; i += ATTENTION_BLOCK) {
        t[i] = widen(store(__fdiv_rn(t[i], z)));
    }
}

// e_j = exp32(t_j - max t), a_j = store(e_j / S_f32(e)) in place. Grid (heads, tokens), block 256.
extern "C" __global__ void attention_soften_f64(float* scores, u32 heads, u32 tokens,
                                                const u32* position, u32 token_first, u32 stride,
                                                Failure* failure, u32 site) {
    soften<WideF64>(scores, heads, position, token_first, stride, failure, site);
}

extern "C" __global__ void attention_soften_pair(float* scores, u32 heads, u32 tokens,
                                                 const u32* position, u32 token_first, u32 stride,
                                                 Failure* failure, u32 site) {
    soften<WidePair>(scores, heads, position, token_first, stride, failure, site);
}

// What a block of `mix_values` works on.
struct MixPlace {
    const float* weights;
    const u16* values;
    u32 seen;
    u32 dim;
};

// A lane for each of 32 channels, a warp for each eighth of the positions; the first warp adds the
// eight, each `merge` counting as two products. False if the sum is not finite.
template <class W>
__device__ bool mix_channel(const MixPlace& at, u32 channel, u16* out) {
    __shared__ W totals[ATTENTION_WARPS][WARP];
    bool there = channel < at.dim;
    W total;
    total.clear();
    for (u32 j = threadIdx.x / WARP; j < at.seen && there; j += ATTENTION_WARPS) {
        total.add_short(at.weights[j], widen(at.values[(u64)j * at.dim + channel]));
    }
    totals[threadIdx.x / WARP][lane()] = total;
    __syncthreads();
    if (threadIdx.x >= WARP) return true;
    for (u32 i = 1; i < ATTENTION_WARPS; i++) total.merge(totals[i][lane()]);
    u32 count = at.seen / ATTENTION_WARPS + 1 + 2 * (ATTENTION_WARPS - 1);
    bool finite = true;
    bool decided = decide_bf16(total.value(), total.short_bound(count), out);
    warp_each_doubtful(there && !decided, [&](u32 source) {
        u32 of_source = channel - lane() + source;
        auto pair = [&](u32 j, float* a, float* b) {
            *a = at.weights[j];
            *b = widen(at.values[(u64)j * at.dim + of_source]);
        };
        u16 exact;
        bool is_finite = warp_exact_bf16(pair, at.seen, &exact);
        if (lane() == source) {
            *out = exact;
            finite = is_finite;
        }
    });
    return finite;
}

template <class W>
__device__ void mix_values(const float* weights, const u16* values, u32 heads, u32 kv_heads,
                           u32 dim, u32 capacity, const u32* position, u32 token_first, u32 stride,
                           const u16* gate, u16* out, Failure* failure, u32 site) {
    u32 head = blockIdx.y, token = blockIdx.z, channel = blockIdx.x * WARP + lane();
    u64 row = (u64)token * heads + head;
    const u16* rows = values + (u64)(head / (heads / kv_heads)) * capacity * dim;
    MixPlace at = {weights + row * stride, rows, seen_by(position, token_first, token), dim};
    u16 o;
    bool finite = mix_channel<W>(at, channel, &o);
    if (threadIdx.x >= WARP || channel >= dim) return;
    if (!finite) report(failure, site, token_first + token, head);
    u64 i = row * dim + channel;
    out[i] = gate ? store(__fmul_rn(widen(o), sig32(widen(gate[i])))) : o;
}

// o = S_bf16(a_j*v_j), then store(o * sig(gate)) where there is a gate [tokens, heads, dim].
// Grid (ceil(dim / 32), heads, tokens), block 256.
extern "C" __global__ void attention_mix_f64(const float* weights, const u16* values, u32 heads,
                                             u32 kv_heads, u32 dim, u32 capacity, u32 tokens,
                                             const u32* position, u32 token_first, u32 stride,
                                             const u16* gate, u16* out, Failure* failure,
                                             u32 site) {
    mix_values<WideF64>(weights, values, heads, kv_heads, dim, capacity, position, token_first,
                        stride, gate, out, failure, site);
}

extern "C" __global__ void attention_mix_pair(const float* weights, const u16* values, u32 heads,
                                              u32 kv_heads, u32 dim, u32 capacity, u32 tokens,
                                              const u32* position, u32 token_first, u32 stride,
                                              const u16* gate, u16* out, Failure* failure,
                                              u32 site) {
    mix_values<WidePair>(weights, values, heads, kv_heads, dim, capacity, position, token_first,
                         stride, gate, out, failure, site);
}
