// The functions of the CUDA driver that the program uses. Everything is done when it is queued.
#include "fibers.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

using emulator::block;
using emulator::fail;

namespace {

typedef int Result;
const Result OK = 0, INVALID = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, NOT_FOUND = 500;
const Result LAUNCH_FAILED = 719;

std::recursive_mutex door;

long long setting(const char* name, long long otherwise) {
    const char* value = std::getenv(name);
    return value ? std::atoll(value) : otherwise;
}

std::map<std::string, emulator::Kernel>& kernels() {
    static std::map<std::string, emulator::Kernel> all;
    return all;
}

// Device memory: between guards, and full of NaN until somebody writes.
const size_t GUARD_BYTES = 256;
const unsigned char POISON = 0xff, GUARD = 0xa5;
struct Piece {
    size_t bytes;
    unsigned char* base;
};
std::map<uint64_t, Piece> pieces;
size_t used_bytes = 0;

size_t memory_bytes() { return (size_t)setting("TARFA_EMULATOR_VRAM_MIB", 2048) << 20; }

void check_guards(const Piece& piece) {
    const unsigned char* after = piece.base + GUARD_BYTES + piece.bytes;
    for (size_t i = 0; i < GUARD_BYTES; i++) {
        if (piece.base[i] != GUARD || after[i] != GUARD) fail("a kernel wrote beside a buffer");
    }
}

Result take(uint64_t* address, size_t bytes) {
    if (used_bytes + bytes > memory_bytes()) return OUT_OF_MEMORY;
    auto* base =
        (unsigned char*)std::aligned_alloc(256, (bytes + 2 * GUARD_BYTES + 255) / 256 * 256);
    std::memset(base, GUARD, GUARD_BYTES);
    std::memset(base + GUARD_BYTES, POISON, bytes);
    std::memset(base + GUARD_BYTES + bytes, GUARD, GUARD_BYTES);
    *address = (uint64_t)(base + GUARD_BYTES);
    pieces[*address] = {bytes, base};
    used_bytes += bytes;
    return OK;
}

Result give(uint64_t address) {
    auto found = pieces.find(address);
    if (found == pieces.end()) return INVALID;
    check_guards(found->second);
    used_bytes -= found->second.bytes;
    std::memset(found->second.base, POISON, found->second.bytes + 2 * GUARD_BYTES);
    std::free(found->second.base);
    pieces.erase(found);
    return OK;
}

// Whether a range lies in one piece of device memory.
bool is_device(uint64_t address, size_t bytes) {
    auto after = pieces.upper_bound(address);
    if (after == pieces.begin()) return false;
    auto piece = std::prev(after);
    return address + bytes <= piece->first + piece->second.bytes;
}

struct Launch {
    dim3 grid, size;
    std::vector<unsigned char> shared;
    std::function<void()> kernel;
};

void run(Launch& launch) {
    block.size = launch.size;
    block.grid = launch.grid;
    block.shared = (unsigned char*)(((uintptr_t)launch.shared.data() + 127) / 128 * 128);
    for (unsigned z = 0; z < launch.grid.z; z++) {
        for (unsigned y = 0; y < launch.grid.y; y++) {
            for (unsigned x = 0; x < launch.grid.x; x++) {
                block.index = {x, y, z};
                std::memset(launch.shared.data(), POISON, launch.shared.size());
                emulator::run_block(launch.kernel);
            }
        }
    }
}

// Launches of a stream are noted instead of run while it is captured.
struct Graph {
    std::vector<Launch> launches;
};
struct Stream {
    Graph* capturing = nullptr;
};
long long launches_left = setting("TARFA_EMULATOR_LOSE_AFTER", -1);
bool lost = false;

}  // namespace

void emulator::enter(const Kernel& kernel) { kernels()[kernel.name] = kernel; }

// A call: one at a time, and none succeeds once the device is lost.
#define CALL(name, ...)                   \
    static Result do_##name(__VA_ARGS__); \
    extern "C" __attribute__((visibility("default"))) Result name(__VA_ARGS__)
