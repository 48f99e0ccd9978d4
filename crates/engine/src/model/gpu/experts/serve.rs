//! Every expert that a chunk needs: on the device where its memory has it, else wherever it will
//! be done first, there or on the processor.

use std::time::Instant;

use half::bf16;
use numerics::cuda::{Buffer, GpuError};
use numerics::op::linear::Prepared;

use super::super::super::error::ModelError;
use super::super::super::experts::bank;
use super::super::super::mlp::{self, Mlp};
use super::super::super::routing::Group;
use super::super::super::rows;
use super::super::mlp::{Bank, GpuMlp, Use, run};
use super::super::split::Load;
use super::{GpuExperts, Place};
use crate::counters::{PhaseCounters, TierCounters};
use crate::index::ExpertIdx;
use crate::tiers::{Phase, Ready};

/// What is known of a chunk while its experts run.
pub(super) struct Chunk<'a> {
    pub(super) x: &'a Buffer<bf16>,
    /// The same on the host, where the processor may be given experts.
    pub(super) x_here: Option<Prepared>,
    pub(super) tokens: usize,
    /// Of the routed experts, `[tokens * top_k, hidden]`, in the order in which they ran.
    pub(super) routed: Buffer<bf16>,
    /// Rows of it that are taken.
    pub(super) done: usize,
    /// The row of each choice.
    pub(super) rows: Vec<u32>,
    /// The shared expert's outputs, `[tokens, hidden]`, and whether they are on their way.
    pub(super) shared: Option<Buffer<bf16>>,
    pub(super) shared_runs: bool,
    /// Experts that the planner keeps for this layer.
    pub(super) held: Vec<ExpertIdx>,
}

impl Chunk<'_> {
    pub(super) fn phase(&self) -> Phase {
        if self.tokens == 1 { Phase::Decode } else { Phase::Prefill }
    }

    /// The outputs of an expert are the rows from `done + first` on.
    fn place(&mut self, group: &Group, first: usize) {
        for (i, choice) in group.choices().iter().enumerate() {
            self.rows[*choice] = (self.done + first + i) as u32;
        }
    }
}

impl GpuExperts {
    /// Every needed expert once: those in the device's memory first, the others as they come.
    pub(super) fn serve(
        &self,
        at: &mut Place<'_>,
        groups: &[Group],
        chunk: &mut Chunk<'_>,
        counters: &mut PhaseCounters,
    ) -> Result<(), ModelError> {
        let phase = chunk.phase();
        let needed: Vec<ExpertIdx> = groups.iter().map(|g| g.expert).collect();
        let plan = at.slots.vram.request(self.layer, &needed, phase);
        counters.tiers.vram_experts += plan.hits.len() as u64;
        chunk.held = needed;
        let missing: Vec<_> = plan.misses.iter().map(|e| self.load(at, groups, *e)).collect();
        let mut wave = Wave::default();
        for (expert, slot) in plan.hits {
            let mlp = at.slots.mlp(slot);
            counters.tiers.vram_bytes += mlp.bytes();
            wave.push((expert, mlp));
        }
        let mut left = plan.misses;
        let mut all = || {
            if at.slots.split.may_help(&missing) {
                // Before the device has more to do, which this would wait for.
                let (x, hidden) = (chunk.x, chunk.x.len() / chunk.tokens);
                chunk.x_here = Some(Prepared::new(at.cpu, at.gpu.download(x)?, hidden));
            }
            self.run(at, groups, chunk, &mut wave, counters)?;
            self.bring(at, groups, chunk, &mut left, counters)
        };
        let done: Result<(), ModelError> = all();
        // After an error the planner must not wait for what never comes.
        for expert in &left {
            at.slots.vram.failed(self.layer, *expert, None);
        }
        at.slots.vram.release(self.layer, &std::mem::take(&mut chunk.held));
        done
    }

