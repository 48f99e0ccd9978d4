//! Gated MLPs: one alone, or many that run together, each over its own tokens.

use bytes::Bytes;
use half::bf16;
use numerics::elementary::silu32_slice;
use numerics::op::linear::{Output, Prepared};
use numerics::round::{store, widen};
use numerics::{Cpu, SimdLevel};
use store::experts::Block;

use super::error::ModelError;
use super::rows::{Place, Projection};
use super::weight::Weight;

/// `down(silu(gate(x)) * up(x))`.
pub(super) struct Mlp {
    pub(super) gate_up: GateUp,
    pub(super) down: Weight,
}

/// The two inner projections, as the checkpoint has them.
pub(super) enum GateUp {
    /// `[2 * width, hidden]`: gate over up.
    Fused(Weight),
    /// `[width, hidden]` each.
    Split(Weight, Weight),
}

/// An MLP to run.
pub(super) struct Use<'a> {
    pub(super) mlp: &'a Mlp,
    /// The rows of x that it is for, and where they are in the bank; `None` for all, in order.
    pub(super) rows: Option<Rows<'a>>,
}

impl Use<'_> {
    /// Its rows, of `all` where it is for all.
    fn count(&self, all: usize) -> usize {
        self.rows.map_or(all, |rows| rows.of_x.len())
    }
}

/// Equally many rows of x and of a bank.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) of_x: &'a [u32],
    /// One after the other, from the end of the use before.
    pub(super) of_bank: &'a [u32],
}

/// MLPs of one width; the rows of their outputs follow each other.
pub(super) struct Bank<'a> {
    pub(super) width: usize,
    /// Rows of all uses together.
    pub(super) rows: usize,
    pub(super) uses: Vec<Use<'a>>,
}

impl Mlp {
    /// An expert as it was read: its blocks in the order of the map.
    pub(super) fn of_blocks<'a>(
        blocks: impl Iterator<Item = (&'a Block, Bytes)>,
    ) -> Result<Mlp, ModelError> {
        let weight = |(block, bytes)| Weight::of_block(block, bytes);
        let mut weights: Vec<Weight> = blocks.map(weight).collect::<Result<_, _>>()?;
        let down = weights.pop().expect("an expert has a down projection");
        let up = weights.pop().expect("and one before it");
        let gate_up = match weights.pop() {
            Some(gate) => GateUp::Split(gate, up),
            None => GateUp::Fused(up),
        };
        Ok(Mlp { gate_up, down })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.weights().map(Weight::bytes).sum()
    }

    /// Bytes if none of it were packed.
    pub(super) fn plain_bytes(&self) -> u64 {
        self.weights().map(Weight::plain_bytes).sum()
    }

    fn weights(&self) -> impl Iterator<Item = &Weight> {
        let (first, second) = match &self.gate_up {
            GateUp::Fused(both) => (both, None),
            GateUp::Split(gate, up) => (gate, Some(up)),
        };
        [Some(first), second, Some(&self.down)].into_iter().flatten()
    }

    fn width(&self) -> usize {
        self.down.matrix().cols()
    }

    /// x `[tokens, hidden]` to `[tokens, hidden]`.
    pub(super) fn forward(&self, at: Place<'_>, x: &Prepared) -> Result<Vec<bf16>, ModelError> {
        let mut outputs = run(at, x, &[self.alone(x.tokens())])?;
        Ok(outputs.pop().expect("one bank"))
    }

    /// A bank of this one only, over all of `tokens`.
    pub(super) fn alone(&self, tokens: usize) -> Bank<'_> {
        let uses = vec![Use { mlp: self, rows: None }];
        Bank { width: self.width(), rows: tokens, uses }
    }
}

