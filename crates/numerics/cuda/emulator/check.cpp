// Tests of the emulator by itself: `build.sh --check OUT`. What has to end the program is run in
// a child, and its message compared.
#include "driver.h"

#include <chrono>
#include <cstdio>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

typedef unsigned int u32;
typedef unsigned long long u64;
const u32 ALL = 0xffffffffu;

#define KERNEL(name, ...)                           \
    extern "C" void name(__VA_ARGS__);              \
    static emulator::Entry entry_##name(#name, name); \
    extern "C" void name(__VA_ARGS__)

DRIVER cuInit(unsigned);
DRIVER cuModuleGetFunction(void**, void*, const char*);
DRIVER cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                      void*, void**, void**);
DRIVER cuMemAlloc_v2(uint64_t*, size_t);
DRIVER cuMemFree_v2(uint64_t);
DRIVER cuMemcpyHtoD_v2(uint64_t, const void*, size_t);
DRIVER cuMemcpyDtoH_v2(void*, uint64_t, size_t);
DRIVER cuStreamSynchronize(void*);
DRIVER cuStreamCreate(void**, unsigned);
DRIVER cuStreamBeginCapture_v2(void*, int);
DRIVER cuStreamEndCapture(void*, void**);
DRIVER cuGraphInstantiateWithFlags(void**, void*, unsigned long long);
DRIVER cuGraphLaunch(void*, void*);

static void expect(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "check: wrong: %s\n", what);
    std::exit(1);
}
#define EXPECT(condition) expect(condition, #condition)

// Shuffles of every kind, 32 and 64 bits.
KERNEL(shuffles, u64* out) {
    u32 l = threadIdx.x % 32;
    u64 wide = (u64)l << 40 | threadIdx.x;
    u64 sum = __shfl_sync(ALL, wide, 31 - l) ^ __shfl_xor_sync(ALL, wide, 5);
    double half = __shfl_down_sync(ALL, threadIdx.x * 0.5, 3);
    float up = __shfl_up_sync(ALL, (float)threadIdx.x, 4);
    u32 lead = __shfl_sync(ALL, threadIdx.x, 0);
    out[4 * threadIdx.x] = sum;
    out[4 * threadIdx.x + 1] = (u64)(half * 2);
    out[4 * threadIdx.x + 2] = (u64)up;
    out[4 * threadIdx.x + 3] = lead;
}

KERNEL(votes, u32* out) {
    u32 odd = __ballot_sync(ALL, threadIdx.x % 2 == 1);
    u32 any = (u32)__any_sync(ALL, threadIdx.x == 40);
    u32 all = (u32)__all_sync(ALL, threadIdx.x < 32);
    out[threadIdx.x] = odd ^ any ^ all << 1;
}

// Sums a block through shared memory of both kinds. Warps from the third on leave early.
KERNEL(sums, u32* out) {
    __shared__ u32 of_warps[2];
    u32* values = (u32*)emulator_shared_bytes();
    if (threadIdx.x >= 64) return;
    out[3 * blockIdx.x + 1] = of_warps[0] & values[0];
    __syncthreads();
    values[63 - threadIdx.x] = threadIdx.x;
    __syncthreads();
    u32 v = values[threadIdx.x];
    for (u32 step = 16; step > 0; step /= 2) v += __shfl_xor_sync(ALL, v, step);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x == 0) out[3 * blockIdx.x] = of_warps[0] + of_warps[1];
    out[3 * blockIdx.x + 2] = gridDim.x * 1000 + blockDim.x;
}

// A barrier is missing: whichever end starts reads what the other has not written.
KERNEL(no_barrier, u32* out) {
    u32* values = (u32*)emulator_shared_bytes();
    values[63 - threadIdx.x] = threadIdx.x;
    out[threadIdx.x] = values[threadIdx.x];
}

KERNEL(atomics, u32* out, u64* wide) {
    atomicAdd(&out[0], 1);
    atomicMax(&out[1], threadIdx.x);
    atomicMin(&out[2], threadIdx.x);
    if (atomicCAS(&out[3], 0, threadIdx.x + 1) == 0) out[4] = threadIdx.x;
    atomicExch(&out[5], 7u);
    atomicOr(&out[6], 1u << threadIdx.x % 32);
    atomicAdd(wide, (u64)1 << 32);
}