#define LOCKED(name, ...)                                     \
    {                                                         \
        std::lock_guard<std::recursive_mutex> guard(door);    \
        return lost ? LAUNCH_FAILED : do_##name(__VA_ARGS__); \
    }

CALL(cuInit, unsigned flags) LOCKED(cuInit, flags) static Result do_cuInit(unsigned) {
    return setting("TARFA_EMULATOR_DEVICES", 1) > 0 ? OK : NO_DEVICE;
}

CALL(cuDriverGetVersion, int* version)
LOCKED(cuDriverGetVersion, version) static Result do_cuDriverGetVersion(int* version) {
    *version = (int)setting("TARFA_EMULATOR_DRIVER", 12090);
    return OK;
}

CALL(cuDeviceGetCount, int* count)
LOCKED(cuDeviceGetCount, count) static Result do_cuDeviceGetCount(int* count) {
    *count = (int)setting("TARFA_EMULATOR_DEVICES", 1);
    return OK;
}

CALL(cuDeviceGet, int* device, int ordinal)
LOCKED(cuDeviceGet, device, ordinal) static Result do_cuDeviceGet(int* device, int ordinal) {
    *device = ordinal;
    return OK;
}

CALL(cuDeviceGetName, char* name, int len, int device)
LOCKED(cuDeviceGetName, name, len, device)
static Result do_cuDeviceGetName(char* name, int len, int) {
    std::snprintf(name, (size_t)len, "emulated GPU");
    return OK;
}

CALL(cuDeviceTotalMem_v2, size_t* bytes, int device)
LOCKED(cuDeviceTotalMem_v2, bytes, device)
static Result do_cuDeviceTotalMem_v2(size_t* bytes, int) {
    *bytes = memory_bytes();
    return OK;
}

CALL(cuDeviceGetAttribute, int* value, int attribute, int device)
LOCKED(cuDeviceGetAttribute, value, attribute, device)
static Result do_cuDeviceGetAttribute(int* value, int attribute, int) {
    long long capability = setting("TARFA_EMULATOR_CAPABILITY", 90);
    switch (attribute) {
        case 16:
            *value = 1;
            break;  // multiprocessors
        case 75:
            *value = (int)(capability / 10);
            break;  // compute capability
        case 76:
            *value = (int)(capability % 10);
            break;
        case 87:
            *value = 2;
            break;  // rate of f32 to that of f64
        case 115:
            *value = 1;
            break;  // memory pools
        default:
            *value = 0;
    }
    return OK;
}

CALL(cuDevicePrimaryCtxRetain, void** context, int device)
LOCKED(cuDevicePrimaryCtxRetain, context, device)
static Result do_cuDevicePrimaryCtxRetain(void** context, int) {
    *context = &pieces;
    return OK;
}

CALL(cuCtxGetCurrent, void** context)
LOCKED(cuCtxGetCurrent, context) static Result do_cuCtxGetCurrent(void** context) {
    *context = &pieces;
    return OK;
}

CALL(cuStreamCreate, void** stream, unsigned flags)
LOCKED(cuStreamCreate, stream, flags) static Result do_cuStreamCreate(void** stream, unsigned) {
    *stream = new Stream;
    return OK;
}

CALL(cuEventCreate, void** event, unsigned flags)
LOCKED(cuEventCreate, event, flags) static Result do_cuEventCreate(void** event, unsigned) {
    *event = &used_bytes;
    return OK;
}

#define NOTHING(name, ...)                                                       \
    extern "C" __attribute__((visibility("default"))) Result name(__VA_ARGS__) { \
        return lost ? LAUNCH_FAILED : OK;                                        \
    }
NOTHING(cuDevicePrimaryCtxRelease_v2, int)
NOTHING(cuCtxSetCurrent, void*)
CALL(cuStreamDestroy_v2, void* stream)
LOCKED(cuStreamDestroy_v2, stream) static Result do_cuStreamDestroy_v2(void* stream) {
    delete static_cast<Stream*>(stream);
    return OK;
}
NOTHING(cuStreamWaitEvent, void*, void*, unsigned)
NOTHING(cuEventDestroy_v2, void*)
NOTHING(cuEventRecord, void*, void*)
NOTHING(cuEventRecordWithFlags, void*, void*, unsigned)
NOTHING(cuEventQuery, void*)
NOTHING(cuEventSynchronize, void*)
NOTHING(cuModuleUnload, void*)
NOTHING(cuFuncSetAttribute, void*, int, int)
NOTHING(cuGraphDestroy, void*)
NOTHING(cuMemHostRegister_v2, void*, size_t, unsigned)
NOTHING(cuMemHostUnregister, void*)
NOTHING(cuMemPoolSetAttribute, void*, int, void*)
NOTHING(cuCtxSynchronize)

