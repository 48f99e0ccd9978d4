//! What a chunk brings to the device, in one copy.

use half::bf16;
use numerics::cuda::{Buffer, Gpu, GpuError};
use numerics::op::rope::Angles;

use super::super::error::ModelError;
use super::super::network::Model;
use crate::index::TokenId;

/// The embeddings of a chunk and where it stands.
pub(super) struct Inputs {
    all: Buffer<u8>,
    offsets: [usize; 4],
    /// `[1]`: of the first token.
    pub(super) position: Buffer<u32>,
    /// Rounded cosines and sines, `[tokens, rotated / 2]` each.
    pub(super) cosines: Buffer<bf16>,
    pub(super) sines: Buffer<bf16>,
    /// The residual stream, `[tokens, hidden]`.
    pub(super) h: Buffer<bf16>,
}

/// Parts start at multiples of this.
const PART_ALIGN: usize = 256;

impl Inputs {
    /// Room for a chunk.
    pub(super) fn new(gpu: &Gpu, model: &Model, tokens: usize) -> Result<Inputs, GpuError> {
        let half = model.frequencies.len();
        let lens = [tokens * half, tokens * half, tokens * model.description.hidden];
        let (mut offsets, mut bytes) = ([0; 4], PART_ALIGN);
        for (offset, len) in offsets[1..].iter_mut().zip(lens) {
            *offset = bytes;
            bytes = (bytes + 2 * len).next_multiple_of(PART_ALIGN);
        }
        let all = gpu.room::<u8>(bytes)?;
        let position = all.part(0, 1);
        let [cosines, sines, h] = [0, 1, 2].map(|i| all.part(offsets[i + 1], lens[i]));
        Ok(Inputs { all, offsets, position, cosines, sines, h })
    }

    /// Copies a chunk that begins at position `first`.
    pub(super) fn fill(
        &self,
        gpu: &Gpu,
        model: &Model,
        first: usize,
        ids: &[TokenId],
    ) -> Result<(), ModelError> {
        let mut bytes = vec![0u8; self.all.len()];
        let position = u32::try_from(first).expect("positions fit 32 bits");
        bytes[..4].copy_from_slice(&position.to_le_bytes());
        let mut at = self.offsets;
        let mut put = |part: usize, values: &[bf16]| {
            let values: &[u8] = bytemuck::cast_slice(values);
            bytes[at[part]..][..values.len()].copy_from_slice(values);
            at[part] += values.len();
        };
        for (i, id) in ids.iter().enumerate() {
            let angles = Angles::at(first + i, &model.frequencies);
            put(1, &angles.cosines().collect::<Vec<_>>());
            put(2, &angles.sines().collect::<Vec<_>>());
            put(3, &model.embedding.row(id.0 as usize)?);
        }
        Ok(gpu.write(&bytes, &self.all, 0)?)
    }
}