    /// Brings what is missing, as many at a time as there is room for, and runs it; the processor
    /// runs its share where it lies.
    fn bring(
        &self,
        at: &mut Place<'_>,
        groups: &[Group],
        chunk: &mut Chunk<'_>,
        left: &mut Vec<ExpertIdx>,
        counters: &mut PhaseCounters,
    ) -> Result<(), ModelError> {
        if left.is_empty() {
            return Ok(());
        }
        let (tiers, mut wave) = (at.tiers, Wave::default());
        // What copies still read is not free for the reader.
        at.slots.finish_copies()?;
        let mut supply = tiers.begin(self.layer, left, chunk.phase(), &mut counters.tiers);
        while let Some(ready) = supply.next(at.cpu, &mut counters.tiers)? {
            let (here, there) = self.share_out(at, groups, chunk, ready);
            for one in there {
                if at.slots.vram.is_full() {
                    self.run(at, groups, chunk, &mut wave, counters)?;
                }
                wave.push(self.bring_one(at, one, left, &mut counters.tiers)?);
                if wave.len() == WAVE_EXPERTS {
                    self.run(at, groups, chunk, &mut wave, counters)?;
                }
            }
            self.run(at, groups, chunk, &mut wave, counters)?;
            if !here.is_empty() {
                self.help(at, groups, chunk, here, left, counters)?;
            }
            at.slots.finish_copies()?;
        }
        Ok(())
    }

    /// What of these the processor runs, and what the device.
    fn share_out(
        &self,
        at: &mut Place<'_>,
        groups: &[Group],
        chunk: &Chunk<'_>,
        ready: Vec<Ready>,
    ) -> (Vec<Ready>, Vec<Ready>) {
        if chunk.x_here.is_none() {
            return (Vec::new(), ready);
        }
        let loads: Vec<Load> = ready.iter().map(|r| self.load(at, groups, r.expert)).collect();
        let mut ours = at.slots.split.share_out(&loads, Instant::now()).into_iter();
        ready.into_iter().partition(|_| ours.next().expect("one for each"))
    }

    /// What an expert is to compute.
    pub(super) fn load(&self, at: &Place<'_>, groups: &[Group], expert: ExpertIdx) -> Load {
        let bytes = at.tiers.map().expert_bytes(self.layer.0 as u32, expert.0);
        Load { bytes, tokens: group_of(groups, expert).tokens.len() }
    }

    /// The processor runs these where they lie; the device gets what came of it.
    fn help(
        &self,
        at: &mut Place<'_>,
        groups: &[Group],
        chunk: &mut Chunk<'_>,
        here: Vec<Ready>,
        left: &mut Vec<ExpertIdx>,
        counters: &mut PhaseCounters,
    ) -> Result<(), ModelError> {
        let x = chunk.x_here.as_ref().expect("without it nothing is the processor's");
        let started = Instant::now();
        let (mut experts, mut loads) = (Vec::new(), Vec::new());
        for Ready { expert, bytes } in here {
            let blocks = at.tiers.map().blocks(self.layer.0 as u32, expert.0);
            let mlp = Mlp::of_blocks(blocks.iter().zip(bytes.blocks))?;
            experts.push((group_of(groups, expert), mlp));
            loads.push(self.load(at, groups, expert));
        }
        let count: usize = experts.iter().map(|(group, _)| group.tokens.len()).sum();
        let order: Vec<u32> = (0..count as u32).collect();
        let place = rows::Place { cpu: at.cpu, layer: Some(self.layer) };
        let made = mlp::run(place, x, &[bank(self.moe.width, &experts, &order)])?;
        at.gpu.write(&made[0], &chunk.routed, chunk.done * x.width())?;
        at.slots.split.cpu_took(&loads, started.elapsed());
        for (group, mlp) in &experts {
            chunk.place(group, 0);
            chunk.done += group.tokens.len();
            at.slots.vram.failed(self.layer, group.expert, None);
            left.retain(|e| *e != group.expert);
            counters.experts += 1;
            counters.expert_bytes += mlp.bytes();
            counters.expert_plain_bytes += mlp.plain_bytes();
            counters.tiers.cpu_experts += 1;
            counters.tiers.cpu_bytes += mlp.bytes();
        }
        Ok(())
    }

