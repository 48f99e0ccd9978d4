//! Reads through io_uring: many small ones in flight, straight into arena slots.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, types};

use super::arena::{ALIGN, Arena, ArenaSlot};
use super::file::{DiskFile, is_transient, resume};

/// The kernel takes registered buffers of at most this size.
const REGION_BYTES_MAX: usize = 1 << 30;

/// A range of a file and where it goes in a slot; everything is aligned but `needed`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    pub file: usize,
    pub offset_bytes: u64,
    pub at: usize,
    pub len: usize,
    /// Bytes that have to come; the file may end before `len`.
    pub needed: usize,
}

/// Ranges that are read into one slot.
pub struct Transfer<T> {
    pub slot: ArenaSlot,
    pub parts: Vec<Part>,
    /// The caller's own.
    pub tag: T,
}

/// A transfer that is over.
pub struct Arrived<T> {
    pub slot: ArenaSlot,
    pub tag: T,
    /// Calls to the kernel that it took.
    pub reads: u32,
    /// Or the part that failed, and why.
    pub result: Result<(), (usize, io::Error)>,
}

/// One read that is queued or in flight.
#[derive(Clone, Copy)]
struct Piece {
    transfer: u64,
    part: usize,
    file: usize,
    offset_bytes: u64,
    /// In the slot.
    at: usize,
    len: usize,
    needed: usize,
}

struct Running<T> {
    slot: ArenaSlot,
    tag: T,
    left: usize,
    reads: u32,
    failed: Option<(usize, io::Error)>,
}

/// A ring over the files of a model and one arena.
pub struct Ring<T> {
    ring: IoUring,
    files: Vec<DiskFile>,
    /// Slots per registered buffer, where the system allowed to register the arena.
    fixed: Option<usize>,
    piece_bytes: usize,
    depth: usize,
    queued: VecDeque<Piece>,
    flying: HashMap<u64, Piece>,
    running: HashMap<u64, Running<T>>,
    next: u64,
    /// Keeps the memory of registered buffers.
    _arena: Arena,
}

impl<T> Ring<T> {
    /// A ring with at most `depth` reads of at most `piece_bytes` in flight.
    ///
    /// # Errors
    /// The operating system's, where it has no io_uring for us.
    pub fn new(
        files: Vec<DiskFile>,
        arena: &Arena,
        depth: usize,
        piece_bytes: usize,
    ) -> io::Result<Ring<T>> {
        let ring = IoUring::new((depth as u32).next_power_of_two())?;
        let fixed = register(&ring, arena);
        Ok(Ring {
            ring,
            files,
            fixed,
            piece_bytes: piece_bytes.max(ALIGN).next_multiple_of(ALIGN),
            depth: depth.max(1),
            queued: VecDeque::new(),
            flying: HashMap::new(),
            running: HashMap::new(),
            next: 0,
            _arena: arena.clone(),
        })
    }

    /// Whether the arena's memory is registered with the kernel.
    pub fn is_fixed(&self) -> bool {
        self.fixed.is_some()
    }

