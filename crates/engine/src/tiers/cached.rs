//! Experts read into an arena and kept as the planner says: what performs its plans.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use store::experts::ExpertMap;
use store::read::{Arena, ExpertBytes, ExpertReader, Fetch, Fetched, ReadError, Urgency};

use super::planner::{Early, Landing, Planner};
use super::{ExpertId, Phase, Ready, TierError};
use crate::counters::TierCounters;
use crate::index::{ExpertIdx, LayerIdx};

/// The cache, its reader, and what is on the way.
pub(super) struct Cached {
    map: Arc<ExpertMap>,
    planner: Planner,
    reader: ExpertReader,
    arena: Arena,
    /// What the planner holds to be in memory.
    held: HashMap<ExpertId, ExpertBytes>,
    /// Asked of the reader and not answered.
    flying: HashSet<ExpertId>,
    answers: (Sender<Fetched>, Receiver<Fetched>),
    /// Reads ahead, unless it was switched off.
    ahead: Option<Worth>,
}

/// Whether reading ahead pays: the share of guesses that were used, the last ones weighing most.
struct Worth {
    share: f64,
    /// Layers that asked, for a guess now and then where it did not pay.
    steps: u64,
}

/// A guess moves the share by this much of the distance.
const WORTH_STEP: f64 = 1.0 / 16.0;
/// Below it a read ahead costs more than it saves: the drive is also needed for what is demanded.
const WORTH_MIN: f64 = 0.5;
/// Layers between two guesses where they do not pay.
const WORTH_PROBE: u64 = 64;

impl Worth {
    fn note(&mut self, used: u64, wasted: u64) {
        for outcome in [(used, 1.0), (wasted, 0.0)] {
            for _ in 0..outcome.0 {
                self.share += (outcome.1 - self.share) * WORTH_STEP;
            }
        }
    }

    /// How many guesses to follow at most.
    fn allowed(&mut self) -> usize {
        self.steps += 1;
        match self.share >= WORTH_MIN {
            true => usize::MAX,
            false => usize::from(self.steps.is_multiple_of(WORTH_PROBE)),
        }
    }
}

/// One layer's request while it is served.
pub(super) struct Request {
    layer: LayerIdx,
    /// In memory, not handed out yet.
    ready: Vec<ExpertIdx>,
    /// Misses without a slot.
    queued: VecDeque<ExpertIdx>,
    /// On the way.
    waiting: HashSet<ExpertIdx>,
    /// Handed out with the wave before.
    given: Vec<ExpertIdx>,
}

impl Cached {
    pub(super) fn new(
        map: Arc<ExpertMap>,
        planner: Planner,
        reader: ExpertReader,
        arena: Arena,
        ahead: bool,
    ) -> Cached {
        let (held, flying) = (HashMap::new(), HashSet::new());
        let ahead = ahead.then_some(Worth { share: WORTH_MIN, steps: 0 });
        Cached { map, planner, reader, arena, held, flying, answers: channel(), ahead }
    }

    pub(super) fn reader(&self) -> &ExpertReader {
        &self.reader
    }

    pub(super) fn arena(&self) -> &Arena {
        &self.arena
    }

    pub(super) fn slots(&self) -> usize {
        self.planner.slots()
    }

    /// Asks for a layer's experts: those in memory are ready, the others are being read.
    pub(super) fn begin(
        &mut self,
        layer: LayerIdx,
        experts: &[ExpertIdx],
        phase: Phase,
        counters: &mut TierCounters,
    ) -> Request {
        let early = self.planner.tally().speculation;
        let plan = self.planner.request(layer, experts, phase);
        let now = self.planner.tally().speculation;
        counters.ahead_used += now.used - early.used;
        counters.ahead_late += now.late - early.late;
        counters.ahead_wasted += now.wasted - early.wasted;
        if let Some(worth) = &mut self.ahead {
            let used = now.used + now.late - early.used - early.late;
            worth.note(used, now.wasted - early.wasted);
        }
        counters.steps += 1;
        let missed = plan.misses.len() + plan.flying.len();
        counters.steps_without_miss += u64::from(missed == 0);
        counters.file_experts += plan.misses.len() as u64;
        counters.ram_experts += plan.hits.len() as u64;
        let bytes = |e: &ExpertIdx| self.map.expert_bytes(layer.0 as u32, e.0);
        counters.ram_bytes += plan.hits.iter().map(bytes).sum::<u64>();
        for expert in plan.unwanted {
            self.held.remove(&(layer, expert));
        }
        let mut ready = plan.hits;
        for (expert, landing) in plan.ahead {
            self.apply(&landing, counters);
            ready.push(expert);
        }
        if missed > 0 {
            // What has not begun would only stand in the way.
            self.reader.cancel_ahead();
        }
        let (queued, waiting) = (plan.misses.into(), plan.flying.into_iter().collect());
        let mut request = Request { layer, ready, queued, waiting, given: Vec::new() };
        self.start(&mut request);
        request
    }