KERNEL(scalars, unsigned char a, double b, float c, u64 d, double* out) {
    out[0] = a + b + c + (double)d;
}

KERNEL(write_at, u32* out, int at) { out[at] = 1; }
KERNEL(write_behind_shared) { emulator_shared_bytes()[64] = 0; }
KERNEL(half_a_warp) {
    if (threadIdx.x < 16) __syncwarp();
}
KERNEL(leaves_early) {
    if (threadIdx.x == 31) return;
    __shfl_sync(ALL, 1, 0);
}
KERNEL(two_functions) {
    if (threadIdx.x < 16) {
        __ballot_sync(ALL, true);
    } else {
        __any_sync(ALL, true);
    }
}
KERNEL(two_sizes) {
    if (threadIdx.x < 16) {
        __shfl_sync(ALL, 1.0f, 0);
    } else {
        __shfl_sync(ALL, 1.0, 0);
    }
}
KERNEL(barrier_and_warp) {
    if (threadIdx.x < 16) {
        __syncthreads();
    } else {
        __syncwarp();
    }
}
KERNEL(half_a_barrier) {
    if (threadIdx.x < 16) __syncthreads();
}
KERNEL(some_lanes) { __ballot_sync(0xffffu, true); }
KERNEL(not_aligned, const uint4* at) { __ldcs((const uint4*)((const char*)at + 4)); }
// What every warp does most, to be timed.
KERNEL(often, u32* out) {
    u32 v = __shfl_xor_sync(ALL, threadIdx.x, 1);
    __syncthreads();
    if (v == 255) out[0] = v;
}

static Result launch(const char* name, u32 blocks, u32 threads, u32 shared, void** args,
                     void* stream = nullptr) {
    void* function;
    EXPECT(cuModuleGetFunction(&function, nullptr, name) == OK);
    return cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, shared, stream, args, nullptr);
}

template <class T>
struct Device {
    uint64_t at;
    explicit Device(size_t count) { EXPECT(cuMemAlloc_v2(&at, count * sizeof(T)) == OK); }
    ~Device() { EXPECT(cuMemFree_v2(at) == OK); }
    T operator[](size_t i) const {
        T value;
        EXPECT(cuMemcpyDtoH_v2(&value, at + i * sizeof(T), sizeof(T)) == OK);
        return value;
    }
};

static void warp_functions() {
    Device<u64> moved(4 * 64);
    void* args[] = {&moved.at};
    EXPECT(launch("shuffles", 1, 64, 0, args) == OK);
    for (u64 i = 0; i < 64; i++) {
        u64 l = i % 32, first = i - l, from = first + 31 - l, by = first + (l ^ 5);
        EXPECT(moved[4 * i] == (((31 - l) << 40 | from) ^ ((l ^ 5) << 40 | by)));
        EXPECT(moved[4 * i + 1] == (l < 29 ? i + 3 : i));
        EXPECT(moved[4 * i + 2] == (l < 4 ? i : i - 4));
        EXPECT(moved[4 * i + 3] == first);
    }
    Device<u32> votes(64);
    void* vote_args[] = {&votes.at};
    EXPECT(launch("votes", 1, 64, 0, vote_args) == OK);
    EXPECT(votes[0] == (0xaaaaaaaau ^ 2) && votes[63] == (0xaaaaaaaau ^ 1));
}

static void blocks() {
    Device<u32> sums(9);
    void* args[] = {&sums.at};
    EXPECT(launch("sums", 3, 128, 64 * 4, args) == OK);
    for (u32 i = 0; i < 3; i++) {
        EXPECT(sums[3 * i] == 63 * 64 / 2);
        // Nothing of the block before is left in either kind of shared memory.
        EXPECT(sums[3 * i + 1] == ALL);
        EXPECT(sums[3 * i + 2] == 3128);
    }
    Device<u32> poisoned(64);
    void* poisoned_args[] = {&poisoned.at};
    EXPECT(launch("no_barrier", 1, 64, 64 * 4, poisoned_args) == OK);
    EXPECT(poisoned[0] == ALL || poisoned[63] == ALL);
    EXPECT(launch("sums", 1, 1025, 0, args) == INVALID);
    EXPECT(launch("sums", 1, 32, 49153, args) == INVALID);
}

