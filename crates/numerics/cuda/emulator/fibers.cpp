// Blocks of threads as fibers: each runs until it has to meet others.
#include "fibers.h"

#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#include <vector>

namespace emulator {

Thread* now;
Block block;

namespace {

enum class Wait { Ready, Warp, Block, Ended };

const size_t STACK_BYTES = 128 << 10;
const size_t PAGE_BYTES = 4096;
const unsigned THREADS_MAX = 1024;

struct Fiber : Thread {
    Wait wait;
    int kind;
    void* stack_pointer;
    unsigned char* stack;
    // Which of the warp's two sets of values is next.
    unsigned turn;
};

// Two sets: a lane may leave its next value before the others have read the last ones.
struct Warp {
    uint64_t values[2][32];
};

std::vector<Fiber> fibers;
std::vector<Warp> warps;
void* scheduler_stack;
const std::function<void()>* body;

// Saves what calls keep and changes stacks.
extern "C" void emulator_switch(void** save, void* to);
asm(".text\n.globl emulator_switch\nemulator_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");

void leave() {
    Fiber* self = static_cast<Fiber*>(now);
    emulator_switch(&self->stack_pointer, scheduler_stack);
}

extern "C" void emulator_fiber_start() {
    (*body)();
    static_cast<Fiber*>(now)->wait = Wait::Ended;
    leave();
    std::abort();
}

void prepare(Fiber& fiber) {
    void** top = (void**)(fiber.stack + STACK_BYTES);
    // `ret` must find the stack as after a call: 8 beside a multiple of 16.
    *--top = nullptr;
    *--top = (void*)emulator_fiber_start;
    for (int i = 0; i < 6; i++) *--top = nullptr;
    fiber.stack_pointer = top;
    fiber.wait = Wait::Ready;
    fiber.turn = 0;
}

void make_fibers() {
    if (!fibers.empty()) return;
    fibers.resize(THREADS_MAX);
    warps.resize(THREADS_MAX / 32);
    size_t each = STACK_BYTES + PAGE_BYTES;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    auto* all =
        (unsigned char*)mmap(nullptr, each * THREADS_MAX, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (all == MAP_FAILED) fail("no memory for stacks");
    for (unsigned i = 0; i < THREADS_MAX; i++) {
        // The page below a stack ends the program that outgrows it.
        mprotect(all + i * each, PAGE_BYTES, PROT_NONE);
        fibers[i].stack = all + i * each + PAGE_BYTES;
    }
}

void run_until_wait(Fiber& fiber) {
    now = &fiber;
    emulator_switch(&scheduler_stack, fiber.stack_pointer);
}

// Runs the lanes of a warp until all have ended or wait for the block.
void run_warp(unsigned first, unsigned count) {
    for (;;) {
        unsigned at_warp = 0, at_block = 0, ended = 0;
        for (unsigned i = first; i < first + count; i++) {
            if (fibers[i].wait == Wait::Ready) run_until_wait(fibers[i]);
            at_warp += fibers[i].wait == Wait::Warp;
            at_block += fibers[i].wait == Wait::Block;
            ended += fibers[i].wait == Wait::Ended;
        }
        if (at_warp == 0) {
            if (at_block != 0 && ended != 0)
                fail("a barrier that some lanes of a warp never reach");
            return;
        }
        if (at_warp != 32) fail("a warp function that not all 32 lanes reach");
        for (unsigned i = first; i < first + count; i++) {
            if (fibers[i].kind != fibers[first].kind)
                fail("lanes of a warp in different functions");
            fibers[i].wait = Wait::Ready;
        }
    }
}

}  // namespace

void fail(const char* why) {
    std::fprintf(stderr, "emulated GPU: %s (block %u %u %u, thread %u)\n", why, block.index.x,
                 block.index.y, block.index.z, now ? now->flat : 0);
    std::abort();
}

const uint64_t* meet_warp(int kind, uint64_t value) {
    Fiber* self = static_cast<Fiber*>(now);
    uint64_t* values = warps[self->flat / 32].values[self->turn];
    self->turn ^= 1;
    values[self->flat % 32] = value;
    self->kind = kind;
    self->wait = Wait::Warp;
    leave();
    return values;
}

void meet_block() {
    static_cast<Fiber*>(now)->wait = Wait::Block;
    leave();
}

void run_block(const std::function<void()>& kernel) {
    make_fibers();
    body = &kernel;
    unsigned count = block.size.x * block.size.y * block.size.z;
    if (count > THREADS_MAX) fail("more than 1024 threads in a block");
    for (unsigned i = 0; i < count; i++) {
        Fiber& f = fibers[i];
        f.flat = i;
        f.index = {i % block.size.x, i / block.size.x % block.size.y,
                   i / block.size.x / block.size.y};
        prepare(f);
    }
    for (;;) {
        for (unsigned first = 0; first < count; first += 32) {
            run_warp(first, count - first < 32 ? count - first : 32);
        }
        unsigned waiting = 0;
        for (unsigned i = 0; i < count; i++) {
            waiting += fibers[i].wait == Wait::Block;
            if (fibers[i].wait == Wait::Block) fibers[i].wait = Wait::Ready;
        }
        if (waiting == 0) return;
    }
}

}  // namespace emulator
