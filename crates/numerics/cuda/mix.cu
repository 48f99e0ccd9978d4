// The weighted sum of a token's experts, added to the residual stream; a thread for each channel.
#include "elementary.cuh"
#include "wide.cuh"

// What one token adds up: term i is a row of outputs with its weight, or the shared expert's.
struct Terms {
    const u16* outputs;
    const u32* rows;
    const float* weights;
    u32 top_k;
    const u16* shared;
    float shared_weight;
    u32 hidden;

    __device__ u32 count() const { return top_k + (shared ? 1 : 0); }

    __device__ void at(u32 i, u32 channel, float* weight, float* value) const {
        bool routed = i < top_k;
        *weight = routed ? weights[i] : shared_weight;
        *value = widen(routed ? outputs[(u64)rows[i] * hidden + channel] : shared[channel]);
    }
};

template <class W>
__device__ void mix(const Terms& terms, u16* h, Failure* failure, u32 site) {
    u32 channel = blockIdx.x * blockDim.x + threadIdx.x, token = blockIdx.y;
    bool there = channel < terms.hidden;
    W total;
    total.clear();
    for (u32 i = 0; i < terms.count() && there; i++) {
        float a, b;
        terms.at(i, channel, &a, &b);
        total.add(a, b);
    }
    u16 y;
    bool finite = true, decided = decide_bf16(total.value(), total.bound(terms.count()), &y);
    warp_each_doubtful(there && !decided, [&](u32 source) {
        u32 of_source = channel - lane() + source;
        auto pair = [&](u32 i, float* a, float* b) { terms.at(i, of_source, a, b); };
        u16 exact;
        bool is_finite = warp_exact_bf16(pair, terms.count(), &exact);
        if (lane() == source) {
            y = exact;
            finite = is_finite;
        }
    });
    if (!there) return;
    if (!finite) report(failure, site, token, channel);
    u64 i = (u64)token * terms.hidden + channel;
    h[i] = store(__fadd_rn(widen(h[i]), widen(y)));
}

__device__ inline Terms terms_of(const u16* outputs, const u32* rows, const float* weights,
                                 u32 top_k, const u16* shared, const float* shared_gates,
                                 u32 hidden) {
    u64 token = blockIdx.y;
    const u16* shared_row = shared ? shared + token * hidden : nullptr;
    float shared_weight = shared ? sig32(shared_gates[token]) : 0.0f;
    return Terms{outputs, rows + token * top_k, weights + token * top_k,
                 top_k,   shared_row,           shared_weight,
                 hidden};
}

// h = store(h + S_bf16(w*d over the choices, + sig(g)*shared)). Grid (ceil(hidden / 256), tokens),
// block 256; rows and weights [tokens, top_k], shared [tokens, hidden] or null.
extern "C" __global__ void mix_f64(const u16* outputs, const u32* rows, const float* weights,
                                   u32 top_k, const u16* shared, const float* shared_gates,
                                   u32 hidden, u16* h, Failure* failure, u32 site) {
    mix<WideF64>(terms_of(outputs, rows, weights, top_k, shared, shared_gates, hidden), h, failure,
                 site);
}

extern "C" __global__ void mix_pair(const u16* outputs, const u32* rows, const float* weights,
                                    u32 top_k, const u16* shared, const float* shared_gates,
                                    u32 hidden, u16* h, Failure* failure, u32 site) {
    mix<WidePair>(terms_of(outputs, rows, weights, top_k, shared, shared_gates, hidden), h, failure,
                  site);
}
