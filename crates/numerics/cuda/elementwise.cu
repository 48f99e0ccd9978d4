// Sums and activations, a thread for each element.
#include "elementary.cuh"

// h = store(h + y).
extern "C" __global__ void add(u16* h, const u16* y, u32 n) {
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) h[i] = store(__fadd_rn(widen(h[i]), widen(y[i])));
}

// store(silu(gate) * up) of element i of rows [gate | up], each `width` wide.
__device__ inline u16 activated(const u16* inner, u32 width, u64 i) {
    const u16* row = inner + i / width * 2 * width;
    return store(__fmul_rn(silu32(widen(row[i % width])), widen(row[width + i % width])));
}

// The same for so many values of one buffer and then of another, a thread for each.
extern "C" __global__ void activate(const u16* inner, u32 width, u32 values, u16* out,
                                    const u16* beside, u32 beside_width, u32 beside_values,
                                    u16* beside_out) {
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < values) {
        out[i] = activated(inner, width, i);
    } else if (i - values < beside_values) {
        beside_out[i - values] = activated(beside, beside_width, i - values);
    }
}
