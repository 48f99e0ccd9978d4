//! Inputs laid out as the kernels read them, and what their bounds need.

use half::bf16;

use super::super::{Cpu, SimdLevel, for_level};
use super::{fast, tile};
use crate::cpu::lanes::{Lanes, wide_operand};
use crate::round::widen;

/// Tokens up to which the single-token path is prepared for.
const DIRECT_TOKENS_MAX: usize = 32;

/// bf16 inputs `[tokens, width]`, laid out for one SIMD level.
///
/// Per token: the values as f32, block by block, even elements before odd ones; the same as
/// scaled f64 in quarters; and for few tokens the magnitudes weighted by rounding counts.
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
    /// Per token `S |x|`.
    total: Vec<f64>,
}

impl Prepared {
    /// Prepares `values`, row-major `[tokens, width]`.
    pub fn new(cpu: &Cpu, values: Vec<bf16>, width: usize) -> Prepared {
        assert!(width > 0 && values.len().is_multiple_of(width), "whole rows of {width}");
        let tokens = values.len() / width;
        let level = cpu.level();
        let stride = width.next_multiple_of(block(level));
        let direct = if tokens <= DIRECT_TOKENS_MAX { tokens * stride } else { 0 };
        let mut p = Prepared {
            level,
            tokens,
            width,
            stride,
            raw: values,
            narrow: vec![0.0; tokens * stride],
            weighted: vec![0.0; direct],
            wide: vec![0.0; tokens * stride],
            spread: vec![0.0; tokens],
            total: vec![0.0; tokens],
        };
        p.fill(cpu);
        p
    }

    fn fill(&mut self, cpu: &Cpu) {
        let (width, stride, level) = (self.width, self.stride, self.level);
        let direct = self.has_direct();
        let mut weighted = self.weighted.chunks_mut(stride);
        let mut rows: Vec<Row<'_>> = self
            .raw
            .chunks(width)
            .zip(self.narrow.chunks_mut(stride))
            .zip(self.wide.chunks_mut(stride))
            .zip(self.spread.iter_mut().zip(&mut self.total))
            .map(|(((raw, narrow), wide), (spread, total))| {
                let weighted = direct.then(|| weighted.next().expect("a row for each token"));
                Row { raw, narrow, wide, weighted, spread, total }
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

    pub(super) fn has_direct(&self) -> bool {
        !self.weighted.is_empty()
    }

    pub(super) fn narrow(&self, token: usize) -> &[f32] {
        &self.narrow[token * self.stride..][..self.stride]
    }

    pub(super) fn weighted(&self, token: usize) -> &[f32] {
        &self.weighted[token * self.stride..][..self.stride]
    }

    pub(super) fn wide(&self, token: usize) -> &[f64] {
        &self.wide[token * self.stride..][..self.stride]
    }

    pub(super) fn spread(&self, token: usize) -> f32 {
        self.spread[token]
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
    wide: &'a mut [f64],
    weighted: Option<&'a mut [f32]>,
    spread: &'a mut f32,
    total: &'a mut f64,
}

fn lay_out_at(level: SimdLevel, row: &mut Row<'_>) {
    for_level!(level, lay_out(row: &mut Row<'_>))
}

/// Writes the layouts and the bounds of one row.
#[inline(always)]
fn lay_out<L: Lanes>(row: &mut Row<'_>) {
    let blocks = row.narrow.len() / L::BLOCK;
    let (mut square, mut total) = (0.0f64, 0.0f64);
    for b in 0..blocks {
        let at = b * L::BLOCK;
        let mut values = [0.0f32; 64];
        let values = &mut values[..L::BLOCK];
        let rest = &row.raw[at..row.raw.len().min(at + L::BLOCK)];
        for (v, x) in values.iter_mut().zip(rest) {
            *v = widen(*x);
        }
        let c = f64::from(tile::roundings::<L>(b, blocks));
        let mut here = 0.0f64;
        for v in values.iter() {
            here += f64::from(*v) * f64::from(*v);
            total += f64::from(v.abs());
        }
        square += here * c * c;
        place::<L>(values, &mut row.narrow[at..], &mut row.wide[at..]);
        if let Some(weighted) = &mut row.weighted {
            let c = fast::direct_roundings::<L>(b, blocks);
            for (o, v) in weighted[at..][..L::BLOCK].iter_mut().zip(&row.narrow[at..]) {
                *o = c * v.abs();
            }
        }
    }
    // The square root and the conversion round; one part in 2^20 covers both.
    *row.spread = (square.sqrt() * (1.0 + 1.0 / (1u32 << 20) as f64)) as f32;
    *row.total = total * (1.0 + 1.0 / (1u64 << 30) as f64);
}

/// One block: even before odd as f32, quarter by quarter as scaled f64.
#[inline(always)]
fn place<L: Lanes>(values: &[f32], narrow: &mut [f32], wide: &mut [f64]) {
    let (w, q) = (L::WIDTH, L::WIDTH / 2);
    for i in 0..w {
        narrow[i] = values[2 * i];
        narrow[w + i] = values[2 * i + 1];
    }
    for j in 0..4 {
        for i in 0..q {
            wide[j * q + i] = wide_operand(values[4 * i + j]);
        }
    }
}
