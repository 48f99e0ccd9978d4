//! Routed experts and the shared expert: one pass over an expert's weights per chunk.

use half::bf16;
use numerics::Cpu;
use numerics::elementary::{exp32_slice, sig32, silu32_slice};
use numerics::op::dot::sum;
use numerics::op::linear::{Output, Prepared};
use numerics::op::mix::{Term, mix};
use numerics::round::{store, widen};

use super::config::Moe;
use super::error::ModelError;
use super::rows::{Place, Projection};
use super::weight::Weight;
use crate::counters::PhaseCounters;
use crate::index::ExpertIdx;

/// `down(silu(gate(x)) * up(x))`.
pub(super) struct Mlp {
    pub(super) gate: Weight,
    pub(super) up: Weight,
    pub(super) down: Weight,
}

/// One routed expert.
pub(super) type ExpertWeights = Mlp;

/// The expert that every token uses, with its own gate.
pub(super) struct SharedExpert {
    pub(super) gate: Weight,
    pub(super) mlp: Mlp,
}

/// The experts of a layer.
pub(super) struct Experts {
    pub(super) moe: Moe,
    pub(super) router: Weight,
    pub(super) routed: Vec<ExpertWeights>,
    pub(super) shared: Option<SharedExpert>,
}

impl Mlp {
    pub(super) fn bytes(&self) -> u64 {
        self.gate.bytes() + self.up.bytes() + self.down.bytes()
    }

    pub(super) fn forward(&self, at: Place<'_>, x: &Prepared) -> Result<Vec<bf16>, ModelError> {
        let width = self.gate.matrix().rows();
        let mut gate = vec![bf16::ZERO; x.tokens() * width];
        let mut up = vec![bf16::ZERO; x.tokens() * width];
        at.project(vec![
            Projection::new(&self.gate, x, &mut gate),
            Projection::new(&self.up, x, &mut up),
        ])?;
        activate(at.cpu, &gate, &mut up);
        at.linear(&self.down, &Prepared::new(at.cpu, up, width))
    }
}

/// Which experts each token uses and with what weights; `[tokens, top_k]` each.
struct Routing {
    experts: Vec<ExpertIdx>,
    weights: Vec<f32>,
}

/// The tokens of each expert that has any.
struct Group {
    expert: ExpertIdx,
    /// Rows of the input.
    tokens: Vec<u32>,
    /// Which choices these are, `token * top_k + slot`.
    choices: Vec<usize>,
    /// Rows of the outputs, one after the other: `first..first + tokens.len()`.
    rows: Vec<u32>,
}

impl Experts {
    /// x `[tokens, hidden]` to `[tokens, hidden]`.
    pub(super) fn forward(
        &self,
        at: Place<'_>,
        x: &Prepared,
        counters: &mut PhaseCounters,
    ) -> Result<Vec<bf16>, ModelError> {
        let (tokens, hidden) = (x.tokens(), x.width());
        let (routing, shared_gate) = self.route(at, x)?;
        let groups = group(&routing, self.moe);
        counters.experts += groups.len() as u64;
        for g in &groups {
            counters.expert_bytes += self.routed[g.expert.0 as usize].bytes();
        }
        let mut routed = vec![bf16::ZERO; tokens * self.moe.top_k * hidden];
        let mut shared = vec![bf16::ZERO; if self.shared.is_some() { tokens * hidden } else { 0 }];
        self.run(at, x, &groups, &mut routed, &mut shared)?;
        let mut row_of = vec![0usize; tokens * self.moe.top_k];
        for g in &groups {
            for (choice, row) in g.choices.iter().zip(&g.rows) {
                row_of[*choice] = *row as usize;
            }
        }
        let mut y = vec![bf16::ZERO; tokens * hidden];
        let level = at.cpu.level();
        let none = vec![bf16::ZERO; tokens * hidden];
        at.each_row(&none, &mut y, hidden, |t, _, y| {
            let mut terms: Vec<Term<'_>> = (0..self.moe.top_k)
                .map(|slot| t * self.moe.top_k + slot)
                .map(|i| Term {
                    weight: routing.weights[i],
                    output: &routed[row_of[i] * hidden..][..hidden],
                })
                .collect();
            if self.shared.is_some() {
                let output = &shared[t * hidden..][..hidden];
                terms.push(Term { weight: sig32(shared_gate[t]), output });
            }
            mix(level, &terms, y)
        })
        .map_err(|e| at.not_finite("expert sum", e))?;
        Ok(y)
    }

