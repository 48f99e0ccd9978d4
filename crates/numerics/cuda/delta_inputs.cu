// What the delta rule takes beside v: q and k of unit length, and the gates of every head.
#include "elementary.cuh"
#include "wide.cuh"

struct DeltaInputs {
    // [tokens, channels]: q, k and v of all heads.
    const u16* mixed;
    u32 channels;
    u32 key_heads;
    u32 key_dim;
    u32 value_heads;
    u32 tokens;
    // Of q, or 0.
    float divide_by;
    // [tokens, key_heads, key_dim].
    float* q;
    float* k;
    const u16* a;
    const u16* b;
    const float* a_log;
    const float* dt_bias;
    // [tokens, value_heads].
    float* decay;
    float* beta;
};

// A warp for a head of a token; q of all tokens before k.
template <class W>
__device__ void unit_head(const DeltaInputs& in, u32 index, Failure* failure, u32 site) {
    u32 of_each = in.tokens * in.key_heads, head = index % of_each;
    bool is_q = index < of_each;
    const u16* x = in.mixed + (u64)(head / in.key_heads) * in.channels +
                   (is_q ? 0 : in.key_heads * in.key_dim) + head % in.key_heads * in.key_dim;
    float* y = (is_q ? in.q : in.k) + (u64)head * in.key_dim;
    auto pair = [&](u32 i, float* a, float* b) { *a = *b = widen(x[i]); };
    float squares;
    if (!warp_f32_short<W>(pair, in.key_dim, &squares) && lane() == 0) {
        report(failure, site, head, 0);
    }
    float r = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(squares, 1e-6f)));
    bool divided = is_q && in.divide_by != 0.0f;
    for (u32 i = lane(); i < in.key_dim; i += WARP) {
        float v = __fmul_rn(widen(x[i]), r);
        y[i] = divided ? __fdiv_rn(v, in.divide_by) : v;
    }
}

// decay = exp32(-(exp32(a_log) * softplus(a + dt_bias))), beta = sig(b), a lane for each.
__device__ void gate(const DeltaInputs& in, u32 i) {
    if (i >= in.value_heads * in.tokens) return;
    u32 head = i % in.value_heads;
    float rate = softplus32(__fadd_rn(widen(in.a[i]), in.dt_bias[head]));
    in.decay[i] = exp32(-__fmul_rn(exp32(in.a_log[head]), rate));
    in.beta[i] = sig32(widen(in.b[i]));
}

// The warps of the gates come first.
template <class W>
__device__ void delta_inputs(const DeltaInputs& in, Failure* failure, u32 site) {
    u32 warp = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    u32 of_gates = (in.value_heads * in.tokens + WARP - 1) / WARP;
    if (warp < of_gates) {
        gate(in, warp * WARP + lane());
    } else if (warp - of_gates < 2 * in.tokens * in.key_heads) {
        unit_head<W>(in, warp - of_gates, failure, site);
    }
}

// Grid for a warp for each head of q and of k and for each 32 gates, block 128.
extern "C" __global__ void delta_inputs_f64(const u16* mixed, u32 channels, u32 key_heads,
                                            u32 key_dim, u32 value_heads, u32 tokens,
                                            float divide_by, float* q, float* k, const u16* a,
                                            const u16* b, const float* a_log, const float* dt_bias,
                                            float* decay, float* beta, Failure* failure, u32 site) {
    DeltaInputs in = {mixed, channels, key_heads, key_dim, value_heads, tokens, divide_by, q,
                      k,     a,        b,         a_log,   dt_bias,     decay,  beta};
    delta_inputs<WideF64>(in, failure, site);
}

extern "C" __global__ void delta_inputs_pair(const u16* mixed, u32 channels, u32 key_heads,
                                             u32 key_dim, u32 value_heads, u32 tokens,
                                             float divide_by, float* q, float* k, const u16* a,
                                             const u16* b, const float* a_log, const float* dt_bias,
                                             float* decay, float* beta, Failure* failure,
                                             u32 site) {
    DeltaInputs in = {mixed, channels, key_heads, key_dim, value_heads, tokens, divide_by, q,
                      k,     a,        b,         a_log,   dt_bias,     decay,  beta};
    delta_inputs<WidePair>(in, failure, site);
}
