//! Routed experts and the shared expert: one pass over an expert's weights per chunk.

use half::bf16;
use numerics::NonFinite;
use numerics::elementary::sig32;
use numerics::op::linear::{Output, Prepared};
use numerics::op::mix::{Term, mix};
use store::experts::ExpertMap;

use super::config::Moe;
use super::error::ModelError;
use super::mlp::{self, Bank, Mlp, Rows};
use super::routing::{Group, Routing};
use super::rows::{Place, Projection};
use super::weight::Weight;
use crate::counters::PhaseCounters;
use crate::index::{ExpertIdx, LayerIdx};
use crate::tiers::trace::Use;
use crate::tiers::{Phase, Ready, Supply, Tiers};

/// The expert that every token uses, with its own gate.
pub(super) struct SharedExpert {
    pub(super) gate: Weight,
    pub(super) mlp: Mlp,
}

/// The experts of a layer.
pub(super) struct Experts {
    pub(super) moe: Moe,
    pub(super) router: Weight,
    pub(super) shared: Option<SharedExpert>,
}

/// What the tokens of a chunk add up, `[rows, hidden]` each.
struct Outputs {
    /// By group, then by token.
    routed: Vec<bf16>,
    /// By token, with each token's weight.
    shared: Option<(Vec<bf16>, Vec<f32>)>,
}

impl Experts {
    /// x `[tokens, hidden]` to `[tokens, hidden]`.
    pub(super) fn forward(
        &self,
        at: Place<'_>,
        x: &Prepared,
        tiers: &Tiers,
        ahead: impl FnOnce() -> Option<(LayerIdx, Vec<ExpertIdx>)>,
        counters: &mut PhaseCounters,
    ) -> Result<Vec<bf16>, ModelError> {
        let (routing, shared_weights) = self.route(at, x)?;
        let groups = routing.groups(self.moe);
        let layer = at.layer.expect("experts are in a layer");
        let phase = if x.tokens() == 1 { Phase::Decode } else { Phase::Prefill };
        tiers.note(layer, &uses(&groups), phase);
        let needed: Vec<ExpertIdx> = groups.iter().map(|g| g.expert).collect();
        let mut supply = tiers.begin(layer, &needed, phase, &mut counters.tiers);
        if let Some((next, predicted)) = ahead() {
            supply.predict(next, &predicted);
        }
        let (routed, shared) = self.run(at, x, &groups, tiers.map(), &mut supply, counters)?;
        drop(supply);
        let outputs = Outputs { routed, shared: shared.zip(shared_weights) };
        self.add_up(at, x, &routing, &groups, &outputs)
    }

    /// The experts that the tokens of x would choose, the most wanted first.
    pub(super) fn guess(&self, at: Place<'_>, x: &Prepared) -> Option<Vec<ExpertIdx>> {
        let (routing, _) = self.route(at, x).ok()?;
        let mut groups = routing.groups(self.moe);
        groups.sort_by_key(|g| std::cmp::Reverse(g.tokens.len()));
        match x.tokens() {
            1 => Some(routing.experts),
            _ => Some(groups.into_iter().map(|g| g.expert).collect()),
        }
    }

    /// Router logits, the top k of them, and their softmax; also the shared expert's weights.
    fn route(
        &self,
        at: Place<'_>,
        x: &Prepared,
    ) -> Result<(Routing, Option<Vec<f32>>), ModelError> {
        let mut logits = vec![0.0f32; x.tokens() * self.moe.experts];
        let mut gate = vec![0.0f32; x.tokens()];
        let all = |weight, output| Projection { weight, input: x, tokens: None, output };
        let mut work = vec![all(&self.router, Output::F32(&mut logits))];
        if let Some(shared) = &self.shared {
            work.push(all(&shared.gate, Output::F32(&mut gate)));
        }
        at.project(work)?;
        let mut routing = Routing { experts: Vec::new(), weights: Vec::new() };
        for (token, logits) in logits.chunks(self.moe.experts).enumerate() {
            routing
                .choose(at.cpu, self.moe, logits)
                .ok_or_else(|| at.not_finite("router", NonFinite { row: 0, token }))?;
        }
        gate.iter_mut().for_each(|g| *g = sig32(*g));
        Ok((routing, self.shared.as_ref().map(|_| gate)))
    }

