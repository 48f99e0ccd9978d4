//! Projections in the memory of a GPU, as the kernels read them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytemuck::{Pod, Zeroable};

use super::{Buffer, Copier, Gpu, GpuError};
use crate::op::linear::{Elements, Matrix, PackedRows};

/// `Matrix` of cuda/matrix.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub(super) struct RawMatrix {
    pub(super) data: u64,
    bases: u64,
    escape_starts: u64,
    escape_places: u64,
    escape_values: u64,
    pub(super) rows: u32,
    pub(super) cols: u32,
    pub(super) kind: u32,
    unused: u32,
}

impl RawMatrix {
    /// Rows of bf16 at an address, without anything beside them.
    pub(super) fn plain(data: u64, rows: usize, cols: usize) -> RawMatrix {
        let (rows, cols, kind) = (rows as u32, cols as u32, KIND_BF16);
        RawMatrix { data, rows, cols, kind, ..RawMatrix::zeroed() }
    }
}

/// As in cuda/matrix.cuh.
pub(super) const KIND_BF16: u32 = 0;
pub(super) const KIND_PACKED: u32 = 2;

/// `Lengths` of cuda/product.cu.
pub(super) const LENGTHS_BYTES: usize = 8;

/// Parts start at multiples of this.
const PART_ALIGN: usize = 256;

/// Where the parts of a projection go in a piece of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixLayout {
    kind: u32,
    rows: usize,
    cols: usize,
    /// Offsets of the elements or groups, bases, starts, places and values of escapes, and of what
    /// the device notes of the rows.
    parts: [usize; 6],
    bytes: usize,
}

impl MatrixLayout {
    /// What the device notes of each row, in bytes.
    pub const NOTES_BYTES: usize = LENGTHS_BYTES;

    /// The layout of a projection.
    pub fn of(matrix: &Matrix<'_>) -> MatrixLayout {
        let (rows, cols) = (matrix.rows(), matrix.cols());
        let (kind, sizes) = match matrix.elements() {
            Elements::Bf16(w) => (KIND_BF16, [2 * w.len(), 0, 0, 0, 0, LENGTHS_BYTES * rows]),
            Elements::F32(w) => (1, [4 * w.len(), 0, 0, 0, 0, 0]),
            Elements::Packed(w) => {
                let escapes = w.escape_places.len();
                let groups = 2 * w.groups.len();
                let lengths = LENGTHS_BYTES * rows;
                (KIND_PACKED, [groups, rows, 4 * (rows + 1), 4 * escapes, 2 * escapes, lengths])
            }
        };
        let (mut parts, mut bytes) = ([0; 6], 0);
        for (part, size) in parts.iter_mut().zip(sizes) {
            *part = bytes;
            bytes = (bytes + size).next_multiple_of(PART_ALIGN);
        }
        MatrixLayout { kind, rows, cols, parts, bytes }
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes the parts of `matrix`, whose layout this is.
    pub fn fill(&self, matrix: &Matrix<'_>, into: &mut [u8]) {
        let mut put = |part: usize, bytes: &[u8]| {
            into[self.parts[part]..][..bytes.len()].copy_from_slice(bytes);
        };
        match matrix.elements() {
            Elements::Bf16(w) => put(0, bytemuck::cast_slice(w)),
            Elements::F32(w) => put(0, bytemuck::cast_slice(w)),
            Elements::Packed(w) => {
                put(0, bytemuck::cast_slice(w.groups));
                self.fill_small(&w, &mut into[self.parts[1]..self.parts[5]]);
            }
        }
    }

    /// Writes what a packed projection has beside its groups, from its part 1 on.
    fn fill_small(&self, w: &PackedRows<'_>, into: &mut [u8]) {
        let mut put = |part: usize, bytes: &[u8]| {
            into[self.parts[part] - self.parts[1]..][..bytes.len()].copy_from_slice(bytes);
        };
        put(1, w.bases);
        put(2, bytemuck::cast_slice(&escape_starts(w)));
        put(3, bytemuck::cast_slice(w.escape_places));
        put(4, bytemuck::cast_slice(w.escape_values));
    }

    pub(super) fn at(&self, address: u64) -> RawMatrix {
        let part = |i: usize| address + self.parts[i] as u64;
        RawMatrix {
            data: part(0),
            bases: part(1),
            escape_starts: part(2),
            escape_places: part(3),
            escape_values: part(4),
            rows: self.rows as u32,
            cols: self.cols as u32,
            kind: self.kind,
            unused: 0,
        }
    }
}

/// By row the number of escapes before it, `[rows + 1]`.
fn escape_starts(w: &PackedRows<'_>) -> Vec<u32> {
    let before = |row: usize| w.escape_places.partition_point(|p| (*p as usize) < row * w.cols);
    (0..=w.rows).map(|row| before(row) as u32).collect()
}

/// A projection in device memory, which it shares with others or not.
#[derive(Clone)]
pub struct DeviceMatrix {
    memory: Arc<Buffer<u8>>,
    raw: RawMatrix,
    bytes: u64,
    lengths: u64,
    /// Whether the lengths are there, or will be by what is queued.
    has_lengths: Arc<AtomicBool>,
}

impl DeviceMatrix {
    /// Copies a projection of the host.
    ///
    /// # Errors
    /// Not enough memory; a device that was lost.
    pub fn upload(gpu: &Gpu, matrix: &Matrix<'_>) -> Result<DeviceMatrix, GpuError> {
        let layout = MatrixLayout::of(matrix);
        let memory = gpu.room(layout.bytes)?;
        match matrix.elements() {
            // Nothing to lay out: from where it lies.
            Elements::Bf16(w) => gpu.write(bytemuck::cast_slice(w), &memory, 0)?,
            _ => {
                let mut bytes = vec![0; layout.bytes];
                layout.fill(matrix, &mut bytes);
                gpu.write(&bytes, &memory, 0)?;
            }
        }
        Ok(DeviceMatrix::at(&Arc::new(memory), 0, layout, matrix.bytes()))
    }

