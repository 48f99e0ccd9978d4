// What products of many tokens have beside their jobs.
#pragma once
#include "rows.cuh"

// Lengths of a row: of its maxima over parts, and of itself. Both rounded up.
struct Lengths {
    float maxima;
    float values;
};

// What a job of many tokens has beside it.
struct Proof {
    const Lengths* rows;
    // By row of x, as the job's tokens name them.
    const Lengths* tokens;
    // [token_count, ceil(rows / 32)] words; a bit marks an output in doubt.
    u32* doubts;
    u64 unused;
};
