//! The experts of a model, wherever they are: what the layers ask.

use std::sync::{Arc, Mutex, MutexGuard};

use numerics::Cpu;
use store::experts::{Digests, ExpertMap};
use store::read::{Arena, Backend, ExpertBytes, ExpertReader, ReadError, ReadOptions};

use super::cached::{Cached, Request};
use super::heat::Heat;
use super::mapped::Mapped;
use super::planner::Planner;
use super::policy::Policy;
use super::trace::{LayerUses, Pass, TraceError, TraceWriter, Use};
use super::{Phase, Shape};
use crate::counters::TierCounters;
use crate::index::{ExpertIdx, LayerIdx};

/// Why an expert could not be served.
#[derive(Debug, thiserror::Error)]
pub enum TierError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Trace(#[from] TraceError),
}

/// Where experts are kept.
#[derive(Clone, Debug)]
pub enum Placement {
    /// Mapped files; the system decides what stays in memory.
    Mapped,
    /// An arena of our own.
    Cached {
        /// Experts that stay.
        slots: usize,
        /// Slots to read into beside them; at least one.
        staging: usize,
        /// Whether to read ahead.
        ahead: bool,
        policy: Policy,
        read: ReadOptions,
    },
}

/// An expert in memory; its bytes stay while this lives.
pub struct Ready {
    pub expert: ExpertIdx,
    pub bytes: ExpertBytes,
}

/// The experts of a model.
pub struct Tiers {
    map: Arc<ExpertMap>,
    digests: Arc<Digests>,
    shape: Shape,
    kind: Kind,
    seen: Mutex<Seen>,
}

enum Kind {
    Mapped(Mapped),
    /// `ahead`: whether there is room to read ahead, and a wish to.
    Cached {
        cached: Box<Mutex<Cached>>,
        ahead: bool,
    },
}

/// What was used, for the next run and for the simulator.
struct Seen {
    heat: Heat,
    recorder: Option<TraceWriter>,
    pass: Option<Pass>,
}

impl Tiers {
    /// Opens the files, where they are not mapped; `heat` is what earlier runs learned.
    ///
    /// # Errors
    /// Files that cannot be read, memory that is not to be had.
    pub fn new(
        map: Arc<ExpertMap>,
        digests: Arc<Digests>,
        shape: Shape,
        placement: &Placement,
        heat: Option<&Heat>,
    ) -> Result<Tiers, TierError> {
        let kind = match placement {
            Placement::Mapped => Kind::Mapped(Mapped::new(map.clone(), digests.clone())),
            Placement::Cached { slots, staging, ahead, policy, read } => {
                let (slot_bytes, slot_count) = (map.slot_bytes(), slots + (*staging).max(1));
                let arena = Arena::new(slot_bytes, slot_count)
                    .map_err(|source| ReadError::Arena { slot_count, slot_bytes, source })?;
                let reader = ExpertReader::open(map.clone(), digests.clone(), &arena, read)?;
                let planner = Planner::new(shape, *slots, *policy, heat);
                let cached = Cached::new(map.clone(), planner, reader, arena, *ahead);
                let ahead = *ahead && *slots < shape.total();
                Kind::Cached { cached: Box::new(Mutex::new(cached)), ahead }
            }
        };
        let seen = Seen { heat: Heat::new(shape), recorder: None, pass: None };
        Ok(Tiers { map, digests, shape, kind, seen: Mutex::new(seen) })
    }

    pub fn map(&self) -> &Arc<ExpertMap> {
        &self.map
    }

    /// Where experts lie that are kept in memory of our own.
    pub fn addresses(&self) -> Option<std::ops::Range<usize>> {
        match &self.kind {
            Kind::Mapped(_) => None,
            Kind::Cached { cached, .. } => Some(lock(cached).arena().addresses()),
        }
    }

    /// What is known of the blocks' checksums by now.
    pub fn digests(&self) -> &Arc<Digests> {
        &self.digests
    }

    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// What this run used.
    pub fn heat(&self) -> Heat {
        self.seen().heat.clone()
    }

    /// What was used since the last time, for the ledger.
    pub fn take_heat(&self) -> Heat {
        std::mem::replace(&mut self.seen().heat, Heat::new(self.shape))
    }

    /// Records every pass from here on.
    pub fn record(&self, writer: TraceWriter) {
        self.seen().recorder = Some(writer);
    }

    /// Ends the recording.
    ///
    /// # Errors
    /// The file cannot be completed.
    pub fn finish_recording(&self) -> Result<(), TierError> {
        match self.seen().recorder.take() {
            Some(writer) => Ok(writer.finish()?),
            None => Ok(()),
        }
    }

