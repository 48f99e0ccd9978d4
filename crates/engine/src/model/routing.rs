//! Which experts a token uses, and which tokens an expert has.

use numerics::Cpu;
use numerics::elementary::exp32_slice;
use numerics::op::dot::sum;

use super::config::Moe;
use crate::index::ExpertIdx;

/// The choices of a chunk; `[tokens, top_k]` each, the heaviest first.
pub(super) struct Routing {
    pub(super) experts: Vec<ExpertIdx>,
    pub(super) weights: Vec<f32>,
}

/// The tokens of an expert that has any.
pub(super) struct Group {
    pub(super) expert: ExpertIdx,
    /// Rows of the input.
    pub(super) tokens: Vec<u32>,
    /// Which choices these are, `token * top_k + slot`.
    choices: Vec<usize>,
    /// Rows of the outputs, one after the other.
    pub(super) rows: Vec<u32>,
}

impl Group {
    /// The choices of its tokens, `token * top_k + slot`, in the order of the tokens.
    pub(super) fn choices(&self) -> &[usize] {
        &self.choices
    }
}

impl Routing {
    /// The largest logits win, ties to the lower id; softmax over them (or over all).
    pub(super) fn choose(&mut self, cpu: &Cpu, moe: Moe, logits: &[f32]) -> Option<()> {
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

    /// The experts that have tokens, in ascending order.
    pub(super) fn groups(&self, moe: Moe) -> Vec<Group> {
        let mut choices = vec![Vec::new(); moe.experts];
        for (i, e) in self.experts.iter().enumerate() {
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

    /// Where in the outputs of the groups each choice lies, `[tokens, top_k]`.
    pub(super) fn rows(&self, groups: &[Group]) -> Vec<usize> {
        let mut rows = vec![0; self.experts.len()];
        for g in groups {
            for (choice, row) in g.choices.iter().zip(&g.rows) {
                rows[*choice] = *row as usize;
            }
        }
        rows
    }
}
