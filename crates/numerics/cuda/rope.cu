// Heads: their parts, their rotation, their place in the cache. A thread for each element.
#include "round.cuh"

// Per head [q | gate] to all q and all gates: [tokens, heads, head_dim] each.
extern "C" __global__ void split_heads(const u16* both, u32 heads, u32 head_dim, u32 tokens, u16* q,
                                       u16* gate) {
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (u64)tokens * heads * head_dim) return;
    const u16* head = both + i / head_dim * 2 * head_dim;
    q[i] = head[i % head_dim];
    gate[i] = head[head_dim + i % head_dim];
}

// Rotates the first `rotated` of every head in place, the first half with the second.
extern "C" __global__ void rope(u16* x, u32 heads, u32 head_dim, u32 rotated, const u16* cosines,
                                const u16* sines, u32 tokens) {
    u32 half = rotated / 2;
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (u64)tokens * heads * half) return;
    u64 head = i / half, angle = head / heads * half + i % half;
    u16* first = x + head * head_dim + i % half;
    float a = widen(first[0]), b = widen(first[half]);
    float c = widen(cosines[angle]), s = widen(sines[angle]);
    first[0] = store(__fsub_rn(__fmul_rn(a, c), __fmul_rn(b, s)));
    first[half] = store(__fadd_rn(__fmul_rn(b, c), __fmul_rn(a, s)));
}

// k and v [tokens, kv_heads, head_dim] into caches [kv_heads, capacity, head_dim] from `position`.
extern "C" __global__ void append_keys(const u16* k, const u16* v, u32 kv_heads, u32 head_dim,
                                       u32 tokens, const u32* position, u32 capacity, u16* keys,
                                       u16* values) {
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    u64 width = (u64)kv_heads * head_dim;
    if (i >= tokens * width) return;
    u64 head = i % width / head_dim, row = *position + i / width;
    u64 at = (head * capacity + row) * head_dim + i % head_dim;
    keys[at] = k[i];
    values[at] = v[i];
}
