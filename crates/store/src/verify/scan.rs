//! A file read once from end to end, its hash and its blocks' hashes taken meanwhile.

use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use sha2::{Digest, Sha256};

use crate::experts::{BlockId, checksum};
use crate::jnf::{FastSum, Sha256Hash};

/// The most that is read at once outside blocks.
const PIECE_BYTES: u64 = 8 << 20;
/// Pieces that wait for a slower thread.
const QUEUE: usize = 3;

/// A block of a file.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub id: BlockId,
    pub offset: u64,
    pub size_bytes: u64,
}

/// What a block's bytes hash to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockHash {
    pub id: BlockId,
    pub sha256: Sha256Hash,
    pub xxh3: FastSum,
}

/// What a file's bytes hash to.
#[derive(Debug)]
pub struct Scanned {
    pub size_bytes: u64,
    pub sha256: Sha256Hash,
    /// Those that lie in the file, in its order.
    pub blocks: Vec<BlockHash>,
}

/// Called with the bytes read since the last call; says whether to go on.
pub type Advance<'a> = &'a mut dyn FnMut(u64) -> ControlFlow<()>;

/// Called with each block's bytes.
pub type Inspect<'a> = &'a mut (dyn FnMut(&Span, &[u8]) + Send);

/// Reads a file: one thread reads, one hashes the file, one hashes and inspects the blocks.
/// `None` if it was interrupted.
///
/// `spans` must be in order and must not overlap.
///
/// Errors: the operating system's.
pub fn scan(
    path: &Path,
    spans: &[Span],
    inspect: Inspect,
    advance: Advance,
) -> io::Result<Option<Scanned>> {
    let mut file = File::open(path)?;
    let size_bytes = file.metadata()?.len();
    let pieces = pieces(size_bytes, spans);
    thread::scope(|scope| {
        let (to_file, of_file) = sync_channel::<Arc<Vec<u8>>>(QUEUE);
        let (to_blocks, of_blocks) = sync_channel::<(Span, Arc<Vec<u8>>)>(QUEUE);
        let file_hash = scope.spawn(move || hash_all(of_file));
        let block_hashes = scope.spawn(move || hash_blocks(of_blocks, inspect));
        let read = read_all(&mut file, &pieces, &to_file, &to_blocks, advance);
        drop((to_file, to_blocks));
        let sha256 = file_hash.join().expect("hashing does not panic");
        let blocks = block_hashes.join().expect("hashing does not panic");
        Ok(read?.then_some(Scanned { size_bytes, sha256, blocks }))
    })
}

/// The file in pieces: blocks whole, the rest as it comes. Blocks beyond its end are left out.
fn pieces(size_bytes: u64, spans: &[Span]) -> Vec<(u64, Option<Span>)> {
    let mut pieces = Vec::new();
    let mut at = 0;
    let fill = |pieces: &mut Vec<_>, from: u64, to: u64| {
        let mut begin = from;
        while begin < to {
            let len = PIECE_BYTES.min(to - begin);
            pieces.push((len, None));
            begin += len;
        }
    };
    for span in spans {
        assert!(span.offset >= at, "{span:?} overlaps the one before it");
        let end = span.offset.saturating_add(span.size_bytes);
        if end > size_bytes {
            break;
        }
        fill(&mut pieces, at, span.offset);
        pieces.push((span.size_bytes, Some(*span)));
        at = end;
    }
    fill(&mut pieces, at, size_bytes);
    pieces
}

fn read_all(
    file: &mut File,
    pieces: &[(u64, Option<Span>)],
    to_file: &SyncSender<Arc<Vec<u8>>>,
    to_blocks: &SyncSender<(Span, Arc<Vec<u8>>)>,
    advance: Advance,
) -> io::Result<bool> {
    for (size_bytes, span) in pieces {
        let mut bytes = vec![0; *size_bytes as usize];
        file.read_exact(&mut bytes)?;
        let bytes = Arc::new(bytes);
        if let Some(span) = span {
            to_blocks.send((*span, bytes.clone())).expect("it lives as long as we do");
        }
        to_file.send(bytes).expect("it lives as long as we do");
        if advance(*size_bytes).is_break() {
            return Ok(false);
        }
    }
    Ok(true)
}

fn hash_all(pieces: Receiver<Arc<Vec<u8>>>) -> Sha256Hash {
    let mut hash = Sha256::new();
    pieces.iter().for_each(|bytes| hash.update(&bytes[..]));
    Sha256Hash::finish(hash)
}

fn hash_blocks(blocks: Receiver<(Span, Arc<Vec<u8>>)>, inspect: Inspect) -> Vec<BlockHash> {
    let one = |(span, bytes): (Span, Arc<Vec<u8>>)| {
        inspect(&span, &bytes);
        let (sha256, xxh3) = (Sha256Hash::of(&bytes), FastSum(checksum(span.id, &bytes)));
        BlockHash { id: span.id, sha256, xxh3 }
    };
    blocks.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experts::Projection;

    fn span(expert: u32, offset: u64, size_bytes: u64) -> Span {
        Span { id: BlockId { layer: 1, expert, projection: Projection::Down }, offset, size_bytes }
    }

    #[test]
    fn file_and_blocks_are_hashed_as_they_are() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let bytes: Vec<u8> =
            (0..20_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        std::fs::write(file.path(), &bytes).unwrap();
        let spans = [span(0, 9_000_001, 70_000), span(1, 9_070_001, 3), span(2, 19_999_999, 2)];
        let mut seen = Vec::new();
        let mut inspect = |span: &Span, bytes: &[u8]| seen.push((span.offset, bytes.len()));
        let mut read_bytes = 0;
        let mut advance = |bytes| {
            read_bytes += bytes;
            ControlFlow::Continue(())
        };
        let scanned = scan(file.path(), &spans, &mut inspect, &mut advance).unwrap().unwrap();
        assert_eq!(scanned.sha256, Sha256Hash::of(&bytes));
        assert_eq!((scanned.size_bytes, read_bytes), (20_000_000, 20_000_000));
        assert_eq!(seen, [(9_000_001, 70_000), (9_070_001, 3)], "the third is cut off");
        for (block, span) in scanned.blocks.iter().zip(spans) {
            let of = &bytes[span.offset as usize..][..span.size_bytes as usize];
            assert_eq!(block.sha256, Sha256Hash::of(of));
            assert_eq!(block.xxh3.0, checksum(span.id, of));
        }
    }

    #[test]
    fn interrupted_is_none() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [1; 100]).unwrap();
        let mut stop = |_| ControlFlow::Break(());
        let scanned = scan(file.path(), &[], &mut |_, _| (), &mut stop).unwrap();
        assert!(scanned.is_none());
    }
}
