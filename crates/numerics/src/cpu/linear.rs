//! The three stages of a projection: f32 with a proven bound, f64 with one, exact.
//!
//! One token: `direct` sums the products and, beside them, `c * |w| * |x|`, where c counts the
//! roundings that the product at that place passes through; so the bound is as tight as the data
//! allows and needs nothing but the row itself. Several tokens: `tile` keeps R x C sums in
//! registers and the bound comes from Cauchy and Schwarz, `sqrt(S w^2) * sqrt(S c^2 x^2)`.
//! Outputs whose rounding is in doubt go to `wide`, in f64, and from there to `ExactSum`.

mod fast;
mod packed;
mod plan;
mod prepared;
mod short;
mod tile;
mod wide;

pub(crate) use packed::unpack_at;
pub use prepared::Prepared;
pub(super) use wide::{dot as wide_dot, roundings as wide_roundings};

use std::sync::Mutex;

use half::bf16;

use super::{Cpu, SimdLevel, for_level};
use crate::NonFinite;
use crate::cpu::lanes::Lanes;
use crate::op::linear::{Elements, Job, JobError, Output};

/// Computes the jobs in pieces of rows, any piece on any thread.
pub(crate) fn run(cpu: &Cpu, jobs: &mut [Job<'_>]) -> Result<(), JobError> {
    let sinks: Vec<Sink> = jobs.iter_mut().map(Sink::new).collect();
    let pieces = plan::pieces(cpu.threads(), jobs);
    let failure = Mutex::new(None);
    let jobs: &[Job<'_>] = jobs;
    cpu.each(pieces.len(), |i| {
        let piece = &pieces[i];
        let job = &jobs[piece.job];
        let task = Task { job, rows: piece.rows.clone(), sink: &sinks[piece.job] };
        if let Err(at) = rows_at(cpu.level(), &task) {
            let mut first = failure.lock().expect("no thread panics while it reports");
            first.get_or_insert(JobError { job: piece.job, at });
        }
    });
    match failure.into_inner().expect("no thread panics while it reports") {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// A run of rows of one job.
pub(super) struct Task<'a> {
    job: &'a Job<'a>,
    rows: std::ops::Range<usize>,
    sink: &'a Sink,
}

impl Task<'_> {
    fn token_count(&self) -> usize {
        self.job.tokens.map_or(self.job.input.tokens(), <[u32]>::len)
    }

    /// The row of `input` behind output token `t`.
    #[inline(always)]
    fn source(&self, t: usize) -> usize {
        self.job.tokens.map_or(t, |list| list[t] as usize)
    }

    /// The always-right stage for one output.
    #[inline(never)]
    fn exact(&self, row: usize, t: usize) -> Result<(), NonFinite> {
        let k = self.job.weights.cols();
        let range = row * k..(row + 1) * k;
        let weights = match self.job.weights.elements() {
            Elements::Bf16(w) => Elements::Bf16(&w[range]),
            Elements::F32(w) => Elements::F32(&w[range]),
            packed @ Elements::Packed(_) => packed,
        };
        let sum = crate::op::linear::exact_dot(weights, self.job.input.raw(self.source(t)));
        let failed = NonFinite { row, token: t };
        match self.sink {
            Sink::Bf16 { .. } => self.sink.put_bf16(t, row, sum.to_bf16().ok_or(failed)?),
            Sink::F32 { .. } => self.sink.put_f32(t, row, sum.to_f32().ok_or(failed)?),
        }
        Ok(())
    }
}

/// The output of a job, written by several threads at disjoint rows.
pub(super) enum Sink {
    Bf16 { out: *mut bf16, rows: usize, len: usize },
    F32 { out: *mut f32, rows: usize, len: usize },
}

// SAFETY: a sink is only written through `put_*`, and `plan::pieces` gives each row of a job to
// exactly one piece, each piece to one thread; the exclusive borrow of the jobs outlives the run.
unsafe impl Sync for Sink {}
// SAFETY: as above; the pointer is not tied to a thread.
unsafe impl Send for Sink {}

impl Sink {
    fn new(job: &mut Job<'_>) -> Sink {
        let rows = job.weights.rows();
        match &mut job.output {
            Output::Bf16(o) => Sink::Bf16 { out: o.as_mut_ptr(), rows, len: o.len() },
            Output::F32(o) => Sink::F32 { out: o.as_mut_ptr(), rows, len: o.len() },
        }
    }

    /// The same output without its first rows.
    fn below(&self, first: usize) -> Sink {
        match *self {
            Sink::Bf16 { out, rows, len } => {
                Sink::Bf16 { out: out.wrapping_add(first), rows, len: len - first }
            }
            Sink::F32 { out, rows, len } => {
                Sink::F32 { out: out.wrapping_add(first), rows, len: len - first }
            }
        }
    }

    fn put_bf16(&self, t: usize, row: usize, v: bf16) {
        let Sink::Bf16 { out, rows, len } = self else { unreachable!("a bf16 output") };
        let at = t * rows + row;
        assert!(at < *len);
        // SAFETY: inside the output, and this thread alone owns the row (see `Sync`).
        unsafe { out.add(at).write(v) }
    }

    /// Writes neighbouring rows of one token.
    #[inline(always)]
    fn put_bf16_rows(&self, t: usize, row: usize, values: &[bf16]) {
        let Sink::Bf16 { out, rows, len } = self else { unreachable!("a bf16 output") };
        let at = t * rows + row;
        assert!(at + values.len() <= *len);
        for (i, v) in values.iter().enumerate() {
            // SAFETY: inside the output, and this thread alone owns these rows (see `Sync`).
            unsafe { out.add(at + i).write(*v) }
        }
    }

    fn put_f32(&self, t: usize, row: usize, v: f32) {
        let Sink::F32 { out, rows, len } = self else { unreachable!("an f32 output") };
        let at = t * rows + row;
        assert!(at < *len);
        // SAFETY: inside the output, and this thread alone owns the row (see `Sync`).
        unsafe { out.add(at).write(v) }
    }
}

fn rows_at(level: SimdLevel, task: &Task<'_>) -> Result<(), NonFinite> {
    for_level!(level, rows(task: &Task<'_>) -> Result<(), NonFinite>)
}

/// All outputs of a task.
#[inline(always)]
fn rows<L: Lanes>(task: &Task<'_>) -> Result<(), NonFinite> {
    match (task.job.weights.elements(), task.sink) {
        (Elements::Packed(w), _) => packed::rows::<L>(task, &w),
        (Elements::F32(w), _) => wide::rows_f32_weights::<L>(task, w),
        (Elements::Bf16(w), Sink::F32 { .. }) => wide::rows_to_f32::<L>(task, w),
        (Elements::Bf16(w), Sink::Bf16 { .. })
            if task.token_count() == 1 && task.job.input.has_few() =>
        {
            fast::direct_rows::<L>(task, w)
        }
        (Elements::Bf16(w), Sink::Bf16 { .. }) => tile::rows::<L>(task, w),
    }
}
