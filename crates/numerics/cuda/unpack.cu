// Packed projections as plain bf16, for products that read them many times.
#include "matrix.cuh"

struct Unpacking {
    Matrix packed;
    u16* out;
    u64 unused;
};

// A lane of a group: an element of each of its four planes. Escapes get what their group holds.
// Grid (any, projections), block any.
extern "C" __global__ void unpack(const Unpacking* all) {
    const Matrix& w = all[blockIdx.y].packed;
    u64 elements = (u64)w.rows * w.cols, lanes = (elements + GROUP - 1) / GROUP * PLANE;
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < lanes; i += (u64)gridDim.x * blockDim.x) {
        u64 place = i / PLANE * GROUP + i % PLANE;
        for (u32 plane = 0; plane < 4 && place < elements; plane++, place += PLANE) {
            all[blockIdx.y].out[place] = in_group(w, (u32)(place / w.cols), place);
        }
    }
}

// The escapes, after `unpack`.
extern "C" __global__ void unpack_escapes(const Unpacking* all) {
    const Matrix& w = all[blockIdx.y].packed;
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < w.escape_starts[w.rows]; i += gridDim.x * blockDim.x) {
        all[blockIdx.y].out[w.escape_places[i]] = w.escape_values[i];
    }
}