    /// Queues the copy of a projection into `memory` from `offset` on, over whatever was there.
    ///
    /// # Errors
    /// A device that was lost.
    pub fn place<'a>(
        copier: &mut Copier<'a, '_>,
        memory: &Arc<Buffer<u8>>,
        offset: usize,
        layout: MatrixLayout,
        matrix: &Matrix<'a>,
    ) -> Result<DeviceMatrix, GpuError> {
        let at = |part: usize| offset + layout.parts[part];
        match matrix.elements() {
            Elements::Bf16(w) => copier.write(bytemuck::cast_slice(w), memory, offset)?,
            Elements::F32(w) => copier.write(bytemuck::cast_slice(w), memory, offset)?,
            Elements::Packed(w) => {
                copier.write(bytemuck::cast_slice(w.groups), memory, at(0))?;
                // The small parts lie behind one another: one copy.
                let mut small = vec![0; layout.parts[5] - layout.parts[1]];
                layout.fill_small(&w, &mut small);
                copier.through_ring(&small, memory, at(1))?;
            }
        }
        Ok(DeviceMatrix::at(memory, offset, layout, matrix.bytes()))
    }

    /// A projection that was, or will be, written to `memory` from `offset` on; `bytes` of it are
    /// weights.
    fn at(
        memory: &Arc<Buffer<u8>>,
        offset: usize,
        layout: MatrixLayout,
        bytes: u64,
    ) -> DeviceMatrix {
        assert!(offset.is_multiple_of(PART_ALIGN) && offset + layout.bytes <= memory.len());
        let address = memory.address() + offset as u64;
        let (raw, lengths) = (layout.at(address), address + layout.parts[5] as u64);
        let has_lengths = Arc::new(AtomicBool::new(false));
        DeviceMatrix { memory: memory.clone(), raw, bytes, lengths, has_lengths }
    }

    /// Output width.
    pub fn rows(&self) -> usize {
        self.raw.rows as usize
    }

    /// Input width.
    pub fn cols(&self) -> usize {
        self.raw.cols as usize
    }

    /// Bytes that one pass over the weights reads.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The same if it is not packed.
    pub fn plain_bytes(&self) -> u64 {
        let of_packed = (2 * self.rows() * self.cols()) as u64;
        if self.raw.kind == KIND_PACKED { of_packed } else { self.bytes }
    }

    /// Bytes of device memory that it keeps.
    pub fn kept_bytes(&self) -> usize {
        self.memory.len()
    }

    /// Where the lengths of its rows are or go.
    pub(super) fn lengths(&self) -> u64 {
        self.lengths
    }

    /// Whether somebody has to see to the lengths: true once.
    pub(super) fn wants_lengths(&self) -> bool {
        !self.has_lengths.swap(true, Ordering::Relaxed)
    }

    pub(super) fn raw(&self) -> RawMatrix {
        self.raw
    }
}
