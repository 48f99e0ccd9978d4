// Ceilings of a card: reading alone, and tensor cores alone.
// Needs compute capability 8.0.
#include "tensor.cuh"

// Reads everything. Grid (any), block 256; `out` gets what nobody asks for.
extern "C" __global__ void __launch_bounds__(256)
    probe_read(const uint4* data, u64 chunks, u32* out) {
    u64 threads = (u64)gridDim.x * blockDim.x, i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    u32 sum = 0;
    for (; i + 3 * threads < chunks; i += 4 * threads) {
        uint4 a = __ldcs(data + i), b = __ldcs(data + i + threads);
        uint4 c = __ldcs(data + i + 2 * threads), d = __ldcs(data + i + 3 * threads);
        sum ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w;
        sum ^= c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
    }
    for (; i < chunks; i += threads) sum ^= data[i].x ^ data[i].y ^ data[i].z ^ data[i].w;
    // Never true of what is read: the compiler does not know.
    if (sum == 0x12345678u) atomicAdd(out, 1u);
}

// `rounds` times 8 products of a warp that do not wait for one another.
extern "C" __global__ void __launch_bounds__(256) probe_tensor(u32 rounds, float* out) {
    u32 a[4] = {threadIdx.x, 1, 2, 3}, b[2] = {blockIdx.x, 5};
    float sums[8][4] = {};
    for (u32 r = 0; r < rounds; r++) {
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            float d[4];
            b[1] = r + i;
            mma_bf16(d, a, b);
            for (u32 o = 0; o < 4; o++) sums[i][o] = __fadd_rn(sums[i][o], d[o]);
        }
    }
    float sum = 0.0f;
    for (u32 i = 0; i < 32; i++) sum = __fadd_rn(sum, sums[i / 4][i % 4]);
    if (sum == 1.0f) out[0] = sum;
}
