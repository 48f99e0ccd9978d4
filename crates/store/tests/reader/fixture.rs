//! A file of random bytes with blocks at odd places, and readers over it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use store::experts::{Block, BlockId, Digests, Encoding, ExpertFile, ExpertMap, FileIdx};
use store::experts::{Projection, Provenance, checksum};
use store::read::{Arena, ExpertReader, Fetch, Fetched, Io, ReadError, ReadOptions, Urgency};

pub const EXPERTS: u32 = 6;
/// Lengths of the two blocks of an expert.
const LENGTHS: [usize; 2] = [70_001, 9_000];

pub struct Fixture {
    pub folder: tempfile::TempDir,
    pub bytes: Vec<u8>,
    pub map: Arc<ExpertMap>,
}

fn noise(count: usize) -> Vec<u8> {
    let mut state = 7u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..count).map(|_| next()).collect()
}

impl Fixture {
    pub fn new() -> Fixture {
        Fixture::in_folder(tempfile::tempdir().unwrap())
    }

    pub fn in_folder(folder: tempfile::TempDir) -> Fixture {
        // Seven bytes before the first block, three after the last.
        let expert_bytes: usize = LENGTHS.iter().sum();
        let bytes = noise(7 + EXPERTS as usize * expert_bytes + 3);
        let path = folder.path().join("experts.bin");
        std::fs::write(&path, &bytes).unwrap();
        let file = ExpertFile {
            path,
            len_bytes: bytes.len() as u64,
            bytes: bytes.clone().into(),
            embedded: false,
        };
        let map = Arc::new(map(file));
        Fixture { folder, bytes, map }
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("experts.bin")
    }

    /// The same blocks in memory.
    pub fn embedded(&self) -> Arc<ExpertMap> {
        Arc::new(map(ExpertFile { embedded: true, ..self.map.files()[0].clone() }))
    }

    /// What the blocks of an expert are.
    pub fn expected(&self, expert: u32) -> Vec<&[u8]> {
        let range = |b: &Block| {
            &self.bytes[b.offset_bytes as usize..(b.offset_bytes + b.stored_bytes) as usize]
        };
        self.map.blocks(0, expert).iter().map(range).collect()
    }

    /// Checksums as a manifest has them.
    pub fn manifest(&self) -> Arc<Digests> {
        let entries = (0..EXPERTS).flat_map(|e| {
            let blocks = self.map.blocks(0, e).iter().zip(self.expected(e));
            blocks.map(|(b, bytes)| (b.id, checksum(b.id, bytes), Provenance::Manifest))
        });
        Arc::new(Digests::new(entries))
    }
}

fn map(file: ExpertFile) -> ExpertMap {
    let mut at = 7;
    let mut expert = |e: u32| {
        let projections = [Projection::GateUp, Projection::Down].into_iter().zip(LENGTHS);
        let block = |(projection, len): (Projection, usize)| {
            let offset_bytes = at;
            at += len as u64;
            Block {
                id: BlockId { layer: 0, expert: e, projection },
                file: FileIdx(0),
                offset_bytes,
                stored_bytes: len as u64,
                encoding: Encoding::Bf16,
                rows: 1,
                cols: len,
                tensor: "experts".into(),
                first_row: 0,
            }
        };
        projections.map(block).collect()
    };
    let layer = (0..EXPERTS).map(&mut expert).collect();
    ExpertMap::new(vec![file], vec![layer])
}

/// Small pieces, so that one expert is many reads.
pub fn options(io: Io) -> ReadOptions {
    ReadOptions { io, depth: 4, piece_bytes: 8192, ..ReadOptions::default() }
}

pub fn open(
    map: &Arc<ExpertMap>,
    digests: &Arc<Digests>,
    options: &ReadOptions,
) -> Result<(ExpertReader, Arena), ReadError> {
    let arena = Arena::new(map.slot_bytes(), 3).unwrap();
    let reader = ExpertReader::open(map.clone(), digests.clone(), &arena, options)?;
    Ok((reader, arena))
}

/// One expert, demanded and waited for; a hang is a failure.
pub fn fetch(reader: &ExpertReader, arena: &Arena, expert: u32) -> Fetched {
    let (reply, answers) = channel();
    let slot = arena.take().expect("a free slot");
    reader.fetch(Fetch { layer: 0, expert, urgency: Urgency::Demand, slot, reply });
    answers.recv_timeout(Duration::from_secs(20)).expect("an answer within 20 seconds")
}

/// Every expert comes back as it is in the file, and every slot is free afterwards.
pub fn check_all(fixture: &Fixture, reader: &ExpertReader, arena: &Arena) {
    for expert in (0..EXPERTS).rev() {
        let fetched = fetch(reader, arena, expert);
        let bytes = fetched.result.expect("whole and checked");
        assert!(bytes.blocks.iter().zip(fixture.expected(expert)).all(|(a, b)| a[..] == *b));
        assert_eq!(fetched.expert, expert);
    }
    assert_eq!(arena.free_count(), 3);
}

pub fn write(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
}
