//! Routed experts and the shared expert on a GPU: as model/experts.rs.

use std::collections::HashMap;

use half::bf16;
use numerics::Cpu;
use numerics::cuda::{
    Buffer, DeviceRouting, DeviceTerms, ExpertTable, Gpu, GpuError, LinearJob, Site, TokenExperts,
    TokenShared,
};

use super::super::config::Moe;
use super::super::error::ModelError;
use super::super::experts::Experts;
use super::super::mlp::Mlp;
use super::super::routing::{Group, Routing};
use super::mlp::{Bank, GpuMlp, Use, run};
use super::rows::{Projection, Uploader};
use super::slots::Slots;
use crate::counters::{PhaseCounters, TierCounters};
use crate::index::{ExpertIdx, LayerIdx};
use crate::tiers::{Phase, Ready, Tiers, trace};

/// The experts of a layer.
pub(super) struct GpuExperts {
    layer: LayerIdx,
    moe: Moe,
    router: Projection,
    shared: Option<Shared>,
    sites: Sites,
}

struct Shared {
    gate: Projection,
    mlp: GpuMlp,
    sites: [Site; 2],
}

#[derive(Clone, Copy)]
struct Sites {
    route: Site,
    routed: [Site; 2],
    sum: Site,
}

/// What is known of a chunk while its experts run.
struct Chunk<'a> {
    x: &'a Buffer<bf16>,
    tokens: usize,
    /// Of the routed experts, `[tokens * top_k, hidden]`, in the order in which they ran.
    routed: Buffer<bf16>,
    /// Rows of it that are taken.
    done: usize,
    /// The row of each choice.
    rows: Vec<u32>,
    /// The shared expert's outputs, `[tokens, hidden]`, and whether they are on their way.
    shared: Option<Buffer<bf16>>,
    shared_runs: bool,
    /// Experts that the planner keeps for this layer.
    held: Vec<ExpertIdx>,
}

/// One token on its way to its experts.
struct Token<'a> {
    /// `[hidden]`.
    x: &'a Buffer<bf16>,
    table: &'a ExpertTable,
    chosen: &'a DeviceRouting,
    /// Weight of the shared expert.
    gate: Option<&'a Buffer<f32>>,
}

impl Shared {
    /// Of one token: gate | up to y.
    fn inner_jobs<'a>(&'a self, x: &'a Buffer<bf16>, y: &'a Buffer<bf16>) -> Vec<LinearJob<'a>> {
        Use { mlp: &self.mlp, first: 0, count: 1, sites: self.sites }.inner_jobs(None, x, y)
    }
}

/// What runs an expert: the processor for the readers, the device, where experts lie.
pub(super) struct Place<'a> {
    pub(super) gpu: &'a Gpu,
    pub(super) cpu: &'a Cpu,
    pub(super) tiers: &'a Tiers,
    pub(super) slots: &'a mut Slots,
}

impl GpuExperts {
    pub(super) fn upload(
        layer: LayerIdx,
        from: &Experts,
        up: &mut Uploader<'_>,
    ) -> Result<Self, GpuError> {
        let shared = match &from.shared {
            Some(shared) => {
                let gate = up.projection(&shared.gate)?;
                let (mlp, sites) = GpuMlp::upload(&shared.mlp, up)?;
                Some(Shared { gate, mlp, sites })
            }
            None => None,
        };
        let router = up.projection(&from.router)?;
        let routed = ["an expert's gate and up", "an expert's down"].map(|part| up.part(part));
        let sites = Sites { route: up.part("router"), routed, sum: up.part("expert sum") };
        Ok(GpuExperts { layer, moe: from.moe, router, shared, sites })
    }