    /// Reads what the layer may want next, if the drive has nothing better to do.
    pub(super) fn ahead(&mut self, request: &Request, layer: LayerIdx, predicted: &[ExpertIdx]) {
        // Slots that the layer in work still needs come first.
        let Some(worth) = self.ahead.as_mut().filter(|_| request.queued.is_empty()) else { return };
        let free = self.arena.free_count().saturating_sub(1).min(worth.allowed());
        for (layer, expert) in self.planner.ahead(layer, predicted, free) {
            let slot = self.arena.take().expect("counted above");
            self.fetch(layer, expert, slot, Urgency::Ahead);
        }
    }

    /// The next experts that are in memory: waits for at least one; `None` when all were given.
    ///
    /// What the wave before handed out must have been dropped.
    pub(super) fn next(
        &mut self,
        request: &mut Request,
        counters: &mut TierCounters,
    ) -> Result<Option<Vec<Ready>>, TierError> {
        self.release(request);
        self.take_arrivals(request, counters)?;
        while request.ready.is_empty() {
            if request.queued.is_empty() && request.waiting.is_empty() {
                return Ok(None);
            }
            self.start(request);
            let asked = Instant::now();
            let fetched = self.answers.1.recv().expect("this holds a sender");
            counters.stall_ns += asked.elapsed().as_nanos() as u64;
            self.arrived(request, fetched, counters)?;
            self.take_arrivals(request, counters)?;
        }
        self.start(request);
        let layer = request.layer;
        request.given = std::mem::take(&mut request.ready);
        let ready = request.given.iter().map(|expert| {
            let bytes = self.held[&(layer, *expert)].clone();
            Ready { expert: *expert, bytes }
        });
        Ok(Some(ready.collect()))
    }

    /// The layer is done with what it was given.
    fn release(&mut self, request: &mut Request) {
        let given = std::mem::take(&mut request.given);
        for expert in self.planner.release(request.layer, &given) {
            self.held.remove(&(request.layer, expert));
        }
    }

    /// Ends a request that failed or was left: nothing of it stays pinned.
    pub(super) fn abandon(&mut self, request: &mut Request, counters: &mut TierCounters) {
        self.release(request);
        while !request.waiting.is_empty() {
            let fetched = self.answers.1.recv().expect("this holds a sender");
            // The first error was reported.
            let _ = self.arrived(request, fetched, counters);
        }
        for expert in std::mem::take(&mut request.queued) {
            self.planner.failed(request.layer, expert);
            request.given.push(expert);
        }
        let ready = std::mem::take(&mut request.ready);
        request.given.extend(ready);
        self.release(request);
    }

    /// Asks the reader for queued misses while slots are free.
    fn start(&mut self, request: &mut Request) {
        while let Some(expert) = request.queued.front().copied() {
            let slot = match self.arena.take() {
                Some(slot) => slot,
                None if self.flying.is_empty() && request.ready.is_empty() => {
                    // Nothing will free one but giving up what was read ahead.
                    for id in self.planner.abandon_ahead() {
                        self.held.remove(&id);
                    }
                    self.arena.take().expect("a slot to read into beside the cache")
                }
                None => return,
            };
            request.queued.pop_front();
            request.waiting.insert(expert);
            self.fetch(request.layer, expert, slot, Urgency::Demand);
        }
    }