    /// Copies an expert to a slot, of which one is free.
    pub(super) fn bring_one(
        &self,
        at: &mut Place<'_>,
        Ready { expert, bytes }: Ready,
        left: &mut Vec<ExpertIdx>,
        counters: &mut TierCounters,
    ) -> Result<(ExpertIdx, GpuMlp), ModelError> {
        let blocks = at.tiers.map().blocks(self.layer.0 as u32, expert.0).iter().zip(bytes.blocks);
        let mlp = Mlp::of_blocks(blocks)?;
        let slot = at.slots.vram.take().expect("what only passed through has left");
        let brought = at.slots.bring(at.cpu, slot, mlp);
        left.retain(|e| *e != expert);
        if brought.is_err() {
            at.slots.vram.failed(self.layer, expert, Some(slot));
        }
        let mlp = brought?;
        counters.vram_evicted += at.slots.vram.landed(self.layer, expert, slot) as u64;
        Ok((expert, mlp))
    }

    /// Runs the experts of a wave, the first time with the shared one beside them.
    fn run(
        &self,
        at: &mut Place<'_>,
        groups: &[Group],
        chunk: &mut Chunk<'_>,
        wave: &mut Wave,
        counters: &mut PhaseCounters,
    ) -> Result<(), GpuError> {
        let wave = std::mem::take(wave);
        let (mut first, mut tokens) = (0, Vec::new());
        let mut uses = Vec::new();
        for (expert, mlp) in &wave {
            let group = group_of(groups, *expert);
            uses.push(Use { mlp, first, count: group.tokens.len(), sites: self.sites.routed });
            chunk.place(group, first);
            tokens.extend_from_slice(&group.tokens);
            first += group.tokens.len();
            counters.experts += 1;
            counters.expert_bytes += mlp.bytes();
            counters.expert_plain_bytes += mlp.plain_bytes();
        }
        let tokens = at.gpu.upload(&tokens)?;
        let (tokens, out) = (Some(&tokens), &chunk.routed);
        let mut banks = vec![Bank { uses, tokens, out, first: chunk.done }];
        if let (Some(shared), Some(out), false) = (&self.shared, &chunk.shared, chunk.shared_runs) {
            let (count, sites) = (chunk.tokens, shared.sites);
            let uses = vec![Use { mlp: &shared.mlp, first: 0, count, sites }];
            banks.push(Bank { uses, tokens: None, out, first: 0 });
        }
        at.slots.copies.join(at.gpu)?;
        run(at.gpu, chunk.x, &banks)?;
        let of_wave = wave.iter().filter_map(|(expert, _)| at.slots.vram.slot(self.layer, *expert));
        let read: Vec<usize> = of_wave.collect();
        at.slots.are_read(at.gpu, read.into_iter())?;
        chunk.shared_runs = true;
        chunk.done += first;
        // The device works in order: what comes into a slot comes after what is queued by now.
        let ran: Vec<ExpertIdx> = wave.iter().map(|(expert, _)| *expert).collect();
        chunk.held.retain(|e| !ran.contains(e));
        at.slots.vram.release(self.layer, &ran);
        Ok(())
    }
}

/// Experts that run together while the next ones come.
const WAVE_EXPERTS: usize = 4;

/// Experts that are in the device's memory and wait to run.
type Wave = Vec<(ExpertIdx, GpuMlp)>;

fn group_of(groups: &[Group], expert: ExpertIdx) -> &Group {
    let at = groups.binary_search_by_key(&expert, |g| g.expert);
    &groups[at.expect("only what was asked for is served")]
}