    /// Whether another transfer would find the queue short of reads.
    pub fn has_room(&self) -> bool {
        self.queued.len() < self.depth
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// Queues the reads of a transfer.
    pub fn start(&mut self, transfer: Transfer<T>) {
        let id = self.next_id();
        let before = self.queued.len();
        for (index, part) in transfer.parts.iter().enumerate() {
            assert!(part.at + part.len <= transfer.slot.len(), "a part outside its slot");
            for from in (0..part.needed).step_by(self.piece_bytes) {
                let len = self.piece_bytes.min(part.len - from);
                self.queued.push_back(Piece {
                    transfer: id,
                    part: index,
                    file: part.file,
                    offset_bytes: part.offset_bytes + from as u64,
                    at: part.at + from,
                    len,
                    needed: len.min(part.needed - from),
                });
            }
        }
        let left = self.queued.len() - before;
        assert!(left > 0, "a transfer reads something");
        let Transfer { slot, tag, .. } = transfer;
        self.running.insert(id, Running { slot, tag, left, reads: 0, failed: None });
    }

    fn next_id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Submits what fits, waits for at least one read, and gives out the transfers that are over.
    ///
    /// # Errors
    /// The ring itself failed.
    pub fn wait(&mut self) -> io::Result<Vec<Arrived<T>>> {
        self.submit();
        if !self.flying.is_empty() {
            loop {
                match self.ring.submit_and_wait(1) {
                    Ok(_) => break,
                    Err(error) if is_transient(&error) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        let done: Vec<(u64, i32)> =
            self.ring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
        let mut over = Vec::new();
        for (id, result) in done {
            let piece = self.flying.remove(&id).expect("a completion belongs to a read in flight");
            over.extend(self.finish(piece, result));
        }
        self.submit();
        Ok(over)
    }

    /// Gives up all transfers after the ring failed; the kernel may still write into their slots,
    /// so these are lost.
    pub fn abandon(mut self) -> Vec<T> {
        let running = std::mem::take(&mut self.running);
        let lose = |r: Running<T>| {
            std::mem::forget(r.slot);
            r.tag
        };
        running.into_values().map(lose).collect()
    }

    /// Hands queued reads to the kernel while fewer than `depth` are in flight.
    fn submit(&mut self) {
        while self.flying.len() < self.depth {
            let Some(piece) = self.queued.pop_front() else { break };
            let id = self.next_id();
            let running = self.running.get_mut(&piece.transfer).expect("its transfer is running");
            running.reads += 1;
            let index = running.slot.index();
            let into = running.slot[piece.at..piece.at + piece.len].as_mut_ptr();
            let fd = types::Fd(self.files[piece.file].file.as_raw_fd());
            let len = piece.len as u32;
            let entry = match self.fixed {
                Some(slots) => opcode::ReadFixed::new(fd, into, len, (index / slots) as u16)
                    .offset(piece.offset_bytes)
                    .build(),
                None => opcode::Read::new(fd, into, len).offset(piece.offset_bytes).build(),
            };
            // SAFETY: `into` is `len` bytes of a slot that `running` owns until this read has
            // completed (`finish` gives it away only when no piece is left, and `drop` waits);
            // the file is open as long as `self`.
            let pushed = unsafe { self.ring.submission().push(&entry.user_data(id)) };
            assert!(pushed.is_ok(), "the ring has room for `depth` reads");
            self.flying.insert(id, piece);
        }
    }

    /// Books a completion; the transfer, if this was its last read.
    fn finish(&mut self, piece: Piece, result: i32) -> Option<Arrived<T>> {
        let again = match outcome(result) {
            Ok(count) => match resume(0, count, piece.needed, ALIGN) {
                Ok(reached) if reached >= piece.needed => None,
                Ok(reached) => Some(Ok(reached)),
                Err(error) => Some(Err(error)),
            },
            Err(error) if is_transient(&error) => Some(Ok(0)),
            Err(error) => Some(Err(error)),
        };
        let running = self.running.get_mut(&piece.transfer).expect("its transfer is running");
        match again {
            Some(Ok(from)) => {
                self.queued.push_front(Piece {
                    offset_bytes: piece.offset_bytes + from as u64,
                    at: piece.at + from,
                    len: piece.len - from,
                    needed: piece.needed - from,
                    ..piece
                });
                return None;
            }
            Some(Err(error)) => {
                running.failed.get_or_insert((piece.part, error));
            }
            None => {}
        }
        running.left -= 1;
        if running.left > 0 {
            return None;
        }
        let over = self.running.remove(&piece.transfer).expect("it was there above");
        let result = over.failed.map_or(Ok(()), Err);
        Some(Arrived { slot: over.slot, tag: over.tag, reads: over.reads, result })
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // The kernel still writes into slots that `running` owns.
        self.queued.clear();
        while !self.flying.is_empty() {
            if self.ring.submit_and_wait(1).is_err_and(|error| !is_transient(&error)) {
                // Leaking is safe where waiting fails: the slots are never handed out again.
                std::mem::take(&mut self.running).into_values().for_each(std::mem::forget);
                return;
            }
            let done: Vec<u64> = self.ring.completion().map(|entry| entry.user_data()).collect();
            for id in done {
                self.flying.remove(&id);
            }
        }
    }
}

fn outcome(result: i32) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}

/// Registers the arena in regions of whole slots; the slots per region, if it went well.
fn register(ring: &IoUring, arena: &Arena) -> Option<usize> {
    let per_region = REGION_BYTES_MAX / arena.slot_bytes();
    if per_region == 0 {
        return None;
    }
    let mut regions = Vec::new();
    for first in (0..arena.slot_count()).step_by(per_region) {
        let (base, len) = arena.region(first, per_region.min(arena.slot_count() - first));
        regions.push(libc::iovec { iov_base: base.cast(), iov_len: len });
    }
    // SAFETY: the regions are parts of the arena's mapping, which `Ring` keeps in `_arena`; fields
    // drop in order, the ring before it.
    let registered = unsafe { ring.submitter().register_buffers(&regions) };
    registered.is_ok().then_some(per_region)
}