CALL(cuDeviceGetDefaultMemPool, void** pool, int device)
LOCKED(cuDeviceGetDefaultMemPool, pool, device)
static Result do_cuDeviceGetDefaultMemPool(void** pool, int) {
    *pool = &pieces;
    return OK;
}

CALL(cuEventElapsedTime, float* ms, void* a, void* b)
LOCKED(cuEventElapsedTime, ms, a, b) static Result do_cuEventElapsedTime(float* ms, void*, void*) {
    *ms = 0.0f;
    return OK;
}

CALL(cuStreamSynchronize, void* stream)
LOCKED(cuStreamSynchronize, stream) static Result do_cuStreamSynchronize(void*) {
    for (const auto& piece : pieces) check_guards(piece.second);
    return OK;
}

CALL(cuMemAllocAsync, uint64_t* address, size_t bytes, void* stream)
LOCKED(cuMemAllocAsync, address, bytes, stream)
static Result do_cuMemAllocAsync(uint64_t* address, size_t bytes, void*) {
    return take(address, bytes);
}

CALL(cuMemAlloc_v2, uint64_t* address, size_t bytes)
LOCKED(cuMemAlloc_v2, address, bytes)
static Result do_cuMemAlloc_v2(uint64_t* address, size_t bytes) {
    return take(address, bytes);
}

CALL(cuMemFreeAsync, uint64_t address, void* stream)
LOCKED(cuMemFreeAsync, address, stream) static Result do_cuMemFreeAsync(uint64_t address, void*) {
    return give(address);
}

CALL(cuMemFree_v2, uint64_t address)
LOCKED(cuMemFree_v2, address) static Result do_cuMemFree_v2(uint64_t address) {
    return give(address);
}

CALL(cuMemGetInfo_v2, size_t* left, size_t* all)
LOCKED(cuMemGetInfo_v2, left, all) static Result do_cuMemGetInfo_v2(size_t* left, size_t* all) {
    *all = memory_bytes();
    *left = *all - used_bytes;
    return OK;
}

CALL(cuMemHostAlloc, void** host, size_t bytes, unsigned flags)
LOCKED(cuMemHostAlloc, host, bytes, flags)
static Result do_cuMemHostAlloc(void** host, size_t bytes, unsigned) {
    *host = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return *host ? OK : OUT_OF_MEMORY;
}

CALL(cuMemFreeHost, void* host)
LOCKED(cuMemFreeHost, host) static Result do_cuMemFreeHost(void* host) {
    std::free(host);
    return OK;
}

CALL(cuMemsetD8Async, uint64_t at, unsigned char value, size_t bytes, void* stream)
LOCKED(cuMemsetD8Async, at, value, bytes, stream)
static Result do_cuMemsetD8Async(uint64_t at, unsigned char value, size_t bytes, void*) {
    if (!is_device(at, bytes)) fail("clearing beside a buffer");
    std::memset((void*)at, value, bytes);
    return OK;
}

CALL(cuMemcpyHtoDAsync_v2, uint64_t to, const void* from, size_t bytes, void* stream)
LOCKED(cuMemcpyHtoDAsync_v2, to, from, bytes, stream)
static Result do_cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void*) {
    if (!is_device(to, bytes)) fail("copying beside a buffer");
    std::memcpy((void*)to, from, bytes);
    return OK;
}

CALL(cuMemcpyDtoHAsync_v2, void* to, uint64_t from, size_t bytes, void* stream)
LOCKED(cuMemcpyDtoHAsync_v2, to, from, bytes, stream)
static Result do_cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void*) {
    if (!is_device(from, bytes)) fail("copying from beside a buffer");
    std::memcpy(to, (const void*)from, bytes);
    return OK;
}

