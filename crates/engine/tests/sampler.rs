//! The sampler against hand-computed tables, an independent implementation and statistics.

use engine::generate::sampler::{History, Sampler, SamplingError, SamplingParams};
use engine::index::TokenId;
use proptest::prelude::*;
use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    logits: Vec<f32>,
    prompt: Vec<TokenId>,
    cases: Vec<GoldenCase>,
}

#[derive(Deserialize)]
struct GoldenCase {
    params: SamplingParams,
    tokens: Vec<TokenId>,
}

fn sampled(seed: u64) -> SamplingParams {
    SamplingParams { temperature: 1.0, seed, ..SamplingParams::default() }
}

fn run(params: &SamplingParams, logits: &[f32], prompt: &[TokenId], tokens: usize) -> Vec<TokenId> {
    let mut sampler = Sampler::new(params.clone(), logits.len()).expect("valid parameters");
    let mut output = Vec::new();
    for _ in 0..tokens {
        let history = History { prompt, output: &output };
        let token = sampler.next(logits, history).expect("finite logits");
        output.push(token);
    }
    output
}

fn one(params: &SamplingParams, logits: &[f32], prompt: &[u32], output: &[u32]) -> u32 {
    let ids = |ids: &[u32]| ids.iter().map(|&id| TokenId(id)).collect::<Vec<_>>();
    let mut sampler = Sampler::new(params.clone(), logits.len()).expect("valid parameters");
    let history = History { prompt: &ids(prompt), output: &ids(output) };
    sampler.next(logits, history).expect("finite logits").0
}

#[test]
fn tokens_equal_an_independent_implementation() {
    let golden: Golden =
        serde_json::from_str(include_str!("data/sampler_golden.json")).expect("golden data");
    assert!(golden.cases.len() >= 9);
    for case in golden.cases {
        let tokens = run(&case.params, &golden.logits, &golden.prompt, case.tokens.len());
        assert_eq!(tokens, case.tokens, "{:?}", case.params);
    }
}

#[test]
fn greedy_takes_the_largest_and_the_lower_id() {
    let check = |logits: &[f32], expect| {
        assert_eq!(one(&SamplingParams::default(), logits, &[], &[]), expect, "{logits:?}");
    };
    check(&[1.0, 3.0, 3.0, 2.0], 1);
    check(&[-5.0], 0);
    check(&[-0.0, 0.0], 0);
    check(&[f32::MIN, f32::MIN], 0);
    check(&[f32::MIN, f32::MAX], 1);
}

#[test]
fn bias_and_penalties_by_hand() {
    let greedy = SamplingParams::default;
    let bias = |entries: &[(u32, f32)]| SamplingParams {
        logit_bias: entries.iter().map(|&(id, bias)| (TokenId(id), bias)).collect(),
        ..greedy()
    };
    assert_eq!(one(&bias(&[(0, 2.5)]), &[1.0, 3.0], &[], &[]), 0);
    // In request order: 1e30 swallows the first entry, not the last.
    assert_eq!(one(&bias(&[(0, 5.0), (0, 1e30), (0, -1e30)]), &[0.0, 3.0], &[], &[]), 1);
    assert_eq!(one(&bias(&[(0, 1e30), (0, -1e30), (0, 5.0)]), &[0.0, 3.0], &[], &[]), 0);

    let repetition = SamplingParams { repetition_penalty: 2.0, ..greedy() };
    assert_eq!(one(&repetition, &[4.0, 3.0], &[0, 0], &[]), 1, "prompt ids count, once");
    assert_eq!(one(&repetition, &[4.0, 2.5], &[0], &[0]), 1);
    assert_eq!(one(&repetition, &[4.0, 1.5], &[0, 0], &[0]), 0, "never twice");
    assert_eq!(one(&repetition, &[-1.0, -1.5], &[0], &[]), 1, "negative logits are multiplied");

    let presence = SamplingParams { presence_penalty: 1.5, ..greedy() };
    assert_eq!(one(&presence, &[4.0, 3.0], &[0, 0, 0], &[]), 0, "the prompt does not count");
    assert_eq!(one(&presence, &[4.0, 3.0], &[], &[0]), 1);
    assert_eq!(one(&presence, &[4.0, 2.0], &[], &[0, 0, 0]), 0, "once however often");

    let frequency = SamplingParams { frequency_penalty: 0.75, ..greedy() };
    assert_eq!(one(&frequency, &[4.0, 3.0], &[], &[0]), 0);
    assert_eq!(one(&frequency, &[4.0, 3.0], &[], &[0, 0]), 1);
}

