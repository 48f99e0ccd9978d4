// The short depthwise convolution over `taps` inputs, the history [taps - 1, channels] first.
#include "elementary.cuh"
#include "wide.cuh"

// Input i of history and chunk together, of a channel.
__device__ inline u16 conv_input(const u16* mixed, const u16* history, u32 taps, u32 channels,
                                 u32 i, u32 channel) {
    return i < taps - 1 ? history[(u64)i * channels + channel]
                        : mixed[(u64)(i - (taps - 1)) * channels + channel];
}

// The history of a channel moves on by a chunk, in place: what it reads lies behind what it writes.
__device__ inline void move_history(const u16* mixed, u16* history, u32 taps, u32 channels,
                                    u32 tokens, u32 channel) {
    for (u32 i = 0; i + 1 < taps; i++) {
        u16 input = conv_input(mixed, history, taps, channels, tokens + i, channel);
        history[(u64)i * channels + channel] = input;
    }
}

template <class W>
__device__ void conv(const u16* mixed, u16* history, const float* weights, u32 taps, u32 channels,
                     u32 tokens, u16* out, Failure* failure, u32 site) {
    u32 channel = blockIdx.x * blockDim.x + threadIdx.x, token = blockIdx.y;
    bool there = channel < channels;
    W total;
    total.clear();
    for (u32 i = 0; i < taps && there; i++) {
        float x = widen(conv_input(mixed, history, taps, channels, token + i, channel));
        total.add(weights[(u64)i * channels + channel], x);
    }
    float sum;
    bool finite = true, decided = decide_f32(total.value(), total.bound(taps), &sum);
    warp_each_doubtful(there && !decided, [&](u32 source) {
        u32 of_source = channel - lane() + source;
        auto pair = [&](u32 i, float* a, float* b) {
            *a = weights[(u64)i * channels + of_source];
            *b = widen(conv_input(mixed, history, taps, channels, token + i, of_source));
        };
        float exact;
        bool is_finite = warp_exact_f32(pair, taps, &exact);
        if (lane() == source) {
            sum = exact;
            finite = is_finite;
        }
    });
    if (!there) return;
    if (!finite) report(failure, site, token, channel);
    out[(u64)token * channels + channel] = store(silu32(sum));
    if (tokens == 1) move_history(mixed, history, taps, channels, tokens, channel);
}

// store(silu(S_f32(w*x))); weights [taps, channels]. One token moves the history on.
// Grid (ceil(channels / 256), tokens), block 256.
extern "C" __global__ void conv_f64(const u16* mixed, u16* history, const float* weights, u32 taps,
                                    u32 channels, u32 tokens, u16* out, Failure* failure,
                                    u32 site) {
    conv<WideF64>(mixed, history, weights, taps, channels, tokens, out, failure, site);
}

extern "C" __global__ void conv_pair(const u16* mixed, u16* history, const float* weights, u32 taps,
                                     u32 channels, u32 tokens, u16* out, Failure* failure,
                                     u32 site) {
    conv<WidePair>(mixed, history, weights, taps, channels, tokens, out, failure, site);
}

// The same by itself, for chunks: others still read the history.
extern "C" __global__ void conv_history(const u16* mixed, u16* history, u32 taps, u32 channels,
                                        u32 tokens) {
    u32 channel = blockIdx.x * blockDim.x + threadIdx.x;
    if (channel < channels) move_history(mixed, history, taps, channels, tokens, channel);
}
