//! Inputs laid out as the kernels read them, and what their bounds need.

use half::bf16;

use super::super::{Cpu, SimdLevel, for_level};
use super::{fast, packed, tile};
use crate::cpu::lanes::{Lanes, wide_operand};
use crate::exact::grid;
use crate::round::widen;

/// Tokens up to which the layouts of single-token products are made.
const FEW_TOKENS_MAX: usize = 32;

/// bf16 inputs `[tokens, width]`, laid out for one SIMD level.
///
/// Per token: the values as f32, block by block, even elements before odd ones. For few tokens
/// also the same as scaled f64 in quarters, and for each pair (even, odd) the larger magnitude
/// weighted by its rounding count: what
/// one row against one token needs. Many tokens share the widening of a row instead.
/// Rows are padded with zeros to whole blocks, which changes no sum.
pub struct Prepared {
    level: SimdLevel,
    tokens: usize,
    width: usize,
    stride: usize,
    raw: Vec<bf16>,
    narrow: Vec<f32>,
    weighted: Vec<f32>,
    wide: Vec<f64>,
    /// Per token `sqrt(S c^2 x^2)` for the tiled path.
    spread: Vec<f32>,
    /// Per token `sqrt(S x^2)`.
    length: Vec<f32>,
    /// The same for packed rows against one token; of few tokens only.
    packed_spread: Vec<f32>,
    /// Per token `S |x|`.
    total: Vec<f64>,
    /// Per token the grid of its values.
    grids: Vec<i32>,
}

impl Prepared {
    /// Prepares `values`, row-major `[tokens, width]`.
    pub fn new(cpu: &Cpu, values: Vec<bf16>, width: usize) -> Prepared {
        assert!(width > 0 && values.len().is_multiple_of(width), "whole rows of {width}");
        let tokens = values.len() / width;
        let level = cpu.level();
        let block = block(level);
        // One block more, so that the same place of neighbouring tokens is not a power of two
        // apart: those would compete for the same few cache lines.
        let stride = width.next_multiple_of(block) + block;
        let few = if tokens <= FEW_TOKENS_MAX { tokens * stride } else { 0 };
        let mut p = Prepared {
            level,
            tokens,
            width,
            stride,
            raw: values,
            narrow: vec![0.0; tokens * stride],
            weighted: vec![0.0; few / 2],
            wide: vec![0.0; few],
            spread: vec![0.0; tokens],
            length: vec![0.0; tokens],
            packed_spread: vec![0.0; tokens],
            total: vec![0.0; tokens],
            grids: Vec::new(),
        };
        p.grids = p.raw.chunks(width).map(grid).collect();
        p.fill(cpu);
        p
    }

    fn fill(&mut self, cpu: &Cpu) {
        let (width, stride, level) = (self.width, self.stride, self.level);
        let few = self.has_few();
        let mut layouts = self
            .weighted
            .chunks_mut(stride / 2)
            .zip(self.wide.chunks_mut(stride))
            .zip(&mut self.packed_spread);
        let mut rows: Vec<Row<'_>> = self
            .raw
            .chunks(width)
            .zip(self.narrow.chunks_mut(stride))
            .zip(self.spread.iter_mut().zip(&mut self.length).zip(&mut self.total))
            .map(|((raw, narrow), ((spread, length), total))| {
                let few = few.then(|| {
                    let ((weighted, wide), spread) = layouts.next().expect("one for each token");
                    Few { weighted, wide, spread }
                });
                Row { raw, narrow, few, spread, length, total }
            })
            .collect();
        let lay = |row: &mut Row<'_>| lay_out_at(level, row);
        if rows.len() * width < 1 << 15 {
            rows.iter_mut().for_each(lay);
        } else {
            cpu.each_mut(&mut rows, lay);
        }
    }

