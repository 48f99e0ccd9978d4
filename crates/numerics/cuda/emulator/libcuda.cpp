// The functions of the CUDA driver that the program calls, apart from those of memory. Settings:
// TARFA_EMULATOR_CAPABILITY (9.0), _VRAM_MIB (2048), _DRIVER (12090), _DEVICES (1), _LOSE_AFTER
// (never; every call fails once so many kernels ran), _BACKWARDS (unset).
#include "driver.h"

#include <chrono>
#include <cstdio>
#include <map>
#include <string>

using emulator::Graph;
using emulator::guarded;
using emulator::setting;
using emulator::Stream;
using emulator::stream_of;

std::recursive_mutex emulator::door;

namespace {

const unsigned SHARED_BYTES_MAX = 227 << 10;

std::map<std::string, emulator::Kernel>& kernels() {
    static std::map<std::string, emulator::Kernel> all;
    return all;
}

long long kernels_run = 0;

Result run_counted(const emulator::Launch& launch) {
    if (emulator::is_lost()) return LAUNCH_FAILED;
    emulator::run(launch);
    kernels_run++;
    return OK;
}

struct Event {
    std::chrono::steady_clock::time_point at;
    bool is_recorded = false;
};

Result record(void* event) {
    return guarded([&] {
        *static_cast<Event*>(event) = {std::chrono::steady_clock::now(), true};
        return OK;
    });
}

// "9.0", or as ten times that.
struct Capability {
    int major, minor;
};
Capability capability() {
    const char* value = std::getenv("TARFA_EMULATOR_CAPABILITY");
    std::string text = value ? value : "9.0";
    size_t point = text.find('.');
    if (point != std::string::npos) {
        return {std::atoi(text.c_str()), std::atoi(text.c_str() + point + 1)};
    }
    return {std::atoi(text.c_str()) / 10, std::atoi(text.c_str()) % 10};
}

// Rate of f32 to that of f64, as cards of this capability have it.
int f64_slowness() {
    Capability is = capability();
    if (is.major == 7 && is.minor == 5) return 32;
    bool is_for_centers = is.minor == 0 && is.major != 12;
    return is_for_centers ? 2 : 64;
}

int attribute_value(int attribute) {
    switch (attribute) {
        case 1:  // threads of a block
        case 2:  // and in x
        case 3:  // and in y
            return (int)emulator::THREADS_MAX;
        case 4:  // and in z
            return 64;
        case 5:  // blocks in x
            return INT32_MAX;
        case 6:  // and in y
        case 7:  // and in z
            return 65535;
        case 8:  // shared memory of a block
            return 48 << 10;
        case 10:  // lanes of a warp
            return 32;
        case 16:  // multiprocessors
            return 4;
        case 41:  // one address space
            return 1;
        case 75:  // compute capability
            return capability().major;
        case 76:
            return capability().minor;
        case 87:
            return f64_slowness();
        case 97:  // shared memory of a block that asks for it
            return (int)SHARED_BYTES_MAX;
        case 115:  // memory pools
            return 1;
        default:
            return 0;
    }
}

struct Words {
    Result error;
    const char *name, *meaning;
};
const Words WORDS[] = {
    {OK, "CUDA_SUCCESS", "no error"},
    {INVALID, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {NO_SUCH_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
};

Result text_of(Result error, const char* Words::*which, const char** text) {
    *text = nullptr;
    for (const Words& words : WORDS) {
        if (words.error == error) *text = words.*which;
    }
    return *text ? OK : INVALID;
}

}  // namespace

void emulator::enter(const Kernel& kernel) {
    if (!kernels().emplace(kernel.name, kernel).second) fail("two kernels of one name");
}

bool emulator::is_lost() {
    static const long long most = setting("TARFA_EMULATOR_LOSE_AFTER", -1);
    return most >= 0 && kernels_run >= most;
}

Stream& emulator::stream_of(void* stream) {
    static Stream otherwise;
    return (uintptr_t)stream <= 2 ? otherwise : *static_cast<Stream*>(stream);
}

DRIVER cuInit(unsigned) {
    return guarded([] { return setting("TARFA_EMULATOR_DEVICES", 1) > 0 ? OK : NO_DEVICE; });
}
DRIVER cuDriverGetVersion(int* version) {
    *version = (int)setting("TARFA_EMULATOR_DRIVER", 12090);
    return OK;
}
DRIVER cuGetErrorName(Result error, const char** text) {
    return text_of(error, &Words::name, text);
}
DRIVER cuGetErrorString(Result error, const char** text) {
    return text_of(error, &Words::meaning, text);
}

DRIVER cuDeviceGetCount(int* count) {
    return guarded([&] {
        *count = (int)setting("TARFA_EMULATOR_DEVICES", 1);
        return OK;
    });
}
DRIVER cuDeviceGet(int* device, int ordinal) {
    return guarded([&] {
        if (ordinal < 0 || ordinal >= setting("TARFA_EMULATOR_DEVICES", 1)) return NO_SUCH_DEVICE;
        *device = ordinal;
        return OK;
    });
}
DRIVER cuDeviceGetName(char* name, int len, int) {
    return guarded([&] {
        std::snprintf(name, (size_t)len, "tarfa emulator");
        return OK;
    });
}
DRIVER cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
    return guarded([&] {
        std::memset(uuid, device, 16);
        return OK;
    });
}
DRIVER cuDeviceGetAttribute(int* value, int attribute, int) {
    return guarded([&] {
        *value = attribute_value(attribute);
        return OK;
    });
}

// There is one context, and every thread has it.
DRIVER cuCtxGetCurrent(void** context) {
    return guarded([&] {
        *context = &emulator::door;
        return OK;
    });
}
DRIVER cuDevicePrimaryCtxRetain(void** context, int) { return cuCtxGetCurrent(context); }
DRIVER cuDevicePrimaryCtxRelease_v2(int) {
    return guarded([] { return OK; });
}
DRIVER cuCtxSetCurrent(void*) {
    return guarded([] { return OK; });
}
DRIVER cuCtxSynchronize() {
    return guarded([] {
        emulator::check_all_guards();
        return OK;
    });
}

DRIVER cuStreamCreate(void** stream, unsigned) {
    return guarded([&] {
        *stream = new Stream;
        return OK;
    });
}
DRIVER cuStreamCreateWithPriority(void** stream, unsigned flags, int) {
    return cuStreamCreate(stream, flags);
}
DRIVER cuStreamDestroy_v2(void* stream) {
    return guarded([&] {
        delete static_cast<Stream*>(stream);
        return OK;
    });
}
DRIVER cuStreamSynchronize(void* stream) {
    return guarded([&] {
        if (stream_of(stream).capturing) return STREAM_CAPTURE_UNSUPPORTED;
        emulator::check_all_guards();
        return OK;
    });
}
DRIVER cuStreamQuery(void* stream) { return cuStreamSynchronize(stream); }
DRIVER cuStreamWaitEvent(void*, void*, unsigned) {
    return guarded([] { return OK; });
}

DRIVER cuEventCreate(void** event, unsigned) {
    return guarded([&] {
        *event = new Event;
        return OK;
    });
}
DRIVER cuEventDestroy_v2(void* event) {
    return guarded([&] {
        delete static_cast<Event*>(event);
        return OK;
    });
}
DRIVER cuEventRecord(void* event, void*) { return record(event); }
DRIVER cuEventRecordWithFlags(void* event, void*, unsigned) { return record(event); }
DRIVER cuEventQuery(void*) {
    return guarded([] { return OK; });
}
DRIVER cuEventSynchronize(void*) {
    return guarded([] {
        emulator::check_all_guards();
        return OK;
    });
}
DRIVER cuEventElapsedTime_v2(float* ms, void* from, void* to) {
    return guarded([&] {
        const Event &first = *static_cast<Event*>(from), &last = *static_cast<Event*>(to);
        if (!first.is_recorded || !last.is_recorded) return INVALID;
        *ms = std::chrono::duration<float, std::milli>(last.at - first.at).count();
        return OK;
    });
}
DRIVER cuEventElapsedTime(float* ms, void* from, void* to) {
    return cuEventElapsedTime_v2(ms, from, to);
}

// A module is all kernels, whatever its PTX says.
DRIVER cuModuleLoadData(void** module, const void*) {
    return guarded([&] {
        *module = &kernels();
        return OK;
    });
}
DRIVER cuModuleUnload(void*) {
    return guarded([] { return OK; });
}
DRIVER cuModuleGetFunction(void** function, void*, const char* name) {
    return guarded([&] {
        auto found = kernels().find(name);
        if (found == kernels().end()) return NOT_FOUND;
        *function = &found->second;
        return OK;
    });
}
DRIVER cuFuncSetAttribute(void* function, int attribute, int value) {
    return guarded([&] {
        if (attribute != 8) return OK;
        if (value < 0 || (unsigned)value > SHARED_BYTES_MAX) return INVALID;
        static_cast<emulator::Kernel*>(function)->shared_bytes_max = (unsigned)value;
        return OK;
    });
}
DRIVER cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int block, size_t) {
    return guarded([&] {
        *blocks = block > 0 ? 2048 / block : 0;
        return OK;
    });
}