    /// Router logits, the top k of them, and their softmax; also the shared expert's gate.
    fn route(&self, at: Place<'_>, x: &Prepared) -> Result<(Routing, Vec<f32>), ModelError> {
        let mut logits = vec![0.0f32; x.tokens() * self.moe.experts];
        let mut gate = vec![0.0f32; x.tokens()];
        let all = |weight, output| Projection { weight, input: x, tokens: None, output };
        let mut work = vec![all(&self.router, Output::F32(&mut logits))];
        if let Some(shared) = &self.shared {
            work.push(all(&shared.gate, Output::F32(&mut gate)));
        }
        at.project(work)?;
        let mut routing = Routing { experts: Vec::new(), weights: Vec::new() };
        for (t, l) in logits.chunks(self.moe.experts).enumerate() {
            routing
                .choose(at.cpu, self.moe, l)
                .ok_or_else(|| at.not_finite("router", numerics::NonFinite { row: 0, token: t }))?;
        }
        Ok((routing, gate))
    }

    /// Every needed expert once, over all of its tokens.
    fn run(
        &self,
        at: Place<'_>,
        x: &Prepared,
        groups: &[Group],
        routed: &mut [bf16],
        shared: &mut [bf16],
    ) -> Result<(), ModelError> {
        let width = self.moe.width;
        let count: usize = groups.iter().map(|g| g.tokens.len()).sum();
        let mut gate = vec![bf16::ZERO; count * width];
        let mut up = vec![bf16::ZERO; count * width];
        let shared_width = self.moe.shared_width.unwrap_or(0);
        let mut shared_gate = vec![bf16::ZERO; x.tokens() * shared_width];
        let mut shared_up = shared_gate.clone();
        let mut work = Vec::new();
        let (mut gates, mut ups) = (&mut gate[..], &mut up[..]);
        for g in groups {
            let mlp = &self.routed[g.expert.0 as usize];
            for (weight, rest) in [(&mlp.gate, &mut gates), (&mlp.up, &mut ups)] {
                let output = Output::Bf16(take(rest, g.tokens.len() * width));
                work.push(Projection { weight, input: x, tokens: Some(&g.tokens), output });
            }
        }
        if let Some(s) = &self.shared {
            work.push(Projection::new(&s.mlp.gate, x, &mut shared_gate));
            work.push(Projection::new(&s.mlp.up, x, &mut shared_up));
        }
        at.project(work)?;
        activate(at.cpu, &gate, &mut up);
        activate(at.cpu, &shared_gate, &mut shared_up);
        let inner = Prepared::new(at.cpu, up, width);
        let inner_shared =
            (shared_width > 0).then(|| Prepared::new(at.cpu, shared_up, shared_width));
        let mut work = Vec::new();
        let mut outputs = routed;
        for g in groups {
            let output = Output::Bf16(take(&mut outputs, g.tokens.len() * x.width()));
            let weight = &self.routed[g.expert.0 as usize].down;
            work.push(Projection { weight, input: &inner, tokens: Some(&g.rows), output });
        }
        if let (Some(s), Some(inner)) = (&self.shared, &inner_shared) {
            work.push(Projection::new(&s.mlp.down, inner, shared));
        }
        at.project(work)
    }

    /// Bytes of everything but the routed experts.
    pub(super) fn dense_bytes(&self) -> u64 {
        let shared = self.shared.as_ref().map_or(0, |s| s.gate.bytes() + s.mlp.bytes());
        self.router.bytes() + shared
    }
}

impl Routing {
    /// The largest logits win, ties to the lower id; softmax over them (or over all).
    fn choose(&mut self, cpu: &Cpu, moe: Moe, logits: &[f32]) -> Option<()> {
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        let by_logit = |a: &u32, b: &u32| {
            let (x, y) = (logits[*a as usize], logits[*b as usize]);
            y.partial_cmp(&x).expect("router logits are finite").then(a.cmp(b))
        };
        if moe.top_k < order.len() {
            order.select_nth_unstable_by(moe.top_k - 1, by_logit);
        }
        order.truncate(moe.top_k);
        order.sort_unstable_by(by_logit);
        let most = logits[order[0] as usize];
        let mut share: Vec<f32> = if moe.norm_top_k {
            order.iter().map(|e| logits[*e as usize] - most).collect()
        } else {
            logits.iter().map(|l| l - most).collect()
        };
        exp32_slice(cpu.level(), &mut share);
        let total = sum(cpu.level(), &share)?;
        for (slot, e) in order.iter().enumerate() {
            let x = if moe.norm_top_k { share[slot] } else { share[*e as usize] };
            self.weights.push(x / total);
            self.experts.push(ExpertIdx(*e));
        }
        Some(())
    }
}

fn group(routing: &Routing, moe: Moe) -> Vec<Group> {
    let mut choices = vec![Vec::new(); moe.experts];
    for (i, e) in routing.experts.iter().enumerate() {
        choices[e.0 as usize].push(i);
    }
    let mut groups = Vec::new();
    let mut first = 0u32;
    for (e, choices) in choices.into_iter().enumerate().filter(|(_, c)| !c.is_empty()) {
        let rows: Vec<u32> = (first..first + choices.len() as u32).collect();
        first += choices.len() as u32;
        let tokens = choices.iter().map(|c| (c / moe.top_k) as u32).collect();
        groups.push(Group { expert: ExpertIdx(e as u32), tokens, choices, rows });
    }
    groups
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
