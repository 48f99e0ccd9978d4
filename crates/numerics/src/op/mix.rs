//! The weighted sum of a token's experts: `y = S_bf16(w_e * d_e)`, all terms in one sum.

use half::bf16;

use crate::bound::{decide_bf16, wide_bound};
use crate::cpu::lanes::Lanes;
use crate::exact::Unrounded;
use crate::round::widen;
use crate::{NonFinite, SimdLevel};

/// One expert's output with its weight.
#[derive(Clone, Copy)]
pub struct Term<'a> {
    /// The router's weight.
    pub weight: f32,
    /// `[hidden]`.
    pub output: &'a [bf16],
}

const CHUNK: usize = 64;

/// Sums the terms of one token.
///
/// Shapes: every term and `y` are `[hidden]`. The order of the terms cannot matter.
///
/// # Errors
/// A term or a result that is not finite; `row` is the channel.
pub fn mix(level: SimdLevel, terms: &[Term<'_>], y: &mut [bf16]) -> Result<(), NonFinite> {
    assert!(terms.iter().all(|t| t.output.len() == y.len()), "every expert is [hidden]");
    for (c, part) in y.chunks_mut(CHUNK).enumerate() {
        let sums = crate::cpu::for_level!(level, chunk(terms: &[Term<'_>], c: usize) -> Sums);
        for (i, out) in part.iter_mut().enumerate() {
            let bound = wide_bound(terms.len(), sums.absolute[i]);
            *out = match decide_bf16(sums.sum[i], bound) {
                Some(v) => v,
                None => exact(terms, c * CHUNK + i)?,
            };
        }
    }
    Ok(())
}

struct Sums {
    sum: [f64; CHUNK],
    absolute: [f64; CHUNK],
}

#[inline(always)]
fn chunk<L: Lanes>(terms: &[Term<'_>], c: usize) -> Sums {
    let mut sums = Sums { sum: [0.0; CHUNK], absolute: [0.0; CHUNK] };
    for term in terms {
        let weight = f64::from(term.weight);
        let rest = &term.output[c * CHUNK..];
        for (i, v) in rest.iter().take(CHUNK).enumerate() {
            let p = weight * f64::from(widen(*v));
            sums.sum[i] += p;
            sums.absolute[i] += p.abs();
        }
    }
    sums
}

fn exact(terms: &[Term<'_>], channel: usize) -> Result<bf16, NonFinite> {
    let pairs = terms.iter().map(|term| (term.weight, widen(term.output[channel])));
    Unrounded::products(pairs).to_bf16().ok_or(NonFinite { row: channel, token: 0 })
}