    /// Adds what the experts make of x `[tokens, hidden]` to h.
    pub(super) fn forward(
        &self,
        at: &mut Place<'_>,
        x: &Buffer<bf16>,
        h: &Buffer<bf16>,
        hidden: usize,
        counters: &mut PhaseCounters,
    ) -> Result<(), ModelError> {
        let tokens = x.len() / hidden;
        let (logits, gate) = self.route(at.gpu, x, tokens)?;
        let moe = self.moe;
        let site = self.sites.route;
        let chosen = at.gpu.route(&logits, moe.experts, moe.top_k, moe.norm_top_k, site)?;
        if let (1, Some(table)) = (tokens, at.slots.table(self.layer)) {
            let token = Token { x, table: &table, chosen: &chosen, gate: gate.as_ref() };
            return Ok(self.run_token(at.gpu, token, h, counters)?);
        }
        let ids = at.gpu.download(&chosen.ids)?;
        let experts = ids.into_iter().map(ExpertIdx).collect();
        let groups = Routing { experts, weights: Vec::new() }.groups(moe);
        let mut chunk = Chunk {
            x,
            tokens,
            routed: at.gpu.room(tokens * moe.top_k * hidden)?,
            done: 0,
            rows: vec![0; tokens * moe.top_k],
            shared: self.shared.is_some().then(|| at.gpu.room(tokens * hidden)).transpose()?,
            shared_runs: false,
            held: Vec::new(),
        };
        self.serve(at, &groups, &mut chunk, counters)?;
        let rows = at.gpu.upload(&chunk.rows)?;
        let terms = DeviceTerms {
            outputs: &chunk.routed,
            rows: &rows,
            weights: &chosen.weights,
            top_k: moe.top_k,
            shared: chunk.shared.as_ref().zip(gate.as_ref()),
        };
        Ok(at.gpu.mix(&terms, hidden, h, self.sites.sum)?)
    }

    /// One token whose experts are all there: nothing waits for the choice.
    fn run_token(
        &self,
        gpu: &Gpu,
        token: Token<'_>,
        h: &Buffer<bf16>,
        counters: &mut PhaseCounters,
    ) -> Result<(), GpuError> {
        let (x, hidden, top_k) = (token.x, token.x.len(), self.moe.top_k);
        let shared = self.shared.as_ref();
        let shared_out = shared.map(|_| gpu.room(hidden)).transpose()?;
        let inner_out = shared.map(|s| gpu.room(2 * s.mlp.width())).transpose()?;
        let inner_jobs = shared.zip(inner_out.as_ref()).map(|(s, y)| s.inner_jobs(x, y));
        let inner_jobs = inner_jobs.unwrap_or_default();
        let beside = match (shared, &inner_out, &shared_out) {
            (Some(shared), Some(inner_out), Some(down_out)) => Some(TokenShared {
                inner: &inner_jobs,
                inner_out,
                width: shared.mlp.width(),
                down: &shared.mlp.down,
                down_out,
                down_site: shared.sites[1],
            }),
            _ => None,
        };
        let (table, ids, sites) = (token.table, &token.chosen.ids, self.sites.routed);
        let outputs = gpu.token_experts(&TokenExperts { table, ids, x, sites, beside })?;
        let rows: Vec<u32> = (0..top_k as u32).collect();
        let terms = DeviceTerms {
            outputs: &outputs,
            rows: &gpu.upload(&rows)?,
            weights: &token.chosen.weights,
            top_k,
            shared: shared_out.as_ref().zip(token.gate),
        };
        counters.experts += top_k as u64;
        counters.expert_bytes += top_k as u64 * table.bytes();
        counters.tiers.vram_experts += top_k as u64;
        counters.tiers.vram_bytes += top_k as u64 * table.bytes();
        gpu.mix(&terms, hidden, h, self.sites.sum)
    }

    /// Brings all experts, which have room to stay.
    pub(super) fn preload(&self, at: &mut Place<'_>) -> Result<(), ModelError> {
        let all: Vec<ExpertIdx> = (0..self.moe.experts as u32).map(ExpertIdx).collect();
        let mut left = at.slots.vram.request(self.layer, &all, Phase::Prefill).misses;
        let there = self.bring_all(at, &mut left);
        for expert in &left {
            at.slots.vram.failed(self.layer, *expert, None);
        }
        at.slots.vram.release(self.layer, &all);
        let there = there?;
        at.slots.copies.finish()?;
        let experts: Vec<GpuMlp> = all.iter().map(|e| there[e].clone()).collect();
        Ok(at.slots.layer_is_there(at.gpu, self.layer, &experts)?)
    }

    fn bring_all(
        &self,
        at: &mut Place<'_>,
        left: &mut Vec<ExpertIdx>,
    ) -> Result<HashMap<ExpertIdx, GpuMlp>, ModelError> {
        let uses: Vec<_> = left.iter().map(|e| trace::Use { expert: *e, tokens: 0 }).collect();
        let (mut counters, mut there) = (TierCounters::default(), HashMap::new());
        let tiers = at.tiers;
        let mut supply = tiers.begin(self.layer, &uses, Phase::Prefill, &mut counters);
        while let Some(ready) = supply.next(at.cpu, &mut counters)? {
            for one in ready {
                let (expert, mlp) = self.bring_one(at, one, left, &mut counters)?;
                there.insert(expert, mlp);
            }
            at.slots.copies.finish()?;
        }
        Ok(there)
    }