#[test]
fn a_sampler_remembers_nothing() {
    let params = SamplingParams {
        presence_penalty: 0.5,
        frequency_penalty: 0.25,
        repetition_penalty: 1.1,
        ..sampled(5)
    };
    let logits: Vec<f32> = (0..40).map(|i| (i * 37 % 17) as f32 / 4.0).collect();
    let output = run(&params, &logits, &[], 24);
    let mut sampler = Sampler::new(params, logits.len()).expect("valid parameters");
    // Backwards, as a draft that is thrown away and tried again would ask.
    for position in (0..24).rev() {
        let history = History { prompt: &[], output: &output[..position] };
        assert_eq!(sampler.next(&logits, history), Ok(output[position]));
    }
}

#[test]
fn frequencies_come_close_to_the_distribution() {
    const DRAWS: usize = 100_000;
    let logits = [0.0f32, 1.0, 2.0, -1.0, 0.5, -30.0];
    let mut counts = [0f64; 6];
    for choice in 0..DRAWS {
        let params = SamplingParams { choice: choice as u64, ..sampled(11) };
        counts[one(&params, &logits, &[], &[]) as usize] += 1.0;
    }
    let total: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
    for (logit, count) in logits.iter().zip(counts) {
        let expect = f64::from(*logit).exp() / total * DRAWS as f64;
        // Five standard deviations; the seed is fixed, so this cannot fail by chance later.
        assert!((count - expect).abs() <= 5.0 * expect.sqrt() + 1.0, "{logit}: {count}, {expect}");
    }
    assert_eq!(counts[5], 0.0, "e^-32 weighs 0");
}

#[test]
fn top_k_of_one_is_greedy_and_tokens_of_weight_zero_never_come() {
    let logits: Vec<f32> = (0..1000).map(|i| ((i * 7919) % 997) as f32 / 3.0).collect();
    let greedy = one(&SamplingParams::default(), &logits, &[], &[]);
    for seed in 0..50 {
        let params = SamplingParams { top_k: Some(1), temperature: 50.0, ..sampled(seed) };
        assert_eq!(one(&params, &logits, &[], &[]), greedy);
        let cold = SamplingParams { temperature: 1e-9, ..sampled(seed) };
        assert_eq!(one(&cold, &logits, &[], &[]), greedy);
    }
}

#[test]
fn top_k_ties_in_weight_go_to_the_lower_id_even_with_a_lower_logit() {
    // At this temperature both weigh 2^40, so id 0 is first although its logit is lower.
    let params = SamplingParams { temperature: 1e12, top_k: Some(1), ..sampled(3) };
    assert_eq!(one(&params, &[1.0, 2.0, 0.5], &[], &[]), 0);
}

