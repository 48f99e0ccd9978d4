//! Experts read and checked beside the bare drive: the same files, block sizes and depth.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;

use anyhow::Result;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::Serialize;
use store::experts::{Digests, ExpertMap};
use store::read::{Arena, ExpertReader, Fetch, RawProbe, ReadOptions, Urgency};

use crate::kernels::{median, range};

/// What to measure.
#[derive(Clone, Debug)]
pub struct ReadSpec {
    /// Both are measured in each; which one comes first alternates.
    pub rounds: usize,
    /// Read by each in a round.
    pub round_bytes: u64,
    /// Experts in memory at a time.
    pub slots: usize,
    /// Of the choice of experts.
    pub seed: u64,
    pub options: ReadOptions,
}

/// What was measured. Units: bytes, bytes per second.
#[derive(Clone, Debug, Serialize)]
pub struct ReadReport {
    pub backend: String,
    pub expert_bytes: u64,
    pub depth: usize,
    pub piece_bytes: usize,
    /// Medians of both.
    pub raw_rate: f64,
    pub store_rate: f64,
    /// Median over the rounds of store / raw, the smallest and the largest.
    pub ratio: f64,
    pub range: (f64, f64),
    /// Of the time of the threads that read, spent on checksums.
    pub check_share: f64,
}

/// Experts in an order that no one foresees, none twice until all were there.
pub struct Shuffled {
    left: Vec<(u32, u32)>,
    all: Vec<(u32, u32)>,
    random: ChaCha8Rng,
}

impl Shuffled {
    /// All experts of a model.
    pub fn new(map: &ExpertMap, seed: u64) -> Shuffled {
        let layers = 0..map.layer_count() as u32;
        let experts = |l: u32| (0..map.expert_count(l) as u32).map(move |e| (l, e));
        let all = layers.flat_map(experts).collect();
        Shuffled { left: Vec::new(), all, random: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// The next ones, of at least `bytes` together.
    pub fn take(&mut self, map: &ExpertMap, bytes: u64) -> Vec<(u32, u32)> {
        let (mut taken, mut sum) = (Vec::new(), 0);
        while sum < bytes {
            if self.left.is_empty() {
                self.left.clone_from(&self.all);
            }
            let at = self.random.next_u64() as usize % self.left.len();
            let (layer, expert) = self.left.swap_remove(at);
            sum += map.expert_bytes(layer, expert);
            taken.push((layer, expert));
        }
        taken
    }
}

/// Measures both, round by round.
///
/// # Errors
/// A read that failed; a system without io_uring, or a file system without O_DIRECT.
pub fn run(map: &Arc<ExpertMap>, spec: &ReadSpec) -> Result<ReadReport> {
    let mut raw = RawProbe::new(map.clone(), &spec.options)?;
    let arena = Arena::new(map.slot_bytes(), spec.slots)?;
    let reader = ExpertReader::open(map.clone(), Arc::<Digests>::default(), &arena, &spec.options)?;
    let mut experts = Shuffled::new(map, spec.seed);
    let (mut raws, mut stores, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let (mut read_ns, mut check_ns) = (0, 0);
    for round in 0..spec.rounds {
        let mut rates = [0.0; 2];
        for which in [round % 2, 1 - round % 2] {
            let some = experts.take(map, spec.round_bytes);
            let started = Instant::now();
            let bytes = match which {
                0 => raw.read(&some)?,
                _ => {
                    let tally = read_all(&reader, &arena, &some)?;
                    read_ns += tally.read_ns;
                    check_ns += tally.check_ns;
                    tally.bytes
                }
            };
            rates[which] = bytes as f64 / started.elapsed().as_secs_f64();
        }
        raws.push(rates[0]);
        stores.push(rates[1]);
        ratios.push(rates[1] / rates[0]);
    }
    let range = range(&ratios);
    let (layer, expert) = experts.all[0];
    Ok(ReadReport {
        backend: format!("{:?}", reader.backend()),
        expert_bytes: map.expert_bytes(layer, expert),
        depth: spec.options.depth,
        piece_bytes: spec.options.piece_bytes,
        raw_rate: median(raws),
        store_rate: median(stores),
        ratio: median(ratios),
        range,
        check_share: check_ns as f64 / (check_ns + read_ns).max(1) as f64,
    })
}

/// What all reads of a round took. Units: bytes, nanoseconds.
#[derive(Default)]
struct Tally {
    bytes: u64,
    read_ns: u64,
    check_ns: u64,
}

/// Reads and checks experts, every slot in use.
fn read_all(reader: &ExpertReader, arena: &Arena, experts: &[(u32, u32)]) -> Result<Tally> {
    let (reply, answers) = channel();
    let (mut left, mut flying, mut tally) = (experts.iter(), 0, Tally::default());
    loop {
        while let Some(slot) = arena.take() {
            let Some(&(layer, expert)) = left.next() else { break };
            let urgency = Urgency::Demand;
            reader.fetch(Fetch { layer, expert, urgency, slot, reply: reply.clone() });
            flying += 1;
        }
        if flying == 0 {
            return Ok(tally);
        }
        let fetched = answers.recv().map_err(io::Error::other)?;
        flying -= 1;
        fetched.result?;
        tally.bytes += fetched.tally.bytes;
        tally.read_ns += fetched.tally.read_ns;
        tally.check_ns += fetched.tally.check_ns;
    }
}
