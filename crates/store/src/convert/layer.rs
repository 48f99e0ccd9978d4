//! One layer written: read, hashed, packed by several threads, and written in order by one.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::thread;

use sha2::{Digest, Sha256};

use super::disk::{Disk, DiskFile, partial};
use super::error::ConvertError;
use super::plan::pieces;
use super::source::Sources;
use crate::experts::{Block, ExpertMap, checksum};
use crate::jnf::{
    BLOCK_ALIGN_BYTES, BlockEntry, ExpertLayer, FastSum, FileEntry, INDEX_FORMAT, INDEX_NAME,
    LAYERS_FOLDER, LayerEntry, LayerIndex, Sha256Hash, SourcePiece, StoredAs, StoredProjection,
    data_name, layer_folder, seal,
};
use crate::pack;

/// Called with the bytes read since the last call; says whether to go on.
pub type Advance<'a> = &'a mut dyn FnMut(u64) -> ControlFlow<()>;

/// What a layer is made from.
pub struct LayerJob<'a> {
    pub map: &'a ExpertMap,
    pub sources: &'a Sources,
    pub shape: ExpertLayer,
    pub conversion: Sha256Hash,
    /// Whether blocks are packed where that makes them smaller.
    pub pack: bool,
    pub threads: usize,
}

/// Why a layer was not written.
pub enum Stopped {
    Failed(ConvertError),
    Interrupted,
}

impl From<ConvertError> for Stopped {
    fn from(error: ConvertError) -> Stopped {
        Stopped::Failed(error)
    }
}

impl LayerJob<'_> {
    /// Writes the layer beside its place and moves it there once all of it is on the disk.
    pub fn write(
        &self,
        disk: &dyn Disk,
        root: &Path,
        advance: Advance,
    ) -> Result<LayerEntry, Stopped> {
        let place = layer_folder(root, self.shape.layer);
        let folder = partial(&place);
        let at = |path: &Path| failed_at(path);
        disk.remove(&folder).map_err(at(&folder))?;
        disk.create_dir(&folder).map_err(at(&folder))?;
        let (mut files, mut blocks) = (Vec::new(), Vec::new());
        for projection in StoredProjection::ALL {
            let mut file = BlockFile::create(disk, folder.join(self.data_name(projection)))?;
            blocks.extend(self.write_blocks(projection, &mut file, advance)?);
            files.push(file.finish()?);
        }
        let index = seal(&self.index(files, blocks));
        let path = folder.join(INDEX_NAME);
        let mut file = disk.create(&path).map_err(at(&path))?;
        file.write_all(&index).and_then(|()| file.sync()).map_err(at(&path))?;
        drop(file);
        disk.sync_dir(&folder).map_err(at(&folder))?;
        disk.remove(&place).map_err(at(&place))?;
        disk.rename(&folder, &place).map_err(at(&place))?;
        let layers = root.join(LAYERS_FOLDER);
        disk.sync_dir(&layers).map_err(at(&layers))?;
        Ok(LayerEntry { layer: self.shape.layer, index_sha256: Sha256Hash::of(&index) })
    }

    fn stored(&self) -> StoredAs {
        if self.pack { StoredAs::Packed } else { StoredAs::Bf16 }
    }

    fn data_name(&self, projection: StoredProjection) -> String {
        data_name(projection, self.stored())
    }

    fn index(&self, files: Vec<FileEntry>, blocks: Vec<BlockEntry>) -> LayerIndex {
        LayerIndex {
            format: INDEX_FORMAT.to_string(),
            version: self.stored().version(),
            conversion: self.conversion,
            shape: self.shape,
            files,
            blocks,
        }
    }

    /// All blocks of a projection: while one wave is written, the next is prepared.
    fn write_blocks(
        &self,
        projection: StoredProjection,
        file: &mut BlockFile,
        advance: Advance,
    ) -> Result<Vec<BlockEntry>, Stopped> {
        let experts: Vec<u32> = (0..self.shape.experts).collect();
        let mut entries = Vec::with_capacity(experts.len());
        let mut ready: Vec<Prepared> = Vec::new();
        for wave in experts.chunks(self.threads).chain([&[][..]]) {
            let (appended, prepared) = thread::scope(|scope| {
                let prepare = |expert: &u32| {
                    let expert = *expert;
                    scope.spawn(move || self.prepare(expert, projection))
                };
                let workers: Vec<_> = wave.iter().map(prepare).collect();
                let appended: Result<Vec<_>, _> =
                    ready.drain(..).map(|block| file.append(block)).collect();
                let join = |worker: thread::ScopedJoinHandle<'_, _>| worker.join().expect("ours");
                let prepared: Result<Vec<_>, _> = workers.into_iter().map(join).collect();
                (appended, prepared)
            });
            entries.extend(appended?);
            ready = prepared?;
            let read_bytes = wave.len() as u64 * self.shape.weights_bytes(projection);
            if advance(read_bytes).is_break() {
                return Err(Stopped::Interrupted);
            }
        }
        Ok(entries)
    }

    /// Reads a block and makes everything of its entry but its place.
    fn prepare(&self, expert: u32, projection: StoredProjection) -> Result<Prepared, ConvertError> {
        let pieces = pieces(self.map, self.shape.layer, expert, projection);
        let mut weights = Vec::new();
        for piece in &pieces {
            let path = &self.map.file(piece.file).path;
            self.sources.read(path, piece.offset_bytes, piece.stored_bytes, &mut weights)?;
        }
        let weights_sha256 = Sha256Hash::of(&weights);
        let (rows, cols) = self.shape.rows_cols(projection);
        let (rows, cols) = (rows as usize, cols as usize);
        let packed = self.pack.then(|| pack::encode(rows, cols, &weights)).flatten();
        let (bytes, encoding, sha256) = match packed {
            Some(packed) => {
                let sha256 = Sha256Hash::of(&packed);
                (packed, StoredAs::Packed, sha256)
            }
            None => (weights, StoredAs::Bf16, weights_sha256),
        };
        let mut entry = BlockEntry {
            expert,
            projection,
            offset: 0,
            stored_bytes: bytes.len() as u64,
            encoding,
            sha256,
            xxh3: FastSum(0),
            weights_sha256,
            source: pieces.iter().map(|piece| source_piece(self.map, piece)).collect(),
        };
        entry.xxh3 = FastSum(checksum(entry.id(self.shape.layer), &bytes));
        Ok(Prepared { entry, bytes })
    }
}