    /// Every needed expert once, over all of its tokens, in the order in which they are there; the
    /// shared one over all.
    fn run(
        &self,
        at: Place<'_>,
        x: &Prepared,
        groups: &[Group],
        map: &ExpertMap,
        supply: &mut Supply<'_>,
        counters: &mut PhaseCounters,
    ) -> Result<(Vec<bf16>, Option<Vec<bf16>>), ModelError> {
        let layer = at.layer.expect("experts are in a layer").0 as u32;
        let mut routed = vec![bf16::ZERO; x.tokens() * self.moe.top_k * x.width()];
        let order: Vec<u32> = (0..(x.tokens() * self.moe.top_k) as u32).collect();
        let mut alone = self.shared.as_ref().map(|s| s.mlp.alone(x.tokens()));
        let mut shared = None;
        while let Some(ready) = supply.next(at.cpu, &mut counters.tiers)? {
            let experts: Vec<(&Group, Mlp)> = ready
                .into_iter()
                .map(|Ready { expert, bytes }| {
                    let blocks = map.blocks(layer, expert.0).iter().zip(bytes.blocks);
                    Ok((group_of(groups, expert), Mlp::of_blocks(blocks)?))
                })
                .collect::<Result<_, ModelError>>()?;
            counters.experts += experts.len() as u64;
            for (_, mlp) in &experts {
                counters.expert_bytes += mlp.bytes();
                counters.expert_plain_bytes += mlp.plain_bytes();
            }
            let mut banks = vec![bank(self.moe.width, &experts, &order)];
            banks.extend(alone.take());
            let mut outputs = mlp::run(at, x, &banks)?.into_iter();
            let values = outputs.next().expect("the routed experts' bank");
            scatter(&experts, x.width(), &values, &mut routed);
            shared = shared.or(outputs.next());
        }
        Ok((routed, shared))
    }

    /// `y = S_bf16(w_e * d_e over the selected, + g * shared)` for every token.
    fn add_up(
        &self,
        at: Place<'_>,
        x: &Prepared,
        routing: &Routing,
        groups: &[Group],
        outputs: &Outputs,
    ) -> Result<Vec<bf16>, ModelError> {
        let (hidden, top_k) = (x.width(), self.moe.top_k);
        let rows = routing.rows(groups);
        let mut y = vec![bf16::ZERO; x.tokens() * hidden];
        at.each_row(&mut y, hidden, |t, y| {
            let routed = (t * top_k..(t + 1) * top_k).map(|choice| Term {
                weight: routing.weights[choice],
                output: &outputs.routed[rows[choice] * hidden..][..hidden],
            });
            let shared = outputs.shared.as_ref().map(|(outputs, weights)| Term {
                weight: weights[t],
                output: &outputs[t * hidden..][..hidden],
            });
            let terms: Vec<Term<'_>> = routed.chain(shared).collect();
            mix(at.cpu.level(), &terms, y)
        })
        .map_err(|e| at.not_finite("expert sum", e))?;
        Ok(y)
    }

    /// Bytes of everything but the routed experts.
    pub(super) fn dense_bytes(&self) -> u64 {
        let shared = self.shared.as_ref().map_or(0, |s| s.gate.bytes() + s.mlp.bytes());
        self.router.bytes() + shared
    }
}

/// How many tokens use each expert.
pub(super) fn uses(groups: &[Group]) -> Vec<Use> {
    let of = |g: &Group| Use { expert: g.expert, tokens: g.tokens.len() as u32 };
    groups.iter().map(of).collect()
}

fn group_of(groups: &[Group], expert: ExpertIdx) -> &Group {
    let at = groups.binary_search_by_key(&expert, |g| g.expert);
    &groups[at.expect("only what was asked for is served")]
}

/// The experts of a wave side by side, each over its own tokens; `order` counts from 0.
pub(super) fn bank<'a>(
    width: usize,
    experts: &'a [(&'a Group, Mlp)],
    order: &'a [u32],
) -> Bank<'a> {
    let mut first = 0;
    let uses = experts.iter().map(|(group, mlp)| {
        let of_bank = &order[first..first + group.tokens.len()];
        first += of_bank.len();
        mlp::Use { mlp, rows: Some(Rows { of_x: &group.tokens, of_bank }) }
    });
    let uses = uses.collect();
    Bank { width, rows: first, uses }
}

/// Puts the rows of a wave where the groups' rows are.
fn scatter(experts: &[(&Group, Mlp)], hidden: usize, wave: &[bf16], all: &mut [bf16]) {
    let mut wave = wave.chunks(hidden);
    for row in experts.iter().flat_map(|(group, _)| &group.rows) {
        let from = wave.next().expect("a row for each choice");
        all[*row as usize * hidden..][..hidden].copy_from_slice(from);
    }
}
