//! Random values that depend on the seed, the tensor's name and the expert's index alone.
//!
//! Each unit (a tensor, or one expert of a fused tensor) has its own ChaCha8 key, the SHA-256 of
//! those three; block b of a unit is drawn from stream b of that key, so any block can be made
//! without the ones before it.
//!
//! A normal value is one of 65,536 equally likely quantiles, (i + 1/2) / 65,536 of the
//! distribution, picked by 16 random bits. So its tails end at 4.32 standard deviations (the real
//! ones hold 1.5e-5 of the mass beyond), its variance is 2e-5 short of one, and no value is ever
//! exactly zero.

use std::f64::consts::LN_10;

use half::bf16;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use sha2::{Digest, Sha256};

use super::quantile::normal_quantile;
use super::tensors::VALUE_BYTES;

/// Values of one block: 512 KiB of bf16, which stays in a core's cache until it is written.
pub const BLOCK_VALUES: u64 = 1 << 18;
const QUANTILE_COUNT: usize = 1 << 16;
const KEY_DOMAIN: &[u8] = b"tarfa synth v1\n";

/// How the values of a tensor are distributed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Fill {
    /// N(0, sigma).
    Normal {
        sigma: f64,
    },
    One,
    /// N(0, sigma), row e times exp(skew * g_e).
    Router {
        sigma: f64,
        row_values: usize,
    },
    /// ln of a uniform 1..16: the reference initialisation of `A_log`.
    DecayLog,
    /// Inverse softplus of a log-uniform 1e-3..1e-1: the reference initialisation of `dt_bias`.
    StepBias,
}

impl Fill {
    pub fn normal(sigma: f64) -> Fill {
        Fill::Normal { sigma }
    }
}

type Table = Box<[bf16; QUANTILE_COUNT]>;

/// The quantiles, ready to be looked up, and what every draw depends on.
pub struct Normals {
    seed: u64,
    skew: f64,
    unit: Vec<f64>,
    /// One table for each standard deviation in use.
    tables: Vec<(f64, Table)>,
}

/// One block of one unit.
#[derive(Clone, Copy, Debug)]
pub struct BlockId<'a> {
    pub tensor: &'a str,
    pub expert: usize,
    pub block: u64,
}

impl Normals {
    /// Units: `sigmas` are the standard deviations that `Fill::Normal` may ask for.
    pub fn new(seed: u64, skew: f64, sigmas: &[f64]) -> Normals {
        let count = QUANTILE_COUNT as f64;
        let quantile = |i| normal_quantile((i as f64 + 0.5) / count);
        let unit: Vec<f64> = (0..QUANTILE_COUNT).map(quantile).collect();
        let tables = sigmas.iter().map(|&sigma| (sigma, table_of(&unit, sigma))).collect();
        Normals { seed, skew, unit, tables }
    }

    /// Fills `bytes` with the little-endian values of a block.
    pub fn fill(&self, fill: Fill, id: BlockId, bytes: &mut [u8]) {
        assert!(bytes.len() as u64 <= BLOCK_VALUES * VALUE_BYTES, "longer than a block");
        let mut draws = self.draws(id);
        match fill {
            Fill::Normal { sigma } => self.fill_normal(sigma, &mut draws, bytes),
            Fill::One => put_each(bytes, |_| 1.0),
            Fill::Router { sigma, row_values } => {
                self.fill_router(sigma, row_values, id, &mut draws, bytes);
            }
            Fill::DecayLog => put_each(bytes, |_| (1.0 + 15.0 * uniform(&mut draws)).ln()),
            Fill::StepBias => put_each(bytes, |_| step_bias(uniform(&mut draws))),
        }
    }

    /// g_e: how much more often than its peers an expert of that router is to be picked.
    pub fn expert_bias(&self, router: &str, expert: usize) -> f64 {
        let tensor = format!("{router} skew");
        self.unit_normal(&mut self.draws(BlockId { tensor: &tensor, expert, block: 0 }))
    }

