//! One run: the planner's actions on the clock, as the executor overlaps them. Reads that are
//! asked for start at once; the processor computes hits first and then what lands; the next layer
//! waits for all; reads ahead start when the drive is idle, and no sooner.
//!
//! VRAM: the planner plans one cache of RAM and VRAM together, and a second planner of VRAM's
//! size, given the same requests, says which of its hits are in VRAM. That is what tiers of
//! complements come to if VRAM holds the hottest experts; copies to it take no time on the clock.

use std::collections::BTreeMap;

use engine::index::{ExpertIdx, LayerIdx};
use engine::tiers::planner::{Early, Plan, Planner};
use engine::tiers::trace::{LayerUses, Pass, Trace};
use engine::tiers::{Phase, Shape};

use super::disk::Disk;
use super::{Outcome, Setup};

/// Runs a trace from a cold start.
pub fn run(trace: &Trace, setup: &Setup) -> Outcome {
    let mut clock = Clock::new(trace, setup);
    for (i, pass) in trace.passes.iter().enumerate() {
        let before = clock.reading();
        clock.pass(pass);
        if i >= setup.warm_passes && pass.phase == Phase::Decode {
            clock.count(pass, before);
        }
    }
    Outcome { tally: *clock.planner.tally(), ..clock.outcome }
}

struct Clock<'a> {
    setup: &'a Setup,
    shape: Shape,
    expert_bytes: u64,
    planner: Planner,
    vram: Planner,
    disk: Disk,
    now: f64,
    stalled: f64,
    outcome: Outcome,
}

/// What is subtracted to count one pass.
struct Reading {
    now: f64,
    stalled: f64,
    hits: u64,
    requested: u64,
    reads: u64,
    vram_hits: u64,
    promotions: u64,
}

impl<'a> Clock<'a> {
    fn new(trace: &Trace, setup: &'a Setup) -> Clock<'a> {
        let shape = trace.header.shape;
        let slots = (setup.ram_slots + setup.vram_slots).min(shape.total());
        Clock {
            setup,
            shape,
            expert_bytes: trace.header.expert_bytes,
            planner: Planner::new(shape, slots, setup.policy, None),
            vram: Planner::new(shape, setup.vram_slots, setup.policy, None),
            disk: Disk::new(&setup.devices),
            now: 0.0,
            stalled: 0.0,
            outcome: Outcome::default(),
        }
    }

    fn reading(&self) -> Reading {
        let (all, vram) = (self.planner.tally(), self.vram.tally());
        let (now, stalled) = (self.now, self.stalled);
        let (hits, requested) = (all.decode.hits, all.decode.requested());
        let (vram_hits, promotions) = (vram.decode.hits, vram.kept);
        Reading { now, stalled, hits, requested, reads: all.reads(), vram_hits, promotions }
    }

    fn count(&mut self, pass: &Pass, before: Reading) {
        let after = self.reading();
        let o = &mut self.outcome;
        o.tokens += u64::from(pass.tokens);
        o.hits += after.hits - before.hits;
        o.requested += after.requested - before.requested;
        // Reads ahead that were called off may have been issued in an earlier pass.
        o.reads = (o.reads + after.reads).saturating_sub(before.reads);
        o.vram_hits += after.vram_hits - before.vram_hits;
        o.promotions += after.promotions - before.promotions;
        o.seconds += after.now - before.now;
        o.stalled_seconds += after.stalled - before.stalled;
    }

    fn pass(&mut self, pass: &Pass) {
        for index in 0..self.shape.layers {
            let layer = LayerIdx(index);
            let dense = self.setup.dense_bytes as f64 / self.shape.layers as f64;
            self.now += dense / self.setup.devices.memory_rate;
            let used = &pass.layers[index];
            if !used.uses.is_empty() {
                self.layer(layer, used, pass.layers.get(index + 1), pass.phase);
            }
        }
    }

    fn layer(&mut self, layer: LayerIdx, used: &LayerUses, next: Option<&LayerUses>, phase: Phase) {
        self.settle_ahead();
        let experts = used.experts();
        let plan = self.planner.request(layer, &experts, phase);
        let vram_hits = self.request_vram(layer, &experts, phase, &plan);
        let landings = self.landings(layer, &plan);
        if let Some(next) = next.filter(|_| self.setup.lookahead && phase == Phase::Decode) {
            self.look_ahead(LayerIdx(layer.0 + 1), &next.predicted, landings.len());
        }
        self.compute(layer, plan.hits.len() + plan.ahead.len(), vram_hits, &landings);
        self.planner.release(layer, &experts);
    }

    /// Reads ahead that have come meanwhile, or can no longer come in time.
    fn settle_ahead(&mut self) {
        self.disk.advance(self.now, self.expert_bytes);
        for (layer, expert) in self.disk.arrived(self.now) {
            let early = self.planner.landed_ahead(layer, expert);
            assert!(!matches!(early, Early::Wanted(_)), "nobody waits for it");
        }
        for (layer, expert) in self.disk.call_off() {
            self.planner.failed(layer, expert);
        }
    }

    /// Hits of the plan that are in VRAM.
    fn request_vram(
        &mut self,
        layer: LayerIdx,
        experts: &[ExpertIdx],
        phase: Phase,
        plan: &Plan,
    ) -> usize {
        if self.vram.slots() == 0 {
            return 0;
        }
        let vram = self.vram.request(layer, experts, phase);
        for expert in &vram.misses {
            self.vram.landed(layer, *expert);
        }
        self.vram.release(layer, experts);
        vram.hits.iter().filter(|expert| plan.hits.contains(expert)).count()
    }

    /// What the layer waits for, by time of arrival.
    fn landings(&mut self, layer: LayerIdx, plan: &Plan) -> Vec<(f64, ExpertIdx)> {
        let mut landings = BTreeMap::new();
        for expert in &plan.flying {
            let arrival = self.disk.wait_for((layer, *expert));
            landings.insert((arrival.to_bits(), *expert), arrival);
        }
        for expert in &plan.misses {
            let arrival = self.disk.read(self.now, self.expert_bytes);
            landings.insert((arrival.to_bits(), *expert), arrival);
        }
        // The bits of numbers above 0 are in their order.
        landings.into_iter().map(|((_, expert), arrival)| (arrival, expert)).collect()
    }

    fn look_ahead(&mut self, layer: LayerIdx, predicted: &[ExpertIdx], busy: usize) {
        let busy = busy + self.disk.coming_count();
        let free = self.setup.staging_slots.saturating_sub(busy);
        for id in self.planner.ahead(layer, predicted, free) {
            self.disk.read_ahead(self.now, id);
        }
    }

    fn compute(
        &mut self,
        layer: LayerIdx,
        hits: usize,
        vram_hits: usize,
        landings: &[(f64, ExpertIdx)],
    ) {
        let (bytes, devices) = (self.expert_bytes as f64, &self.setup.devices);
        let on_cpu = (hits - vram_hits) as f64 * bytes / devices.memory_rate;
        let on_gpu = vram_hits as f64 * bytes / devices.vram_rate;
        let mut done = self.now + on_cpu;
        for (arrival, expert) in landings {
            self.planner.landed(layer, *expert);
            self.stalled += (arrival - done).max(0.0);
            done = done.max(*arrival) + bytes / devices.memory_rate;
        }
        self.now = done.max(self.now + on_gpu);
    }
}
