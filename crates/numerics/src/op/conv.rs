//! Depthwise causal convolution over the last inputs: `m = store(silu(S_f32(w * taps)))`.

use half::bf16;

use crate::bound::{decide_f32, wide_bound};
use crate::cpu::lanes::Lanes;
use crate::elementary::silu32_slice;
use crate::exact::Unrounded;
use crate::round::{store_into, widen};
use crate::{Cpu, NonFinite, SimdLevel};

/// The taps of every channel, `[taps, channels]` (the checkpoint's `[channels, 1, taps]`
/// transposed), so that neighbouring channels are neighbours.
#[derive(Clone, Debug)]
pub struct Taps {
    weights: Vec<f32>,
    channels: usize,
}

impl Taps {
    /// From `[channels, taps]`.
    pub fn new(weights: &[f32], taps: usize) -> Taps {
        let channels = weights.len() / taps;
        let mut transposed = vec![0.0; weights.len()];
        for c in 0..channels {
            for i in 0..taps {
                transposed[i * channels + c] = weights[c * taps + i];
            }
        }
        Taps { weights: transposed, channels }
    }

    /// `[taps, channels]`.
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// How many inputs each output sees.
    pub fn count(&self) -> usize {
        self.weights.len() / self.channels
    }

    /// Width of a token's input.
    pub fn channels(&self) -> usize {
        self.channels
    }
}

const CHUNK: usize = 64;

/// Convolves `tokens` tokens.
///
/// Shapes: `inputs` is `[taps - 1 + tokens, channels]`, the history first; `out` is
/// `[tokens, channels]`.
///
/// # Errors
/// A sum that is not finite; `row` is the channel.
pub fn conv(cpu: &Cpu, taps: &Taps, inputs: &[bf16], out: &mut [bf16]) -> Result<(), NonFinite> {
    let channels = taps.channels;
    let tokens = out.len() / channels;
    assert_eq!(inputs.len(), (taps.count() - 1 + tokens) * channels, "history and inputs");
    let level = cpu.level();
    let mut rows: Vec<_> =
        out.chunks_mut(channels).enumerate().map(|(t, out)| (t, out, Ok(()))).collect();
    let work = |(t, out, done): &mut (usize, &mut [bf16], Result<(), NonFinite>)| {
        *done = token(level, taps, inputs, *t, out);
    };
    if tokens * channels < 1 << 15 {
        rows.iter_mut().for_each(work);
    } else {
        cpu.each_mut(&mut rows, work);
    }
    rows.into_iter().try_for_each(|(_, _, done)| done)
}

fn token(
    level: SimdLevel,
    taps: &Taps,
    inputs: &[bf16],
    t: usize,
    out: &mut [bf16],
) -> Result<(), NonFinite> {
    let mut sums = [0.0f32; CHUNK];
    for start in (0..taps.channels).step_by(CHUNK) {
        let count = (taps.channels - start).min(CHUNK);
        let at = &Window { taps, inputs, t, start, count };
        let (y, absolute) =
            crate::cpu::for_level!(level, window(at: &Window<'_>) -> ([f64; CHUNK], [f64; CHUNK]));
        for i in 0..count {
            let decided = decide_f32(y[i], wide_bound(taps.count(), absolute[i]));
            sums[i] = match decided {
                Some(v) => v,
                None => exact(at, i)?,
            };
        }
        silu32_slice(level, &mut sums[..count]);
        store_into(&sums[..count], &mut out[start..start + count]);
    }
    Ok(())
}

/// Some channels of one token.
struct Window<'a> {
    taps: &'a Taps,
    inputs: &'a [bf16],
    t: usize,
    start: usize,
    count: usize,
}

impl Window<'_> {
    /// The weights and the inputs of tap `i`.
    #[inline(always)]
    fn tap(&self, i: usize) -> (&[f32], &[bf16]) {
        let n = self.taps.channels;
        let weights = &self.taps.weights[i * n + self.start..][..self.count];
        (weights, &self.inputs[(self.t + i) * n + self.start..][..self.count])
    }
}

#[inline(always)]
fn window<L: Lanes>(at: &Window<'_>) -> ([f64; CHUNK], [f64; CHUNK]) {
    let (mut sum, mut absolute) = ([0.0; CHUNK], [0.0; CHUNK]);
    for tap in 0..at.taps.count() {
        let (weights, inputs) = at.tap(tap);
        for (i, (w, x)) in weights.iter().zip(inputs).enumerate() {
            let p = f64::from(*w) * f64::from(widen(*x));
            sum[i] += p;
            absolute[i] += p.abs();
        }
    }
    (sum, absolute)
}

fn exact(at: &Window<'_>, i: usize) -> Result<f32, NonFinite> {
    let pairs = (0..at.taps.count()).map(|tap| {
        let (weights, inputs) = at.tap(tap);
        (weights[i], widen(inputs[i]))
    });
    Unrounded::products(pairs).to_f32().ok_or(NonFinite { row: at.start + i, token: at.t })
}
