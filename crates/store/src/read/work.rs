//! What the threads of a reader do.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;

use super::layout::Layout;
use super::queue::{Job, Queue};
use super::{ArenaSlot, ExpertBytes, Fetched, Known, ReadError, Urgency, check_block};
use crate::experts::{Block, Digests, ExpertMap, checksum};
use crate::io::arena::ALIGN;
use crate::io::file::{ReadAt, read_whole};
use crate::io::ring::{Arrived, Ring, Transfer};

/// What all threads of a reader know.
pub struct Shared {
    pub map: Arc<ExpertMap>,
    pub digests: Arc<Digests>,
    pub queue: Queue,
}

impl Shared {
    fn blocks(&self, job: &Job) -> &[Block] {
        self.map.blocks(job.fetch.layer, job.fetch.expert)
    }

    /// The error of a block that could not be read.
    fn failed(&self, block: &Block, source: io::Error) -> ReadError {
        let path = self.map.file(block.file).path.clone();
        ReadError::Io { path, offset_bytes: block.offset_bytes, id: block.id, source }
    }
}

impl Job {
    /// Sends the answer; whoever asked may be gone.
    pub fn answer(self, result: Result<ExpertBytes, ReadError>) {
        let super::Fetch { layer, expert, urgency, reply, slot } = self.fetch;
        // Free before the answer is there.
        drop(slot);
        let _ = reply.send(Fetched { layer, expert, urgency, result, tally: self.tally });
    }
}

/// A job without its slot, which is being filled.
pub struct Open {
    layer: u32,
    expert: u32,
    urgency: Urgency,
    reply: Sender<Fetched>,
    asked: Instant,
    again: bool,
    tally: super::FetchTally,
    began: Instant,
    layout: Layout,
}

impl Open {
    fn begin(shared: &Shared, job: Job) -> (Open, ArenaSlot) {
        let layout = Layout::new(shared.blocks(&job));
        let super::Fetch { layer, expert, urgency, slot, reply } = job.fetch;
        let began = Instant::now();
        let mut tally = job.tally;
        tally.queue_ns += nanoseconds(job.asked, began);
        tally.bytes += layout.parts.iter().map(|part| part.needed as u64).sum::<u64>();
        let (asked, again) = (job.asked, job.again);
        (Open { layer, expert, urgency, reply, asked, again, tally, began, layout }, slot)
    }

    fn answer(self, shared: &Shared, result: Result<ExpertBytes, ReadError>) {
        shared.queue.landed(self.urgency);
        let Open { layer, expert, urgency, tally, .. } = self;
        let _ = self.reply.send(Fetched { layer, expert, urgency, result, tally });
    }
}

fn nanoseconds(from: Instant, to: Instant) -> u64 {
    to.saturating_duration_since(from).as_nanos() as u64
}

/// A thread of the pool: reads, checks, answers.
pub fn pool(shared: &Shared, files: &[Box<dyn ReadAt>]) {
    while let Some(job) = shared.queue.take() {
        let (mut open, mut slot) = Open::begin(shared, job);
        let result = read_parts(files, &mut open, &mut slot);
        settle(shared, open, slot, result);
    }
}

fn read_parts(
    files: &[Box<dyn ReadAt>],
    open: &mut Open,
    slot: &mut ArenaSlot,
) -> Result<(), (usize, io::Error)> {
    for (i, part) in open.layout.parts.iter().enumerate() {
        let into = &mut slot[part.at..part.at + part.len];
        let file = files[part.file].as_ref();
        let reads = read_whole(file, into, part.offset_bytes, part.needed, ALIGN);
        open.tally.reads += reads.map_err(|error| (i, error))?;
    }
    Ok(())
}

/// The thread of the ring: keeps it full, hands on what arrives.
pub fn ring(shared: &Shared, mut ring: Ring<Open>, arrived: &Sender<Arrived<Open>>) {
    loop {
        while ring.has_room() {
            let next = if ring.is_idle() { shared.queue.take() } else { shared.queue.try_take() };
            let Some(job) = next else { break };
            let (open, slot) = Open::begin(shared, job);
            let parts = open.layout.parts.clone();
            ring.start(Transfer { slot, parts, tag: open });
        }
        if ring.is_idle() {
            return; // only a reader that stops has nothing left
        }
        match ring.wait() {
            Ok(over) => {
                for transfer in over {
                    if arrived.send(transfer).is_err() {
                        return;
                    }
                }
            }
            Err(error) => return give_up(shared, ring, &error),
        }
    }
}

/// The ring is broken: nobody will read any more, and whoever asks is told.
fn give_up(shared: &Shared, ring: Ring<Open>, error: &io::Error) {
    let broken = || ReadError::Ring { source: io::Error::new(error.kind(), error.to_string()) };
    for job in shared.queue.stop() {
        job.answer(Err(broken()));
    }
    for open in ring.abandon() {
        open.answer(shared, Err(broken()));
    }
}

/// The thread that checks what the ring brought.
pub fn check_arrivals(shared: &Shared, arrived: Receiver<Arrived<Open>>) {
    for Arrived { slot, tag: mut open, reads, result } in arrived {
        open.tally.reads += reads;
        settle(shared, open, slot, result);
    }
}

/// Checks an expert whose bytes are there; answers, or has it read again.
fn settle(
    shared: &Shared,
    mut open: Open,
    slot: ArenaSlot,
    result: Result<(), (usize, io::Error)>,
) {
    let landed = Instant::now();
    open.tally.read_ns += nanoseconds(open.began, landed);
    let blocks = shared.map.blocks(open.layer, open.expert);
    if let Err((part, error)) = result {
        drop(slot);
        return open.answer(shared, Err(shared.failed(&blocks[part], error)));
    }
    let checked = check(shared, &mut open, blocks, &slot);
    open.tally.check_ns += nanoseconds(landed, Instant::now());
    match checked {
        Ok(()) => {
            let whole = slot.freeze();
            let blocks = open.layout.ranges.iter().map(|r| whole.slice(r.clone())).collect();
            // The answer's slices alone keep the slot.
            drop(whole);
            open.answer(shared, Ok(ExpertBytes { blocks }));
        }
        Err(_) if !open.again && !shared.queue.is_stopped() => read_again(shared, open, slot),
        Err(error) => {
            drop(slot);
            open.answer(shared, Err(error));
        }
    }
}

/// Compares every block; nothing new is recorded where one differs.
fn check(
    shared: &Shared,
    open: &mut Open,
    blocks: &[Block],
    slot: &ArenaSlot,
) -> Result<(), ReadError> {
    for (block, range) in blocks.iter().zip(&open.layout.ranges) {
        let bytes = &slot[range.clone()];
        let found = checksum(block.id, bytes);
        match check_block(&shared.map, &shared.digests, block, bytes, found)? {
            Known::Manifest => open.tally.manifest += 1,
            Known::FirstSeen => open.tally.first_seen += 1,
            Known::New => open.tally.new += 1,
        }
    }
    Ok(())
}

fn read_again(shared: &Shared, open: Open, slot: ArenaSlot) {
    let Open { layer, expert, urgency, reply, asked, mut tally, .. } = open;
    tally.retries += 1;
    (tally.manifest, tally.first_seen, tally.new) = (0, 0, 0);
    shared.queue.landed(urgency);
    let fetch = super::Fetch { layer, expert, urgency, slot, reply };
    if let Some(job) = shared.queue.push(Job { fetch, asked, again: true, tally }) {
        job.answer(Err(ReadError::Stopped));
    }
}
