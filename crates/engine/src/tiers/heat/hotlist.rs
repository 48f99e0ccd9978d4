//! `hotlist.json` of a store: which experts a named corpus uses most.

use serde::{Deserialize, Serialize};

use super::Heat;
use crate::index::{ExpertIdx, LayerIdx};

/// Experts a layer for which coverage is predicted.
pub const BUDGETS: [usize; 4] = [1, 2, 4, 8];

/// What was routed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Corpus {
    pub name: String,
    /// Of its file.
    pub sha256: String,
    pub tokens: u64,
}

/// The share of all choices that go to the experts used most, so many in each layer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Coverage {
    pub experts_per_layer: usize,
    pub share: f64,
}

/// One layer of a hot list.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HotlistLayer {
    pub layer: usize,
    /// Tokens that chose each expert.
    pub counts: Vec<u64>,
}

/// The experts that a corpus uses, by layer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Hotlist {
    pub format_version: u32,
    /// Of the checkpoint.
    pub fingerprint: String,
    pub corpus: Corpus,
    pub coverage: Vec<Coverage>,
    pub layers: Vec<HotlistLayer>,
}

impl Hotlist {
    /// The hot list of what a heat has counted; layers without routed experts are left out.
    pub fn new(heat: &Heat, fingerprint: &str, corpus: Corpus) -> Hotlist {
        let shape = heat.shape();
        let counts = |layer| {
            let of = |expert| heat.total(LayerIdx(layer), ExpertIdx(expert as u32));
            (0..shape.experts).map(of).collect()
        };
        let layers = (0..shape.layers).map(|layer| HotlistLayer { layer, counts: counts(layer) });
        let layers: Vec<_> = layers.filter(|l| l.counts.iter().any(|count| *count > 0)).collect();
        let coverage = BUDGETS
            .map(|budget| Coverage { experts_per_layer: budget, share: share(&layers, budget) });
        Hotlist {
            format_version: 1,
            fingerprint: fingerprint.to_string(),
            corpus,
            coverage: coverage.to_vec(),
            layers,
        }
    }
}

fn share(layers: &[HotlistLayer], budget: usize) -> f64 {
    let (mut covered, mut all) = (0, 0);
    for layer in layers {
        let mut counts = layer.counts.clone();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        all += counts.iter().sum::<u64>();
        covered += counts.iter().take(budget).sum::<u64>();
    }
    if all > 0 { covered as f64 / all as f64 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiers::{Phase, Shape};

    #[test]
    fn coverage_is_what_the_hottest_of_each_layer_serve() {
        let mut heat = Heat::new(Shape { layers: 3, experts: 4, top_k: 2 });
        heat.pass(Phase::Decode, 10);
        for (layer, expert, tokens) in [(0, 2, 9), (0, 1, 1), (2, 0, 4), (2, 3, 4), (2, 1, 2)] {
            heat.note(Phase::Decode, LayerIdx(layer), ExpertIdx(expert), tokens);
        }
        let corpus = Corpus { name: "c".into(), sha256: "0".repeat(64), tokens: 10 };
        let list = Hotlist::new(&heat, "f", corpus);
        assert_eq!(list.layers.iter().map(|l| l.layer).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(list.layers[0].counts, [0, 1, 9, 0]);
        let shares: Vec<u64> = list.coverage.iter().map(|c| c.share.to_bits()).collect();
        assert_eq!(shares, [0.65f64, 0.9, 1.0, 1.0].map(f64::to_bits));
        let text = serde_json::to_string(&list).expect("JSON");
        assert_eq!(serde_json::from_str::<Hotlist>(&text).expect("JSON"), list);
    }
}
