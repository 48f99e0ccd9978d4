// Device memory: pieces of the host's, between guards, and full of NaN until somebody writes.
#include "driver.h"

#include <map>

using emulator::fail;
using emulator::guarded;
using emulator::is_poison;
using emulator::POISON;

namespace {

// Guards hold what fresh memory does: who reads them finds NaN too.
const size_t GUARD_BYTES = 1024;
const size_t ALIGNMENT = 256;

struct Piece {
    size_t bytes;
    unsigned char* base;
};
std::map<uint64_t, Piece> pieces;
size_t used_bytes = 0;

void check_guards(const Piece& piece) {
    const unsigned char* values = piece.base + GUARD_BYTES;
    if (!is_poison(piece.base, GUARD_BYTES)) fail("a kernel wrote before a buffer");
    if (!is_poison(values + piece.bytes, GUARD_BYTES)) fail("a kernel wrote behind a buffer");
}

Result take(uint64_t* address, size_t bytes) {
    if (bytes == 0) return INVALID;
    size_t all = emulator::memory_bytes();
    if (bytes > all || used_bytes > all - bytes) return OUT_OF_MEMORY;
    size_t whole = (bytes + 2 * GUARD_BYTES + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    auto* base = (unsigned char*)std::aligned_alloc(ALIGNMENT, whole);
    if (base == nullptr) return OUT_OF_MEMORY;
    std::memset(base, POISON, whole);
    *address = (uint64_t)(base + GUARD_BYTES);
    pieces[*address] = {bytes, base};
    used_bytes += bytes;
    return OK;
}

Result give(uint64_t address) {
    if (address == 0) return OK;
    auto found = pieces.find(address);
    if (found == pieces.end()) fail("freeing what is not a buffer");
    check_guards(found->second);
    used_bytes -= found->second.bytes;
    // Whoever still reads it finds NaN.
    std::memset(found->second.base, POISON, found->second.bytes + 2 * GUARD_BYTES);
    std::free(found->second.base);
    pieces.erase(found);
    return OK;
}

// That a range lies in one piece of device memory.
void check_inside(uint64_t address, size_t bytes, const char* why) {
    auto after = pieces.upper_bound(address);
    if (after == pieces.begin()) fail(why);
    auto piece = std::prev(after);
    uint64_t at = address - piece->first;
    if (at > piece->second.bytes || bytes > piece->second.bytes - at) fail(why);
}

// A copy that a graph should repeat: nobody needs it, and dropping it unsaid would be a trap.
void check_is_not_captured(void* stream) {
    if (emulator::stream_of(stream).capturing) fail("only launches are captured");
}

Result set(uint64_t at, int value, size_t bytes) {
    check_inside(at, bytes, "clearing beside a buffer");
    std::memset((void*)at, value, bytes);
    return OK;
}

Result to_device(uint64_t to, const void* from, size_t bytes) {
    check_inside(to, bytes, "copying beside a buffer");
    std::memcpy((void*)to, from, bytes);
    return OK;
}

Result to_host(void* to, uint64_t from, size_t bytes) {
    check_inside(from, bytes, "copying from beside a buffer");
    std::memcpy(to, (const void*)from, bytes);
    return OK;
}

Result on_device(uint64_t to, uint64_t from, size_t bytes) {
    check_inside(from, bytes, "copying from beside a buffer");
    check_inside(to, bytes, "copying beside a buffer");
    if (from < to + bytes && to < from + bytes) fail("copying between ranges that overlap");
    std::memcpy((void*)to, (const void*)from, bytes);
    return OK;
}

}  // namespace

size_t emulator::memory_bytes() {
    return (size_t)emulator::setting("TARFA_EMULATOR_VRAM_MIB", 2048) << 20;
}

void emulator::check_all_guards() {
    for (const auto& piece : pieces) check_guards(piece.second);
}

DRIVER cuMemAlloc_v2(uint64_t* address, size_t bytes) {
    return guarded([&] { return take(address, bytes); });
}
DRIVER cuMemAllocAsync(uint64_t* address, size_t bytes, void* stream) {
    return guarded([&] {
        check_is_not_captured(stream);
        return take(address, bytes);
    });
}
DRIVER cuMemFree_v2(uint64_t address) {
    return guarded([&] { return give(address); });
}
DRIVER cuMemFreeAsync(uint64_t address, void* stream) {
    return guarded([&] {
        check_is_not_captured(stream);
        return give(address);
    });
}

DRIVER cuMemGetInfo_v2(size_t* left, size_t* all) {
    return guarded([&] {
        *all = emulator::memory_bytes();
        *left = *all - used_bytes;
        return OK;
    });
}
DRIVER cuDeviceTotalMem_v2(size_t* bytes, int) {
    return guarded([&] {
        *bytes = emulator::memory_bytes();
        return OK;
    });
}

DRIVER cuMemHostAlloc(void** host, size_t bytes, unsigned) {
    return guarded([&] {
        *host = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
        return *host ? OK : OUT_OF_MEMORY;
    });
}
DRIVER cuMemFreeHost(void* host) {
    return guarded([&] {
        std::free(host);
        return OK;
    });
}
DRIVER cuMemHostRegister_v2(void*, size_t bytes, unsigned) {
    return guarded([&] { return bytes == 0 ? INVALID : OK; });
}
DRIVER cuMemHostUnregister(void*) {
    return guarded([] { return OK; });
}
DRIVER cuDeviceGetDefaultMemPool(void** pool, int) {
    return guarded([&] {
        *pool = &pieces;
        return OK;
    });
}
DRIVER cuMemPoolSetAttribute(void*, int, void*) {
    return guarded([] { return OK; });
}

DRIVER cuMemsetD8_v2(uint64_t at, unsigned char value, size_t bytes) {
    return guarded([&] { return set(at, value, bytes); });
}
DRIVER cuMemsetD8Async(uint64_t at, unsigned char value, size_t bytes, void* stream) {
    return guarded([&] {
        check_is_not_captured(stream);
        return set(at, value, bytes);
    });
}
DRIVER cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t bytes) {
    return guarded([&] { return to_device(to, from, bytes); });
}
DRIVER cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void* stream) {
    return guarded([&] {
        check_is_not_captured(stream);
        return to_device(to, from, bytes);
    });
}
DRIVER cuMemcpyDtoH_v2(void* to, uint64_t from, size_t bytes) {
    return guarded([&] { return to_host(to, from, bytes); });
}
DRIVER cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void* stream) {
    return guarded([&] {
        check_is_not_captured(stream);
        return to_host(to, from, bytes);
    });
}
DRIVER cuMemcpyDtoD_v2(uint64_t to, uint64_t from, size_t bytes) {
    return guarded([&] { return on_device(to, from, bytes); });
}
DRIVER cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void* stream) {
    return guarded([&] {
        check_is_not_captured(stream);
        return on_device(to, from, bytes);
    });
}