CALL(cuMemcpyDtoDAsync_v2, uint64_t to, uint64_t from, size_t bytes, void* stream)
LOCKED(cuMemcpyDtoDAsync_v2, to, from, bytes, stream)
static Result do_cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void*) {
    if (!is_device(from, bytes) || !is_device(to, bytes)) fail("copying beside buffers");
    std::memmove((void*)to, (const void*)from, bytes);
    return OK;
}

CALL(cuModuleLoadData, void** module, const void* image)
LOCKED(cuModuleLoadData, module, image)
static Result do_cuModuleLoadData(void** module, const void*) {
    *module = &used_bytes;
    return OK;
}

CALL(cuModuleGetFunction, void** function, void* module, const char* name)
LOCKED(cuModuleGetFunction, function, module, name)
static Result do_cuModuleGetFunction(void** function, void*, const char* name) {
    auto found = kernels().find(name);
    if (found == kernels().end()) return NOT_FOUND;
    *function = &found->second;
    return OK;
}

CALL(cuLaunchKernel, void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
     unsigned by, unsigned bz, unsigned shared, void* stream, void** params, void** extra)
LOCKED(cuLaunchKernel, function, gx, gy, gz, bx, by, bz, shared, stream, params, extra)
static Result do_cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                unsigned by, unsigned bz, unsigned shared, void* stream,
                                void** params, void**) {
    if (gx == 0 || gy == 0 || gz == 0 || gy > 65535 || gz > 65535) return INVALID;
    auto* kernel = static_cast<emulator::Kernel*>(function);
    Launch launch = {
        {gx, gy, gz}, {bx, by, bz}, std::vector<unsigned char>(shared + 128), kernel->bind(params)};
    if (Graph* graph = static_cast<Stream*>(stream)->capturing) {
        graph->launches.push_back(launch);
        return OK;
    }
    if (launches_left >= 0 && launches_left-- == 0) lost = true;
    if (lost) return LAUNCH_FAILED;
    run(launch);
    return OK;
}

CALL(cuStreamBeginCapture_v2, void* stream, int mode)
LOCKED(cuStreamBeginCapture_v2, stream, mode)
static Result do_cuStreamBeginCapture_v2(void* stream, int) {
    static_cast<Stream*>(stream)->capturing = new Graph;
    return OK;
}

CALL(cuStreamEndCapture, void* stream, void** graph)
LOCKED(cuStreamEndCapture, stream, graph)
static Result do_cuStreamEndCapture(void* stream, void** graph) {
    *graph = static_cast<Stream*>(stream)->capturing;
    static_cast<Stream*>(stream)->capturing = nullptr;
    return OK;
}

CALL(cuGraphInstantiateWithFlags, void** exec, void* graph, unsigned long long flags)
LOCKED(cuGraphInstantiateWithFlags, exec, graph, flags)
static Result do_cuGraphInstantiateWithFlags(void** exec, void* graph, unsigned long long) {
    *exec = graph;
    return OK;
}

CALL(cuGraphExecDestroy, void* exec)
LOCKED(cuGraphExecDestroy, exec) static Result do_cuGraphExecDestroy(void* exec) {
    delete static_cast<Graph*>(exec);
    return OK;
}

CALL(cuGraphLaunch, void* exec, void* stream)
LOCKED(cuGraphLaunch, exec, stream) static Result do_cuGraphLaunch(void* exec, void*) {
    for (Launch& launch : static_cast<Graph*>(exec)->launches) run(launch);
    return OK;
}

static Result text_of(int error, const char** text) {
    *text = error == OUT_OF_MEMORY   ? "out of memory"
            : error == LAUNCH_FAILED ? "launch failed"
                                     : "error";
    return OK;
}
extern "C" __attribute__((visibility("default"))) Result cuGetErrorName(int e, const char** t) {
    return text_of(e, t);
}
extern "C" __attribute__((visibility("default"))) Result cuGetErrorString(int e, const char** t) {
    return text_of(e, t);
}
