// The gated delta rule: a warp carries a row of the state [value_heads, value_dim, key_dim]
// through all tokens.
#include "elementary.cuh"
#include "wide.cuh"

// What a token brings to the rows of a head.
struct DeltaToken {
    const float* q;
    const float* k;
    const u16* v;
    float beta;
    float decay;
};

// Rows that a warp carries side by side, so that their waits overlap.
const u32 ROWS = 4;

// Rows of a state's head in registers: lane l has elements l, l + 32, ... of each, HELD of them.
// They lie in memory at `rows`; where a sum is in doubt it is taken from there, each lane reading
// what it wrote itself.
template <class W, u32 HELD>
struct DeltaRows {
    float* rows[ROWS];
    u32 dim;
    float held[ROWS][HELD];

    __device__ bool is_inside(u32 j) const { return j * WARP + lane() < dim; }

    __device__ void load() {
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) {
#pragma unroll
            for (u32 j = 0; j < HELD; j++) {
                held[r][j] = is_inside(j) ? rows[r][j * WARP + lane()] : 0.0f;
            }
        }
    }

    __device__ void save(u32 r) {
#pragma unroll
        for (u32 j = 0; j < HELD; j++) {
            if (is_inside(j)) rows[r][j * WARP + lane()] = held[r][j];
        }
    }

    __device__ void fetch(const float* from, float* into) const {
#pragma unroll
        for (u32 j = 0; j < HELD; j++) into[j] = is_inside(j) ? from[j * WARP + lane()] : 0.0f;
    }

    // The products of every row with k or q, over the warp; beyond the end both are zero.
    __device__ void sum(const float* with, W* totals) const {
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) {
            totals[r].clear();
#pragma unroll
            for (u32 j = 0; j < HELD; j++) totals[r].add(held[r][j], with[j]);
        }
        merge_warps<ROWS>(totals);
    }

    // S = S*decay; mem = S_f32(S*k); S = S + d*k with d = (v - mem)*beta; o = S_bf16(S*q).
    // Which rows turned out not finite, as bits.
    __device__ u32 step(const DeltaToken& token, const float* k, const float* q, u16* o) {
        W totals[ROWS];
        u32 bad = 0;
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) {
#pragma unroll
            for (u32 j = 0; j < HELD; j++) held[r][j] = __fmul_rn(held[r][j], token.decay);
        }
        sum(k, totals);
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) {
            float memory;
            if (!decide_f32(totals[r].value(), totals[r].bound(HELD), &memory)) {
                save(r);
                if (!warp_exact_f32(with(r, token.k), dim, &memory)) bad |= 1u << r;
            }
            float d = __fmul_rn(__fsub_rn(widen(token.v[r]), memory), token.beta);
#pragma unroll
            for (u32 j = 0; j < HELD; j++) {
                held[r][j] = __fadd_rn(held[r][j], __fmul_rn(d, k[j]));
            }
        }
        sum(q, totals);
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) {
            if (decide_bf16(totals[r].value(), totals[r].bound(HELD), o + r)) continue;
            save(r);
            if (!warp_exact_bf16(with(r, token.q), dim, o + r)) bad |= 1u << r;
        }
        return bad;
    }

    struct Products {
        const float* row;
        const float* other;
        __device__ void operator()(u32 i, float* a, float* b) const {
            *a = row[i];
            *b = other[i];
        }
    };

    __device__ Products with(u32 r, const float* other) const { return Products{rows[r], other}; }
};

// The same for one row that is too long to be held.
template <class W>
__device__ bool step_in_memory(float* row, u32 dim, const DeltaToken& token, u16* o) {
    typedef typename DeltaRows<W, 1>::Products Products;
    float memory;
    for (u32 i = lane(); i < dim; i += WARP) row[i] = __fmul_rn(row[i], token.decay);
    if (!warp_f32<W>(Products{row, token.k}, dim, &memory)) return false;
    float d = __fmul_rn(__fsub_rn(widen(*token.v), memory), token.beta);
    for (u32 i = lane(); i < dim; i += WARP) {
        row[i] = __fadd_rn(row[i], __fmul_rn(d, token.k[i]));
    }
    return warp_bf16<W>(Products{row, token.q}, dim, o);
}

struct DeltaShape {
    u32 key_heads;
    u32 value_heads;
    u32 key_dim;
    u32 value_dim;
    u32 tokens;
};

// Where everything is, and which rows of which head this warp has.
struct DeltaPlace {
    const float* q;
    const float* k;
    const u16* mixed;
    u32 channels;
    u32 value_first;
    const float* beta;
    const float* decay;
    DeltaShape s;
    u32 head;
    u32 first;

    __device__ DeltaToken token(u32 t) const {
        u32 key_head = head / (s.value_heads / s.key_heads);
        u64 key = ((u64)t * s.key_heads + key_head) * s.key_dim;
        u64 gate = (u64)t * s.value_heads + head;
        const u16* v = mixed + (u64)t * channels + value_first + head * s.value_dim + first;
        return DeltaToken{q + key, k + key, v, beta[gate], decay[gate]};
    }
};

