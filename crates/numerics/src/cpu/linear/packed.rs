//! Projections whose weights are packed: in place for one token, else unpacked a piece at a time.
//!
//! One token: the weights come out of their groups in registers, and each run of groups is summed
//! in f32 and added to an f64 total. `roundings` counts what a product passes through; the bound
//! comes from Cauchy and Schwarz, `sqrt(S w^2) * sqrt(S c^2 x^2)`, as in `tile`. Where a row has
//! escapes its groups hold substitutes: `corrected` takes their products out of the sum and puts
//! the true ones in, with a bound of its own. Rows in doubt are unpacked and go the way of plain
//! rows.

use std::cell::Cell;
use std::ops::Range;

use half::bf16;

use super::fast::{AHEAD, Doubt, FLOOR, UNIT};
use super::{Sink, Task, rows_at, tile, wide};
use crate::bound::{decide_bf16, wide_bound};
use crate::cpu::for_level;
use crate::cpu::lanes::{Lanes, prefetch};
use crate::op::linear::{Elements, GROUP, GROUP_WORDS, Job, Matrix, Output, PLANE, PackedRows};
use crate::round::widen;
use crate::{NonFinite, SimdLevel};

/// Bytes of unpacked rows that are used before they leave the second-level cache.
const SCRATCH_BYTES_MAX: usize = 160 << 10;
/// Groups that are summed in f32 before they go into the f64 total.
const RUN: usize = 4;
/// Blocks of a group that a chain takes one after the other, whatever their length.
const CHAINED: usize = GROUP / PLANE;
/// Covers the roundings of computing a bound in f64, and of making it an f32.
const SLACK: f64 = 1.0 + 1.0 / (1 << 20) as f64;
/// u16 in a cache line.
const LINE: usize = 32;

thread_local! {
    /// Unpacked rows; kept, because fresh memory costs as much as unpacking into it.
    static SCRATCH: Cell<Vec<bf16>> = const { Cell::new(Vec::new()) };
}

/// Roundings that the product of an element passes through on the one-token path, in rows of
/// whole groups.
///
/// Its own addition and those that follow in its chain, then one of even and odd. The errors of
/// the f64 totals are far below the slack of `UNIT`.
#[inline(always)]
pub(super) fn roundings(element: usize, cols: usize) -> f32 {
    let group = element / GROUP;
    let end = ((group / RUN + 1) * RUN).min(cols.div_ceil(GROUP));
    (CHAINED * (end - group) - element % GROUP / PLANE + 1) as f32
}

/// All outputs of a task.
#[inline(always)]
pub(super) fn rows<L: Lanes>(task: &Task<'_>, w: &PackedRows<'_>) -> Result<(), NonFinite> {
    let one = task.token_count() == 1 && task.job.input.has_few();
    if one && matches!(task.sink, Sink::Bf16 { .. }) && w.cols.is_multiple_of(GROUP) {
        return direct_rows::<L>(task, w);
    }
    let together = (SCRATCH_BYTES_MAX / (2 * w.cols.max(1))).max(1).next_multiple_of(tile::ROWS);
    let mut first = task.rows.start;
    while first < task.rows.end {
        let some = first..(first + together).min(task.rows.end);
        first = some.end;
        unpacked::<L>(task, w, some, None)?;
    }
    Ok(())
}

/// A few rows as if they had never been packed, or the one that is in doubt.
#[inline(always)]
fn unpacked<L: Lanes>(
    task: &Task<'_>,
    w: &PackedRows<'_>,
    rows: Range<usize>,
    doubt: Option<Doubt>,
) -> Result<(), NonFinite> {
    let level = task.job.input.level();
    let mut scratch = SCRATCH.take();
    let len = rows.len() * w.cols;
    if scratch.len() < len {
        scratch.resize(len, bf16::ZERO);
    }
    unpack::<L>(w, rows.clone(), &mut scratch[..len]);
    let weights = Matrix::new(rows.len(), w.cols, Elements::Bf16(&scratch[..len]));
    // The sink knows where the outputs go.
    let output = Output::Bf16(&mut []);
    let job = Job { weights, input: task.job.input, tokens: task.job.tokens, output };
    let sink = task.sink.below(rows.start);
    let plain = Task { job: &job, rows: 0..rows.len(), sink: &sink };
    let result = match doubt {
        Some(doubt) => wide::settle_all(level, &plain, &scratch[..len], &mut vec![doubt]),
        None => rows_at(level, &plain),
    };
    SCRATCH.set(scratch);
    result.map_err(|at| NonFinite { row: at.row + rows.start, ..at })
}

