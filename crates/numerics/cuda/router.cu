// The choice of experts: a warp for each token.
#include "elementary.cuh"
#include "wide.cuh"

// Experts of a token at most.
const u32 CHOICES = 256;

// A logit with its expert; the order is the heavier first, then the lower id.
struct Choice {
    float logit;
    u32 expert;

    __device__ bool is_before(const Choice& other) const {
        return logit > other.logit || (logit == other.logit && expert < other.expert);
    }
};

// The first choice behind `last`, or the first of all.
__device__ inline Choice next_choice(const float* logits, u32 experts, const Choice* last) {
    Choice best = {__uint_as_float(0xff800000u), 0xffffffffu};
    for (u32 e = lane(); e < experts; e += WARP) {
        Choice one = {logits[e], e};
        if ((last == nullptr || last->is_before(one)) && one.is_before(best)) best = one;
    }
    for (u32 step = WARP / 2; step > 0; step /= 2) {
        Choice other = {__shfl_xor_sync(ALL_LANES, best.logit, step),
                        __shfl_xor_sync(ALL_LANES, best.expert, step)};
        if (other.is_before(best)) best = other;
    }
    return best;
}

template <class W>
__device__ void route(const float* logits, u32 experts, u32 top_k, u32 norm_top_k, u32* ids,
                      float* weights, Failure* failure, u32 site) {
    __shared__ float shares[CHOICES];
    u32 token = blockIdx.x;
    logits += (u64)token * experts;
    Choice last;
    float most = 0.0f;
    for (u32 slot = 0; slot < top_k; slot++) {
        last = next_choice(logits, experts, slot == 0 ? nullptr : &last);
        if (slot == 0) most = last.logit;
        if (lane() == 0) {
            // A logit that is not finite was reported; whatever is chosen then must exist.
            ids[(u64)token * top_k + slot] = min(last.expert, experts - 1);
            shares[slot] = exp32(__fsub_rn(last.logit, most));
        }
    }
    __syncwarp();
    auto pair = [&](u32 i, float* a, float* b) {
        *a = norm_top_k ? shares[i] : exp32(__fsub_rn(logits[i], most));
        *b = 1.0f;
    };
    float total;
    bool finite = warp_f32<W>(pair, norm_top_k ? top_k : experts, &total);
    if (!finite && lane() == 0) report(failure, site, token, 0);
    for (u32 slot = lane(); slot < top_k; slot += WARP) {
        weights[(u64)token * top_k + slot] = __fdiv_rn(shares[slot], total);
    }
}

// The top_k largest of each token's logits and their softmax, over all unless `norm_top_k`; top_k
// up to 256. Grid (tokens), block 32.
extern "C" __global__ void route_f64(const float* logits, u32 experts, u32 top_k, u32 norm_top_k,
                                     u32* ids, float* weights, Failure* failure, u32 site) {
    route<WideF64>(logits, experts, top_k, norm_top_k, ids, weights, failure, site);
}

extern "C" __global__ void route_pair(const float* logits, u32 experts, u32 top_k, u32 norm_top_k,
                                      u32* ids, float* weights, Failure* failure, u32 site) {
    route<WidePair>(logits, experts, top_k, norm_top_k, ids, weights, failure, site);
}

// g = sig(g), a thread for each.
extern "C" __global__ void shared_gates(float* gate, u32 n) {
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) gate[i] = sig32(gate[i]);
}
