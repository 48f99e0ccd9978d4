//! A store: a folder with one model, its experts block by block and ready to be read. FORMAT.md
//! specifies it byte by byte.

mod error;
mod hash;
mod layer;
mod manifest;
mod open;
mod sealed;

use std::path::{Path, PathBuf};

pub use error::{BlockProblem, Missing, StoreError, ranges};
pub use hash::{FastSum, NotHex, Sha256Hash};
pub use layer::read_layer;
pub use manifest::{
    BlockEntry, DenseEntry, DenseTensor, ExpertLayer, FileEntry, LayerEntry, LayerIndex, Manifest,
    ModelEntry, SourceEntry, SourceFileEntry, SourcePiece, StoredAs, StoredProjection,
};
pub use open::{Store, read_manifest};
pub use sealed::{SEAL_AFTER, SEAL_BEFORE, SEAL_BYTES, SealProblem, seal, unseal};

/// `format` of a manifest.
pub const MANIFEST_FORMAT: &str = "jnf";
/// `format` of a layer's index.
pub const INDEX_FORMAT: &str = "jnf-layer";
/// Versions that this program reads.
pub const VERSIONS: [u64; 2] = [1, 2];
/// The same for messages.
pub const VERSIONS_KNOWN: &str = "1 and 2";
/// Every block begins at a multiple of it, and every data file ends at one.
pub const BLOCK_ALIGN_BYTES: u64 = 4096;
/// `dtype` of a model's experts.
pub const EXPERT_DTYPE: &str = "BF16";

pub const MANIFEST_NAME: &str = "manifest.json";
pub const HOTLIST_NAME: &str = "hotlist.json";
pub const INDEX_NAME: &str = "index.json";
pub const LAYERS_FOLDER: &str = "layers";
pub const DENSE_FOLDER: &str = "dense";
/// What a file or folder is called until all of it is on the disk.
pub const PARTIAL_SUFFIX: &str = ".partial";
/// What an unfinished conversion knows of its source; gone once the store is complete.
pub const CONVERSION_NAME: &str = "conversion.json";
/// Who converts into this folder; gone when nobody does.
pub const LOCK_NAME: &str = "convert.lock";

/// Limits beyond which a shape is not believed: nothing computed from them overflows.
pub const LAYERS_MAX: u32 = 1 << 16;
pub const EXPERTS_MAX: u32 = 1 << 16;
pub const DIMENSION_MAX: u64 = 1 << 24;

/// Whether a folder is a store, complete or not.
pub fn is_store(dir: &Path) -> bool {
    dir.join(MANIFEST_NAME).is_file() && dir.join(LAYERS_FOLDER).is_dir()
}

/// The folder of a layer.
pub fn layer_folder(root: &Path, layer: u32) -> PathBuf {
    root.join(LAYERS_FOLDER).join(layer_name(layer))
}

/// Its name: at least two digits.
pub fn layer_name(layer: u32) -> String {
    format!("{layer:02}")
}

/// The data file of a projection.
pub fn data_name(projection: StoredProjection, stored: StoredAs) -> String {
    format!("{}.{}", projection.stem(), stored.extension())
}
