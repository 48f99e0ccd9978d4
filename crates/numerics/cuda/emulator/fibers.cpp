// Blocks of threads as fibers: each runs until it has to meet others.
#include "fibers.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <link.h>
#include <sys/mman.h>
#include <vector>

namespace emulator {

Thread* now;
Block block;

namespace {

enum class Wait { Ready, Warp, Block, Ended };

const size_t STACK_BYTES = 128 << 10;
const size_t PAGE_BYTES = 4096;
const size_t SHARED_GUARD_BYTES = 1024;

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
// Blocks, warps and lanes from the last to the first: shows who counts on the usual order.
const bool backwards = std::getenv("TARFA_EMULATOR_BACKWARDS") != nullptr;

// Saves what calls keep and changes stacks. Not `ret`: that would be predicted to return to where
// this was called, and it never does.
extern "C" void emulator_switch(void** save, void* to);
asm(".text\n.globl emulator_switch\n.hidden emulator_switch\nemulator_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\n"
    "pop %rdx\njmp *%rdx\n");

// To the next lane that can run, else to the scheduler.
void leave() {
    Fiber* self = static_cast<Fiber*>(now);
    unsigned next = backwards ? self->flat - 1 : self->flat + 1;
    bool is_in_warp = next / 32 == self->flat / 32 && next < fibers.size();
    if (is_in_warp && fibers[next].wait == Wait::Ready) {
        now = &fibers[next];
        emulator_switch(&self->stack_pointer, fibers[next].stack_pointer);
    } else {
        emulator_switch(&self->stack_pointer, scheduler_stack);
    }
}

extern "C" void emulator_fiber_start() {
    (*body)();
    static_cast<Fiber*>(now)->wait = Wait::Ended;
    leave();
    std::abort();
}

void prepare(Fiber& fiber) {
    // Tops that differ below the page, else all lanes would share a few lines of the cache.
    void** top = (void**)(fiber.stack + STACK_BYTES - fiber.flat % 32 * 128);
    // The jump must find the stack as after a call: 8 beside a multiple of 16.
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
        fibers[i].wait = Wait::Ended;
    }
}

void run_until_wait(Fiber& fiber) {
    now = &fiber;
    emulator_switch(&scheduler_stack, fiber.stack_pointer);
}

// Runs the lanes of a warp until all have ended or wait for the block.
void run_warp(unsigned first, unsigned count) {
    for (;;) {
        unsigned at_warp = 0, at_block = 0;
        for (unsigned i = 0; i < count; i++) {
            Fiber& fiber = fibers[first + (backwards ? count - 1 - i : i)];
            if (fiber.wait == Wait::Ready) run_until_wait(fiber);
            at_warp += fiber.wait == Wait::Warp;
            at_block += fiber.wait == Wait::Block;
        }
        if (at_warp == 0) {
            if (at_block != 0 && at_block != count)
                fail("a barrier that some lanes of a warp never reach");
            return;
        }
        if (at_block != 0) fail("lanes at a barrier, others of their warp in a warp function");
        if (at_warp != 32) fail("a warp function that not all 32 lanes reach");
        for (unsigned i = first; i < first + count; i++) {
            if (fibers[i].kind != fibers[first].kind)
                fail("lanes of a warp in different warp functions");
            fibers[i].wait = Wait::Ready;
        }
    }
}

void run_block(const dim3& size) {
    unsigned count = size.x * size.y * size.z;
    for (unsigned i = 0; i < count; i++) {
        Fiber& f = fibers[i];
        f.flat = i;
        f.index = {i % size.x, i / size.x % size.y, i / size.x / size.y};
        prepare(f);
    }
    unsigned warp_count = (count + 31) / 32;
    for (;;) {
        for (unsigned i = 0; i < warp_count; i++) {
            unsigned first = (backwards ? warp_count - 1 - i : i) * 32;
            run_warp(first, std::min(count - first, 32u));
        }
        unsigned waiting = 0;
        for (unsigned i = 0; i < count; i++) {
            waiting += fibers[i].wait == Wait::Block;
            if (fibers[i].wait == Wait::Block) fibers[i].wait = Wait::Ready;
        }
        if (waiting == 0) return;
    }
}

// Where the variables of `__shared__` lie: all that this library has for each system thread.
struct Extent {
    size_t before_first;
    size_t bytes;
};
thread_local unsigned char first_shared;

int find_extent(dl_phdr_info* info, size_t, void* found) {
    bool is_this = false;
    const ElfW(Phdr)* variables = nullptr;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr)& part = info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + part.p_vaddr;
        is_this |= part.p_type == PT_LOAD && (uintptr_t)&block - start < part.p_memsz;
        if (part.p_type == PT_TLS) variables = &part;
    }
    if (!is_this) return 0;
    size_t before = (size_t)(&first_shared - (unsigned char*)info->dlpi_tls_data);
    *static_cast<Extent*>(found) = {before, variables->p_memsz};
    return 1;
}

void poison_static_shared() {
    static const Extent extent = [] {
        // Touched first: before, this thread may not have them yet.
        first_shared = POISON;
        Extent found = {0, 1};
        dl_iterate_phdr(find_extent, &found);
        return found;
    }();
    std::memset(&first_shared - extent.before_first, POISON, extent.bytes);
}

}  // namespace

void fail(const char* why) {
    const char* kernel = block.kernel ? block.kernel : "no kernel";
    if (now) {
        std::fprintf(stderr, "emulated GPU: %s (in %s, block %u %u %u, thread %u)\n", why, kernel,
                     block.index.x, block.index.y, block.index.z, now->flat);
    } else {
        std::fprintf(stderr, "emulated GPU: %s (after %s)\n", why, kernel);
    }
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

void run(const Launch& launch) {
    make_fibers();
    body = &launch.kernel;
    size_t room_bytes = launch.shared_bytes + SHARED_GUARD_BYTES;
    static std::vector<unsigned char> room;
    if (room.size() < room_bytes + 128) room.resize(room_bytes + 128);
    auto* shared = (unsigned char*)(((uintptr_t)room.data() + 127) / 128 * 128);
    block = {{0, 0, 0}, launch.size, launch.grid, shared, launch.name};
    uint64_t count = (uint64_t)launch.grid.x * launch.grid.y * launch.grid.z;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t flat = backwards ? count - 1 - i : i;
        block.index = {(unsigned)(flat % launch.grid.x),
                       (unsigned)(flat / launch.grid.x % launch.grid.y),
                       (unsigned)(flat / launch.grid.x / launch.grid.y)};
        std::memset(shared, POISON, room_bytes);
        poison_static_shared();
        run_block(launch.size);
        if (!is_poison(shared + launch.shared_bytes, SHARED_GUARD_BYTES))
            fail("a write behind the shared memory");
    }
    now = nullptr;
}

}  // namespace emulator
