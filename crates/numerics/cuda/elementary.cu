// The elementary functions on arrays, for the proof that a device rounds them correctly.
#include "elementary.cuh"

extern "C" __global__ void exp32_map(const float* x, float* y, u32 n) {
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = exp32(x[i]);
}

extern "C" __global__ void log1p32_map(const float* x, float* y, u32 n) {
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = log1p32(x[i]);
}
