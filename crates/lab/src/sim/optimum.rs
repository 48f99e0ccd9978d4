//! Belady's optimum: what a cache of the same size would hit if it knew the trace beforehand.

use std::collections::{BTreeSet, HashMap};

use engine::index::LayerIdx;
use engine::tiers::Phase;
use engine::tiers::trace::Trace;
use serde::Serialize;

/// Hits of decoding, from the first counted pass on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Optimum {
    pub hits: u64,
    pub requested: u64,
}

impl Optimum {
    /// Hits of what decoding asked for.
    pub fn hit_rate(&self) -> f64 {
        self.hits as f64 / self.requested.max(1) as f64
    }
}

/// Not used again.
const NEVER: u32 = u32::MAX;

/// The most that any choice of `slots` experts can hit over the whole trace, reads only on demand.
///
/// Source: Belady 1966, MIN, with the choice not to keep a newcomer: of the cached experts and the
/// newcomer, the one whose next use is farthest goes.
pub fn optimum(trace: &Trace, slots: usize, warm_passes: usize) -> Optimum {
    let accesses = accesses(trace);
    let next = next_uses(&accesses);
    let mut cached: HashMap<u32, u32> = HashMap::new();
    let mut by_next: BTreeSet<(u32, u32)> = BTreeSet::new();
    let mut found = Optimum::default();
    for (access, next) in accesses.iter().zip(next) {
        let counted = access.pass >= warm_passes && access.decode;
        let hit = cached.remove(&access.position);
        if let Some(due) = hit {
            by_next.remove(&(due, access.position));
        }
        found.requested += u64::from(counted);
        found.hits += u64::from(counted && hit.is_some());
        if next == NEVER {
            continue;
        }
        if cached.len() == slots {
            match by_next.last().copied().filter(|(farthest, _)| *farthest > next) {
                Some(victim) => {
                    by_next.remove(&victim);
                    cached.remove(&victim.1);
                }
                None => continue,
            }
        }
        cached.insert(access.position, next);
        by_next.insert((next, access.position));
    }
    found
}

struct Access {
    pass: usize,
    /// Counts layers over the whole trace: experts of one step are used at the same time.
    step: u32,
    position: u32,
    decode: bool,
}

fn accesses(trace: &Trace) -> Vec<Access> {
    let shape = trace.header.shape;
    let mut accesses = Vec::new();
    for (pass, p) in trace.passes.iter().enumerate() {
        for (layer, used) in p.layers.iter().enumerate() {
            let step = (pass * shape.layers + layer) as u32;
            for u in &used.uses {
                let position = shape.position(LayerIdx(layer), u.expert) as u32;
                let decode = p.phase == Phase::Decode;
                accesses.push(Access { pass, step, position, decode });
            }
        }
    }
    accesses
}

fn next_uses(accesses: &[Access]) -> Vec<u32> {
    let mut coming: HashMap<u32, u32> = HashMap::new();
    let next = accesses.iter().rev().map(|a| coming.insert(a.position, a.step).unwrap_or(NEVER));
    let mut next: Vec<u32> = next.collect();
    next.reverse();
    next
}
