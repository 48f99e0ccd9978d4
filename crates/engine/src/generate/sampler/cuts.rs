//! Cuts and the pick, all on integers.

use std::cmp::Ordering;

use super::weights::WEIGHT_MAX;
use crate::index::TokenId;

/// A token that may be drawn; its weight is above 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) weight: u64,
    pub(super) id: TokenId,
}

/// Weight descending, ties to the lower id: a total order, so every way of sorting agrees.
fn heavier_first(a: &Candidate, b: &Candidate) -> Ordering {
    b.weight.cmp(&a.weight).then(a.id.0.cmp(&b.id.0))
}

fn total(candidates: &[Candidate]) -> u128 {
    candidates.iter().map(|candidate| u128::from(candidate.weight)).sum()
}

/// Top-k: keeps the first `k`, in any order.
pub(super) fn keep_first(candidates: &mut Vec<Candidate>, k: usize) {
    if k < candidates.len() {
        candidates.select_nth_unstable_by(k, heavier_first);
        candidates.truncate(k);
    }
}

/// Top-p: keeps the shortest prefix that weighs at least `share` of the total.
///
/// Sorts a block at a time, each four times the last: a nucleus of a few hundred tokens out of a
/// large vocabulary costs one selection and one short sort.
pub(super) fn keep_share(candidates: &mut Vec<Candidate>, share: f64) {
    const FIRST_BLOCK: usize = 256;
    let enough = ceil_of_share(share, total(candidates));
    let mut running = 0;
    let mut start = 0;
    let mut block = FIRST_BLOCK;
    while start < candidates.len() {
        let rest = &mut candidates[start..];
        let size = block.min(rest.len());
        if size < rest.len() {
            rest.select_nth_unstable_by(size, heavier_first);
        }
        rest[..size].sort_unstable_by(heavier_first);
        for (offset, candidate) in rest[..size].iter().enumerate() {
            running += u128::from(candidate.weight);
            if running >= enough {
                candidates.truncate(start + offset + 1);
                return;
            }
        }
        start += size;
        block *= 4;
    }
}

/// Min-p: keeps what weighs at least `share` of the heaviest.
///
/// The heaviest is always the largest logit, which weighs 2^40 and survives every cut.
pub(super) fn keep_at_least(candidates: &mut Vec<Candidate>, share: f64) {
    let enough = ceil_of_share(share, u128::from(WEIGHT_MAX));
    candidates.retain(|candidate| u128::from(candidate.weight) >= enough);
}

/// The smallest integer that is at least `share * whole`, exactly.
///
/// `share`, from 0 to 1, is the fraction `m / 2^s` with `m < 2^53` and `s >= 52`; `whole` is at
/// most 2^64 (2^24 weights), so `m * whole` and the carry of the division fit 128 bits.
fn ceil_of_share(share: f64, whole: u128) -> u128 {
    const FRACTION_BITS: u32 = 52;
    let bits = share.to_bits();
    let fraction = bits & ((1 << FRACTION_BITS) - 1);
    let exponent = (bits >> FRACTION_BITS & 0x7ff) as u32;
    let (mantissa, shift) = match exponent {
        0 => (fraction, 1074),
        _ => (fraction | 1 << FRACTION_BITS, 1075 - exponent),
    };
    let product = u128::from(mantissa) * whole;
    if shift >= u128::BITS {
        return u128::from(product > 0);
    }
    (product + ((1 << shift) - 1)) >> shift
}

