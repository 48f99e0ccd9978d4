//! One layer's index: read, and compared with everything that is known about it.

use std::fs;
use std::path::{Path, PathBuf};

use super::error::{BlockProblem, StoreError};
use super::manifest::{BlockEntry, ExpertLayer, LayerIndex, Manifest, StoredAs, StoredProjection};
use super::{
    BLOCK_ALIGN_BYTES, INDEX_FORMAT, INDEX_NAME, LayerEntry, Sha256Hash, VERSIONS, VERSIONS_KNOWN,
    data_name, layer_folder, unseal,
};

/// Reads a layer's index and checks it against the manifest, and its files by their lengths.
///
/// Errors: everything that makes the layer another one than the manifest says; no weight is read.
pub fn read_layer(
    root: &Path,
    manifest: &Manifest,
    shape: ExpertLayer,
    entry: LayerEntry,
) -> Result<LayerIndex, StoreError> {
    let folder = layer_folder(root, shape.layer);
    let path = folder.join(INDEX_NAME);
    let bytes = fs::read(&path).map_err(|source| StoreError::Io { path: path.clone(), source })?;
    let index: LayerIndex = unseal(&bytes, INDEX_FORMAT, &VERSIONS, VERSIONS_KNOWN)
        .map_err(|problem| StoreError::Sealed { path: path.clone(), problem })?;
    let check = Check { path, manifest, shape, index: &index };
    check.identity()?;
    check.blocks()?;
    check.files(&folder)?;
    let (expected, found) = (entry.index_sha256, Sha256Hash::of(&bytes));
    if found != expected {
        let path = check.path;
        return Err(StoreError::WrongHash { path, named_by: "manifest.json", expected, found });
    }
    Ok(index)
}

struct Check<'a> {
    path: PathBuf,
    manifest: &'a Manifest,
    shape: ExpertLayer,
    index: &'a LayerIndex,
}

impl Check<'_> {
    fn identity(&self) -> Result<(), StoreError> {
        let (index, manifest) = (self.index, self.manifest);
        self.equal("version", manifest.version, index.version)?;
        self.equal("conversion", manifest.conversion, index.conversion)?;
        self.equal("layer", self.shape.layer, index.shape.layer)?;
        self.equal("experts", self.shape.experts, index.shape.experts)?;
        self.equal("hidden", self.shape.hidden, index.shape.hidden)?;
        self.equal("width", self.shape.width, index.shape.width)
    }

    fn equal<T>(&self, field: &'static str, expected: T, found: T) -> Result<(), StoreError>
    where
        T: PartialEq + std::fmt::Display,
    {
        if expected == found {
            return Ok(());
        }
        let (expected, found) = (expected.to_string(), found.to_string());
        Err(StoreError::Field { path: self.path.clone(), field, expected, found })
    }

    /// Blocks are in order, where the format puts them, and of the size of their shape.
    fn blocks(&self) -> Result<(), StoreError> {
        let experts = self.shape.experts;
        self.equal("number of blocks", 2 * experts as usize, self.index.blocks.len())?;
        let mut blocks = self.index.blocks.iter();
        for projection in StoredProjection::ALL {
            let mut offset = 0;
            for (expert, block) in (0..experts).zip(blocks.by_ref()) {
                self.block(block, expert, projection, offset).map_err(|problem| {
                    StoreError::BadBlock {
                        path: self.path.clone(),
                        layer: self.shape.layer,
                        expert,
                        projection,
                        problem,
                    }
                })?;
                offset = next_offset(offset, block.stored_bytes);
            }
        }
        Ok(())
    }

    fn block(
        &self,
        block: &BlockEntry,
        expert: u32,
        projection: StoredProjection,
        expected: u64,
    ) -> Result<(), BlockProblem> {
        if (block.expert, block.projection) != (expert, projection) {
            return Err(BlockProblem::OutOfOrder { expert, projection });
        }
        if block.offset != expected {
            return Err(BlockProblem::WrongOffset { expected, found: block.offset });
        }
        let (weights, found) = (self.shape.weights_bytes(projection), block.stored_bytes);
        match (block.encoding, self.manifest.encoding) {
            (StoredAs::Packed, StoredAs::Bf16) => Err(BlockProblem::PackedInV1),
            (StoredAs::Packed, StoredAs::Packed) if found >= weights => {
                Err(BlockProblem::PackedLarger { weights, found })
            }
            (StoredAs::Bf16, _) if found != weights => {
                Err(BlockProblem::WrongSize { expected: weights, found })
            }
            (StoredAs::Bf16, _) if block.sha256 != block.weights_sha256 => {
                Err(BlockProblem::HashesDiffer)
            }
            _ => Ok(()),
        }
    }

    fn files(&self, folder: &Path) -> Result<(), StoreError> {
        self.equal("number of files", StoredProjection::ALL.len(), self.index.files.len())?;
        for (projection, file) in StoredProjection::ALL.into_iter().zip(&self.index.files) {
            self.equal("file", data_name(projection, self.manifest.encoding), file.name.clone())?;
            let of_file = self.index.blocks.iter().filter(|block| block.projection == projection);
            let end = of_file.fold(0, |at, block| next_offset(at, block.stored_bytes));
            self.equal("length of a file", end, file.size_bytes)?;
            check_length(&folder.join(&file.name), INDEX_NAME, file.size_bytes)?;
        }
        Ok(())
    }
}

/// Where the block after one begins: a block is at most 2^50 bytes, so this does not overflow.
pub fn next_offset(offset: u64, stored_bytes: u64) -> u64 {
    (offset + stored_bytes).next_multiple_of(BLOCK_ALIGN_BYTES)
}

/// A regular file of that length.
pub fn check_length(path: &Path, named_by: &'static str, expected: u64) -> Result<(), StoreError> {
    let path = path.to_path_buf();
    match fs::metadata(&path) {
        Err(source) => Err(StoreError::Io { path, source }),
        Ok(file) if file.len() != expected => {
            Err(StoreError::WrongLength { path, named_by, expected, found: file.len() })
        }
        Ok(_) => Ok(()),
    }
}
