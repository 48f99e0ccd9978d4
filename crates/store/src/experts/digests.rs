//! What each block's checksum ought to be: from a manifest, or from the first time it was read.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Mutex;

use super::BlockId;

/// Where an expected checksum comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Provenance {
    /// A manifest that was written by `tarfa verify` or `tarfa convert`.
    Manifest,
    /// The first reading of this block, in this run or an earlier one.
    FirstSeen,
}

/// What comparing a checksum told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// It is what was expected.
    Equal(Provenance),
    /// Nothing was expected; it is recorded now.
    New,
    /// It is not what was expected.
    Differs { expected: u128, from: Provenance },
}

/// Blocks known, by where their checksums come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    pub manifest: u64,
    pub first_seen: u64,
}

/// The expected checksums of a model's blocks; shared by all readers of it.
#[derive(Debug, Default)]
pub struct Digests {
    known: Mutex<HashMap<BlockId, (u128, Provenance)>>,
}

impl Digests {
    /// With the checksums that are known beforehand.
    pub fn new(known: impl IntoIterator<Item = (BlockId, u128, Provenance)>) -> Digests {
        let known = known.into_iter().map(|(id, sum, from)| (id, (sum, from))).collect();
        Digests { known: Mutex::new(known) }
    }

    /// Compares, and records a block that is new.
    pub fn check(&self, id: BlockId, sum: u128) -> Found {
        match self.lock().entry(id) {
            Entry::Vacant(place) => {
                place.insert((sum, Provenance::FirstSeen));
                Found::New
            }
            Entry::Occupied(held) => match *held.get() {
                (expected, from) if expected == sum => Found::Equal(from),
                (expected, from) => Found::Differs { expected, from },
            },
        }
    }

    /// Everything known, in no order.
    pub fn entries(&self) -> Vec<(BlockId, u128, Provenance)> {
        self.lock().iter().map(|(id, (sum, from))| (*id, *sum, *from)).collect()
    }

    pub fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for (_, from) in self.lock().values() {
            match from {
                Provenance::Manifest => tally.manifest += 1,
                Provenance::FirstSeen => tally.first_seen += 1,
            }
        }
        tally
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<BlockId, (u128, Provenance)>> {
        self.known.lock().expect("no thread panics while it holds the table")
    }
}
