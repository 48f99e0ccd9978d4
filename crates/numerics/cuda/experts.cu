// The jobs of a token's experts, made where the choice is known: no word to the host.
#include "matrix.cuh"

// The projections of one expert; of `inner` the second has no rows where gate and up are one.
struct Expert {
    Matrix inner[2];
    Matrix down;
};

// Where the experts of a token read and write. Rows of `inner`, `active` and `out` by choice.
struct ExpertPlace {
    const u16* x;
    u16* inner;
    const u16* active;
    u16* out;
    u32 inner_site;
    u32 down_site;
};

__device__ inline Job expert_job(const Matrix& weights, const u16* x, u16* y, u32 stride,
                                 u32 site) {
    return Job{weights, x, nullptr, y, 1, stride, OUTPUT_BF16, site, 0, 0};
}

// `parts` jobs in inner_jobs and one in down_jobs for each of `top_k` choices, each with as many
// blocks as said. Grid 1, block top_k
// at least.
extern "C" __global__ void expert_jobs(const u32* ids, u32 top_k, const Expert* experts, u32 parts,
                                       const ExpertPlace* place, u32 inner_blocks, u32 down_blocks,
                                       Job* inner_jobs, Job* down_jobs) {
    u32 i = threadIdx.x;
    if (i >= top_k) return;
    const Expert& expert = experts[ids[i]];
    u32 width = expert.down.cols, hidden = expert.down.rows, column = 0;
    for (u32 part = 0; part < parts; part++) {
        u16* y = place->inner + (u64)i * 2 * width + column;
        inner_jobs[i * parts + part] =
            expert_job(expert.inner[part], place->x, y, 2 * width, place->inner_site);
        inner_jobs[i * parts + part].first_block = (i * parts + part) * inner_blocks;
        inner_jobs[i * parts + part].blocks = inner_blocks;
        column += expert.inner[part].rows;
    }
    down_jobs[i] = expert_job(expert.down, place->active + (u64)i * width,
                              place->out + (u64)i * hidden, hidden, place->down_site);
    down_jobs[i].first_block = i * down_blocks;
    down_jobs[i].blocks = down_blocks;
}
