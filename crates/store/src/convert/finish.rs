//! The end of a conversion: everything is there, so the source can be named by what was used.

use sha2::{Digest, Sha256};

use super::error::ConvertError;
use super::layer::failed_at;
use super::steps::Conversion;
use crate::jnf::{CONVERSION_NAME, LayerIndex, Manifest, Sha256Hash, read_layer};

/// Separates these hashes from every other.
const USED_DOMAIN: &[u8] = b"tarfa jnf used weights v1\n";

impl Conversion<'_> {
    /// Completes the manifest, and removes what only an unfinished store needs.
    pub(super) fn finish(&mut self) -> Result<(), ConvertError> {
        let root = &self.request.out;
        let layers = self.manifest.model.expert_layers.iter().zip(&self.manifest.layers);
        let indexes: Vec<LayerIndex> = layers
            .map(|(shape, entry)| read_layer(root, &self.manifest, *shape, *entry))
            .collect::<Result<_, _>>()?;
        for at in 0..self.manifest.source.files.len() {
            let found = used_sha256(&self.manifest, &indexes, at);
            let file = &mut self.manifest.source.files[at];
            if let Some(expected) = file.used_sha256.filter(|expected| *expected != found) {
                return Err(ConvertError::SourceChanged {
                    path: file.name.clone().into(),
                    field: "the hash of the weights used",
                    expected: expected.to_string(),
                    found: found.to_string(),
                });
            }
            file.used_sha256 = Some(found);
        }
        self.manifest.complete = true;
        self.publish_manifest()?;
        let state = root.join(CONVERSION_NAME);
        self.disk.remove(&state).map_err(failed_at(&state))?;
        self.disk.sync_dir(root).map_err(failed_at(root))
    }
}

/// Hash over the hashes of all weights taken, in whole or in part, from one source file: the dense
/// tensors and then the experts' blocks, in the order of the store.
pub fn used_sha256(manifest: &Manifest, indexes: &[LayerIndex], source_file: usize) -> Sha256Hash {
    let name = &manifest.source.files[source_file].name;
    let mut hash = Sha256::new();
    hash.update(USED_DOMAIN);
    for tensor in manifest.dense.iter().flat_map(|file| &file.tensors) {
        if tensor.source.file == *name {
            hash.update(tensor.sha256.0);
        }
    }
    for block in indexes.iter().flat_map(|index| &index.blocks) {
        if block.source.iter().any(|piece| piece.file == *name) {
            hash.update(block.weights_sha256.0);
        }
    }
    Sha256Hash::finish(hash)
}