    /// Router logits, and the weights of the shared expert.
    fn route(
        &self,
        gpu: &Gpu,
        x: &Buffer<bf16>,
        tokens: usize,
    ) -> Result<(Buffer<f32>, Option<Buffer<f32>>), GpuError> {
        let logits = gpu.room(tokens * self.moe.experts)?;
        let gate = self.shared.as_ref().map(|_| gpu.room(tokens)).transpose()?;
        let mut jobs = vec![self.router.job_f32(x, tokens, &logits)];
        if let (Some(shared), Some(gate)) = (&self.shared, &gate) {
            jobs.push(shared.gate.job_f32(x, tokens, gate));
        }
        gpu.linear(&jobs)?;
        if let Some(gate) = &gate {
            gpu.sigmoid(gate)?;
        }
        Ok((logits, gate))
    }

    /// Every needed expert once: those in the device's memory first, the others as they come.
    fn serve(
        &self,
        at: &mut Place<'_>,
        groups: &[Group],
        chunk: &mut Chunk<'_>,
        counters: &mut PhaseCounters,
    ) -> Result<(), ModelError> {
        let phase = if chunk.tokens == 1 { Phase::Decode } else { Phase::Prefill };
        let needed: Vec<ExpertIdx> = groups.iter().map(|g| g.expert).collect();
        let plan = at.slots.vram.request(self.layer, &needed, phase);
        counters.tiers.vram_experts += plan.hits.len() as u64;
        chunk.held = needed;
        let mut wave = Wave::default();
        for (expert, slot) in plan.hits {
            let mlp = at.slots.mlp(slot);
            counters.tiers.vram_bytes += mlp.bytes();
            wave.push((expert, mlp));
        }
        let mut left = plan.misses;
        let mut done = self.run(at, groups, chunk, &mut wave, counters).map_err(Into::into);
        if done.is_ok() {
            done = self.bring(at, groups, chunk, &mut left, counters);
        }
        // After an error the planner must not wait for what never comes.
        for expert in &left {
            at.slots.vram.failed(self.layer, *expert, None);
        }
        at.slots.vram.release(self.layer, &std::mem::take(&mut chunk.held));
        done
    }

    /// Brings what is missing, as many at a time as there is room for, and runs it.
    fn bring(
        &self,
        at: &mut Place<'_>,
        groups: &[Group],
        chunk: &mut Chunk<'_>,
        left: &mut Vec<ExpertIdx>,
        counters: &mut PhaseCounters,
    ) -> Result<(), ModelError> {
        let phase = if chunk.tokens == 1 { Phase::Decode } else { Phase::Prefill };
        let count = |e: ExpertIdx| group_of(groups, e).tokens.len() as u32;
        let uses = left.iter().map(|e| trace::Use { expert: *e, tokens: count(*e) });
        let uses: Vec<_> = uses.collect();
        if uses.is_empty() {
            return Ok(());
        }
        let (tiers, mut wave) = (at.tiers, Wave::default());
        // What copies still read is not free for the reader.
        at.slots.copies.finish()?;
        let mut supply = tiers.begin(self.layer, &uses, phase, &mut counters.tiers);
        while let Some(ready) = supply.next(at.cpu, &mut counters.tiers)? {
            for one in ready {
                if at.slots.vram.is_full() {
                    self.run(at, groups, chunk, &mut wave, counters)?;
                }
                wave.push(self.bring_one(at, one, left, &mut counters.tiers)?);
                if wave.len() == WAVE_EXPERTS {
                    self.run(at, groups, chunk, &mut wave, counters)?;
                }
            }
            self.run(at, groups, chunk, &mut wave, counters)?;
            at.slots.copies.finish()?;
        }
        Ok(())
    }

    /// Copies an expert to a slot, of which one is free.
    fn bring_one(
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
            for (i, choice) in group.choices().iter().enumerate() {
                chunk.rows[*choice] = (chunk.done + first + i) as u32;
            }
            tokens.extend_from_slice(&group.tokens);
            first += group.tokens.len();
            counters.experts += 1;
            counters.expert_bytes += mlp.bytes();
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

    /// Bytes of everything but the routed experts.
    pub(super) fn dense_bytes(&self) -> u64 {
        let shared = self.shared.as_ref();
        let shared = shared.map_or(0, |s| s.gate.matrix.bytes() + s.mlp.bytes());
        self.router.matrix.bytes() + shared
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