    fn fetch(
        &mut self,
        layer: LayerIdx,
        expert: ExpertIdx,
        slot: store::read::ArenaSlot,
        urgency: Urgency,
    ) {
        self.flying.insert((layer, expert));
        let reply = self.answers.0.clone();
        let (layer, expert) = (layer.0 as u32, expert.0);
        self.reader.fetch(Fetch { layer, expert, urgency, slot, reply });
    }

    fn take_arrivals(
        &mut self,
        request: &mut Request,
        counters: &mut TierCounters,
    ) -> Result<(), TierError> {
        while let Ok(fetched) = self.answers.1.try_recv() {
            self.arrived(request, fetched, counters)?;
        }
        Ok(())
    }

    /// Books an answer of the reader.
    fn arrived(
        &mut self,
        request: &mut Request,
        fetched: Fetched,
        counters: &mut TierCounters,
    ) -> Result<(), TierError> {
        let id = (LayerIdx(fetched.layer as usize), ExpertIdx(fetched.expert));
        self.flying.remove(&id);
        count(&fetched, counters);
        let wanted = id.0 == request.layer && request.waiting.remove(&id.1);
        match (fetched.result, fetched.urgency) {
            (Ok(bytes), Urgency::Demand) => {
                let landing = self.planner.landed(id.0, id.1);
                self.apply(&landing, counters);
                self.held.insert(id, bytes);
            }
            (Ok(bytes), Urgency::Ahead) => match self.planner.landed_ahead(id.0, id.1) {
                Early::Wanted(landing) => {
                    self.apply(&landing, counters);
                    self.held.insert(id, bytes);
                }
                Early::Waits => {
                    self.held.insert(id, bytes);
                    return Ok(());
                }
                Early::Unwanted => return Ok(()),
            },
            // It was wanted meanwhile: now it is urgent.
            (Err(_), Urgency::Ahead) if wanted => {
                request.queued.push_front(id.1);
                return Ok(());
            }
            (Err(_), Urgency::Ahead) => {
                self.planner.failed(id.0, id.1);
                return Ok(());
            }
            (Err(error), Urgency::Demand) => {
                self.planner.failed(id.0, id.1);
                // Released with the rest of its layer.
                request.given.push(id.1);
                return Err(error.into());
            }
        }
        if wanted {
            request.ready.push(id.1);
        }
        Ok(())
    }

    fn apply(&mut self, landing: &Landing, counters: &mut TierCounters) {
        counters.evicted += landing.evict.len() as u64;
        for victim in &landing.evict {
            self.held.remove(victim);
        }
    }

    /// Reads the experts worth most until the cache is full; calls `done` after each.
    pub(super) fn fill(
        &mut self,
        counters: &mut TierCounters,
        mut done: impl FnMut(usize, usize),
    ) -> Result<(), TierError> {
        let wanted = self.planner.preload();
        let total = wanted.len();
        let mut queued = wanted.into_iter();
        for count in 0..total {
            while let Some(slot) = self.arena.take() {
                let Some((layer, expert)) = queued.next() else { break };
                self.fetch(layer, expert, slot, Urgency::Demand);
            }
            let fetched = self.answers.1.recv().expect("this holds a sender");
            let id = (LayerIdx(fetched.layer as usize), ExpertIdx(fetched.expert));
            self.flying.remove(&id);
            self::count(&fetched, counters);
            self.held.insert(id, fetched.result?);
            self.planner.preloaded(id.0, id.1);
            done(count + 1, total);
        }
        Ok(())
    }
}

/// What a fetch took.
fn count(fetched: &Fetched, counters: &mut TierCounters) {
    let tally = &fetched.tally;
    if matches!(fetched.result, Err(ReadError::Cancelled)) {
        return;
    }
    counters.file_bytes += tally.bytes;
    counters.file_reads += u64::from(tally.reads);
    if fetched.urgency == Urgency::Ahead {
        counters.ahead_bytes += tally.bytes;
    }
    counters.blocks_manifest += u64::from(tally.manifest);
    counters.blocks_first_seen += u64::from(tally.first_seen);
    counters.blocks_new += u64::from(tally.new);
    counters.retries += u64::from(tally.retries);
    counters.read_ns += tally.read_ns;
    counters.check_ns += tally.check_ns;
}
