// The gated delta rule: a warp carries a row of the state [value_heads, value_dim, key_dim]
// through all tokens.
#include "elementary.cuh"
#include "wide.cuh"

// decay = exp32(-(exp32(a_log) * softplus(a + dt_bias))), beta = sig(b), a thread for each.
extern "C" __global__ void delta_gates(const u16* a, const u16* b, const float* a_log,
                                       const float* dt_bias, u32 heads, u32 tokens, float* decay,
                                       float* beta) {
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= heads * tokens) return;
    u32 head = i % heads;
    float rate = softplus32(__fadd_rn(widen(a[i]), dt_bias[head]));
    decay[i] = exp32(-__fmul_rn(exp32(a_log[head]), rate));
    beta[i] = sig32(widen(b[i]));
}

// What a token brings to a row.
struct DeltaToken {
    const float* q;
    const float* k;
    float v;
    float beta;
    float decay;
};

// Values of a row that a lane keeps in registers: key_dim up to 256.
const u32 HELD = 8;

// One row of the state. `row` is where it lies in memory; lane l has elements l, l + 32, ...
template <class W>
struct DeltaRow {
    float* row;
    u32 dim;
    float held[HELD];

    __device__ void load() {
#pragma unroll
        for (u32 j = 0; j < HELD; j++) {
            u32 i = j * WARP + lane();
            held[j] = i < dim ? row[i] : 0.0f;
        }
    }

    __device__ void save() {
#pragma unroll
        for (u32 j = 0; j < HELD; j++) {
            u32 i = j * WARP + lane();
            if (i < dim) row[i] = held[j];
        }
    }

    // Both sums read the row in memory where they are in doubt; each lane what it wrote itself.
    __device__ bool step(const DeltaToken& token, u16* o) {
        float k[HELD], q[HELD], memory;
        W total;
        total.clear();
#pragma unroll
        for (u32 j = 0; j < HELD; j++) {
            u32 i = j * WARP + lane();
            k[j] = i < dim ? token.k[i] : 0.0f;
            q[j] = i < dim ? token.q[i] : 0.0f;
            held[j] = __fmul_rn(held[j], token.decay);
            if (i < dim) total.add(held[j], k[j]);
        }
        total.merge_warp();
        if (!decide_f32(total.value(), total.bound(HELD), &memory)) {
            save();
            if (!warp_exact_f32(with(token.k), dim, &memory)) return false;
        }
        float d = __fmul_rn(__fsub_rn(token.v, memory), token.beta);
        total.clear();
#pragma unroll
        for (u32 j = 0; j < HELD; j++) {
            held[j] = __fadd_rn(held[j], __fmul_rn(d, k[j]));
            if (j * WARP + lane() < dim) total.add(held[j], q[j]);
        }
        total.merge_warp();
        if (decide_bf16(total.value(), total.bound(HELD), o)) return true;
        save();
        return warp_exact_bf16(with(token.q), dim, o);
    }

    // The same for rows that are too long to be held.
    __device__ bool step_in_memory(const DeltaToken& token, u16* o) {
        float memory;
        for (u32 i = lane(); i < dim; i += WARP) row[i] = __fmul_rn(row[i], token.decay);
        if (!warp_f32<W>(with(token.k), dim, &memory)) return false;
        float d = __fmul_rn(__fsub_rn(token.v, memory), token.beta);
        for (u32 i = lane(); i < dim; i += WARP) {
            row[i] = __fadd_rn(row[i], __fmul_rn(d, token.k[i]));
        }
        return warp_bf16<W>(with(token.q), dim, o);
    }

    struct Products {
        const float* row;
        const float* other;
        __device__ void operator()(u32 i, float* a, float* b) const {
            *a = row[i];
            *b = other[i];
        }
    };

    __device__ Products with(const float* other) const { return Products{row, other}; }
};

struct DeltaShape {
    u32 key_heads;
    u32 value_heads;
    u32 key_dim;
    u32 value_dim;
    u32 tokens;
};

template <class W>
__device__ void delta_rule(const float* q, const float* k, const u16* mixed, u32 channels,
                           u32 value_first, const float* beta, const float* decay, DeltaShape s,
                           float* state, u16* out, Failure* failure, u32 site) {
    u32 rows = s.value_heads * s.value_dim;
    u32 row = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (row >= rows) return;
    u32 head = row / s.value_dim, key_head = head / (s.value_heads / s.key_heads);
    bool in_registers = s.key_dim <= HELD * WARP;
    DeltaRow<W> carried = {state + (u64)row * s.key_dim, s.key_dim};
    if (in_registers) carried.load();
    for (u32 t = 0; t < s.tokens; t++) {
        u64 key = ((u64)t * s.key_heads + key_head) * s.key_dim,
            gate = (u64)t * s.value_heads + head;
        float v = widen(mixed[(u64)t * channels + value_first + row]);
        DeltaToken token = {q + key, k + key, v, beta[gate], decay[gate]};
        u16 o = 0;
        bool finite = in_registers ? carried.step(token, &o) : carried.step_in_memory(token, &o);
        if (lane() == 0) {
            if (!finite) report(failure, site, t, row);
            out[(u64)t * rows + row] = o;
        }
    }
    if (in_registers) carried.save();
}

// Grid (ceil(rows / 4)), block 128: a warp for each row; value head h reads key head
// h / (value_heads / key_heads). q, k [tokens, key_heads, key_dim]; v are columns of `mixed`.
extern "C" __global__ void delta_rule_f64(const float* q, const float* k, const u16* mixed,
                                          u32 channels, u32 value_first, const float* beta,
                                          const float* decay, u32 key_heads, u32 value_heads,
                                          u32 key_dim, u32 value_dim, u32 tokens, float* state,
                                          u16* out, Failure* failure, u32 site) {
    DeltaShape s = {key_heads, value_heads, key_dim, value_dim, tokens};
    delta_rule<WideF64>(q, k, mixed, channels, value_first, beta, decay, s, state, out, failure,
                        site);
}

extern "C" __global__ void delta_rule_pair(const float* q, const float* k, const u16* mixed,
                                           u32 channels, u32 value_first, const float* beta,
                                           const float* decay, u32 key_heads, u32 value_heads,
                                           u32 key_dim, u32 value_dim, u32 tokens, float* state,
                                           u16* out, Failure* failure, u32 site) {
    DeltaShape s = {key_heads, value_heads, key_dim, value_dim, tokens};
    delta_rule<WidePair>(q, k, mixed, channels, value_first, beta, decay, s, state, out, failure,
                         site);
}
