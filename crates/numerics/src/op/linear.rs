//! `y[t, n] = S(k: W[n, k] * x[t, k])`: the exact dot product, rounded once to bf16 or to f32.

mod packed;

use half::bf16;

use crate::cpu::{Cpu, linear as kernel};
use crate::exact::Unrounded;
use crate::round::widen;
use crate::{NonFinite, SimdLevel};

pub use crate::cpu::linear::Prepared;
pub use packed::PackedRows;
pub(crate) use packed::{GROUP, GROUP_WORDS, PLANE};

/// The weights of a projection as the checkpoint stores them, row-major.
#[derive(Clone, Copy, Debug)]
pub enum Elements<'a> {
    /// bf16 weights: the fast paths.
    Bf16(&'a [bf16]),
    /// f32 weights: f64 sums, then the exact stage.
    F32(&'a [f32]),
    /// Losslessly packed bf16 weights: three quarters of the bytes, the same results.
    Packed(PackedRows<'a>),
}

/// A projection, `[rows, cols]`.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    rows: usize,
    cols: usize,
    elements: Elements<'a>,
}

impl<'a> Matrix<'a> {
    /// Wraps `rows * cols` elements.
    pub fn new(rows: usize, cols: usize, elements: Elements<'a>) -> Self {
        let found = match elements {
            Elements::Bf16(w) => w.len(),
            Elements::F32(w) => w.len(),
            Elements::Packed(w) => {
                w.check();
                assert_eq!((w.rows, w.cols), (rows, cols), "rows and columns of packed weights");
                rows * cols
            }
        };
        assert_eq!(found, rows * cols, "a matrix of {rows} x {cols}");
        Matrix { rows, cols, elements }
    }

    /// Output width.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input width.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The weights.
    pub fn elements(&self) -> Elements<'a> {
        self.elements
    }

    /// Bytes that one pass over the weights reads.
    pub fn bytes(&self) -> u64 {
        let bytes = match self.elements {
            Elements::Bf16(w) => size_of_val(w),
            Elements::F32(w) => size_of_val(w),
            Elements::Packed(w) => w.bytes(),
        };
        bytes as u64
    }
}

/// Where the outputs of a job go, and so how they are rounded.
pub enum Output<'a> {
    /// "Store": rounded to bf16. Shape `[tokens, rows]`.
    Bf16(&'a mut [bf16]),
    /// Rounded to f32. Shape `[tokens, rows]`.
    F32(&'a mut [f32]),
}

impl Output<'_> {
    fn len(&self) -> usize {
        match self {
            Output::Bf16(out) => out.len(),
            Output::F32(out) => out.len(),
        }
    }
}

/// One product: all rows of a matrix times some tokens of the prepared inputs.
pub struct Job<'a> {
    /// `[rows, cols]`.
    pub weights: Matrix<'a>,
    /// `[tokens, cols]`, prepared.
    pub input: &'a Prepared,
    /// Which rows of `input`, in output order; `None` is all of them.
    pub tokens: Option<&'a [u32]>,
    /// `[tokens, rows]`.
    pub output: Output<'a>,
}

impl Job<'_> {
    fn token_count(&self) -> usize {
        self.tokens.map_or(self.input.tokens(), <[u32]>::len)
    }

    fn check(&self, level: SimdLevel) {
        assert_eq!(self.weights.cols, self.input.width(), "the widths of W and x");
        assert_eq!(self.output.len(), self.token_count() * self.weights.rows, "output shape");
        assert_eq!(self.input.level(), level, "inputs are prepared for the level that uses them");
        let tokens = self.tokens.unwrap_or(&[]);
        assert!(tokens.iter().all(|t| (*t as usize) < self.input.tokens()), "token index");
    }
}

/// A job failed: which one, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobError {
    /// Index of the job in the call.
    pub job: usize,
    /// The sum that was not finite.
    pub at: NonFinite,
}

/// Computes every job, all of them spread over the threads together.
///
/// Shapes: see [`Job`]. One call over many matrices costs one wake-up of the threads.
///
/// # Errors
/// A weight, an input or a result that is not finite.
pub fn linear(cpu: &Cpu, jobs: &mut [Job<'_>]) -> Result<(), JobError> {
    for job in jobs.iter() {
        job.check(cpu.level());
    }
    kernel::run(cpu, jobs)
}

/// The stage that is always right, for one output.
pub(crate) fn exact_dot(weights: Elements<'_>, input: &[bf16]) -> Unrounded {
    let input = input.iter().map(|x| widen(*x));
    match weights {
        Elements::Bf16(w) => Unrounded::products(w.iter().map(|w| widen(*w)).zip(input)),
        Elements::F32(w) => Unrounded::products(w.iter().copied().zip(input)),
        Elements::Packed(_) => unreachable!("doubtful rows are unpacked before they get here"),
    }
}
