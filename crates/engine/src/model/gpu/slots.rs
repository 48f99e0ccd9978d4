//! The memory of a GPU that holds routed experts, a slot for each.

use std::collections::HashMap;
use std::sync::Arc;

use numerics::Cpu;
use numerics::cuda::{
    Buffer, Copier, Copies, DeviceMatrix, ExpertTable, Gpu, GpuError, Mark, MatrixLayout,
};
use store::experts::{Encoding, ExpertMap};

use super::super::mlp::{GateUp, Mlp};
use super::super::weight::Weight;
use super::mlp::GpuMlp;
use super::split::Split;
use crate::index::LayerIdx;
use crate::tiers::vram::Vram;

/// The slots, and what the planner says of them.
pub(super) struct Slots {
    pub(super) vram: Vram,
    memory: Arc<Buffer<u8>>,
    slot_bytes: usize,
    filled: HashMap<usize, GpuMlp>,
    pub(super) copies: Copies,
    /// What the processor takes of what is not there.
    pub(super) split: Split,
    /// Slots that something reads which was queued.
    read_by: HashMap<usize, Arc<Mark>>,
    /// Of layers whose experts are all there to stay.
    tables: HashMap<LayerIdx, Arc<ExpertTable>>,
    /// Layers that have experts.
    layers: usize,
}

/// More than what a part's alignment can cost, for each block of an expert.
const BLOCK_SLACK_BYTES: usize = 6 * 256;

/// Device memory that any expert of a map fits.
pub(super) fn slot_bytes(map: &ExpertMap) -> usize {
    let block = |b: &store::experts::Block| {
        let starts = if b.encoding == Encoding::Packed { 4 * (b.rows + 1) } else { 0 };
        b.stored_bytes as usize + starts + MatrixLayout::NOTES_BYTES * b.rows + BLOCK_SLACK_BYTES
    };
    let layers = 0..map.layer_count() as u32;
    let experts = layers.flat_map(|l| (0..map.expert_count(l) as u32).map(move |e| (l, e)));
    let most = experts.map(|(l, e)| map.blocks(l, e).iter().map(block).sum::<usize>()).max();
    most.unwrap_or(0).next_multiple_of(256)
}

impl Slots {
    /// Takes the memory of `slots` slots.
    pub(super) fn new(
        gpu: &Gpu,
        vram: Vram,
        slots: usize,
        slot_bytes: usize,
        layers: usize,
        split: Split,
    ) -> Result<Slots, GpuError> {
        let memory = Arc::new(gpu.room(slots * slot_bytes)?);
        let (filled, tables, read_by) = (HashMap::new(), HashMap::new(), HashMap::new());
        let copies = gpu.copies()?;
        Ok(Slots { vram, memory, slot_bytes, filled, copies, split, read_by, tables, layers })
    }

    /// Whether nothing has to be brought any more.
    pub(super) fn are_all_there(&self) -> bool {
        self.tables.len() == self.layers
    }

    /// A layer's experts by number, if all are there.
    pub(super) fn table(&self, layer: LayerIdx) -> Option<Arc<ExpertTable>> {
        self.tables.get(&layer).cloned()
    }

    /// Notes that all experts of a layer have been brought, by number, and none will leave.
    pub(super) fn layer_is_there(
        &mut self,
        gpu: &Gpu,
        layer: LayerIdx,
        experts: &[GpuMlp],
    ) -> Result<(), GpuError> {
        let parts: Vec<_> = experts.iter().map(|e| (&e.inner[..], &e.down)).collect();
        self.tables.insert(layer, Arc::new(ExpertTable::new(gpu, &parts)?));
        Ok(())
    }

    /// What lies in a slot.
    pub(super) fn mlp(&self, slot: usize) -> GpuMlp {
        self.filled[&slot].clone()
    }

    /// Queues the copy of an expert to a slot, behind what still reads it.
    pub(super) fn bring(&mut self, cpu: &Cpu, slot: usize, from: Mlp) -> Result<GpuMlp, GpuError> {
        if let Some(mark) = self.read_by.remove(&slot) {
            self.copies.after(&mark)?;
        }
        let (mut at, end) = (slot * self.slot_bytes, (slot + 1) * self.slot_bytes);
        let memory = &self.memory;
        let mlp = self.copies.keep(cpu, from, |from, copier| {
            let mut weights = match &from.gate_up {
                GateUp::Fused(both) => vec![both],
                GateUp::Split(gate, up) => vec![gate, up],
            };
            weights.push(&from.down);
            let mut placed = Vec::new();
            for weight in weights {
                placed.push(place(copier, memory, weight, &mut at, end)?);
            }
            let down = placed.pop().expect("it was the last");
            Ok(GpuMlp { inner: placed, down })
        })?;
        self.filled.insert(slot, mlp.clone());
        Ok(mlp)
    }

    /// Waits for all copies.
    pub(super) fn finish_copies(&mut self) -> Result<(), GpuError> {
        if let Some((bytes, took)) = self.copies.finish()? {
            self.split.link_took(bytes, took);
        }
        Ok(())
    }

    /// Notes that what is queued by now reads these slots.
    pub(super) fn are_read(
        &mut self,
        gpu: &Gpu,
        slots: impl Iterator<Item = usize>,
    ) -> Result<(), GpuError> {
        let mark = Arc::new(gpu.mark()?);
        self.read_by.extend(slots.map(|slot| (slot, mark.clone())));
        Ok(())
    }
}

fn place<'a>(
    copier: &mut Copier<'a, '_>,
    memory: &Arc<Buffer<u8>>,
    weight: &'a Weight,
    at: &mut usize,
    end: usize,
) -> Result<DeviceMatrix, GpuError> {
    let matrix = weight.matrix();
    let layout = MatrixLayout::of(&matrix);
    assert!(*at + layout.bytes() <= end, "an expert fits its slot");
    let placed = DeviceMatrix::place(copier, memory, *at, layout, &matrix)?;
    *at += layout.bytes();
    Ok(placed)
}