static void atomics_and_arguments() {
    Device<u32> out(7);
    Device<u64> wide(1);
    u32 zeros[7] = {0, 0, ALL, 0, 0, 0, 0};
    u64 zero = 0;
    EXPECT(cuMemcpyHtoD_v2(out.at, zeros, sizeof zeros) == OK);
    EXPECT(cuMemcpyHtoD_v2(wide.at, &zero, sizeof zero) == OK);
    void* args[] = {&out.at, &wide.at};
    EXPECT(launch("atomics", 2, 96, 0, args) == OK);
    EXPECT(out[0] == 192 && out[1] == 95 && out[2] == 0 && out[3] == out[4] + 1);
    EXPECT(out[5] == 7 && out[6] == ALL && wide[0] == (u64)192 << 32);

    Device<double> sum(1);
    unsigned char a = 1;
    double b = 0.5;
    float c = 0.25f;
    u64 d = (u64)1 << 40;
    void* scalars[] = {&a, &b, &c, &d, &sum.at};
    EXPECT(launch("scalars", 1, 1, 0, scalars) == OK);
    EXPECT(sum[0] == 1.75 + (double)d);
}

static void arithmetic() {
    const float nan = __uint_as_float(0x7fc00000u), tiny = __uint_as_float(1);
    EXPECT(__float_as_uint(fminf(0.0f, -0.0f)) == 0x80000000u && fmaxf(nan, 1.0f) == 1.0f);
    EXPECT(__double_as_longlong(fmax(-0.0, 0.0)) == 0 && fmin(1.0, 2.0) == 1.0);
    EXPECT(__fmul_rn(tiny, 0.5f) == 0.0f && __fmul_rn(tiny, 1.5f) == 2 * tiny);
    float x = 1.0f + 0x1p-12f;
    EXPECT(__fmaf_rn(x, x, -1.0f) == 0x1p-11f + 0x1p-24f);
    EXPECT(__fadd_rn(__fmul_rn(x, x), -1.0f) == 0x1p-11f);
    EXPECT(__fma_rn(1 + 0x1p-27, 1 + 0x1p-27, -1.0) == 0x1p-26 + 0x1p-54);
    EXPECT(__float2int_rn(2.5f) == 2 && __float2int_rn(nan) == 0);
    EXPECT(__double2int_rn(3e9) == INT32_MAX && __double2int_rn((double)nan) == INT32_MIN);
    EXPECT(__popc(0xf0u) == 4 && __ffs(8) == 4 && __ffs(0) == 0 && __clz(1) == 31);
    EXPECT(__clz(0) == 32 && __clzll(0) == 64 && __ffsll(1ll << 40) == 41);
    EXPECT(__brev(1u) == 0x80000000u && __umulhi(ALL, ALL) == ALL - 1);
    EXPECT(__umul64hi(~0ull, ~0ull) == ~0ull - 1);
    EXPECT(__funnelshift_l(0x80000000u, 1u, 1) == 3 && __funnelshift_r(2u, 1u, 1) == 0x80000001u);
    EXPECT(__funnelshift_l(5u, 6u, 32) == 6 && __funnelshift_r(5u, 6u, 32) == 5);
    EXPECT(__byte_perm(0x33221100u, 0x77665544u, 0x7410u) == 0x77441100u);
    EXPECT(min(3, 2) == 2 && max(1u, 7u) == 7u && sizeof(uint4) == alignof(uint4));
}

static void graphs() {
    Device<u32> out(7);
    Device<u64> wide(1);
    u32 zeros[7] = {};
    u64 zero = 0;
    EXPECT(cuMemcpyHtoD_v2(out.at, zeros, sizeof zeros) == OK);
    EXPECT(cuMemcpyHtoD_v2(wide.at, &zero, sizeof zero) == OK);
    void *stream, *graph, *exec, *args[] = {&out.at, &wide.at};
    EXPECT(cuStreamCreate(&stream, 0) == OK && cuStreamBeginCapture_v2(stream, 0) == OK);
    EXPECT(launch("atomics", 1, 32, 0, args, stream) == OK && out[0] == 0);
    EXPECT(cuStreamEndCapture(stream, &graph) == OK);
    EXPECT(cuGraphInstantiateWithFlags(&exec, graph, 0) == OK);
    for (u32 i = 1; i < 3; i++) EXPECT(cuGraphLaunch(exec, stream) == OK && out[0] == 32 * i);
}

