//! Which of the experts that a GPU lacks the processor computes where they lie. No bit depends on
//! it, so each goes where it will be done first.

use std::time::{Duration, Instant};

/// How much of what a GPU lacks the processor computes.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum CpuShare {
    /// Each expert where it will be done first, by the rates seen so far.
    #[default]
    Auto,
    /// This share, from 0 to 1.
    Share(f64),
}

/// An expert to be computed once.
#[derive(Clone, Copy)]
pub(super) struct Load {
    pub(super) bytes: u64,
    pub(super) tokens: usize,
}

/// Seconds a byte; a guess until it is measured.
#[derive(Clone, Copy)]
struct Rate {
    seconds: f64,
    measured: bool,
}

/// Decides, and learns from how long things took.
pub(super) struct Split {
    share: CpuShare,
    /// Of the processor, by the logarithm of an expert's tokens.
    cpu: [Rate; BUCKETS],
    link: Rate,
    /// The link is busy until then.
    link_until: Instant,
    /// Of a forced share, what the processor is behind.
    owed: f64,
}

const BUCKETS: usize = 16;
/// Of both to begin with, 20 GB/s, so that both are tried.
const GUESS: f64 = 1.0 / 20e9;
/// Tokens from which on the processor is guessed to be bound by arithmetic.
const BOUND_TOKENS: usize = 8;
/// Weight of the newest measurement.
const NEWEST: f64 = 0.2;

impl Split {
    pub(super) fn new(share: CpuShare) -> Split {
        let guess = |b: usize| GUESS * ((1usize << b) as f64 / BOUND_TOKENS as f64).max(1.0);
        let cpu = std::array::from_fn(|b| Rate { seconds: guess(b), measured: false });
        let link = Rate { seconds: GUESS, measured: false };
        Split { share, cpu, link, link_until: Instant::now(), owed: 0.0 }
    }

    /// Whether the processor could be given any of these.
    pub(super) fn may_help(&self, loads: &[Load]) -> bool {
        match self.share {
            CpuShare::Share(share) => share > 0.0 && !loads.is_empty(),
            CpuShare::Auto => {
                let link: f64 = loads.iter().map(|l| self.link.seconds * l.bytes as f64).sum();
                loads.iter().any(|l| self.cpu_seconds(*l) < link)
            }
        }
    }

    /// Of experts that are in RAM now: whether each is the processor's.
    pub(super) fn share_out(&mut self, loads: &[Load], now: Instant) -> Vec<bool> {
        let mut ours = vec![false; loads.len()];
        let mut order: Vec<usize> = (0..loads.len()).collect();
        // What has few tokens suits the processor best, and is left for it.
        order.sort_by_key(|i| std::cmp::Reverse(loads[*i].tokens));
        let (mut cpu, mut link) = (0.0, (self.link_until - now.min(self.link_until)).as_secs_f64());
        for i in order {
            let done_here = cpu + self.cpu_seconds(loads[i]);
            let done_there = link + self.link.seconds * loads[i].bytes as f64;
            ours[i] = match self.share {
                CpuShare::Auto => done_here < done_there,
                CpuShare::Share(share) => {
                    self.owed += share;
                    self.owed >= 1.0 - f64::EPSILON
                }
            };
            match ours[i] {
                true => (cpu, self.owed) = (done_here, self.owed - 1.0),
                false => link = done_there,
            }
        }
        self.link_until = now + Duration::from_secs_f64(link);
        ours
    }

    fn cpu_seconds(&self, load: Load) -> f64 {
        self.cpu[bucket(load)].seconds * load.bytes as f64
    }

    /// The processor took so long for these.
    pub(super) fn cpu_took(&mut self, loads: &[Load], took: Duration) {
        let expected: f64 = loads.iter().map(|l| self.cpu_seconds(*l)).sum();
        let ratio = took.as_secs_f64() / expected;
        let mut seen = [false; BUCKETS];
        loads.iter().for_each(|l| seen[bucket(*l)] = true);
        for (rate, seen) in self.cpu.iter_mut().zip(seen) {
            match (seen, rate.measured) {
                (true, true) => rate.seconds *= 1.0 + NEWEST * (ratio - 1.0),
                // What was only guessed follows the first measurement of anything.
                (true, false) | (false, false) => rate.seconds *= ratio,
                (false, true) => {}
            }
            rate.measured |= seen;
        }
    }

    /// The link took so long for so many bytes.
    pub(super) fn link_took(&mut self, bytes: u64, took: Duration) {
        if bytes > 0 {
            let (found, link) = (took.as_secs_f64() / bytes as f64, &mut self.link);
            let weight = if link.measured { NEWEST } else { 1.0 };
            link.seconds += weight * (found - link.seconds);
            link.measured = true;
        }
    }
}

fn bucket(load: Load) -> usize {
    (load.tokens.max(1).ilog2() as usize).min(BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPERT: Load = Load { bytes: 20_000_000, tokens: 1 };

    fn ours(split: &mut Split, loads: &[Load]) -> usize {
        split.share_out(loads, Instant::now()).iter().filter(|ours| **ours).count()
    }

    #[test]
    fn a_forced_share_is_kept_over_many_layers() {
        for (share, expected) in [(0.0, 0), (0.25, 20), (0.5, 40), (1.0, 80)] {
            let mut split = Split::new(CpuShare::Share(share));
            let found: usize = (0..10).map(|_| ours(&mut split, &[EXPERT; 8])).sum();
            assert_eq!(found, expected, "{share}");
        }
    }

    #[test]
    fn each_goes_where_it_is_done_first() {
        let mut split = Split::new(CpuShare::Auto);
        let took = |gb_per_s: f64| Duration::from_secs_f64(20_000_000.0 / (gb_per_s * 1e9));
        split.cpu_took(&[EXPERT], took(30.0));
        split.link_took(EXPERT.bytes, took(10.0));
        assert_eq!(ours(&mut split, &[EXPERT; 8]), 6);
        // The link is still busy with what it was given.
        assert_eq!(ours(&mut split, &[EXPERT; 4]), 4);
    }

    #[test]
    fn many_tokens_are_left_to_the_device() {
        let mut split = Split::new(CpuShare::Auto);
        let many = Load { tokens: 512, ..EXPERT };
        assert!(!split.may_help(&[many; 8]));
        assert!(split.may_help(&[EXPERT; 8]));
        assert_eq!(ours(&mut split, &[many; 8]), 0);
    }
}
