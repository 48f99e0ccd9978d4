//! The other operations against their definition, computed with `ExactSum` alone, at every level.

use half::bf16;
use numerics::exact::ExactSum;
use numerics::op::attention::{KeyValues, attention};
use numerics::op::conv::{Taps, conv};
use numerics::op::delta_rule::{DeltaInputs, DeltaShape, delta_rule};
use numerics::op::dot::{squares, sum};
use numerics::op::mix::{Term, mix};
use numerics::op::norm::rms_norm;
use numerics::round::{store, widen};
use numerics::{Cpu, SimdLevel, elementary};

fn cpus() -> Vec<Cpu> {
    let of = |level| [1, 3].map(|threads| Cpu::new(level, threads).expect("a level of this CPU"));
    SimdLevel::available().into_iter().flat_map(of).collect()
}

/// A source of numbers of several characters: ordinary, tiny, huge, zero of both signs, one.
struct Noise(u64);

impl Noise {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        self.0 >> 33
    }

    fn value(&mut self, hostile: bool) -> f32 {
        let ordinary = (self.bits() % 65_536) as f32 / 16_384.0 - 2.0;
        match self.bits() % 16 {
            0 if hostile => f32::from_bits((self.bits() % 128) as u32 | 0x8000_0000),
            1 if hostile => ordinary * 2f32.powi(40),
            2 if hostile => ordinary * 2f32.powi(-60),
            3 if hostile => -0.0,
            4 => 1.0,
            _ => ordinary,
        }
    }

    fn stored(&mut self, count: usize, hostile: bool) -> Vec<bf16> {
        (0..count).map(|_| store(self.value(hostile))).collect()
    }

    fn plain(&mut self, count: usize, hostile: bool) -> Vec<f32> {
        (0..count).map(|_| self.value(hostile)).collect()
    }
}

fn exact(pairs: impl Iterator<Item = (f32, f32)>) -> ExactSum {
    let mut sum = ExactSum::new();
    pairs.for_each(|(a, b)| sum.add_product(a, b));
    sum
}

fn bits(values: &[bf16]) -> Vec<u16> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn sums_and_norms() {
    for n in [1usize, 2, 15, 16, 17, 70, 1000] {
        for hostile in [false, true] {
            let mut noise = Noise(n as u64);
            let x = noise.stored(n, hostile);
            let plain = noise.plain(n, hostile);
            let weight = noise.plain(n, false);
            let s = exact(x.iter().map(|v| (widen(*v), widen(*v)))).to_f32().expect("finite");
            let total = exact(plain.iter().map(|v| (*v, 1.0))).to_f32().expect("finite");
            let r = 1.0 / (s / n as f32 + 1e-6f32).sqrt();
            let y: Vec<bf16> =
                x.iter().zip(&weight).map(|(x, w)| store((widen(*x) * r) * w)).collect();
            for level in SimdLevel::available() {
                assert_eq!(squares(level, &x).map(f32::to_bits), Some(s.to_bits()), "{n}");
                assert_eq!(sum(level, &plain).map(f32::to_bits), Some(total.to_bits()), "{n}");
                let mut out = vec![bf16::NAN; n];
                rms_norm(level, &x, &weight, 1e-6, &mut out).expect("finite");
                assert_eq!(bits(&out), bits(&y), "{level:?} {n}");
            }
        }
    }
}

#[test]
fn expert_sums() {
    for hidden in [1usize, 63, 64, 65, 200] {
        for count in [1usize, 2, 9, 11] {
            for hostile in [false, true] {
                let mut noise = Noise((hidden * count) as u64);
                let outputs: Vec<Vec<bf16>> =
                    (0..count).map(|_| noise.stored(hidden, hostile)).collect();
                let weights = noise.plain(count, false);
                let terms: Vec<Term<'_>> = (weights.iter().zip(&outputs))
                    .map(|(weight, output)| Term { weight: *weight, output })
                    .collect();
                let expected: Vec<bf16> = (0..hidden)
                    .map(|h| exact(terms.iter().map(|t| (t.weight, widen(t.output[h])))))
                    .map(|s| s.to_bf16().expect("finite"))
                    .collect();
                for level in SimdLevel::available() {
                    let mut y = vec![bf16::NAN; hidden];
                    mix(level, &terms, &mut y).expect("finite");
                    assert_eq!(bits(&y), bits(&expected), "{level:?} {hidden} {count}");
                }
            }
        }
    }
}