template <class W, u32 HELD>
__device__ void carry_rows(const DeltaPlace& at, float* state, u16* out, Failure* failure,
                           u32 site) {
    u32 width = at.s.value_heads * at.s.value_dim, row = at.head * at.s.value_dim + at.first;
    float k[HELD], q[HELD];
    DeltaRows<W, HELD> carried;
    for (u32 r = 0; r < ROWS; r++) carried.rows[r] = state + (u64)(row + r) * at.s.key_dim;
    carried.dim = at.s.key_dim;
    carried.load();
    DeltaToken token = at.token(0);
    carried.fetch(token.k, k);
    carried.fetch(token.q, q);
    for (u32 t = 0; t < at.s.tokens; t++) {
        // What the next token needs is under way while this one is summed.
        DeltaToken next = at.token(min(t + 1, at.s.tokens - 1));
        float next_k[HELD], next_q[HELD];
        carried.fetch(next.k, next_k);
        carried.fetch(next.q, next_q);
        u16 o[ROWS];
        u32 bad = carried.step(token, k, q, o);
        if (lane() < ROWS) {
            if (bad >> lane() & 1) report(failure, site, t, row + lane());
            u16 mine = o[0];
#pragma unroll
            for (u32 r = 1; r < ROWS; r++) mine = lane() == r ? o[r] : mine;
            out[(u64)t * width + row + lane()] = mine;
        }
        token = next;
#pragma unroll
        for (u32 j = 0; j < HELD; j++) {
            k[j] = next_k[j];
            q[j] = next_q[j];
        }
    }
    for (u32 r = 0; r < ROWS; r++) carried.save(r);
}

// Rows one by one, in memory: any key_dim, any value_dim.
template <class W>
__device__ void carry_in_memory(DeltaPlace at, float* state, u16* out, Failure* failure, u32 site) {
    u32 width = at.s.value_heads * at.s.value_dim;
    for (u32 end = min(at.first + ROWS, at.s.value_dim); at.first < end; at.first++) {
        u32 row = at.head * at.s.value_dim + at.first;
        for (u32 t = 0; t < at.s.tokens; t++) {
            u16 o = 0;
            float* held = state + (u64)row * at.s.key_dim;
            bool finite = step_in_memory<W>(held, at.s.key_dim, at.token(t), &o);
            if (lane() == 0) {
                if (!finite) report(failure, site, t, row);
                out[(u64)t * width + row] = o;
            }
        }
    }
}

template <class W, u32 HELD>
__device__ void delta_rule(DeltaPlace at, float* state, u16* out, Failure* failure, u32 site) {
    u32 by_head = (at.s.value_dim + ROWS - 1) / ROWS;
    u32 warp = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (warp >= at.s.value_heads * by_head) return;
    at.head = warp / by_head;
    at.first = warp % by_head * ROWS;
    bool whole = at.first + ROWS <= at.s.value_dim;
    if (whole && at.s.key_dim <= HELD * WARP) {
        carry_rows<W, HELD>(at, state, out, failure, site);
    } else {
        carry_in_memory<W>(at, state, out, failure, site);
    }
}

// Grid for a warp for each four rows of a head, block 128; value head h reads key head
// h / (value_heads / key_heads). q, k [tokens, key_heads, key_dim]; v are columns of `mixed`. For
// key_dim up to 128, then for any.
extern "C" __global__ void __launch_bounds__(128, 4)
    delta_rule_f64(const float* q, const float* k, const u16* mixed, u32 channels, u32 value_first,
                   const float* beta, const float* decay, u32 key_heads, u32 value_heads,
                   u32 key_dim, u32 value_dim, u32 tokens, float* state, u16* out, Failure* failure,
                   u32 site) {
    DeltaShape s = {key_heads, value_heads, key_dim, value_dim, tokens};
    DeltaPlace at = {q, k, mixed, channels, value_first, beta, decay, s, 0, 0};
    delta_rule<WideF64, 4>(at, state, out, failure, site);
}

extern "C" __global__ void __launch_bounds__(128, 4)
    delta_rule_pair(const float* q, const float* k, const u16* mixed, u32 channels, u32 value_first,
                    const float* beta, const float* decay, u32 key_heads, u32 value_heads,
                    u32 key_dim, u32 value_dim, u32 tokens, float* state, u16* out,
                    Failure* failure, u32 site) {
    DeltaShape s = {key_heads, value_heads, key_dim, value_dim, tokens};
    DeltaPlace at = {q, k, mixed, channels, value_first, beta, decay, s, 0, 0};
    delta_rule<WidePair, 4>(at, state, out, failure, site);
}

extern "C" __global__ void __launch_bounds__(128, 4)
    delta_rule_long_f64(const float* q, const float* k, const u16* mixed, u32 channels,
                        u32 value_first, const float* beta, const float* decay, u32 key_heads,
                        u32 value_heads, u32 key_dim, u32 value_dim, u32 tokens, float* state,
                        u16* out, Failure* failure, u32 site) {
    DeltaShape s = {key_heads, value_heads, key_dim, value_dim, tokens};
    DeltaPlace at = {q, k, mixed, channels, value_first, beta, decay, s, 0, 0};
    delta_rule<WideF64, 8>(at, state, out, failure, site);
}

extern "C" __global__ void __launch_bounds__(128, 4)
    delta_rule_long_pair(const float* q, const float* k, const u16* mixed, u32 channels,
                         u32 value_first, const float* beta, const float* decay, u32 key_heads,
                         u32 value_heads, u32 key_dim, u32 value_dim, u32 tokens, float* state,
                         u16* out, Failure* failure, u32 site) {
    DeltaShape s = {key_heads, value_heads, key_dim, value_dim, tokens};
    DeltaPlace at = {q, k, mixed, channels, value_first, beta, decay, s, 0, 0};
    delta_rule<WidePair, 8>(at, state, out, failure, site);
}
