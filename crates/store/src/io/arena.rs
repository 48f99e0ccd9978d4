//! One allocation of equal slots that experts are read into.

use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use memmap2::{Advice, MmapMut};
use rustix::mm::{MlockFlags, mlock_with};

/// Reads straight from a drive need this alignment of offsets, lengths and memory.
pub const ALIGN: usize = 4096;

/// Slots of equal size in one anonymous mapping; cloning shares it.
#[derive(Clone)]
pub struct Arena {
    shared: Arc<Shared>,
}

struct Shared {
    /// Never reached through this field while slots exist; it unmaps when the last one is gone.
    _map: Mutex<MmapMut>,
    base: *mut u8,
    slot_bytes: usize,
    slot_count: usize,
    free: Mutex<Vec<u32>>,
    lock: io::Result<()>,
}

// SAFETY: `base` points into `_map`, which lives as long as this; the memory behind it is reached
// only through `ArenaSlot`s, and the free list gives each index to one slot at a time.
unsafe impl Send for Shared {}
// SAFETY: as above; all other fields are synchronised or never change.
unsafe impl Sync for Shared {}

/// A slot that nobody else has; it goes back when it is dropped.
pub struct ArenaSlot {
    shared: Arc<Shared>,
    index: u32,
}

impl Arena {
    /// Reserves `slot_count` slots of at least `slot_bytes`, rounded up to whole pages.
    ///
    /// Pages are taken from the system as they are written; where the system allows it they are
    /// huge and stay in memory once they are there (see [`Arena::lock_error`]).
    ///
    /// # Errors
    /// The operating system's, where the address space is not to be had.
    pub fn new(slot_bytes: usize, slot_count: usize) -> io::Result<Arena> {
        let slot_bytes = slot_bytes.max(1).next_multiple_of(ALIGN);
        let len = slot_bytes.checked_mul(slot_count.max(1)).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut map = MmapMut::map_anon(len)?;
        // Advice only: without it the same bytes come from smaller pages.
        let _ = map.advise(Advice::HugePage);
        let base = map.as_mut_ptr();
        // SAFETY: `base` and `len` are exactly the mapping that was just made.
        let lock = unsafe { mlock_with(base.cast(), len, MlockFlags::ONFAULT) };
        let shared = Shared {
            _map: Mutex::new(map),
            base,
            slot_bytes,
            slot_count,
            free: Mutex::new((0..slot_count as u32).rev().collect()),
            lock: lock.map_err(io::Error::from),
        };
        Ok(Arena { shared: Arc::new(shared) })
    }

    /// Where all slots lie, for what locks them in place.
    pub fn addresses(&self) -> std::ops::Range<usize> {
        let first = self.shared.base as usize;
        first..first + self.shared.slot_bytes * self.shared.slot_count
    }

    /// A free slot, if there is one.
    pub fn take(&self) -> Option<ArenaSlot> {
        let index = self.free().pop()?;
        Some(ArenaSlot { shared: self.shared.clone(), index })
    }

    /// Slots that nobody has.
    pub fn free_count(&self) -> usize {
        self.free().len()
    }

    /// Slots in all.
    pub fn slot_count(&self) -> usize {
        self.shared.slot_count
    }

    /// Bytes of a slot.
    pub fn slot_bytes(&self) -> usize {
        self.shared.slot_bytes
    }

    /// Why the pages may be swapped out, if they may.
    pub fn lock_error(&self) -> Option<&io::Error> {
        self.shared.lock.as_ref().err()
    }

    /// The address and the length of `count` slots from `first` on, for registration with a ring.
    pub(super) fn region(&self, first: usize, count: usize) -> (*mut u8, usize) {
        assert!(first + count <= self.shared.slot_count);
        (self.shared.base.wrapping_add(first * self.slot_bytes()), count * self.slot_bytes())
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Vec<u32>> {
        self.shared.free.lock().expect("no thread panics while it holds the list")
    }
}

impl ArenaSlot {
    /// Shares the bytes from here on; the slot goes back with the last slice of them.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }

    /// Which slot of the arena this is.
    pub(super) fn index(&self) -> usize {
        self.index as usize
    }

    fn start(&self) -> *mut u8 {
        self.shared.base.wrapping_add(self.index as usize * self.shared.slot_bytes)
    }
}

impl Deref for ArenaSlot {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the slot lies inside the mapping, which `shared` keeps; it is zeroed memory at
        // first, so always initialised, and nobody else has this index until the drop.
        unsafe { std::slice::from_raw_parts(self.start(), self.shared.slot_bytes) }
    }
}

impl DerefMut for ArenaSlot {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` is the only way to it.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.shared.slot_bytes) }
    }
}

impl AsRef<[u8]> for ArenaSlot {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for ArenaSlot {
    fn drop(&mut self) {
        let mut free = self.shared.free.lock().expect("no thread panics while it holds the list");
        free.push(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_aligned_disjoint_and_come_back() {
        let arena = Arena::new(5000, 3).unwrap();
        assert_eq!(arena.slot_bytes(), 8192);
        let mut slots: Vec<ArenaSlot> = (0..3).map(|_| arena.take().unwrap()).collect();
        assert!(arena.take().is_none());
        for (i, slot) in slots.iter_mut().enumerate() {
            assert_eq!(slot.as_ptr() as usize % ALIGN, 0);
            slot.fill(i as u8 + 1);
        }
        assert!((0..3).all(|i| slots[i].iter().all(|b| *b == i as u8 + 1)));
        let part = slots.remove(1).freeze().slice(10..20);
        drop(slots);
        assert_eq!(arena.free_count(), 2);
        assert_eq!(part[..], [2; 10]);
        drop(part);
        assert_eq!(arena.free_count(), 3);
    }
}
