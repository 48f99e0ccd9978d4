//! Routed experts and the shared expert on a GPU: as model/experts.rs.

mod serve;

use std::collections::HashMap;

use half::bf16;
use numerics::Cpu;
use numerics::cuda::{
    Buffer, DeviceRouting, DeviceTerms, ExpertTable, Gpu, GpuError, LinearJob, Site, TokenExperts,
    TokenShared,
};

use super::super::config::Moe;
use super::super::error::ModelError;
use super::super::experts::{Experts, uses};
use super::super::routing::Routing;
use super::mlp::{GpuMlp, Use};
use super::rows::{Projection, Uploader};
use super::slots::Slots;
use crate::counters::{PhaseCounters, TierCounters};
use crate::index::{ExpertIdx, LayerIdx};
use crate::tiers::{Phase, Tiers};
use serve::Chunk;

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

/// One token on its way to its experts.
struct Token<'a> {
    /// `[hidden]`.
    x: &'a Buffer<bf16>,
    table: &'a ExpertTable,
    chosen: &'a DeviceRouting,
    /// Of the shared expert.
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
            x_here: None,
            tokens,
            routed: at.gpu.room(tokens * moe.top_k * hidden)?,
            done: 0,
            rows: vec![0; tokens * moe.top_k],
            shared: self.shared.is_some().then(|| at.gpu.room(tokens * hidden)).transpose()?,
            shared_runs: false,
            held: Vec::new(),
        };
        at.tiers.note(self.layer, &uses(&groups), chunk.phase());
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
        counters.expert_plain_bytes += top_k as u64 * table.plain_bytes();
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
        at.slots.finish_copies()?;
        let experts: Vec<GpuMlp> = all.iter().map(|e| there[e].clone()).collect();
        Ok(at.slots.layer_is_there(at.gpu, self.layer, &experts)?)
    }

    fn bring_all(
        &self,
        at: &mut Place<'_>,
        left: &mut Vec<ExpertIdx>,
    ) -> Result<HashMap<ExpertIdx, GpuMlp>, ModelError> {
        let (mut counters, mut there) = (TierCounters::default(), HashMap::new());
        let tiers = at.tiers;
        let mut supply = tiers.begin(self.layer, left, Phase::Prefill, &mut counters);
        while let Some(ready) = supply.next(at.cpu, &mut counters)? {
            for one in ready {
                let (expert, mlp) = self.bring_one(at, one, left, &mut counters)?;
                there.insert(expert, mlp);
            }
            at.slots.finish_copies()?;
        }
        Ok(there)
    }

    /// Router logits, and the gates of the shared expert.
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
        Ok((logits, gate))
    }

    /// Bytes of everything but the routed experts.
    pub(super) fn dense_bytes(&self) -> u64 {
        let shared = self.shared.as_ref();
        let shared = shared.map_or(0, |s| s.gate.matrix.bytes() + s.mlp.bytes());
        self.router.matrix.bytes() + shared
    }
}
