//! Routed experts and the shared expert: one pass over an expert's weights per chunk.

use half::bf16;
use numerics::NonFinite;
use numerics::elementary::sig32;
use numerics::op::linear::{Output, Prepared};
use numerics::op::mix::{Term, mix};

use super::config::Moe;
use super::error::ModelError;
use super::mlp::{self, Bank, Mlp, Rows, Use};
use super::routing::{Group, Routing};
use super::rows::{Place, Projection};
use super::weight::Weight;
use crate::counters::PhaseCounters;

/// The expert that every token uses, with its own gate.
pub(super) struct SharedExpert {
    pub(super) gate: Weight,
    pub(super) mlp: Mlp,
}

/// The experts of a layer.
pub(super) struct Experts {
    pub(super) moe: Moe,
    pub(super) router: Weight,
    pub(super) routed: Vec<Mlp>,
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
        counters: &mut PhaseCounters,
    ) -> Result<Vec<bf16>, ModelError> {
        let (routing, shared_weights) = self.route(at, x)?;
        let groups = routing.groups(self.moe);
        counters.experts += groups.len() as u64;
        counters.expert_bytes += groups.iter().map(|g| self.expert(g).bytes()).sum::<u64>();
        let (routed, shared) = self.run(at, x, &groups)?;
        let outputs = Outputs { routed, shared: shared.zip(shared_weights) };
        self.add_up(at, x, &routing, &groups, &outputs)
    }

    fn expert(&self, group: &Group) -> &Mlp {
        &self.routed[group.expert.0 as usize]
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

    /// Every needed expert once, over all of its tokens; the shared one over all.
    fn run(
        &self,
        at: Place<'_>,
        x: &Prepared,
        groups: &[Group],
    ) -> Result<(Vec<bf16>, Option<Vec<bf16>>), ModelError> {
        let routed = groups.iter().map(|g| Use {
            mlp: self.expert(g),
            rows: Some(Rows { of_x: &g.tokens, of_bank: &g.rows }),
        });
        let rows = x.tokens() * self.moe.top_k;
        let mut banks = vec![Bank { width: self.moe.width, rows, uses: routed.collect() }];
        banks.extend(self.shared.as_ref().map(|s| s.mlp.alone(x.tokens())));
        let mut outputs = mlp::run(at, x, &banks)?.into_iter();
        Ok((outputs.next().expect("the routed experts' bank"), outputs.next()))
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
