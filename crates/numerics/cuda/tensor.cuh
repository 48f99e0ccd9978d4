// Tensor cores and copies to shared memory, from compute capability 8.0 on.
#pragma once
#include "device.cuh"

// d = a * b, [16, 16] * [16, 8] in bf16, for the accumulators of a warp in the layout of PTX
// mma.m16n8k16; nothing is added to it.
//
// What is relied on: products are exact, the 16 of an output are aligned to the largest exponent
// among them, cut below 2^-23 of it or further down, added exactly, and the sum is cut or rounded
// to f32. That is what Fasi, Higham, Mikaitis and Pranesh (2021) found from Volta to Ampere, with
// two bits more from Turing on, and Li et al. (2024) on Hopper. NVIDIA's own words promise "at
// least single precision". Only runs on a card show it.
__device__ inline void mma_bf16(float* d, const u32* a, const u32* b);

// d += a * b, [8, 4] * [4, 8] in f64, each step a multiply-add that rounds to nearest: lane l has
// row l / 4 of a at column l % 4, column l / 4 of b at row l % 4, and of d columns l % 4 * 2 and
// the next.
__device__ inline void mma_f64(double* d, double a, double b);

// Four 8x8 matrices of bf16 from shared memory: lane l names row l % 8 of matrix l / 8.
__device__ inline void load_matrices(u32* out, const void* row);

// 16 bytes to shared memory behind the thread's back; zeros if not `there`.
__device__ inline void copy_sixteen(void* shared, const void* global, bool there);
__device__ inline void close_copies();
// Waits until at most so many groups of copies, closed last, are under way.
template <i32 LEFT>
__device__ inline void wait_copies();

#ifndef TARFA_EMULATOR

__device__ inline void mma_bf16(float* d, const u32* a, const u32* b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));
}

__device__ inline void mma_f64(double* d, double a, double b) {
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
        : "+d"(d[0]), "+d"(d[1])
        : "d"(a), "d"(b));
}

__device__ inline u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ inline void load_matrices(u32* out, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(row))
                 : "memory");
}

__device__ inline void copy_sixteen(void* shared, const void* global, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
                 "l"(__cvta_generic_to_global(global)), "r"(there ? 16 : 0)
                 : "memory");
}

__device__ inline void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <i32 LEFT>
__device__ inline void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

#else

__device__ inline void load_matrices(u32* out, const void* row) {
    for (u32 i = 0; i < 4; i++) {
        u64 from = __shfl_sync(ALL_LANES, (u64)row, i * 8 + lane() / 4);
        out[i] = ((const u32*)from)[lane() % 4];
    }
}

__device__ inline float half_of(u32 pair, u32 i) {
    return __uint_as_float(i == 0 ? pair << 16 : pair & 0xffff0000u);
}

// Cuts as the hardware is taken to: 24 bits from the largest exponent.
__device__ inline float cut_sum(const float* products) {
    i32 most = -1000;
    for (u32 i = 0; i < 16; i++) {
        if (products[i] != 0.0f) most = max(most, ilogbf(products[i]));
    }
    double unit = ldexp(1.0, most - 23), sum = 0.0;
    for (u32 i = 0; i < 16; i++) sum += trunc((double)products[i] / unit) * unit;
    float cut = (float)sum;
    return fabs((double)cut) > fabs(sum) ? nextafterf(cut, 0.0f) : cut;
}

__device__ inline void mma_bf16(float* d, const u32* a, const u32* b) {
    // Two words at a time; a word of b with each of a's pairs.
    u32 others_a[4][4], others_b[2][4][2];
    for (u32 i = 0; i < 2; i++) {
        const uint64_t* pairs = emulator::meet_warp(5, (u64)a[2 * i] << 32 | a[2 * i + 1]);
        for (u32 q = 0; q < 4; q++) {
            u64 pair = pairs[lane() / 4 * 4 + q];
            others_a[q][2 * i] = (u32)(pair >> 32);
            others_a[q][2 * i + 1] = (u32)pair;
        }
    }
    const uint64_t* pairs = emulator::meet_warp(5, (u64)b[0] << 32 | b[1]);
    for (u32 n = 0; n < 2; n++) {
        for (u32 q = 0; q < 4; q++) {
            u64 pair = pairs[(lane() % 4 * 2 + n) * 4 + q];
            others_b[n][q][0] = (u32)(pair >> 32);
            others_b[n][q][1] = (u32)pair;
        }
    }
    for (u32 out = 0; out < 4; out++) {
        float products[16];
        for (u32 k = 0; k < 16; k++) {
            u32 q = k % 8 / 2, high = k / 8;
            float x = half_of(others_a[q][high * 2 + out / 2], k % 2);
            products[k] = x * half_of(others_b[out % 2][q][high], k % 2);
        }
        d[out] = cut_sum(products);
    }
}

__device__ inline void mma_f64(double* d, double a, double b) {
    double row[4];
    const uint64_t* left = emulator::meet_warp(6, (u64)__double_as_longlong(a));
    for (u32 k = 0; k < 4; k++) row[k] = __longlong_as_double((i64)left[lane() / 4 * 4 + k]);
    const uint64_t* right = emulator::meet_warp(7, (u64)__double_as_longlong(b));
    for (u32 n = 0; n < 2; n++) {
        for (u32 k = 0; k < 4; k++) {
            double v = __longlong_as_double((i64)right[(lane() % 4 * 2 + n) * 4 + k]);
            d[n] = __fma_rn(row[k], v, d[n]);
        }
    }
}

__device__ inline void copy_sixteen(void* shared, const void* global, bool there) {
    *(uint4*)shared = there ? *(const uint4*)global : make_uint4(0, 0, 0, 0);
}

__device__ inline void close_copies() {}

template <i32 LEFT>
__device__ inline void wait_copies() {}

#endif