    /// Where the experts are, for messages.
    pub fn describe(&self) -> String {
        match &self.kind {
            Kind::Mapped(_) => "mapped files".to_string(),
            Kind::Cached { cached, .. } => {
                let cached = lock(cached);
                let reads = match cached.reader().backend() {
                    Backend::Uring { fixed: true } => "io_uring, registered memory".to_string(),
                    Backend::Uring { fixed: false } => "io_uring".to_string(),
                    Backend::Pread { reason } => format!("a pool of threads ({reason})"),
                    Backend::Memory => "the program's own memory".to_string(),
                };
                let swap = match cached.arena().lock_error() {
                    Some(_) => ", which the system may swap out",
                    None => "",
                };
                format!(
                    "{} of {} experts fit in RAM{swap}; the file is read by {reads}",
                    cached.slots(),
                    self.shape.total()
                )
            }
        }
    }

    /// Reads experts into memory until the cache is full; calls `done(count, total)`.
    ///
    /// # Errors
    /// A read that failed.
    pub fn fill(
        &self,
        counters: &mut TierCounters,
        done: impl FnMut(usize, usize),
    ) -> Result<(), TierError> {
        match &self.kind {
            Kind::Mapped(_) => Ok(()),
            Kind::Cached { cached, .. } => lock(cached).fill(counters, done),
        }
    }

    /// A pass over the layers begins.
    pub fn begin_pass(&self, phase: Phase, tokens: u64) {
        let mut seen = self.seen();
        seen.heat.pass(phase, tokens);
        if seen.recorder.is_some() {
            let layers = vec![LayerUses::default(); self.shape.layers];
            seen.pass = Some(Pass { phase, tokens: tokens as u32, layers });
        }
    }

    /// The pass is over.
    ///
    /// # Errors
    /// The recording cannot be written.
    pub fn end_pass(&self) -> Result<(), TierError> {
        let mut seen = self.seen();
        let pass = seen.pass.take();
        if let (Some(recorder), Some(pass)) = (&mut seen.recorder, pass) {
            recorder.pass(&pass)?;
        }
        Ok(())
    }

    /// A layer uses these experts, wherever they are, each for that many tokens.
    pub fn note(&self, layer: LayerIdx, uses: &[Use], phase: Phase) {
        let mut seen = self.seen();
        for u in uses {
            seen.heat.note(phase, layer, u.expert, u64::from(u.tokens));
        }
        if let Some(pass) = &mut seen.pass {
            pass.layers[layer.0].uses = uses.to_vec();
        }
    }

    /// A layer needs the bytes of these experts.
    pub fn begin(
        &self,
        layer: LayerIdx,
        experts: &[ExpertIdx],
        phase: Phase,
        counters: &mut TierCounters,
    ) -> Supply<'_> {
        let kind = match &self.kind {
            Kind::Mapped(mapped) => Wave::Mapped { mapped, experts: experts.to_vec() },
            Kind::Cached { cached, .. } => {
                let mut cached = lock(cached);
                let request = cached.begin(layer, experts, phase, counters);
                Wave::Cached { cached, request }
            }
        };
        Supply { tiers: self, layer, wave: kind }
    }

    /// Whether a guess of the next layer's experts is of any use.
    pub fn wants_predictions(&self) -> bool {
        matches!(self.kind, Kind::Cached { ahead: true, .. }) || self.seen().pass.is_some()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("no thread panics while it holds this")
    }
}

fn lock(cached: &Mutex<Cached>) -> MutexGuard<'_, Cached> {
    cached.lock().expect("no thread panics while it holds the cache")
}

/// A layer's experts, coming in waves.
pub struct Supply<'a> {
    tiers: &'a Tiers,
    layer: LayerIdx,
    wave: Wave<'a>,
}

enum Wave<'a> {
    Mapped { mapped: &'a Mapped, experts: Vec<ExpertIdx> },
    Cached { cached: MutexGuard<'a, Cached>, request: Request },
}

impl Supply<'_> {
    /// The next experts that are there: waits for at least one; `None` when all were given. Drop
    /// the wave before first.
    ///
    /// # Errors
    /// A read that failed, a block that is damaged.
    pub fn next(
        &mut self,
        cpu: &Cpu,
        counters: &mut TierCounters,
    ) -> Result<Option<Vec<Ready>>, TierError> {
        match &mut self.wave {
            Wave::Mapped { experts, .. } if experts.is_empty() => Ok(None),
            Wave::Mapped { mapped, experts } => {
                let experts = std::mem::take(experts);
                mapped.serve(cpu, self.layer, &experts, counters).map(Some)
            }
            Wave::Cached { cached, request } => {
                let next = cached.next(request, counters);
                if next.is_err() {
                    cached.abandon(request, counters);
                }
                next
            }
        }
    }

    /// What the next layer may want, the likeliest first.
    pub fn predict(&mut self, layer: LayerIdx, predicted: &[ExpertIdx]) {
        if let Some(pass) = &mut self.tiers.seen().pass {
            pass.layers[layer.0].predicted = predicted.to_vec();
        }
        if let Wave::Cached { cached, request } = &mut self.wave {
            cached.ahead(request, layer, predicted);
        }
    }
}

impl Drop for Supply<'_> {
    fn drop(&mut self) {
        if let Wave::Cached { cached, request } = &mut self.wave {
            cached.abandon(request, &mut TierCounters::default());
        }
    }
}
