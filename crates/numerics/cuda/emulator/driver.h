// What the files of the driver share. Everything is done when it is queued, by the thread that
// queues it.
#pragma once
#include "fibers.h"

#include <cstdlib>
#include <mutex>
#include <vector>

typedef int Result;
const Result OK = 0, INVALID = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, NO_SUCH_DEVICE = 101;
const Result NOT_FOUND = 500, LAUNCH_FAILED = 719, STREAM_CAPTURE_UNSUPPORTED = 900;

#define DRIVER extern "C" __attribute__((visibility("default"))) Result

namespace emulator {

inline long long setting(const char* name, long long otherwise) {
    const char* value = std::getenv(name);
    return value ? std::atoll(value) : otherwise;
}

extern std::recursive_mutex door;
// Whether as many kernels ran as TARFA_EMULATOR_LOSE_AFTER says, and every call fails.
bool is_lost();

// One call at a time, and none succeeds once the device is lost.
template <class F>
Result guarded(F call) {
    std::lock_guard<std::recursive_mutex> guard(door);
    return is_lost() ? LAUNCH_FAILED : call();
}

// Launches are noted instead of run while a stream is captured.
struct Graph {
    std::vector<Launch> launches;
};
struct Stream {
    Graph* capturing = nullptr;
};
// Null and the two small numbers are streams that nobody makes.
Stream& stream_of(void* stream);

// Ends the program if somebody wrote beside a piece of device memory.
void check_all_guards();
size_t memory_bytes();

}  // namespace emulator
