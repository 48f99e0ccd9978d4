//! How unevenly a skewed router is expected to pick.

use super::random::{BlockId, Normals};
use super::shape::Dimensions;
use super::tensors::router_name;

/// Random tokens per layer; the share is then good to about 0.002 over 48 layers.
const TOKENS_PER_LAYER: usize = 128;

/// The share of picks that the quarter of experts with the largest bias gets, over all layers.
///
/// A router's logit for a normalised random input is normal with a standard deviation proportional
/// to its row's factor, so each token is E independent normals times the factors, and a top-k.
pub fn top_quarter_share(dimensions: &Dimensions, normals: &Normals) -> f64 {
    let mut picks_in_quarter = 0;
    for layer in 0..dimensions.layers {
        picks_in_quarter += layer_picks(dimensions, normals, &router_name(layer));
    }
    let picks = dimensions.layers * TOKENS_PER_LAYER * dimensions.top_k;
    picks_in_quarter as f64 / picks as f64
}

fn layer_picks(dimensions: &Dimensions, normals: &Normals, router: &str) -> usize {
    let experts = dimensions.experts;
    let factors: Vec<f64> = (0..experts).map(|e| normals.expert_factor(router, e)).collect();
    let biases: Vec<f64> = (0..experts).map(|e| normals.expert_bias(router, e)).collect();
    let mut ranking: Vec<usize> = (0..experts).collect();
    ranking.sort_by(|&a, &b| biases[b].total_cmp(&biases[a]));
    let mut in_quarter = vec![false; experts];
    ranking[..experts / 4].iter().for_each(|&expert| in_quarter[expert] = true);

    let tensor = format!("{router} sample");
    let mut draws = normals.draws(BlockId { tensor: &tensor, expert: 0, block: 0 });
    let mut picks = 0;
    for _ in 0..TOKENS_PER_LAYER {
        let mut logits: Vec<(f64, bool)> = (0..experts)
            .map(|expert| (normals.unit_normal(&mut draws) * factors[expert], in_quarter[expert]))
            .collect();
        logits.select_nth_unstable_by(dimensions.top_k - 1, |a, b| b.0.total_cmp(&a.0));
        picks += logits[..dimensions.top_k].iter().filter(|(_, inside)| *inside).count();
    }
    picks
}
