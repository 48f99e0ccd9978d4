//! Ceilings of this machine, measured with the same vectors and threads as the kernels.

use std::hint::black_box;
use std::time::Instant;

use crate::Cpu;
use crate::cpu::for_level;
use crate::cpu::lanes::Lanes;

/// Bytes that a thread reads between two looks at the queue.
const PART_BYTES: usize = 1 << 21;

/// Reads `bytes` once with all threads and nothing else.
///
/// Units: bytes per second.
pub fn read_bandwidth(cpu: &Cpu, bytes: &[u8]) -> f64 {
    let parts: Vec<&[u8]> = bytes.chunks(PART_BYTES).collect();
    let level = cpu.level();
    let started = Instant::now();
    cpu.enter(|| {
        cpu.each(parts.len(), |i| {
            let part = parts[i];
            black_box(for_level!(level, fold(part: &[u8]) -> u64));
        });
    });
    bytes.len() as f64 / started.elapsed().as_secs_f64()
}

/// Exclusive or of all words: one load and one operation for each vector.
#[inline(always)]
fn fold<L: Lanes>(part: &[u8]) -> u64 {
    let mut sums = [0u64; 32];
    for row in part.chunks_exact(256) {
        for (s, word) in sums.iter_mut().zip(row.chunks_exact(8)) {
            *s ^= u64::from_le_bytes(word.try_into().expect("eight bytes"));
        }
    }
    sums.into_iter().fold(0, |a, b| a ^ b)
}

/// Multiply-adds of f32 in registers, all threads.
///
/// Units: floating-point operations per second, two for each multiply-add.
pub fn fma_peak(cpu: &Cpu) -> f64 {
    const ROUNDS: usize = 20_000_000;
    let level = cpu.level();
    let started = Instant::now();
    let flops = std::sync::atomic::AtomicUsize::new(0);
    cpu.enter(|| {
        cpu.each(cpu.threads(), |_| {
            let rounds = ROUNDS;
            let done = for_level!(level, chains(rounds: usize) -> usize);
            flops.fetch_add(done, std::sync::atomic::Ordering::Relaxed);
        });
    });
    flops.into_inner() as f64 / started.elapsed().as_secs_f64()
}

/// Twelve independent chains; returns the operations done.
#[inline(always)]
fn chains<L: Lanes>(rounds: usize) -> usize {
    const CHAINS: usize = 12;
    let mut sums = [L::zero(); CHAINS];
    let (a, b) = (L::splat(black_box(0.5)), L::splat(black_box(0.25)));
    for _ in 0..rounds {
        for s in &mut sums {
            *s = L::fma(a, *s, b);
        }
    }
    let total: f32 = sums.into_iter().map(L::sum).sum();
    black_box(total);
    2 * rounds * CHAINS * L::WIDTH
}