    /// How many rows.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Length of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    pub(crate) fn level(&self) -> SimdLevel {
        self.level
    }

    pub(crate) fn raw(&self, token: usize) -> &[bf16] {
        &self.raw[token * self.width..][..self.width]
    }

    pub(super) fn has_few(&self) -> bool {
        !self.weighted.is_empty()
    }

    /// Length of a row in whole blocks.
    fn padded(&self) -> usize {
        self.stride - block(self.level)
    }

    /// From a token to the next in `narrow`.
    pub(super) fn stride(&self) -> usize {
        self.stride
    }

    pub(super) fn narrow(&self, token: usize) -> &[f32] {
        &self.narrow[token * self.stride..][..self.padded()]
    }

    pub(super) fn weighted(&self, token: usize) -> &[f32] {
        &self.weighted[token * self.stride / 2..][..self.padded() / 2]
    }

    pub(super) fn wide(&self, token: usize) -> &[f64] {
        &self.wide[token * self.stride..][..self.padded()]
    }

    pub(super) fn spread(&self, token: usize) -> f32 {
        self.spread[token]
    }

    pub(super) fn length(&self, token: usize) -> f32 {
        self.length[token]
    }

    pub(super) fn packed_spread(&self, token: usize) -> f32 {
        self.packed_spread[token]
    }

    pub(super) fn grid(&self, token: usize) -> i32 {
        self.grids[token]
    }

    pub(super) fn total(&self, token: usize) -> f64 {
        self.total[token]
    }
}

/// The elements of a block at a level.
fn block(level: SimdLevel) -> usize {
    #[inline(always)]
    fn of<L: Lanes>() -> usize {
        L::BLOCK
    }
    for_level!(level, of() -> usize)
}

/// One token's row in all its forms.
struct Row<'a> {
    raw: &'a [bf16],
    narrow: &'a mut [f32],
    few: Option<Few<'a>>,
    spread: &'a mut f32,
    length: &'a mut f32,
    total: &'a mut f64,
}

/// What products with one token need besides.
struct Few<'a> {
    weighted: &'a mut [f32],
    wide: &'a mut [f64],
    spread: &'a mut f32,
}

fn lay_out_at(level: SimdLevel, row: &mut Row<'_>) {
    for_level!(level, lay_out(row: &mut Row<'_>))
}

/// Writes the layouts and the bounds of one row.
#[inline(always)]
fn lay_out<L: Lanes>(row: &mut Row<'_>) {
    let blocks = row.raw.len().div_ceil(L::BLOCK);
    // One chain per place in a block, so that the additions overlap.
    let (mut weighted, mut square, mut total) = ([0.0f64; 32], [0.0f64; 32], [0.0f64; 32]);
    let mut packed = [0.0f64; 32];
    for b in 0..blocks {
        let at = b * L::BLOCK;
        let mut values = [0.0f32; 32];
        let values = &mut values[..L::BLOCK];
        let rest = &row.raw[at..row.raw.len().min(at + L::BLOCK)];
        for (v, x) in values.iter_mut().zip(rest) {
            *v = widen(*x);
        }
        let c = f64::from(tile::roundings(b, blocks));
        for (i, v) in values.iter().enumerate() {
            let scaled = f64::from(*v) * c;
            weighted[i] += scaled * scaled;
            square[i] += f64::from(*v) * f64::from(*v);
            total[i] += f64::from(v.abs());
        }
        place::<L>(values, &mut row.narrow[at..]);
        if let Some(Few { weighted, wide, .. }) = &mut row.few {
            let c = f64::from(packed::roundings(at, row.raw.len()));
            for (v, packed) in values.iter().zip(&mut packed) {
                let scaled = f64::from(*v) * c;
                *packed += scaled * scaled;
            }
            let c = fast::direct_roundings::<L>(b, blocks);
            for (o, pair) in weighted[at / 2..].iter_mut().zip(values.chunks_exact(2)) {
                *o = c * pair[0].abs().max(pair[1].abs());
            }
            place_wide::<L>(values, &mut wide[at..]);
        }
    }
    // The square roots and the conversions round; one part in 2^20 covers both.
    let root = |squares: [f64; 32]| {
        (squares.iter().sum::<f64>().sqrt() * (1.0 + 1.0 / (1u32 << 20) as f64)) as f32
    };
    (*row.spread, *row.length) = (root(weighted), root(square));
    if let Some(few) = &mut row.few {
        *few.spread = root(packed);
    }
    *row.total = total.iter().sum::<f64>() * (1.0 + 1.0 / (1u64 << 30) as f64);
}

/// One block: even before odd.
#[inline(always)]
fn place<L: Lanes>(values: &[f32], narrow: &mut [f32]) {
    let w = L::WIDTH;
    for i in 0..w {
        narrow[i] = values[2 * i];
        narrow[w + i] = values[2 * i + 1];
    }
}

/// One block, quarter by quarter, scaled.
#[inline(always)]
fn place_wide<L: Lanes>(values: &[f32], wide: &mut [f64]) {
    let q = L::WIDTH / 2;
    for j in 0..4 {
        for i in 0..q {
            wide[j * q + i] = wide_operand(values[4 * i + j]);
        }
    }
}