    /// The factor of an expert's row in that router.
    pub fn expert_factor(&self, router: &str, expert: usize) -> f64 {
        (self.skew * self.expert_bias(router, expert)).exp()
    }

    pub fn unit_normal(&self, draws: &mut ChaCha8Rng) -> f64 {
        let mut pick = [0; 2];
        draws.fill_bytes(&mut pick);
        self.unit[u16::from_le_bytes(pick) as usize]
    }

    pub fn draws(&self, id: BlockId) -> ChaCha8Rng {
        let mut key = Sha256::new();
        key.update(KEY_DOMAIN);
        key.update(self.seed.to_le_bytes());
        key.update((id.tensor.len() as u64).to_le_bytes());
        key.update(id.tensor.as_bytes());
        key.update((id.expert as u64).to_le_bytes());
        let mut draws = ChaCha8Rng::from_seed(key.finalize().into());
        draws.set_stream(id.block);
        draws
    }

    /// The random bits are drawn in place, then each pair of bytes is replaced by its quantile.
    fn fill_normal(&self, sigma: f64, draws: &mut ChaCha8Rng, bytes: &mut [u8]) {
        let table = self.table(sigma);
        draws.fill_bytes(bytes);
        for value in bytes.as_chunks_mut::<2>().0 {
            *value = table[u16::from_le_bytes(*value) as usize].to_le_bytes();
        }
    }

    /// The table of that standard deviation as bytes, so that a test can pin it.
    #[cfg(test)]
    pub fn table_bytes(&self, sigma: f64) -> Vec<u8> {
        self.table(sigma).iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    fn table(&self, sigma: f64) -> &[bf16; QUANTILE_COUNT] {
        let found = self.tables.iter().find(|(known, _)| *known == sigma);
        &found.expect("a standard deviation given to `new`").1
    }

    fn fill_router(
        &self,
        sigma: f64,
        row_values: usize,
        id: BlockId,
        draws: &mut ChaCha8Rng,
        bytes: &mut [u8],
    ) {
        let first_value = (id.block * BLOCK_VALUES) as usize;
        let mut row = usize::MAX;
        let mut scale = sigma;
        put_each(bytes, |i| {
            let row_here = (first_value + i) / row_values;
            if row_here != row {
                (row, scale) = (row_here, sigma * self.expert_factor(id.tensor, row_here));
            }
            self.unit_normal(draws) * scale
        });
    }
}

fn table_of(unit: &[f64], sigma: f64) -> Table {
    let table: Box<[bf16]> = unit.iter().map(|z| narrow(z * sigma)).collect();
    table.try_into().expect("as many as there are quantiles")
}

/// The one narrowing point of this module: nearest, ties to even.
///
/// `bf16::from_f64` drops the low half of the value before it rounds, and so takes some values just
/// above a tie for a tie; it is exact on what the addition below leaves.
fn narrow(value: f64) -> bf16 {
    const DROPPED: u32 = f64::MANTISSA_DIGITS - bf16::MANTISSA_DIGITS;
    assert!(value == 0.0 || (1e-30..1e30).contains(&value.abs()), "{value}: beyond normal bf16");
    let bits = value.to_bits();
    let is_odd = (bits >> DROPPED) & 1;
    let rounded = bits + (1 << (DROPPED - 1)) - 1 + is_odd;
    bf16::from_f64(f64::from_bits(rounded >> DROPPED << DROPPED))
}

fn put_each(bytes: &mut [u8], mut value: impl FnMut(usize) -> f64) {
    for (i, place) in bytes.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        *place = narrow(value(i)).to_le_bytes();
    }
}

/// Uniform in [0, 1), 53 bits.
fn uniform(draws: &mut ChaCha8Rng) -> f64 {
    (draws.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// The bias whose softplus is a step between 1e-3 and 1e-1, log-uniform.
fn step_bias(uniform: f64) -> f64 {
    let step = ((2.0 * uniform - 3.0) * LN_10).exp();
    step + (-(-step).exp_m1()).ln()
}
