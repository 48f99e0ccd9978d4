// What the driver's functions need of the fibers.
#pragma once
#include "runtime.h"

namespace emulator {

// Runs the block that `block` describes.
void run_block(const std::function<void()>& kernel);

// Ends the program: a kernel did what no GPU would do well.
[[noreturn]] void fail(const char* why);

}  // namespace emulator
