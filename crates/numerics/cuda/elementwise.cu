// Sums and activations, a thread for each element.
#include "elementary.cuh"

// h = store(h + y).
extern "C" __global__ void add(u16* h, const u16* y, u32 n) {
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) h[i] = store(__fadd_rn(widen(h[i]), widen(y[i])));
}

// store(silu(gate) * up) of rows [gate | up], each `width` wide.
extern "C" __global__ void activate(const u16* inner, u32 width, u32 rows, u16* out) {
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (u64)rows * width) return;
    const u16* row = inner + i / width * 2 * width;
    out[i] = store(__fmul_rn(silu32(widen(row[i % width])), widen(row[width + i % width])));
}
