//! Where the blocks of an expert lie in the slot they are read into.

use std::ops::Range;

use crate::experts::{Block, ExpertMap};
use crate::io::arena::ALIGN;
use crate::io::ring::Part;

/// The reads of an expert, and where each block is afterwards.
pub struct Layout {
    pub parts: Vec<Part>,
    /// By block, in the order of the map.
    pub ranges: Vec<Range<usize>>,
}

impl Layout {
    /// Each block is read with what surrounds it up to the next boundaries.
    pub fn new(blocks: &[Block]) -> Layout {
        let mut layout = Layout { parts: Vec::new(), ranges: Vec::new() };
        let mut at = 0;
        for block in blocks {
            let lead = (block.offset_bytes % ALIGN as u64) as usize;
            let needed = lead + block.stored_bytes as usize;
            let len = needed.next_multiple_of(ALIGN);
            layout.ranges.push(at + lead..at + needed);
            layout.parts.push(Part {
                file: block.file.0 as usize,
                offset_bytes: block.offset_bytes - lead as u64,
                at,
                len,
                needed,
            });
            at += len;
        }
        layout
    }

    /// Bytes of a slot that holds it.
    pub fn len(&self) -> usize {
        self.parts.last().map_or(0, |part| part.at + part.len)
    }
}

impl ExpertMap {
    /// Bytes of a slot that holds any expert.
    pub fn slot_bytes(&self) -> usize {
        let layers = 0..self.layer_count() as u32;
        let experts = layers.flat_map(|l| (0..self.expert_count(l) as u32).map(move |e| (l, e)));
        experts.map(|(l, e)| Layout::new(self.blocks(l, e)).len()).max().unwrap_or(ALIGN)
    }
}
