// What every kernel starts from: integer types, lanes, and the record of the first failure.
#pragma once

#ifdef TARFA_EMULATOR
#include "emulator/runtime.h"
#define SHARED_BYTES(name) u8* name = emulator_shared_bytes()
#else
#define SHARED_BYTES(name) extern __shared__ __align__(16) u8 name[]
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;

const u32 WARP = 32;
const u32 ALL_LANES = 0xffffffffu;

__device__ inline u32 lane() { return threadIdx.x & (WARP - 1); }

// The first value that was not finite. `site` names the operation and the layer, 0 means none.
struct Failure {
    u32 site;
    u32 token;
    u32 row;
    u32 unused;
};

__device__ inline void report(Failure* failure, u32 site, u32 token, u32 row) {
    if (atomicCAS(&failure->site, 0u, site) == 0u) {
        failure->token = token;
        failure->row = row;
    }
}
