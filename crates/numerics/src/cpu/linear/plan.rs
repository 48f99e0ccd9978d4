//! Jobs cut into pieces of rows: small enough to share out, large enough to be worth a hand-over.

use std::ops::Range;

use super::tile::ROWS;
use crate::op::linear::Job;

/// Rows of one job, for one thread.
pub(super) struct Piece {
    pub(super) job: usize,
    pub(super) rows: Range<usize>,
}

/// Multiply-adds below which a piece is not cut further (about 60 microseconds).
const PIECE_WORK_MIN: usize = 1 << 19;
/// Pieces per thread, so that a thread that is held up does not hold up the rest.
const PIECES_PER_THREAD: usize = 8;
/// Bytes of weights in a piece that meets several tokens: what is looked at twice should still be
/// in the second-level cache.
const PIECE_BYTES_MAX: usize = 160 << 10;

/// Cuts the jobs; neighbouring pieces read neighbouring memory.
pub(super) fn pieces(threads: usize, jobs: &[Job<'_>]) -> Vec<Piece> {
    let work = |j: &Job<'_>| {
        let tokens = j.tokens.map_or(j.input.tokens(), <[u32]>::len);
        (tokens.max(1), j.weights.rows(), j.weights.cols().max(1))
    };
    let total: usize = jobs.iter().map(work).map(|(t, n, k)| t * n * k).sum();
    let aim = (total / (threads * PIECES_PER_THREAD)).max(PIECE_WORK_MIN);
    let mut out = Vec::new();
    for (index, job) in jobs.iter().enumerate() {
        let (tokens, rows, cols) = work(job);
        let cached = if tokens == 1 { usize::MAX } else { PIECE_BYTES_MAX / (2 * cols) };
        let step = (aim / (tokens * cols)).min(cached).max(1);
        let step = step.next_multiple_of(ROWS);
        for start in (0..rows).step_by(step) {
            out.push(Piece { job: index, rows: start..(start + step).min(rows) });
        }
    }
    out
}