#[test]
fn convolutions() {
    for (channels, taps, tokens) in [(1usize, 1usize, 1usize), (7, 4, 5), (130, 2, 3), (64, 4, 1)] {
        for hostile in [false, true] {
            let mut noise = Noise((channels * taps) as u64);
            let weights = noise.plain(channels * taps, false);
            let inputs = noise.stored((taps - 1 + tokens) * channels, hostile);
            let mut expected = Vec::new();
            for t in 0..tokens {
                for c in 0..channels {
                    let pair =
                        |i: usize| (weights[c * taps + i], widen(inputs[(t + i) * channels + c]));
                    let s = exact((0..taps).map(pair)).to_f32().expect("finite");
                    expected.push(store(elementary::silu32(s)));
                }
            }
            for cpu in cpus() {
                let mut out = vec![bf16::NAN; tokens * channels];
                conv(&cpu, &Taps::new(&weights, taps), &inputs, &mut out).expect("finite");
                assert_eq!(bits(&out), bits(&expected), "{:?} {channels}", cpu.level());
            }
        }
    }
}

/// NUMERICS.md, full attention, word for word.
fn attention_by_definition(
    k: &[bf16],
    v: &[bf16],
    q: &[bf16],
    (heads, kv_heads, dim): (usize, usize, usize),
    scale: f32,
) -> Vec<bf16> {
    let (positions, tokens) = (k.len() / (kv_heads * dim), q.len() / (heads * dim));
    let mut out = Vec::new();
    for t in 0..tokens {
        for h in 0..heads {
            let g = h / (heads / kv_heads);
            let row = |all: &[bf16], j: usize| -> Vec<f32> {
                all[(j * kv_heads + g) * dim..][..dim].iter().map(|v| widen(*v)).collect()
            };
            let seen = positions - tokens + t + 1;
            let query = q[(t * heads + h) * dim..][..dim].iter().map(|v| widen(*v));
            let scores: Vec<f32> = (0..seen)
                .map(|j| exact(query.clone().zip(row(k, j))).to_f32().expect("finite") * scale)
                .collect();
            let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let e: Vec<f32> = scores.iter().map(|t| elementary::exp32(t - most)).collect();
            let z = exact(e.iter().map(|e| (*e, 1.0))).to_f32().expect("finite");
            let a: Vec<f32> = e.iter().map(|e| widen(store(e / z))).collect();
            for d in 0..dim {
                let pairs = a.iter().enumerate().map(|(j, a)| (*a, row(v, j)[d]));
                out.push(exact(pairs).to_bf16().expect("finite"));
            }
        }
    }
    out
}

#[test]
fn attention_in_one_chunk_and_token_by_token() {
    for shape @ (heads, kv_heads, dim) in
        [(1usize, 1usize, 1usize), (4, 2, 18), (6, 1, 64), (8, 2, 33)]
    {
        for hostile in [false, true] {
            let mut noise = Noise((heads * dim) as u64);
            let positions = 9;
            let (k, v) = (
                noise.stored(positions * kv_heads * dim, false),
                noise.stored(positions * kv_heads * dim, hostile),
            );
            let q = noise.stored(positions * heads * dim, false);
            let scale = (dim as f64).powf(-0.5) as f32;
            let expected = attention_by_definition(&k, &v, &q, shape, scale);
            for cpu in cpus() {
                let mut cache = KeyValues::new(kv_heads, dim);
                cache.append(&k, &v);
                let mut out = vec![bf16::NAN; q.len()];
                attention(&cpu, &cache, heads, scale, &q, &mut out).expect("finite");
                assert_eq!(bits(&out), bits(&expected), "{:?} {shape:?}", cpu.level());
                let mut cache = KeyValues::new(kv_heads, dim);
                let (wide, narrow) = (heads * dim, kv_heads * dim);
                for t in 0..positions {
                    cache.append(&k[t * narrow..][..narrow], &v[t * narrow..][..narrow]);
                    let mut one = vec![bf16::NAN; wide];
                    attention(&cpu, &cache, heads, scale, &q[t * wide..][..wide], &mut one)
                        .expect("finite");
                    assert_eq!(bits(&one), bits(&expected[t * wide..][..wide]), "token {t}");
                }
            }
        }
    }
}

