// What kernels find on a CPU: the threads of a block as fibers of one system thread, and the
// functions in which they meet. `build.sh` makes a driver of them; CONTRIBUTING.md says how to
// use it. Whatever no GPU would do well ends the program with a message.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __constant__ static
// The library has no other variables of this kind, so that all of them can be poisoned before a
// block runs, wherever they are declared: see fibers.cpp.
#define __shared__ static thread_local
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

// Aligned as on a GPU, which refuses vectors that lie elsewhere.
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) double2 {
    double x, y;
};
struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};

inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline double2 make_double2(double x, double y) { return {x, y}; }

namespace emulator {

// One thread of the block that runs.
struct Thread {
    dim3 index;
    unsigned flat;
};

struct Block {
    dim3 index, size, grid;
    unsigned char* shared;
    const char* kernel;
};

extern Thread* now;
extern Block block;

// Ends the program: a kernel or a call did what no GPU would do well.
[[noreturn]] void fail(const char* why);

// Meets the other 31 lanes, leaving a value; afterwards every lane's value can be read until the
// next meeting but one. `kind` is what the lanes must agree on.
const uint64_t* meet_warp(int kind, uint64_t value);
// Meets all threads of the block that have not ended.
void meet_block();

// A kernel that can be queued: its name and what binds arguments to it.
struct Kernel {
    const char* name;
    std::function<std::function<void()>(void**)> bind;
    unsigned shared_bytes_max = 48 << 10;
};
void enter(const Kernel& kernel);

// Arguments are read when the kernel is queued, each as the type that the kernel declares.
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
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
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

// What lanes meet for. Kinds below 16 are free for instructions that a kernel emulates itself.
enum Meeting { Shuffle = 16, ShuffleXor, ShuffleUp, ShuffleDown, Ballot, Any, All, Sync };

inline void check_mask(unsigned mask) {
    if (__builtin_expect(mask != 0xffffffffu, 0)) fail("a warp function for some lanes only");
}

// Lanes that shuffle values of different sizes do not meet either.
template <class T>
const uint64_t* meet_to_shuffle(Meeting meeting, unsigned mask, T v) {
    check_mask(mask);
    return meet_warp(meeting | (int)sizeof(T) << 8, bits(v));
}

inline unsigned meet_to_vote(Meeting meeting, unsigned mask, bool vote) {
    check_mask(mask);
    const uint64_t* all = meet_warp(meeting, vote);
    unsigned ballot = 0;
    for (unsigned i = 0; i < 32; i++) ballot |= (unsigned)all[i] << i;
    return ballot;
}

}  // namespace emulator

#define threadIdx (emulator::now->index)
#define blockIdx (emulator::block.index)
#define blockDim (emulator::block.size)
#define gridDim (emulator::block.grid)
const int warpSize = 32;

inline unsigned char* emulator_shared_bytes() { return emulator::block.shared; }

inline unsigned emulator_lane() { return emulator::now->flat % 32; }

template <class T>
T __shfl_sync(unsigned mask, T v, unsigned lane) {
    return emulator::of_bits<T>(emulator::meet_to_shuffle(emulator::Shuffle, mask, v)[lane % 32]);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T v, unsigned flip) {
    const uint64_t* all = emulator::meet_to_shuffle(emulator::ShuffleXor, mask, v);
    return emulator::of_bits<T>(all[(emulator_lane() ^ flip) % 32]);
}
// A lane without a source keeps what it has.
template <class T>
T __shfl_up_sync(unsigned mask, T v, unsigned by) {
    const uint64_t* all = emulator::meet_to_shuffle(emulator::ShuffleUp, mask, v);
    return by > emulator_lane() ? v : emulator::of_bits<T>(all[emulator_lane() - by]);
}
template <class T>
T __shfl_down_sync(unsigned mask, T v, unsigned by) {
    const uint64_t* all = emulator::meet_to_shuffle(emulator::ShuffleDown, mask, v);
    return by > 31 - emulator_lane() ? v : emulator::of_bits<T>(all[emulator_lane() + by]);
}

inline unsigned __ballot_sync(unsigned mask, bool p) {
    return emulator::meet_to_vote(emulator::Ballot, mask, p);
}
inline int __any_sync(unsigned mask, bool p) {
    return emulator::meet_to_vote(emulator::Any, mask, p) != 0;
}
inline int __all_sync(unsigned mask, bool p) {
    return emulator::meet_to_vote(emulator::All, mask, p) == 0xffffffffu;
}
inline void __syncwarp(unsigned mask = 0xffffffffu) {
    emulator::check_mask(mask);
    emulator::meet_warp(emulator::Sync, 0);
}
inline void __syncthreads() { emulator::meet_block(); }
inline void __threadfence() {}
inline void __threadfence_block() {}

#include "arithmetic.h"
