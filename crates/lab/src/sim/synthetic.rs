//! Traces from a seed, with the two things that caches live on: some experts are hotter than
//! others, for good and for the length of a topic, and a token uses again what the last one used.

use anyhow::{Result, ensure};
use engine::index::ExpertIdx;
use engine::tiers::trace::{Header, LayerUses, Pass, Trace, Use};
use engine::tiers::{Phase, Shape};
use numerics::elementary::exp32;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::Serialize;

/// What to make up.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Synthetic {
    pub shape: Shape,
    pub expert_bytes: u64,
    /// Decoded tokens.
    pub tokens: usize,
    /// An expert is exp(skew * g) times as likely as others, g normal.
    pub skew: f64,
    /// As `skew`, drawn anew for every topic.
    pub topic_skew: f64,
    /// Mean length of a topic in tokens.
    pub topic_tokens: usize,
    /// Tokens of the prompt before each topic; 0 for none.
    pub prompt_tokens: usize,
    /// The share of a token's experts that the token before used, as far as skews allow.
    pub reuse: f64,
    /// The share of a layer's experts that the layer before names.
    pub accuracy: f64,
    pub seed: u64,
}

/// Makes a trace up; the same numbers give the same trace anywhere.
///
/// # Errors
/// Numbers without sense.
pub fn generate(spec: &Synthetic) -> Result<Trace> {
    check(spec)?;
    let mut source = Source::new(*spec);
    let keep = source.keep_for(spec.reuse);
    let mut passes = Vec::new();
    let mut last = vec![Vec::new(); spec.shape.layers];
    let mut left = 0;
    for _ in 0..spec.tokens {
        if left == 0 {
            left = source.begin_topic();
            passes.extend((spec.prompt_tokens > 0).then(|| source.prompt()));
        }
        left -= 1;
        let layers = last.iter_mut().enumerate().map(|(layer, last)| {
            *last = source.token(layer, last, keep);
            source.uses(last)
        });
        passes.push(Pass { phase: Phase::Decode, tokens: 1, layers: layers.collect() });
    }
    let header = Header {
        fingerprint: format!("synthetic seed {}", spec.seed),
        shape: spec.shape,
        expert_bytes: spec.expert_bytes,
        recorded: false,
    };
    Ok(Trace { header, passes, complete: true })
}

fn check(spec: &Synthetic) -> Result<()> {
    let Shape { layers, experts, top_k } = spec.shape;
    ensure!(layers > 0 && experts > 0, "a model has layers and experts, found {:?}", spec.shape);
    ensure!(
        (1..=experts).contains(&top_k),
        "--top-k is {top_k}, expected 1 to the {experts} experts"
    );
    for (name, share) in [("--reuse", spec.reuse), ("--accuracy", spec.accuracy)] {
        ensure!((0.0..=1.0).contains(&share), "{name} is {share}, expected 0 to 1");
    }
    for (name, skew) in [("--skew", spec.skew), ("--topic-skew", spec.topic_skew)] {
        ensure!((0.0..=8.0).contains(&skew), "{name} is {skew}, expected 0 to 8");
    }
    ensure!(spec.topic_tokens > 0, "--topic-tokens is 0, expected 1 or more");
    Ok(())
}

struct Source {
    spec: Synthetic,
    dice: ChaCha8Rng,
    /// Logarithms of how likely each expert is for good, by layer.
    base: Vec<Vec<f64>>,
    /// Running sums of how likely each is in this topic, by layer.
    sums: Vec<Vec<f64>>,
}

impl Source {
    fn new(spec: Synthetic) -> Source {
        let mut dice = ChaCha8Rng::seed_from_u64(spec.seed);
        let Shape { layers, experts, .. } = spec.shape;
        let mut layer = || (0..experts).map(|_| spec.skew * normal(&mut dice)).collect();
        let base = (0..layers).map(|_| layer()).collect();
        let mut source = Source { spec, dice, base, sums: Vec::new() };
        source.begin_topic();
        source
    }