/// The first candidate, ids ascending, whose running total exceeds `(random * total) >> 64`.
pub(super) fn pick(candidates: &[Candidate], random: u64) -> Option<TokenId> {
    let target = (u128::from(random) * total(candidates)) >> 64;
    let mut running = 0;
    candidates.iter().find_map(|candidate| {
        running += u128::from(candidate.weight);
        (running > target).then_some(candidate.id)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(weights: &[u64]) -> Vec<Candidate> {
        (0u32..).zip(weights).map(|(id, &weight)| Candidate { weight, id: TokenId(id) }).collect()
    }

    fn ids(mut kept: Vec<Candidate>) -> Vec<u32> {
        kept.sort_unstable_by_key(|candidate| candidate.id.0);
        kept.iter().map(|candidate| candidate.id.0).collect()
    }

    #[test]
    fn shares_are_exact() {
        let check = |share: f64, whole: u128, expect: u128| {
            assert_eq!(ceil_of_share(share, whole), expect, "{share} of {whole}");
        };
        check(1.0, 7, 7);
        check(0.5, 7, 4);
        check(0.5, 8, 4);
        check(0.0, 8, 0);
        check(-0.0, 8, 0);
        // 0.1 is a little more than a tenth, 0.3 a little less than three tenths.
        check(0.1, 10, 2);
        check(0.3, 10, 3);
        check(5e-324, 1 << 64, 1);
        check(f64::MIN_POSITIVE, 1, 1);
        check(1.0 / (1u128 << 75) as f64, 1 << 64, 1);
        check(1.0, 1 << 64, 1 << 64);
        check(1.0 - f64::EPSILON / 2.0, 1 << 64, (1 << 64) - (1 << 11));
    }

    #[test]
    fn top_k_breaks_ties_by_the_lower_id() {
        let check = |weights: &[u64], k, expect: &[u32]| {
            let mut kept = candidates(weights);
            keep_first(&mut kept, k);
            assert_eq!(ids(kept), expect, "{weights:?} {k}");
        };
        check(&[5, 9, 5, 5, 1], 1, &[1]);
        check(&[5, 9, 5, 5, 1], 2, &[0, 1]);
        check(&[5, 9, 5, 5, 1], 3, &[0, 1, 2]);
        check(&[5, 9, 5, 5, 1], 5, &[0, 1, 2, 3, 4]);
        check(&[5, 9, 5, 5, 1], 50, &[0, 1, 2, 3, 4]);
    }

    #[test]
    fn top_p_keeps_the_shortest_prefix() {
        let check = |weights: &[u64], share, expect: &[u32]| {
            let mut kept = candidates(weights);
            keep_share(&mut kept, share);
            assert_eq!(ids(kept), expect, "{weights:?} {share}");
        };
        check(&[1, 2, 4, 1], 0.5, &[2]);
        check(&[1, 2, 4, 1], 0.500_000_000_000_000_1, &[1, 2]);
        check(&[1, 2, 4, 1], 0.75, &[1, 2]);
        check(&[1, 2, 4, 1], 0.76, &[0, 1, 2]);
        check(&[1, 2, 4, 1], 1.0, &[0, 1, 2, 3]);
        check(&[1, 2, 4, 1], 5e-324, &[2]);
        // 3 of 10 reach 0.3, which is below three tenths; 1 of 10 does not reach 0.1.
        check(&[3, 3, 3, 1], 0.3, &[0]);
        check(&[1; 10], 0.1, &[0, 1]);
    }

    #[test]
    fn top_p_over_many_blocks_keeps_the_prefix_of_a_full_sort() {
        let weights: Vec<u64> = (0..5000u64).map(|i| 1 + i * 7919 % 1009).collect();
        for share in [0.01, 0.2, 0.5, 0.9, 0.999, 1.0] {
            let mut sorted = candidates(&weights);
            sorted.sort_by(heavier_first);
            let enough = ceil_of_share(share, total(&sorted));
            let mut running = 0;
            let whole = sorted.iter().position(|candidate| {
                running += u128::from(candidate.weight);
                running >= enough
            });
            sorted.truncate(whole.expect("a share of the total") + 1);
            let mut kept = candidates(&weights);
            keep_share(&mut kept, share);
            assert_eq!(ids(kept), ids(sorted), "{share}");
        }
    }

    #[test]
    fn min_p_compares_with_the_heaviest() {
        let check = |weights: &[u64], share, expect: &[u32]| {
            let mut kept = candidates(weights);
            keep_at_least(&mut kept, share);
            assert_eq!(ids(kept), expect, "{weights:?} {share}");
        };
        let half = WEIGHT_MAX / 2;
        check(&[half - 1, half, WEIGHT_MAX, 1], 0.5, &[1, 2]);
        check(&[half - 1, half, WEIGHT_MAX, 1], 0.0, &[0, 1, 2, 3]);
        check(&[half - 1, half, WEIGHT_MAX, 1], 1.0, &[2]);
    }

    #[test]
    fn the_pick_follows_ascending_ids() {
        let check = |weights: &[u64], random, expect| {
            assert_eq!(pick(&candidates(weights), random), expect, "{weights:?} {random}");
        };
        check(&[1, 1, 2], 0, Some(TokenId(0)));
        check(&[1, 1, 2], (1 << 62) - 1, Some(TokenId(0)));
        check(&[1, 1, 2], 1 << 62, Some(TokenId(1)));
        check(&[1, 1, 2], 1 << 63, Some(TokenId(2)));
        check(&[1, 1, 2], u64::MAX, Some(TokenId(2)));
        check(&[], 0, None);
    }
}