/// NUMERICS.md, the recurrent form, word for word.
fn delta_by_definition(
    s: DeltaShape,
    x: &DeltaInputs<'_>,
    state: &mut [f32],
    tokens: usize,
) -> Vec<bf16> {
    let mut out = Vec::new();
    for t in 0..tokens {
        for h in 0..s.value_heads {
            let key = (t * s.key_heads + h / (s.value_heads / s.key_heads)) * s.key_dim;
            let (k, q) = (&x.k[key..][..s.key_dim], &x.q[key..][..s.key_dim]);
            let gate = t * s.value_heads + h;
            for r in 0..s.value_dim {
                let row = &mut state[(h * s.value_dim + r) * s.key_dim..][..s.key_dim];
                row.iter_mut().for_each(|v| *v *= x.decay[gate]);
                let pairs = row.iter().copied().zip(k.iter().copied());
                let memory = exact(pairs).to_f32().expect("finite");
                let d = (widen(x.v[gate * s.value_dim + r]) - memory) * x.beta[gate];
                row.iter_mut().zip(k).for_each(|(v, k)| *v += d * k);
                let pairs = row.iter().copied().zip(q.iter().copied());
                out.push(exact(pairs).to_bf16().expect("finite"));
            }
        }
    }
    out
}

#[test]
fn the_delta_rule_in_one_chunk_and_token_by_token() {
    for (key_heads, value_heads, key_dim, value_dim) in
        [(1, 1, 1, 1), (2, 6, 33, 5), (1, 2, 64, 40)]
    {
        let s = DeltaShape { key_heads, value_heads, key_dim, value_dim };
        let tokens = 7;
        let mut noise = Noise((key_dim * value_dim) as u64);
        let unit = |noise: &mut Noise| -> Vec<f32> {
            noise.plain(tokens * key_heads * key_dim, false).iter().map(|v| v / 9.0).collect()
        };
        let (q, k) = (unit(&mut noise), unit(&mut noise));
        let v = noise.stored(tokens * value_heads * value_dim, false);
        let gates = |noise: &mut Noise| -> Vec<f32> {
            noise.plain(tokens * value_heads, false).into_iter().map(elementary::sig32).collect()
        };
        let (beta, decay) = (gates(&mut noise), gates(&mut noise));
        let all = DeltaInputs { q: &q, k: &k, v: &v, beta: &beta, decay: &decay };
        let mut state = vec![0.0f32; s.state_len()];
        let expected = delta_by_definition(s, &all, &mut state, tokens);
        for cpu in cpus() {
            for chunk in [tokens, 1, 3] {
                let mut mine = vec![0.0f32; s.state_len()];
                let mut got = Vec::new();
                for first in (0..tokens).step_by(chunk) {
                    let n = chunk.min(tokens - first);
                    let keys = first * key_heads * key_dim..(first + n) * key_heads * key_dim;
                    let heads = first * value_heads..(first + n) * value_heads;
                    let values = heads.start * value_dim..heads.end * value_dim;
                    let inputs = DeltaInputs {
                        q: &q[keys.clone()],
                        k: &k[keys],
                        v: &v[values],
                        beta: &beta[heads.clone()],
                        decay: &decay[heads],
                    };
                    let mut out = vec![bf16::NAN; n * value_heads * value_dim];
                    delta_rule(&cpu, s, &inputs, &mut mine, &mut out).expect("finite");
                    got.extend(out);
                }
                assert_eq!(bits(&got), bits(&expected), "{:?} {s:?} {chunk}", cpu.level());
                let same = mine.iter().zip(&state).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "the states differ");
            }
        }
    }
}