/// Runs banks side by side: x `[tokens, hidden]` to `[rows, hidden]` for each.
pub(super) fn run(
    at: Place<'_>,
    x: &Prepared,
    banks: &[Bank<'_>],
) -> Result<Vec<Vec<bf16>>, ModelError> {
    let room = |b: &Bank<'_>, width: usize| vec![bf16::ZERO; b.rows * width];
    let mut inner: Vec<_> = banks.iter().map(|b| room(b, 2 * b.width)).collect();
    let mut work = Vec::new();
    for (bank, inner) in banks.iter().zip(&mut inner) {
        bank.gate_and_up(x, inner, &mut work);
    }
    at.project(work)?;
    let activated = |(bank, inner): (&Bank<'_>, Vec<bf16>)| {
        let mut values = room(bank, bank.width);
        bank.activate(at.cpu, x.tokens(), &inner, &mut values);
        Prepared::new(at.cpu, values, bank.width)
    };
    let inner: Vec<Prepared> = banks.iter().zip(inner).map(activated).collect();
    let mut outputs: Vec<_> = banks.iter().map(|b| room(b, x.width())).collect();
    let mut work = Vec::new();
    for ((bank, inner), output) in banks.iter().zip(&inner).zip(&mut outputs) {
        bank.down(inner, x.width(), output, &mut work);
    }
    at.project(work)?;
    Ok(outputs)
}

impl<'a> Bank<'a> {
    /// Of each use in turn: `[tokens, 2 * width]` where fused, else all of gate before all of up.
    fn gate_and_up(
        &'a self,
        x: &'a Prepared,
        mut inner: &'a mut [bf16],
        work: &mut Vec<Projection<'a>>,
    ) {
        for one in &self.uses {
            let tokens = one.rows.map(|r| r.of_x);
            let count = one.count(x.tokens()) * self.width;
            let mut push = |weight, values| {
                let output = Output::Bf16(take(&mut inner, values));
                work.push(Projection { weight, input: x, tokens, output });
            };
            match &one.mlp.gate_up {
                GateUp::Fused(both) => push(both, 2 * count),
                GateUp::Split(gate, up) => {
                    push(gate, count);
                    push(up, count);
                }
            }
        }
    }

    /// `store(silu(gate) * up)` of what `gate_and_up` wrote, `[rows, width]`.
    fn activate(&self, cpu: &Cpu, tokens: usize, mut inner: &[bf16], mut out: &mut [bf16]) {
        let mut parts = Vec::new();
        for one in &self.uses {
            let count = one.count(tokens) * self.width;
            let (of_use, rest) = inner.split_at(2 * count);
            inner = rest;
            let out = take(&mut out, count);
            match one.mlp.gate_up {
                GateUp::Fused(_) => {
                    let rows = of_use.chunks(2 * self.width).zip(out.chunks_mut(self.width));
                    parts.extend(rows.map(|(both, out)| (both.split_at(self.width), out)));
                }
                GateUp::Split(..) => {
                    let (gate, up) = of_use.split_at(count);
                    let halves = gate.chunks(PART).zip(up.chunks(PART));
                    parts.extend(halves.zip(out.chunks_mut(PART)));
                }
            }
        }
        let level = cpu.level();
        cpu.each_mut(&mut parts, |((gate, up), out)| activate(level, gate, up, out));
    }

    fn down(
        &'a self,
        inner: &'a Prepared,
        hidden: usize,
        mut outputs: &'a mut [bf16],
        work: &mut Vec<Projection<'a>>,
    ) {
        for one in &self.uses {
            let tokens = one.rows.map(|r| r.of_bank);
            let output = Output::Bf16(take(&mut outputs, one.count(inner.tokens()) * hidden));
            work.push(Projection { weight: &one.mlp.down, input: inner, tokens, output });
        }
    }
}

/// Splits `count` values off the front.
fn take<'a>(rest: &mut &'a mut [bf16], count: usize) -> &'a mut [bf16] {
    let (front, back) = std::mem::take(rest).split_at_mut(count);
    *rest = back;
    front
}

/// Values that one thread activates together.
const PART: usize = 4096;

/// `out = store(silu(gate) * up)`.
fn activate(level: SimdLevel, gate: &[bf16], up: &[bf16], out: &mut [bf16]) {
    let mut g: Vec<f32> = gate.iter().map(|v| widen(*v)).collect();
    silu32_slice(level, &mut g);
    for ((out, up), g) in out.iter_mut().zip(up).zip(g) {
        *out = store(g * widen(*up));
    }
}
