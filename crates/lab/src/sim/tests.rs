//! The simulator against what can be worked out by hand, and the optimum against everyone.

use super::*;
use engine::index::ExpertIdx;
use engine::tiers::trace::{Header, LayerUses, Pass, Use};
use engine::tiers::{Phase, Shape};

const DEVICES: Devices = Devices {
    disk_rate: 1e9,
    disk_latency: 0.0,
    disk_jitter: 0.0,
    memory_rate: 10e9,
    vram_rate: 100e9,
    pcie_rate: 20e9,
    seed: 1,
};

fn setup(policy: Policy, ram_slots: usize) -> Setup {
    Setup {
        policy,
        ram_slots,
        vram_slots: 0,
        lookahead: false,
        staging_slots: 16,
        dense_bytes: 0,
        warm_passes: 0,
        devices: DEVICES,
    }
}

fn spec(skew: f64, reuse: f64) -> Synthetic {
    Synthetic {
        shape: Shape { layers: 6, experts: 32, top_k: 4 },
        expert_bytes: 1_000_000,
        tokens: 300,
        skew,
        topic_skew: 1.0,
        topic_tokens: 60,
        prompt_tokens: 40,
        reuse,
        accuracy: 0.7,
        seed: 11,
    }
}

/// Tokens of one layer, by their experts.
fn one_layer(tokens: &[&[u32]], experts: usize) -> Trace {
    let shape = Shape { layers: 1, experts, top_k: tokens[0].len() };
    let header =
        Header { fingerprint: "hand".into(), shape, expert_bytes: 1_000_000, recorded: false };
    let uses = |list: &&[u32]| LayerUses {
        uses: list.iter().map(|e| Use { expert: ExpertIdx(*e), tokens: 1 }).collect(),
        predicted: Vec::new(),
    };
    let pass = |list| Pass { phase: Phase::Decode, tokens: 1, layers: vec![uses(list)] };
    Trace { header, passes: tokens.iter().map(pass).collect(), complete: true }
}

#[test]
fn the_optimum_is_that_of_the_textbook() {
    let tokens: Vec<&[u32]> =
        vec![&[1], &[2], &[3], &[4], &[1], &[2], &[5], &[1], &[2], &[3], &[4], &[5]];
    let trace = one_layer(&tokens, 6);
    // Three frames and this string are Belady's example: 7 faults of 12 where each must be kept;
    // a cache that may pass a newcomer by does no worse, and here no better.
    assert_eq!(optimum(&trace, 3, 0), Optimum { hits: 5, requested: 12 });
    assert_eq!(run(&trace, &setup(Policy::Lru, 3)).hits, 2, "10 faults of 12");
    assert_eq!(optimum(&trace, 0, 0).hits, 0);
    assert_eq!(optimum(&trace, 6, 0).hits, 7);
}

/// By trying every choice: what to drop, or to pass the newcomer by.
fn best_by_search(tokens: &[u32], slots: usize, cached: &mut Vec<u32>) -> u64 {
    let Some((now, rest)) = tokens.split_first() else { return 0 };
    if cached.contains(now) {
        return 1 + best_by_search(rest, slots, cached);
    }
    let mut best = best_by_search(rest, slots, cached);
    if cached.len() < slots {
        cached.push(*now);
        best = best.max(best_by_search(rest, slots, cached));
        cached.pop();
    }
    for i in 0..cached.len() {
        let victim = std::mem::replace(&mut cached[i], *now);
        best = best.max(best_by_search(rest, slots, cached));
        cached[i] = victim;
    }
    best
}

#[test]
fn the_optimum_equals_a_search_over_every_choice() {
    let mut state = 5u64;
    for slots in 1..=3 {
        for _ in 0..20 {
            let list: Vec<u32> = (0..9)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 33) as u32 % 5
                })
                .collect();
            let tokens: Vec<&[u32]> = list.chunks(1).collect();
            let found = optimum(&one_layer(&tokens, 5), slots, 0).hits;
            assert_eq!(found, best_by_search(&list, slots, &mut Vec::new()), "{list:?}, {slots}");
        }
    }
}

#[test]
fn nobody_beats_the_optimum() {
    for (skew, reuse) in [(0.0, 0.1), (1.0, 0.3), (2.0, 0.5)] {
        let trace = generate(&spec(skew, reuse)).expect("sound");
        for slots in [0, 5, 12, 24, 48, 96, 150, 192] {
            let best = optimum(&trace, slots, 0);
            for policy in Policy::NAMED {
                let found = run(&trace, &setup(policy, slots));
                assert_eq!(found.requested, best.requested);
                assert!(found.hits <= best.hits, "{policy}, {slots}: {found:?} {best:?}");
            }
        }
    }
}

