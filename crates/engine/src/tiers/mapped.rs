//! Experts as slices of mapped files: the system's page cache is the only tier.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use numerics::Cpu;
use store::experts::{Block, Digests, ExpertMap, checksum};
use store::read::{ExpertBytes, Known, check_block};

use super::{Ready, TierError};
use crate::counters::TierCounters;
use crate::index::{ExpertIdx, LayerIdx};

/// Which experts this process has checked: each once, when it is first used.
#[derive(Debug)]
pub(super) struct Mapped {
    map: Arc<ExpertMap>,
    digests: Arc<Digests>,
    checked: Vec<Vec<AtomicBool>>,
}

impl Mapped {
    pub(super) fn new(map: Arc<ExpertMap>, digests: Arc<Digests>) -> Mapped {
        let row = |l: usize| (0..map.expert_count(l as u32)).map(|_| AtomicBool::new(false));
        let checked = (0..map.layer_count()).map(|l| row(l).collect()).collect();
        Mapped { map, digests, checked }
    }

    /// All of a layer's experts, at once.
    pub(super) fn serve(
        &self,
        cpu: &Cpu,
        layer: LayerIdx,
        experts: &[ExpertIdx],
        counters: &mut TierCounters,
    ) -> Result<Vec<Ready>, TierError> {
        let (map, l) = (&self.map, layer.0 as u32);
        self.check_new(cpu, layer, experts, counters)?;
        counters.steps += 1;
        counters.steps_without_miss += 1;
        counters.mapped_experts += experts.len() as u64;
        counters.mapped_bytes += experts.iter().map(|e| map.expert_bytes(l, e.0)).sum::<u64>();
        let ready = |e: &ExpertIdx| Ready { expert: *e, bytes: slices(map, l, e.0) };
        Ok(experts.iter().map(ready).collect())
    }

    /// Checks those that are used for the first time, on all threads.
    fn check_new(
        &self,
        cpu: &Cpu,
        layer: LayerIdx,
        experts: &[ExpertIdx],
        counters: &mut TierCounters,
    ) -> Result<(), TierError> {
        let (map, flags) = (&self.map, &self.checked[layer.0]);
        let new = |e: &&ExpertIdx| !flags[e.0 as usize].load(Ordering::Relaxed);
        let blocks = experts.iter().filter(new).flat_map(|e| map.blocks(layer.0 as u32, e.0));
        let mut sums: Vec<(&Block, u128)> = blocks.map(|block| (block, 0)).collect();
        if sums.is_empty() {
            return Ok(());
        }
        cpu.each_mut(&mut sums, |(block, sum)| *sum = checksum(block.id, &slice(map, block)));
        for (block, found) in sums {
            match check_block(map, &self.digests, block, &slice(map, block), found)? {
                Known::Manifest => counters.blocks_manifest += 1,
                Known::FirstSeen => counters.blocks_first_seen += 1,
                Known::New => counters.blocks_new += 1,
            }
        }
        experts.iter().for_each(|e| flags[e.0 as usize].store(true, Ordering::Relaxed));
        Ok(())
    }
}

fn slice(map: &ExpertMap, block: &Block) -> bytes::Bytes {
    let start = block.offset_bytes as usize;
    map.file(block.file).bytes.slice(start..start + block.stored_bytes as usize)
}

fn slices(map: &ExpertMap, layer: u32, expert: u32) -> ExpertBytes {
    ExpertBytes { blocks: map.blocks(layer, expert).iter().map(|b| slice(map, b)).collect() }
}
