// What the driver's functions need of the fibers.
#pragma once
#include "runtime.h"

namespace emulator {

// A grid that was queued.
struct Launch {
    dim3 grid, size;
    unsigned shared_bytes;
    const char* name;
    std::function<void()> kernel;
};

const unsigned THREADS_MAX = 1024;
const unsigned char POISON = 0xff;

inline bool is_poison(const unsigned char* from, size_t bytes) {
    return from[0] == POISON && std::memcmp(from, from + 1, bytes - 1) == 0;
}

// Runs all blocks, one after the other, on shared memory that holds nothing but NaN.
void run(const Launch& launch);

}  // namespace emulator