#[test]
fn a_seed_is_a_trace_and_a_clock() {
    let (a, b) = (generate(&spec(1.0, 0.3)), generate(&spec(1.0, 0.3)));
    let (a, b) = (a.expect("sound"), b.expect("sound"));
    assert_eq!(a, b);
    let other = generate(&Synthetic { seed: 12, ..spec(1.0, 0.3) }).expect("sound");
    assert_ne!(a, other);
    let devices = Devices { disk_jitter: 0.3, ..DEVICES };
    let setup = Setup { lookahead: true, devices, ..setup(Policy::Lfru, 48) };
    assert_eq!(run(&a, &setup), run(&b, &setup));
    let seeded = Setup { devices: Devices { seed: 2, ..devices }, ..setup };
    assert_ne!(run(&a, &setup).seconds.to_bits(), run(&a, &seeded).seconds.to_bits());
}

#[test]
fn tokens_use_again_what_was_asked_for() {
    for reuse in [0.26, 0.35, 0.43] {
        let spec = Synthetic { topic_skew: 0.5, prompt_tokens: 0, ..spec(0.3, reuse) };
        let found = generate(&spec).expect("sound").reuse().expect("tokens");
        assert!((reuse - 0.03..reuse + 0.03).contains(&found), "{found} for {reuse}");
    }
}

/// Two experts a token from a disk of 1 GB/s, computed at 10 GB/s: 2 ms of reads, and the last
/// expert's 0.1 ms after them; the first is computed meanwhile.
#[test]
fn the_clock_overlaps_reads_with_computing() {
    let trace = one_layer(&[&[0, 1], &[2, 3]], 4);
    let found = run(&trace, &setup(Policy::Lfru, 0));
    let microseconds = (found.seconds * 1e6).round() as u64;
    assert_eq!((microseconds, found.reads), (2 * 2100, 4));
    // The processor waits 1 ms for the first and 0.9 ms for the second.
    assert_eq!((found.stalled_seconds * 1e6).round() as u64, 2 * 1900);
    let law = law(&found, &setup(Policy::Lfru, 0), 1_000_000);
    assert_eq!((law.binds, law.tokens_per_second), (Some(Link::File), Some(500.0)));
}

/// A prediction that is right, and a drive that idles while the layer before computes: the reads
/// are done when the next layer asks.
#[test]
fn reading_ahead_fills_idle_time_only() {
    let shape = Shape { layers: 2, experts: 64, top_k: 1 };
    let header =
        Header { fingerprint: "hand".into(), shape, expert_bytes: 1_000_000, recorded: false };
    let pass = |token: u32| {
        let used = |e, predicted: &[u32]| LayerUses {
            uses: vec![Use { expert: ExpertIdx(e), tokens: 1 }],
            predicted: predicted.iter().map(|e| ExpertIdx(*e)).collect(),
        };
        let layers = vec![used(0, &[]), used(token, &[token])];
        Pass { phase: Phase::Decode, tokens: 1, layers }
    };
    let trace = Trace { header, passes: (1..=50).map(pass).collect(), complete: true };
    // Dense weights of a layer take 2 ms, a read takes 1 ms, an expert is computed in 0.1 ms.
    let setup = Setup { dense_bytes: 40_000_000, ram_slots: 1, ..setup(Policy::Static, 1) };
    let without = run(&trace, &setup);
    let with = run(&trace, &Setup { lookahead: true, ..setup });
    assert_eq!((without.reads, with.reads), (51, 51));
    let microseconds = |o: &Outcome| (o.seconds * 1e6).round() as u64;
    assert_eq!(microseconds(&without), 50 * 5200 + 1000);
    assert_eq!(microseconds(&with), 50 * 4200 + 1000);
    let s = with.tally.speculation;
    assert_eq!((s.used, s.late, s.wasted), (50, 0, 0));
}

#[test]
fn vram_and_ram_together_hit_as_one_cache() {
    let trace = generate(&spec(1.0, 0.3)).expect("sound");
    let both = Setup { vram_slots: 40, ..setup(Policy::Lfru, 56) };
    let found = run(&trace, &both);
    assert_eq!(found.hits, run(&trace, &setup(Policy::Lfru, 96)).hits);
    assert!(found.vram_hits > 0 && found.vram_hits < found.hits);
}

/// Routing almost without locality, as of a model whose tokens share few experts: the default
/// must hit at least what least-recently-used hits, at the share of memory of the peers' test.
#[test]
fn the_default_is_no_worse_than_lru_where_there_is_little_to_win() {
    for (skew, topic_skew, reuse) in [(0.0, 0.0, 0.0), (0.2, 0.2, 0.1), (0.5, 0.3, 0.15)] {
        let shape = Shape { layers: 6, experts: 128, top_k: 8 };
        let spec = Synthetic { shape, tokens: 600, topic_tokens: 200, ..spec(skew, reuse) };
        let trace = generate(&Synthetic { topic_skew, ..spec }).expect("sound");
        for share in [0.25, 0.5, 0.52, 0.75] {
            let slots = (share * shape.total() as f64) as usize;
            let rate = |policy| {
                run(&trace, &Setup { warm_passes: 100, ..setup(policy, slots) }).hit_rate()
            };
            let (lru, default) = (rate(Policy::Lru), rate(Policy::default()));
            assert!(default >= lru, "{skew}, {share}: {default} < {lru}");
        }
    }
}
