//! From logits to the next token, bit for bit the same everywhere.
//!
//! The definition, on logits `l` of one position (NUMERICS.md, "Greedy" and "Sampling"):
//!
//! 1. *Bias and penalties*, each step one f32 operation, in this order (`adjust`):
//!    `l = l + b` for every entry of `logit_bias` in request order; for every distinct id of prompt
//!    and output `l = l / r` if `l > 0` else `l * r` (repetition); for every distinct id of the
//!    output `l = l - p` (presence), then `l = l - f32(f * f32(count))` (frequency).
//! 2. *Greedy* (temperature 0): the largest `l`, ties to the lower id.
//! 3. *Weights* (`weights`): `a = f32((f64(l) - f64(max)) / T)`, one f64 subtraction and one f64
//!    division, then one rounding to f32; `w = floor(exp32(a) * 2^40)`, an integer.
//! 4. *Cuts* (`cuts`) in the order top-k, top-p, min-p, each on what the one before left. The
//!    order of tokens is weight descending, ties to the lower id. Top-p keeps the shortest prefix
//!    whose total is at least `p` of the total; min-p keeps weights of at least `m` of the largest.
//!    `p` and `m` are the exact binary fractions that the f64s are, and nothing is rounded.
//! 5. *Draw* (`draw`): u from ChaCha20 keyed by seed, choice and position; the first id, in
//!    ascending order of ids, whose running total exceeds `(u * total) >> 64`.
//!
//! Nothing is remembered between calls but scratch memory: a token depends on the parameters, the
//! logits and the history alone, so a draft that is thrown away leaves no trace.

mod adjust;
mod cuts;
mod draw;
mod params;
mod weights;

pub use params::{SamplingError, SamplingParams};

use crate::index::TokenId;
use cuts::Candidate;
use weights::Weigher;

/// The tokens before the one to choose.
#[derive(Clone, Copy, Debug, Default)]
pub struct History<'a> {
    pub prompt: &'a [TokenId],
    /// Tokens generated so far; their number is the position of the draw.
    pub output: &'a [TokenId],
}

/// Chooses tokens by validated parameters.
#[derive(Clone, Debug)]
pub struct Sampler {
    params: SamplingParams,
    vocab: usize,
    adjusted: Vec<f32>,
    /// Occurrences by id, all zero between calls.
    counts: Vec<u32>,
    /// Logits out of order, to find the k-th largest.
    ranked: Vec<f32>,
    candidates: Vec<Candidate>,
}

impl Sampler {
    /// A sampler for models with `vocab` logits.
    ///
    /// Errors: [`SamplingError`], as [`SamplingParams::validate`] finds.
    pub fn new(params: SamplingParams, vocab: usize) -> Result<Sampler, SamplingError> {
        params.validate(vocab)?;
        Ok(Sampler {
            params,
            vocab,
            adjusted: Vec::new(),
            counts: Vec::new(),
            ranked: Vec::new(),
            candidates: Vec::new(),
        })
    }

    /// The parameters it was made with.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Chooses the token that follows the history.
    ///
    /// Shapes: logits \[vocab\].
    /// Errors: a logit that is not finite, before or after bias and penalties, names its id; a
    /// wrong number of logits; a history id beyond the vocabulary, where penalties need it.
    pub fn next(&mut self, logits: &[f32], history: History<'_>) -> Result<TokenId, SamplingError> {
        if logits.len() != self.vocab {
            return Err(SamplingError::LogitCount { found: logits.len(), expected: self.vocab });
        }
        if !self.params.adjusts() {
            return self.choose(logits, history.output.len());
        }
        let mut adjusted = std::mem::take(&mut self.adjusted);
        adjusted.clear();
        adjusted.extend_from_slice(logits);
        let chosen = adjust::apply(&self.params, history, &mut self.counts, &mut adjusted)
            .and_then(|()| self.choose(&adjusted, history.output.len()));
        self.adjusted = adjusted;
        chosen
    }

    fn choose(&mut self, logits: &[f32], position: usize) -> Result<TokenId, SamplingError> {
        let best = largest(logits)?;
        if self.params.temperature == 0.0 {
            return Ok(best);
        }
        let weigher = Weigher::new(logits[best.0 as usize], self.params.temperature);
        self.gather_candidates(logits, &weigher);
        self.cut();
        let random = draw::random(self.params.seed, self.params.choice, position as u64);
        // The largest logit weighs 2^40 and no cut removes it, so this is never the fallback.
        Ok(cuts::pick(&self.candidates, random).unwrap_or(best))
    }

    /// Lists every token that could survive top-k, with its weight, in ascending order of ids.
    ///
    /// Weights never fall as logits rise, so a bound on weights is a bound on logits and `exp32`
    /// runs only for tokens above it. Weight 0 is never drawn.
    fn gather_candidates(&mut self, logits: &[f32], weigher: &Weigher) {
        let mut weight_min = 1;
        if let Some(k) = self.params.top_k.filter(|&k| k < logits.len()) {
            self.ranked.clear();
            self.ranked.extend_from_slice(logits);
            let (_, kth, _) = self.ranked.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
            weight_min = weigher.weight(*kth).max(1);
        }
        let logit_min = weigher.lowest_logit(weight_min);
        self.candidates.clear();
        self.candidates.extend(
            (0u32..)
                .zip(logits)
                .filter(|&(_, &logit)| logit >= logit_min)
                .map(|(id, &logit)| Candidate { weight: weigher.weight(logit), id: TokenId(id) }),
        );
    }

    fn cut(&mut self) {
        if let Some(k) = self.params.top_k {
            cuts::keep_first(&mut self.candidates, k);
        }
        if let Some(share) = self.params.top_p {
            cuts::keep_share(&mut self.candidates, share);
        }
        if let Some(share) = self.params.min_p {
            cuts::keep_at_least(&mut self.candidates, share);
        }
        self.candidates.sort_unstable_by_key(|candidate| candidate.id);
    }
}

/// The largest logit, ties to the lower id, in one pass that also refuses non-finite ones.
fn largest(logits: &[f32]) -> Result<TokenId, SamplingError> {
    let mut best = TokenId(0);
    let mut best_logit = f32::NEG_INFINITY;
    for (id, &logit) in (0u32..).zip(logits) {
        if !logit.is_finite() {
            return Err(SamplingError::NonFiniteLogit { token: TokenId(id), value: logit });
        }
        if logit > best_logit {
            (best, best_logit) = (TokenId(id), logit);
        }
    }
    Ok(best)
}
