//! Gated MLPs: one alone, or many that run together, each over its own tokens.

use half::bf16;
use numerics::Cpu;
use numerics::elementary::silu32_slice;
use numerics::op::linear::{Output, Prepared};
use numerics::round::{store, widen};

use super::error::ModelError;
use super::rows::{Place, Projection};
use super::weight::Weight;

/// `down(silu(gate(x)) * up(x))`.
pub(super) struct Mlp {
    pub(super) gate: Weight,
    pub(super) up: Weight,
    pub(super) down: Weight,
}

/// An MLP to run.
pub(super) struct Use<'a> {
    pub(super) mlp: &'a Mlp,
    /// The rows of x that it is for, and where they are in the bank; `None` for all, in order.
    pub(super) rows: Option<Rows<'a>>,
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
    pub(super) fn bytes(&self) -> u64 {
        self.gate.bytes() + self.up.bytes() + self.down.bytes()
    }

    /// x `[tokens, hidden]` to `[tokens, hidden]`.
    pub(super) fn forward(&self, at: Place<'_>, x: &Prepared) -> Result<Vec<bf16>, ModelError> {
        let mut outputs = run(at, x, &[self.alone(x.tokens())])?;
        Ok(outputs.pop().expect("one bank"))
    }

    /// A bank of this one only, over all of `tokens`.
    pub(super) fn alone(&self, tokens: usize) -> Bank<'_> {
        let uses = vec![Use { mlp: self, rows: None }];
        Bank { width: self.gate.matrix().rows(), rows: tokens, uses }
    }
}

/// Runs banks side by side: x `[tokens, hidden]` to `[rows, hidden]` for each.
pub(super) fn run(
    at: Place<'_>,
    x: &Prepared,
    banks: &[Bank<'_>],
) -> Result<Vec<Vec<bf16>>, ModelError> {
    let room = |b: &Bank<'_>, width: usize| vec![bf16::ZERO; b.rows * width];
    let mut gates: Vec<_> = banks.iter().map(|b| room(b, b.width)).collect();
    let mut ups = gates.clone();
    let mut work = Vec::new();
    for ((bank, gate), up) in banks.iter().zip(&mut gates).zip(&mut ups) {
        bank.gate_and_up(x, gate, up, &mut work);
    }
    at.project(work)?;
    let mut inner = Vec::with_capacity(banks.len());
    for ((bank, gate), mut up) in banks.iter().zip(gates).zip(ups) {
        activate(at.cpu, &gate, &mut up);
        inner.push(Prepared::new(at.cpu, up, bank.width));
    }
    let mut outputs: Vec<_> = banks.iter().map(|b| room(b, x.width())).collect();
    let mut work = Vec::new();
    for ((bank, inner), output) in banks.iter().zip(&inner).zip(&mut outputs) {
        bank.down(inner, x.width(), output, &mut work);
    }
    at.project(work)?;
    Ok(outputs)
}

impl<'a> Bank<'a> {
    fn gate_and_up(
        &'a self,
        x: &'a Prepared,
        mut gate: &'a mut [bf16],
        mut up: &'a mut [bf16],
        work: &mut Vec<Projection<'a>>,
    ) {
        for Use { mlp, rows } in &self.uses {
            let tokens = rows.map(|r| r.of_x);
            let count = tokens.map_or(x.tokens(), <[u32]>::len) * self.width;
            for (weight, rest) in [(&mlp.gate, &mut gate), (&mlp.up, &mut up)] {
                let output = Output::Bf16(take(rest, count));
                work.push(Projection { weight, input: x, tokens, output });
            }
        }
    }

    fn down(
        &'a self,
        inner: &'a Prepared,
        hidden: usize,
        mut outputs: &'a mut [bf16],
        work: &mut Vec<Projection<'a>>,
    ) {
        for Use { mlp, rows } in &self.uses {
            let tokens = rows.map(|r| r.of_bank);
            let count = tokens.map_or(inner.tokens(), <[u32]>::len) * hidden;
            let output = Output::Bf16(take(&mut outputs, count));
            work.push(Projection { weight: &mlp.down, input: inner, tokens, output });
        }
    }
}

/// Splits `count` values off the front.
fn take<'a>(rest: &mut &'a mut [bf16], count: usize) -> &'a mut [bf16] {
    let (front, back) = std::mem::take(rest).split_at_mut(count);
    *rest = back;
    front
}

/// `up = store(silu(gate) * up)`.
fn activate(cpu: &Cpu, gate: &[bf16], up: &mut [bf16]) {
    const PART: usize = 4096;
    let level = cpu.level();
    let mut parts: Vec<_> = gate.chunks(PART).zip(up.chunks_mut(PART)).collect();
    let work = |(gate, up): &mut (&[bf16], &mut [bf16])| {
        let mut g: Vec<f32> = gate.iter().map(|v| widen(*v)).collect();
        silu32_slice(level, &mut g);
        for (up, g) in up.iter_mut().zip(g) {
            *up = store(g * widen(*up));
        }
    };
    cpu.each_mut(&mut parts, work);
}