#[test]
fn values_that_mean_nothing_are_refused_by_name() {
    let check = |params: SamplingParams, expect: &str| {
        let error = params.validate(10).expect_err("refused");
        assert_eq!(error.to_string(), expect);
    };
    let base = SamplingParams::default;
    let nan = f64::NAN;
    check(
        SamplingParams { temperature: nan, ..base() },
        "temperature is NaN, allowed: finite, 0 or more",
    );
    check(
        SamplingParams { temperature: -0.5, ..base() },
        "temperature is -0.5, allowed: finite, 0 or more",
    );
    check(SamplingParams { top_k: Some(0), ..base() }, "top_k is 0, allowed: 1 or more");
    check(SamplingParams { top_p: Some(0.0), ..base() }, "top_p is 0, allowed: above 0, up to 1");
    check(
        SamplingParams { top_p: Some(1.01), ..base() },
        "top_p is 1.01, allowed: above 0, up to 1",
    );
    check(SamplingParams { top_p: Some(nan), ..base() }, "top_p is NaN, allowed: above 0, up to 1");
    check(SamplingParams { min_p: Some(-0.1), ..base() }, "min_p is -0.1, allowed: 0 to 1");
    check(
        SamplingParams { repetition_penalty: 0.0, ..base() },
        "repetition_penalty is 0, allowed: finite, above 0",
    );
    check(
        SamplingParams { presence_penalty: f32::NAN, ..base() },
        "presence_penalty is NaN, allowed: finite",
    );
    check(
        SamplingParams { frequency_penalty: f32::INFINITY, ..base() },
        "frequency_penalty is inf, allowed: finite",
    );
    check(
        SamplingParams { logit_bias: vec![(TokenId(1), 0.0), (TokenId(10), 0.0)], ..base() },
        "logit_bias entry 1 is for token 10, the vocabulary ends at 10",
    );
    check(
        SamplingParams { logit_bias: vec![(TokenId(3), f32::NAN)], ..base() },
        "logit_bias entry 0 is NaN for token 3, allowed: finite numbers",
    );
    let empty = base().validate(0).expect_err("refused");
    assert_eq!(empty.to_string(), "vocab is 0, allowed: 1 to 2^24");
}

#[test]
fn broken_logits_and_histories_are_errors() {
    let next = |params: SamplingParams, logits: &[f32], output: &[TokenId]| {
        let mut sampler = Sampler::new(params, 3).expect("valid parameters");
        sampler.next(logits, History { prompt: &[], output }).expect_err("refused").to_string()
    };
    let greedy = SamplingParams::default;
    assert_eq!(next(greedy(), &[0.0, f32::NAN, 0.0], &[]), "the logit of token 1 is NaN");
    assert_eq!(next(sampled(0), &[0.0, 0.0, f32::INFINITY], &[]), "the logit of token 2 is inf");
    assert_eq!(next(greedy(), &[0.0; 4], &[]), "4 logits, expected 3");
    let bias = SamplingParams { logit_bias: vec![(TokenId(0), f32::MAX)], ..greedy() };
    assert_eq!(next(bias, &[f32::MAX, 0.0, 0.0], &[]), "the logit of token 0 is inf");
    let presence = SamplingParams { presence_penalty: 1.0, ..greedy() };
    let beyond = next(presence, &[0.0; 3], &[TokenId(3)]);
    assert_eq!(beyond, "the history holds token 3, the vocabulary ends at 3");
    let expect = SamplingError::LogitCount { found: 0, expected: 3 };
    let mut sampler = Sampler::new(greedy(), 3).expect("valid parameters");
    assert_eq!(sampler.next(&[], History::default()), Err(expect));
}

