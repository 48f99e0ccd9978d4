// The choice of experts: a warp for each token.
#include "elementary.cuh"
#include "wide.cuh"

// Experts of a token at most.
const u32 CHOICES = 256;

// A logit with its expert as one number, larger for what is chosen first: the heavier, then the
// lower id. Both zeros are the same logit. 0 is none.
__device__ inline u64 choice_key(float logit, u32 expert) {
    u32 bits = __float_as_uint(__fadd_rn(logit, 0.0f));
    u32 ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
    return (u64)ordered << 32 | (0xffffffffu - expert);
}

__device__ inline u32 chosen_expert(u64 key) { return 0xffffffffu - (u32)key; }

// Keys of a lane in registers, where there are not more experts than 32 times so many.
const u32 HELD = 8;

// The largest key below `last`.
__device__ inline u64 next_choice(const float* logits, const u64* held, u32 experts, u64 last) {
    u64 best = 0;
    if (experts <= HELD * WARP) {
#pragma unroll
        for (u32 j = 0; j < HELD; j++) best = held[j] < last && held[j] > best ? held[j] : best;
    } else {
        for (u32 e = lane(); e < experts; e += WARP) {
            u64 key = choice_key(logits[e], e);
            best = key < last && key > best ? key : best;
        }
    }
    for (u32 step = WARP / 2; step > 0; step /= 2) {
        u64 other = __shfl_xor_sync(ALL_LANES, best, step);
        best = other > best ? other : best;
    }
    return best;
}

template <class W>
__device__ void route(const float* logits, u32 experts, u32 top_k, u32 norm_top_k, u32* ids,
                      float* weights, Failure* failure, u32 site) {
    __shared__ float shares[CHOICES];
    u32 token = blockIdx.x;
    logits += (u64)token * experts;
    u64 held[HELD];
#pragma unroll
    for (u32 j = 0; j < HELD; j++) {
        u32 e = j * WARP + lane();
        held[j] = e < experts ? choice_key(logits[e], e) : 0;
    }
    u64 last = ~0ull;
    for (u32 slot = 0; slot < top_k; slot++) {
        last = next_choice(logits, held, experts, last);
        // A logit that is not a number was reported; whatever is chosen then must exist.
        u32 expert = min(chosen_expert(last), experts - 1);
        if (lane() == slot % WARP) {
            ids[(u64)token * top_k + slot] = expert;
            shares[slot] = logits[expert];
        }
    }
    __syncwarp();
    float most = shares[0];
    __syncwarp();
    __syncwarp();
    for (u32 slot = lane(); slot < top_k; slot += WARP) {
        shares[slot] = exp32(__fsub_rn(shares[slot], most));
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