/// Unpacks at a level; see `PackedRows::unpack`.
pub(crate) fn unpack_at(
    level: SimdLevel,
    w: &PackedRows<'_>,
    rows: Range<usize>,
    out: &mut [bf16],
) {
    for_level!(level, unpack(w: &PackedRows<'_>, rows: Range<usize>, out: &mut [bf16]))
}

/// Rows as plain bf16, escapes included.
#[inline(always)]
fn unpack<L: Lanes>(w: &PackedRows<'_>, rows: Range<usize>, out: &mut [bf16]) {
    let elements = rows.start * w.cols..rows.end * w.cols;
    assert_eq!(out.len(), elements.len(), "the rows asked for");
    if w.cols.is_multiple_of(GROUP) {
        let groups = w.cols / GROUP;
        for (i, row) in rows.enumerate() {
            let base = L::base(w.bases[row]);
            for g in 0..groups {
                let words = &w.groups[(row * groups + g) * GROUP_WORDS..][..GROUP_WORDS];
                for &at in &[0, LINE, 2 * LINE] {
                    prefetch(words.as_ptr().wrapping_add(at + AHEAD));
                }
                let out = &mut out[(i * groups + g) * GROUP..][..GROUP];
                unpack_group::<L>(words, base, out);
            }
        }
    } else {
        unpack_ragged::<L>(w, elements.clone(), out);
    }
    let escapes = w.escapes_in(elements.clone());
    for (place, value) in w.escape_places[escapes.clone()].iter().zip(&w.escape_values[escapes]) {
        out[*place as usize - elements.start] = *value;
    }
}

/// Groups that do not end where rows do: the bases are added afterwards, row by row.
#[inline(always)]
fn unpack_ragged<L: Lanes>(w: &PackedRows<'_>, elements: Range<usize>, out: &mut [bf16]) {
    let mut at = elements.start;
    while at < elements.end {
        let group = at / GROUP;
        let mut codes = [bf16::ZERO; GROUP];
        unpack_group::<L>(&w.groups[group * GROUP_WORDS..][..GROUP_WORDS], L::base(0), &mut codes);
        let end = elements.end.min((group + 1) * GROUP);
        while at < end {
            let row = at / w.cols;
            let stop = end.min((row + 1) * w.cols);
            let base = u16::from(w.bases[row]) << 7;
            let from = &codes[at - group * GROUP..stop - group * GROUP];
            let into = &mut out[at - elements.start..stop - elements.start];
            for (o, code) in into.iter_mut().zip(from) {
                *o = bf16::from_bits(code.to_bits().wrapping_add(base));
            }
            at = stop;
        }
    }
}

/// One group.
#[inline(always)]
fn unpack_group<L: Lanes>(words: &[u16], base: L::Packed, out: &mut [bf16]) {
    assert!(words.len() == GROUP_WORDS && out.len() == GROUP);
    for lane in (0..PLANE).step_by(L::BLOCK) {
        // SAFETY: a block of lanes of each plane, and room for four.
        unsafe {
            let blocks = L::unpack(planes::<L>(words.as_ptr().add(lane)), base);
            for p in 0..4 {
                L::store_packed(out.as_mut_ptr().add(p * PLANE + lane), blocks[p]);
            }
        }
    }
}

/// The same lanes of the three planes.
///
/// # Safety
/// A block of lanes at `w` and in the two planes behind it.
#[inline(always)]
unsafe fn planes<L: Lanes>(w: *const u16) -> [L::Packed; 3] {
    let w: *const bf16 = w.cast();
    // SAFETY: the caller's guarantee.
    unsafe { [L::packed(w), L::packed(w.add(PLANE)), L::packed(w.add(2 * PLANE))] }
}

/// One token: two rows at a time, as `fast::direct_rows`.
#[inline(always)]
fn direct_rows<L: Lanes>(task: &Task<'_>, w: &PackedRows<'_>) -> Result<(), NonFinite> {
    let mut escapes = w.escapes_in(task.rows.start * w.cols..task.rows.end * w.cols);
    let mut row = task.rows.start;
    while row + 1 < task.rows.end {
        let found = direct::<L, 2>(task, w, row);
        for (r, found) in found.into_iter().enumerate() {
            finish::<L>(task, w, row + r, &mut escapes, found)?;
        }
        row += 2;
    }
    if row < task.rows.end {
        let [found] = direct::<L, 1>(task, w, row);
        finish::<L>(task, w, row, &mut escapes, found)?;
    }
    Ok(())
}

/// The f32 sums of a row in f64, and how far they may be from the exact one.
#[derive(Clone, Copy)]
struct Found {
    sum: f64,
    bound: f64,
    /// At least the absolute sum of the products.
    magnitude: f64,
}

/// Stores what is settled and settles the rest; takes the row's escapes off the list.
#[inline(always)]
fn finish<L: Lanes>(
    task: &Task<'_>,
    w: &PackedRows<'_>,
    row: usize,
    escapes: &mut Range<usize>,
    mut found: Found,
) -> Result<(), NonFinite> {
    let first = escapes.start;
    let end = (row + 1) * w.cols;
    while escapes.start < escapes.end && (w.escape_places[escapes.start] as usize) < end {
        escapes.start += 1;
    }
    if first < escapes.start {
        found = corrected(task, w, first..escapes.start, found);
    }
    match decide_bf16(found.sum, found.bound) {
        Some(v) => {
            task.sink.put_bf16(0, row, v);
            Ok(())
        }
        None => {
            let magnitude = (found.magnitude * SLACK) as f32;
            let doubt = Doubt { row: 0, token: 0, magnitude };
            unpacked::<L>(task, w, row..row + 1, Some(doubt))
        }
    }
}

/// From the sum with substitutes to the true one.
///
/// Products of bf16 are exact in f64. The sum and two products for each escape are added, so each
/// passes through no more roundings than twice the escapes.
#[inline(never)]
fn corrected(
    task: &Task<'_>,
    w: &PackedRows<'_>,
    escapes: Range<usize>,
    Found { mut sum, bound, magnitude }: Found,
) -> Found {
    let x = task.job.input.raw(task.source(0));
    let (mut absolute, mut put_in) = (sum.abs(), 0.0);
    for i in escapes.clone() {
        let place = w.escape_places[i] as usize;
        let x = f64::from(widen(x[place % w.cols]));
        let out = f64::from(widen(w.in_group(place))) * x;
        let true_one = f64::from(widen(w.escape_values[i])) * x;
        sum = sum - out + true_one;
        absolute += out.abs() + true_one.abs();
        put_in += true_one.abs();
    }
    let added = wide_bound(2 * escapes.len(), absolute);
    Found { sum, bound: (bound + added) * SLACK, magnitude: (magnitude + put_in) * SLACK }
}

/// The dot products of `R` neighbouring rows with the only token, and their error bounds.
#[inline(always)]
fn direct<L: Lanes, const R: usize>(task: &Task<'_>, w: &PackedRows<'_>, row: usize) -> [Found; R] {
    let input = task.job.input;
    let source = task.source(0);
    let x = input.narrow(source);
    let groups = w.cols / GROUP;
    assert!(x.len() == w.cols);
    let words = &w.groups[row * groups * GROUP_WORDS..][..R * groups * GROUP_WORDS];
    let mut bases = [L::base(0); R];
    for r in 0..R {
        bases[r] = L::base(w.bases[row + r]);
    }
    let mut sums = Sums::<L, R> { totals: [[L::zero64(); 2]; R], squares: [[L::zero(); 2]; R] };
    for g in (0..groups).step_by(RUN) {
        let count = RUN.min(groups - g);
        // SAFETY: `count` groups of each row and of `x` from group g on.
        unsafe {
            let place = Place {
                words: words.as_ptr().add(g * GROUP_WORDS),
                row_words: groups * GROUP_WORDS,
                x: x.as_ptr().add(g * GROUP),
            };
            chains::<L, R, 0>(place, count, bases, &mut sums);
            if PLANE / L::BLOCK == 2 {
                chains::<L, R, 1>(place, count, bases, &mut sums);
            }
        }
    }
    let spread = f64::from(UNIT * input.packed_spread(source));
    let length = f64::from(input.length(source));
    let mut out = [Found { sum: 0.0, bound: 0.0, magnitude: 0.0 }; R];
    for r in 0..R {
        let sum = L::sum64(L::add64(sums.totals[r][0], sums.totals[r][1]));
        let squares = L::sum(L::add(sums.squares[r][0], sums.squares[r][1]));
        let norm = f64::from(tile::norm(squares, w.cols));
        out[r] = Found { sum, bound: norm * spread + f64::from(FLOOR), magnitude: norm * length };
    }
    out
}

/// What is known of `R` rows so far.
struct Sums<L: Lanes, const R: usize> {
    totals: [[L::F64; 2]; R],
    /// Of the weights.
    squares: [[L::F32; 2]; R],
}

/// Where a run of groups begins.
#[derive(Clone, Copy)]
struct Place {
    words: *const u16,
    /// From a row to the next.
    row_words: usize,
    x: *const f32,
}

/// Part `H` of the lanes of a run of groups: one chain for the even and one for the odd elements
/// of each row, so that all of them stay in registers.
///
/// # Safety
/// `count` groups of `R` rows at `place`, and of `x`.
#[inline(always)]
unsafe fn chains<L: Lanes, const R: usize, const H: usize>(
    place: Place,
    count: usize,
    bases: [L::Packed; R],
    sums: &mut Sums<L, R>,
) {
    let mut inner = [[L::zero(); 2]; R];
    let mut squares = sums.squares;
    for g in 0..count {
        let mut rows = [[bases[0]; 4]; R];
        for r in 0..R {
            let words = place.words.wrapping_add(r * place.row_words + g * GROUP_WORDS);
            // Spread over the parts: a burst of requests would fill the queue of misses.
            if PLANE / L::BLOCK == 1 || r % 2 == H {
                prefetch(words.wrapping_add(AHEAD));
                prefetch(words.wrapping_add(AHEAD + LINE));
                prefetch(words.wrapping_add(AHEAD + 2 * LINE));
            }
            // SAFETY: part H of the planes of group g of row r.
            rows[r] = L::unpack(unsafe { planes::<L>(words.add(H * L::BLOCK)) }, bases[r]);
        }
        for p in 0..CHAINED {
            // SAFETY: block p of group g.
            let (first, second) = unsafe {
                let x = place.x.add(g * GROUP + p * PLANE + H * L::BLOCK);
                (L::load(x), L::load(x.add(L::WIDTH)))
            };
            for r in 0..R {
                let (even, odd) = (L::even(rows[r][p]), L::odd(rows[r][p]));
                inner[r][0] = L::fma(even, first, inner[r][0]);
                inner[r][1] = L::fma(odd, second, inner[r][1]);
                squares[r][0] = L::fma(even, even, squares[r][0]);
                squares[r][1] = L::fma(odd, odd, squares[r][1]);
            }
        }
    }
    sums.squares = squares;
    for r in 0..R {
        let [low, high] = L::halves(L::add(inner[r][0], inner[r][1]));
        sums.totals[r][0] = L::add64(sums.totals[r][0], low);
        sums.totals[r][1] = L::add64(sums.totals[r][1], high);
    }
}