#[test]
fn requests_round_trip_as_json_and_unknown_fields_are_refused() {
    let params = SamplingParams { top_p: Some(0.9), seed: u64::MAX, ..sampled(1) };
    let json = serde_json::to_string(&params).expect("JSON");
    assert_eq!(serde_json::from_str::<SamplingParams>(&json).expect("JSON"), params);
    assert_eq!(
        serde_json::from_str::<SamplingParams>("{}").expect("JSON"),
        SamplingParams::default()
    );
    assert!(serde_json::from_str::<SamplingParams>(r#"{"topp": 0.9}"#).is_err());
}

/// The definition, word for word: every weight, one full sort.
fn by_definition(params: &SamplingParams, logits: &[f32], position: u64) -> u32 {
    use rand_chacha::ChaCha20Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};
    let max = logits.iter().copied().fold(f32::MIN, |a, b| if b > a { b } else { a });
    let weight = |&logit: &f32| {
        let exponent = ((f64::from(logit) - f64::from(max)) / params.temperature) as f32;
        (f64::from(numerics::elementary::exp32(exponent)) * (1u64 << 40) as f64).floor() as u128
    };
    let weights: Vec<u128> = logits.iter().map(weight).collect();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|&id| (std::cmp::Reverse(weights[id]), id));
    order.truncate(params.top_k.unwrap_or(usize::MAX));
    // Shares in quarters, so that they are exact here too.
    let quarters = |share: f64| (share * 4.0) as u128;
    if let Some(share) = params.top_p {
        let total: u128 = order.iter().map(|&id| weights[id]).sum();
        let mut running = 0;
        let enough = order.iter().position(|&id| {
            running += weights[id];
            running * 4 >= quarters(share) * total
        });
        order.truncate(enough.expect("a share of the total") + 1);
    }
    if let Some(share) = params.min_p {
        order.retain(|&id| weights[id] * 4 >= quarters(share) << 40);
    }
    order.sort();
    let mut key = [0; 32];
    key[..8].copy_from_slice(&params.seed.to_le_bytes());
    let mut stream = ChaCha20Rng::from_seed(key);
    stream.set_stream(params.choice);
    stream.set_word_pos(16 * u128::from(position));
    let total: u128 = order.iter().map(|&id| weights[id]).sum();
    let target = (u128::from(stream.next_u64()) * total) >> 64;
    let mut running = 0;
    let chosen = order.into_iter().find(|&id| {
        running += weights[id];
        running > target
    });
    chosen.expect("the largest logit weighs something") as u32
}

proptest! {
    #[test]
    fn every_shortcut_gives_what_the_definition_gives(
        // Few distinct values, so that ties are common.
        logits in prop::collection::vec((-40i32..40).prop_map(|l| l as f32 / 4.0), 1..600),
        temperature in prop::sample::select(vec![1e-3, 0.3, 0.7, 1.0, 2.0, 1e4, 1e12]),
        top_k in prop::option::of(1usize..700),
        top_p in prop::option::of(prop::sample::select(vec![0.25, 0.5, 0.75, 1.0])),
        min_p in prop::option::of(prop::sample::select(vec![0.0, 0.25, 0.5, 1.0])),
        seed: u64,
        choice: u64,
        position in 0usize..50,
    ) {
        let params = SamplingParams {
            temperature, top_k, top_p, min_p, seed, choice, ..SamplingParams::default()
        };
        let output = vec![TokenId(0); position];
        let mut sampler = Sampler::new(params.clone(), logits.len()).expect("valid parameters");
        let token = sampler.next(&logits, History { prompt: &[], output: &output });
        let expect = TokenId(by_definition(&params, &logits, position as u64));
        prop_assert_eq!(token, Ok(expect));
    }

    #[test]
    fn cuts_that_cut_nothing_change_nothing(
        logits in prop::collection::vec(-20.0f32..20.0, 1..300),
        seed: u64,
    ) {
        let plain = sampled(seed);
        let open = SamplingParams {
            top_k: Some(logits.len()), top_p: Some(1.0), min_p: Some(0.0), ..plain.clone()
        };
        prop_assert_eq!(run(&plain, &logits, &[], 4), run(&open, &logits, &[], 4));
    }

    #[test]
    fn adding_to_all_logits_alike_changes_nothing_where_it_is_exact(
        logits in prop::collection::vec((-200i32..200).prop_map(|l| l as f32 / 8.0), 1..200),
        shift in (-100i32..100).prop_map(|s| s as f32),
        seed: u64,
    ) {
        let shifted: Vec<f32> = logits.iter().map(|l| l + shift).collect();
        let params = SamplingParams { top_p: Some(0.9), top_k: Some(50), ..sampled(seed) };
        prop_assert_eq!(run(&params, &logits, &[], 4), run(&params, &shifted, &[], 4));
    }
}