DRIVER cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                      unsigned by, unsigned bz, unsigned shared, void* stream, void** params,
                      void**) {
    return guarded([&]() -> Result {
        auto* kernel = static_cast<emulator::Kernel*>(function);
        if (gx == 0 || gy == 0 || gz == 0 || gx > INT32_MAX || gy > 65535 || gz > 65535)
            return INVALID;
        uint64_t threads = (uint64_t)bx * by * bz;
        if (threads == 0 || threads > emulator::THREADS_MAX) return INVALID;
        if (shared > kernel->shared_bytes_max) return INVALID;
        emulator::Launch launch = {
            {gx, gy, gz}, {bx, by, bz}, shared, kernel->name, kernel->bind(params)};
        if (Graph* graph = stream_of(stream).capturing) {
            graph->launches.push_back(launch);
            return OK;
        }
        return run_counted(launch);
    });
}

DRIVER cuStreamBeginCapture_v2(void* stream, int) {
    return guarded([&] {
        if (stream_of(stream).capturing) return INVALID;
        stream_of(stream).capturing = new Graph;
        return OK;
    });
}
DRIVER cuStreamIsCapturing(void* stream, int* status) {
    return guarded([&] {
        *status = stream_of(stream).capturing != nullptr;
        return OK;
    });
}
DRIVER cuStreamEndCapture(void* stream, void** graph) {
    return guarded([&] {
        *graph = stream_of(stream).capturing;
        stream_of(stream).capturing = nullptr;
        return *graph ? OK : INVALID;
    });
}
DRIVER cuGraphInstantiateWithFlags(void** exec, void* graph, unsigned long long) {
    return guarded([&] {
        *exec = new Graph(*static_cast<Graph*>(graph));
        return OK;
    });
}
DRIVER cuGraphUpload(void*, void*) {
    return guarded([] { return OK; });
}
DRIVER cuGraphLaunch(void* exec, void*) {
    return guarded([&]() -> Result {
        for (const emulator::Launch& launch : static_cast<Graph*>(exec)->launches) {
            if (Result failed = run_counted(launch)) return failed;
        }
        return OK;
    });
}
DRIVER cuGraphExecDestroy(void* exec) {
    return guarded([&] {
        delete static_cast<Graph*>(exec);
        return OK;
    });
}
DRIVER cuGraphDestroy(void* graph) { return cuGraphExecDestroy(graph); }