// What `body` says before it ends as `fail` ends it.
template <class F>
static void expect_end(const char* message, F body) {
    int ends[2];
    EXPECT(pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        body();
        _exit(0);
    }
    close(ends[1]);
    char text[512];
    ssize_t length = read(ends[0], text, sizeof text);
    close(ends[0]);
    int status;
    waitpid(child, &status, 0);
    std::string said(text, length > 0 ? (size_t)length : 0);
    bool is_right = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
    if (is_right && said.find(message) != std::string::npos) return;
    std::fprintf(stderr, "check: no \"%s\", but: %s\n", message, said.c_str());
    std::exit(1);
}

static void mistakes() {
    const char* both[][2] = {
        {"half_a_warp", "not all 32 lanes"},
        {"two_functions", "different warp functions"},
        {"two_sizes", "different warp functions"},
        {"barrier_and_warp", "lanes at a barrier, others"},
        {"half_a_barrier", "some lanes of a warp never reach"},
        {"leaves_early", "not all 32 lanes"},
        {"some_lanes", "for some lanes only"},
        {"write_behind_shared", "behind the shared memory"},
    };
    for (auto [name, message] : both) {
        expect_end(message, [name = name] { launch(name, 1, 32, 64, nullptr); });
    }
    expect_end("not all 32 lanes", [] { launch("leaves_early", 1, 16, 0, nullptr); });
}

static void writes_beside() {
    for (int at : {-1, 3, 200, -200}) {
        const char* message = at < 0 ? "wrote before a buffer" : "wrote behind a buffer";
        auto write = [at](bool is_freed) {
            Device<u32> out(3);
            int where = at;
            void* args[] = {&out.at, &where};
            launch("write_at", 1, 1, 0, args);
            if (!is_freed) cuStreamSynchronize(nullptr);
        };
        expect_end(message, [&] { write(true); });
        expect_end(message, [&] { write(false); });
    }
    expect_end("copying from beside", [] { (void)Device<u32>(3)[3]; });
    expect_end("not aligned", [] {
        Device<uint4> data(2);
        void* args[] = {&data.at};
        launch("not_aligned", 1, 32, 0, args);
    });
}

static void memory() {
    Device<u32> fresh(5);
    EXPECT(fresh[0] == ALL && fresh[4] == ALL);
    uint64_t at;
    EXPECT(cuMemAlloc_v2(&at, (size_t)1 << 42) == OUT_OF_MEMORY);
    EXPECT(cuMemAlloc_v2(&at, 0) == INVALID);
}

// In a child, where the setting is not read yet.
static void losses() {
    expect_end("lost as asked", [] {
        setenv("TARFA_EMULATOR_LOSE_AFTER", "2", 1);
        Device<u32> out(1);
        void* args[] = {&out.at};
        for (int i = 0; i < 2; i++) {
            if (launch("often", 1, 256, 0, args) != OK) return;
        }
        if (cuStreamSynchronize(nullptr) != LAUNCH_FAILED || cuInit(0) != LAUNCH_FAILED) return;
        emulator::fail("lost as asked");
    });
}

static double launches_per_second() {
    Device<u32> out(1);
    void *function, *args[] = {&out.at};
    EXPECT(cuModuleGetFunction(&function, nullptr, "often") == OK);
    auto start = std::chrono::steady_clock::now();
    const int count = 20000;
    for (int i = 0; i < count; i++) {
        cuLaunchKernel(function, 1, 1, 1, 256, 1, 1, 0, nullptr, args, nullptr);
    }
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    return count / took.count();
}

int main() {
    // First, while the settings are not read.
    losses();
    warp_functions();
    blocks();
    atomics_and_arguments();
    arithmetic();
    graphs();
    memory();
    mistakes();
    writes_beside();
    std::printf("ok, %.0f launches of 256 threads a second\n", launches_per_second());
}