    /// Draws how likely the experts are from now on, and for how many tokens.
    fn begin_topic(&mut self) -> usize {
        let (skew, dice) = (self.spec.topic_skew, &mut self.dice);
        let mut sums = |base: &Vec<f64>| {
            let mut sum = 0.0;
            let mut add = |log: &f64| {
                sum += f64::from(exp32((log + skew * normal(dice)) as f32));
                sum
            };
            base.iter().map(&mut add).collect()
        };
        self.sums = self.base.iter().map(&mut sums).collect();
        // Between half and one and a half of the mean.
        let mean = self.spec.topic_tokens as f64;
        ((mean * (0.5 + uniform(&mut self.dice))) as usize).max(1)
    }

    /// The chance to keep an expert that makes `reuse` of them come back, given how many come
    /// back by chance.
    fn keep_for(&mut self, reuse: f64) -> f64 {
        let (mut again, mut all) = (0usize, 0usize);
        for layer in 0..self.spec.shape.layers.min(8) {
            for _ in 0..50 {
                let (a, b) = (self.token(layer, &[], 0.0), self.token(layer, &[], 0.0));
                again += b.iter().filter(|e| a.contains(e)).count();
                all += b.len();
            }
        }
        let chance = again as f64 / all as f64;
        if chance < 1.0 { ((reuse - chance) / (1.0 - chance)).max(0.0) } else { 0.0 }
    }

    /// The experts of a token, given those of the token before.
    fn token(&mut self, layer: usize, last: &[u32], keep: f64) -> Vec<u32> {
        let mut chosen: Vec<u32> =
            last.iter().copied().filter(|_| uniform(&mut self.dice) < keep).collect();
        let sums = &self.sums[layer];
        let total = sums[sums.len() - 1];
        let mut tries = 0;
        while chosen.len() < self.spec.shape.top_k {
            tries += 1;
            let mark = uniform(&mut self.dice) * total;
            let drawn = sums.partition_point(|sum| *sum <= mark).min(sums.len() - 1) as u32;
            if !chosen.contains(&drawn) {
                chosen.push(drawn);
            } else if tries > 32 * self.spec.shape.top_k {
                // A few experts have nearly all of the weight: the rest come in their order.
                let free = (0..sums.len() as u32).find(|e| !chosen.contains(e));
                chosen.extend(free);
            }
        }
        chosen
    }

    /// Those experts, and what the layer before says of them.
    fn uses(&mut self, chosen: &[u32]) -> LayerUses {
        let experts = self.spec.shape.experts as u64;
        let mut predicted: Vec<ExpertIdx> = Vec::new();
        for e in chosen {
            let right = uniform(&mut self.dice) < self.spec.accuracy;
            let guess = (self.dice.next_u64() % experts) as u32;
            let named = ExpertIdx(if right { *e } else { guess });
            if !predicted.contains(&named) {
                predicted.push(named);
            }
        }
        let one = |e: &u32| Use { expert: ExpertIdx(*e), tokens: 1 };
        LayerUses { uses: chosen.iter().map(one).collect(), predicted }
    }

    fn prompt(&mut self) -> Pass {
        let tokens = self.spec.prompt_tokens;
        let mut layers = Vec::new();
        for layer in 0..self.spec.shape.layers {
            let mut counts = vec![0; self.spec.shape.experts];
            for _ in 0..tokens {
                self.token(layer, &[], 0.0).iter().for_each(|e| counts[*e as usize] += 1);
            }
            let uses = (0u32..).zip(counts).filter(|(_, count)| *count > 0);
            let uses = uses.map(|(e, tokens)| Use { expert: ExpertIdx(e), tokens }).collect();
            layers.push(LayerUses { uses, predicted: Vec::new() });
        }
        Pass { phase: Phase::Prefill, tokens: tokens as u32, layers }
    }
}

/// In [0, 1).
fn uniform(dice: &mut ChaCha8Rng) -> f64 {
    (dice.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// Twelve uniform numbers: normal enough, and the same on every machine.
fn normal(dice: &mut ChaCha8Rng) -> f64 {
    (0..12).map(|_| uniform(dice)).sum::<f64>() - 6.0
}