/// A block that waits to be written.
struct Prepared {
    entry: BlockEntry,
    bytes: Vec<u8>,
}

fn source_piece(map: &ExpertMap, block: &Block) -> SourcePiece {
    let name = map.file(block.file).path.file_name().expect("a shard");
    SourcePiece {
        file: name.to_string_lossy().into_owned(),
        tensor: block.tensor.to_string(),
        offset: block.offset_bytes,
        size_bytes: block.stored_bytes,
    }
}

/// A data file being written.
struct BlockFile<'a> {
    path: PathBuf,
    file: Box<dyn DiskFile + 'a>,
    hash: Sha256,
    end: u64,
}

impl<'a> BlockFile<'a> {
    fn create(disk: &'a dyn Disk, path: PathBuf) -> Result<BlockFile<'a>, ConvertError> {
        let file = disk.create(&path).map_err(failed_at(&path))?;
        Ok(BlockFile { path, file, hash: Sha256::new(), end: 0 })
    }

    /// Writes a block and zeros up to where the next one may begin.
    fn append(&mut self, block: Prepared) -> Result<BlockEntry, ConvertError> {
        let Prepared { mut entry, mut bytes } = block;
        entry.offset = self.end;
        bytes.resize(bytes.len().next_multiple_of(BLOCK_ALIGN_BYTES as usize), 0);
        self.file.write_all(&bytes).map_err(failed_at(&self.path))?;
        self.hash.update(&bytes);
        self.end += bytes.len() as u64;
        Ok(entry)
    }

    fn finish(mut self) -> Result<FileEntry, ConvertError> {
        self.file.sync().map_err(failed_at(&self.path))?;
        Ok(FileEntry {
            name: self.path.file_name().expect("a file").to_string_lossy().into_owned(),
            size_bytes: self.end,
            sha256: Sha256Hash::finish(self.hash),
        })
    }
}

/// Turns an error of the disk into ours.
pub fn failed_at(path: &Path) -> impl Fn(std::io::Error) -> ConvertError + use<> {
    let path = path.to_path_buf();
    move |source| ConvertError::Write { path: path.clone(), source }
}
