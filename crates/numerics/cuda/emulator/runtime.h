// What kernels find on a CPU: threads of a block as fibers of one system thread, the warp's
// functions with all lanes met, arithmetic as IEEE has it. See emulator/README.md.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

struct uint2 {
    unsigned x, y;
};
struct uint4 {
    unsigned x, y, z, w;
};
struct float4 {
    float x, y, z, w;
};
struct dim3 {
    unsigned x, y, z;
};

inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace emulator {

// One thread of the block that runs.
struct Thread {
    dim3 index;
    unsigned flat;
};

struct Block {
    dim3 index, size, grid;
    unsigned char* shared;
};

extern Thread* now;
extern Block block;

// Meets the other 31 lanes, leaving a value; afterwards every lane's value can be read. `kind` is
// what the lanes must agree on.
const uint64_t* meet_warp(int kind, uint64_t value);
// Meets all threads of the block that have not ended.
void meet_block();

// A kernel that can be queued: its name and what binds arguments to it.
struct Kernel {
    const char* name;
    std::function<std::function<void()>(void**)> bind;
};
void enter(const Kernel& kernel);

template <class... A>
std::function<std::function<void()>(void**)> binder(void (*kernel)(A...)) {
    return [kernel](void** params) -> std::function<void()> {
        std::tuple<std::decay_t<A>...> args;
        int i = 0;
        std::apply([&](auto&... arg) { ((std::memcpy(&arg, params[i++], sizeof arg)), ...); },
                   args);
        return [kernel, args] { std::apply(kernel, args); };
    };
}

struct Entry {
    template <class K>
    Entry(const char* name, K kernel) {
        enter({name, binder(kernel)});
    }
};

template <class T>
uint64_t bits(T v) {
    static_assert(sizeof(T) <= 8);
    uint64_t all = 0;
    std::memcpy(&all, &v, sizeof v);
    return all;
}

template <class T>
T of_bits(uint64_t all) {
    T v;
    std::memcpy(&v, &all, sizeof v);
    return v;
}

}  // namespace emulator

#define threadIdx (emulator::now->index)
#define blockIdx (emulator::block.index)
#define blockDim (emulator::block.size)
#define gridDim (emulator::block.grid)

inline unsigned char* emulator_shared_bytes() { return emulator::block.shared; }

inline unsigned emulator_lane() { return emulator::now->flat % 32; }

template <class T>
T __shfl_sync(unsigned, T v, unsigned lane) {
    return emulator::of_bits<T>(emulator::meet_warp(1, emulator::bits(v))[lane % 32]);
}
template <class T>
T __shfl_xor_sync(unsigned, T v, unsigned mask) {
    return emulator::of_bits<T>(emulator::meet_warp(2, emulator::bits(v))[emulator_lane() ^ mask]);
}

inline unsigned __ballot_sync(unsigned, bool p) {
    const uint64_t* all = emulator::meet_warp(3, p);
    unsigned ballot = 0;
    for (unsigned i = 0; i < 32; i++) ballot |= (unsigned)all[i] << i;
    return ballot;
}
inline bool __any_sync(unsigned mask, bool p) { return __ballot_sync(mask, p) != 0; }
inline bool __all_sync(unsigned mask, bool p) { return __ballot_sync(mask, p) == 0xffffffffu; }
inline void __syncwarp() { emulator::meet_warp(4, 0); }
inline void __syncthreads() { emulator::meet_block(); }

// Fibers take turns, so reading and writing is one step.
template <class T>
T atomicAdd(T* at, T v) {
    T old = *at;
    *at = old + v;
    return old;
}
template <class T>
T atomicOr(T* at, T v) {
    T old = *at;
    *at = old | v;
    return old;
}
template <class T>
T atomicCAS(T* at, T expected, T v) {
    T old = *at;
    if (old == expected) *at = v;
    return old;
}

inline unsigned __float_as_uint(float v) { return emulator::of_bits<unsigned>(emulator::bits(v)); }
inline float __uint_as_float(unsigned v) { return emulator::of_bits<float>(v); }
inline long long __double_as_longlong(double v) {
    return emulator::of_bits<long long>(emulator::bits(v));
}
inline double __longlong_as_double(long long v) { return emulator::of_bits<double>((uint64_t)v); }

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __fmaf_rn(float a, float b, float c) { return std::fmaf(a, b, c); }
inline float __double2float_rn(double v) { return (float)v; }
inline int __double2int_rn(double v) { return (int)std::rint(v); }

inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz((unsigned)v); }
inline int __clzll(long long v) { return v == 0 ? 64 : __builtin_clzll((unsigned long long)v); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}

template <class T>
T __ldcs(const T* at) {
    return *at;
}

template <class A, class B>
std::common_type_t<A, B> min(A a, B b) {
    return b < a ? b : a;
}
template <class A, class B>
std::common_type_t<A, B> max(A a, B b) {
    return a < b ? b : a;
}
using std::fabs;
