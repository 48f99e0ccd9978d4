//! Weights as the checkpoint's bytes, used in place.

use half::bf16;
use numerics::op::linear::{Elements, Matrix, PackedRows};
use numerics::round::widen;
use store::checkpoint::{Checkpoint, Dtype, Tensor};
use store::experts::{Block, Encoding};
use store::pack::{PackError, Packed};

use super::error::ModelError;

/// A projection, or an expert's slice of a fused one.
#[derive(Clone)]
pub(crate) struct Weight {
    name: std::sync::Arc<str>,
    /// Its first row in the tensor, for messages.
    first: usize,
    rows: usize,
    cols: usize,
    data: Data,
}

/// The elements; copied only where the file has them at an odd address.
#[derive(Clone)]
enum Data {
    Bf16(bytes::Bytes),
    F32(bytes::Bytes),
    Bf16Copy(std::sync::Arc<[bf16]>),
    F32Copy(std::sync::Arc<[f32]>),
    Packed(PackedSections),
}

impl Data {
    fn new(dtype: Dtype, bytes: bytes::Bytes) -> Data {
        match dtype {
            Dtype::Bf16 if bytemuck::try_cast_slice::<u8, bf16>(&bytes).is_ok() => {
                Data::Bf16(bytes)
            }
            Dtype::F32 if bytemuck::try_cast_slice::<u8, f32>(&bytes).is_ok() => Data::F32(bytes),
            Dtype::Bf16 => Data::Bf16Copy(bytemuck::pod_collect_to_vec(&bytes).into()),
            Dtype::F32 => Data::F32Copy(bytemuck::pod_collect_to_vec(&bytes).into()),
            Dtype::Other(name) => unreachable!("`expect` refused {name}"),
        }
    }

    fn elements(&self) -> Elements<'_> {
        match self {
            Data::Bf16(b) => Elements::Bf16(bytemuck::cast_slice(b)),
            Data::F32(b) => Elements::F32(bytemuck::cast_slice(b)),
            Data::Bf16Copy(b) => Elements::Bf16(b),
            Data::F32Copy(b) => Elements::F32(b),
            Data::Packed(sections) => Elements::Packed(sections.rows()),
        }
    }
}

/// A packed block's sections, at addresses where they are used in place.
#[derive(Clone)]
struct PackedSections {
    rows: usize,
    cols: usize,
    bases: bytes::Bytes,
    groups: bytes::Bytes,
    escape_places: bytes::Bytes,
    escape_values: bytes::Bytes,
}

impl PackedSections {
    /// A block of an expert, which was checked as it came.
    fn of(block: &Block, bytes: &bytes::Bytes) -> Result<PackedSections, ModelError> {
        let tensor = || block.tensor.to_string();
        let sections = PackedSections::parse(bytes)
            .map_err(|problem| ModelError::Packed { tensor: tensor(), problem })?;
        let (found, expected) = ([sections.rows, sections.cols], [block.rows, block.cols]);
        match found == expected {
            true => Ok(sections),
            false => Err(ModelError::PackedShape { tensor: tensor(), expected, found }),
        }
    }

    fn parse(bytes: &bytes::Bytes) -> Result<PackedSections, PackError> {
        // Sections start at multiples of 64 bytes: the block's address decides.
        let aligned = bytes.as_ptr().cast::<u32>().is_aligned();
        let copy = (!aligned).then(|| AlignedCopy::of(bytes));
        let bytes = copy.map_or(bytes.clone(), bytes::Bytes::from_owner);
        let packed = Packed::sections(&bytes)?;
        Ok(PackedSections {
            rows: packed.rows(),
            cols: packed.cols(),
            bases: bytes.slice_ref(packed.bases()),
            groups: bytes.slice_ref(packed.groups()),
            escape_places: bytes.slice_ref(packed.escape_places()),
            escape_values: bytes.slice_ref(packed.escape_values()),
        })
    }

    fn rows(&self) -> PackedRows<'_> {
        PackedRows {
            rows: self.rows,
            cols: self.cols,
            bases: &self.bases,
            groups: cast(&self.groups),
            escape_places: cast(&self.escape_places),
            escape_values: cast(&self.escape_values),
        }
    }
}

/// A section as what it holds; an empty one is anywhere, aligned or not.
fn cast<T: bytemuck::AnyBitPattern>(section: &[u8]) -> &[T] {
    if section.is_empty() { &[] } else { bytemuck::cast_slice(section) }
}

/// Bytes at an address for u64.
struct AlignedCopy {
    words: Vec<u64>,
    len: usize,
}

impl AlignedCopy {
    fn of(bytes: &[u8]) -> AlignedCopy {
        let mut words = vec![0u64; bytes.len().div_ceil(8)];
        bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
        AlignedCopy { words, len: bytes.len() }
    }
}

impl AsRef<[u8]> for AlignedCopy {
    fn as_ref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.len]
    }
}

impl Weight {
    /// A whole tensor `[rows, cols]`.
    pub(super) fn load(
        from: &Checkpoint,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<Weight, ModelError> {
        let tensor = from.expect(name, &[rows, cols])?;
        Ok(Weight::slice(tensor, 0, rows, cols))
    }

    /// `rows` rows of `cols` elements of a tensor, from row `first` of its flat view on.
    pub(super) fn slice(tensor: &Tensor, first: usize, rows: usize, cols: usize) -> Weight {
        let name = tensor.name.as_str().into();
        if tensor.packed {
            assert_eq!(tensor.shape, [rows, cols], "{name}: only whole matrices are packed");
            let sections = PackedSections::parse(&tensor.bytes).expect("packed by this program");
            return Weight { name, first, rows, cols, data: Data::Packed(sections) };
        }
        let each = if tensor.dtype == Dtype::F32 { 4 } else { 2 };
        let range = first * cols * each..(first + rows) * cols * each;
        let data = Data::new(tensor.dtype, tensor.bytes.slice(range));
        Weight { name, first, rows, cols, data }
    }

    /// A block of an expert, as it was read.
    ///
    /// # Errors
    /// A packed block that says something else than the map, or that nobody could have written.
    pub(super) fn of_block(block: &Block, bytes: bytes::Bytes) -> Result<Weight, ModelError> {
        let data = match block.encoding {
            Encoding::Bf16 => Data::new(Dtype::Bf16, bytes),
            Encoding::F32 => Data::new(Dtype::F32, bytes),
            Encoding::Packed => Data::Packed(PackedSections::of(block, &bytes)?),
        };
        let (rows, cols) = (block.rows, block.cols);
        Ok(Weight { name: block.tensor.clone(), first: block.first_row, rows, cols, data })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn matrix(&self) -> Matrix<'_> {
        Matrix::new(self.rows, self.cols, self.data.elements())
    }

    pub(super) fn bytes(&self) -> u64 {
        self.matrix().bytes()
    }

    /// Bytes if it were not packed.
    pub(super) fn plain_bytes(&self) -> u64 {
        match self.data {
            Data::Packed(_) => 2 * (self.rows * self.cols) as u64,
            _ => self.bytes(),
        }
    }

    /// One row as bf16 (an embedding); f32 rows are stored.
    pub(super) fn row(&self, row: usize) -> Result<Vec<bf16>, ModelError> {
        let range = row * self.cols..(row + 1) * self.cols;
        let values: Vec<bf16> = match self.data.elements() {
            Elements::Bf16(w) => w[range].to_vec(),
            Elements::F32(w) => w[range].iter().map(|v| numerics::round::store(*v)).collect(),
            Elements::Packed(w) => w.row(row),
        };
        match self.bad_weight(row) {
            Some(error) => Err(error),
            None => Ok(values),
        }
    }

    /// The error that names a non-finite weight of a row, if it has one.
    pub(super) fn bad_weight(&self, row: usize) -> Option<ModelError> {
        let range = row * self.cols..(row + 1) * self.cols;
        let found = match self.data.elements() {
            Elements::Bf16(w) => position(w[range].iter().map(|v| widen(*v))),
            Elements::F32(w) => position(w[range].iter().copied()),
            Elements::Packed(w) => position(w.row(row).into_iter().map(widen)),
        };
        found.map(|(column, value)| ModelError::WeightNotFinite {
            tensor: self.name.to_string(),
            row: self.first + row,
            column,
            value,
        })
    }
}

fn position(mut values: impl Iterator<Item = f32>) -> Option<(usize, f32)> {
    let mut value = 0.0;
    let column = values.position(|v| {
        value = v;
        !v.is_finite()
    })?;
    Some((column, value))
}

/// A small tensor (norm weights, gates, taps) widened to f32 and checked when it is loaded.
pub(super) fn vector(
    from: &Checkpoint,
    name: &str,
    shape: &[usize],
) -> Result<Vec<f32>, ModelError> {
    let tensor = from.expect(name, shape)?;
    let flat = Weight::slice(tensor, 0, 1, shape.iter().product());
    if let Some(error) = flat.bad_weight(0) {
        return Err(error);
    }
    Ok(match flat.data.elements() {
        Elements::Bf16(w) => w.iter().map(|v| widen(*v)).collect(),
        Elements::F32(w) => w.to_vec(),
        Elements::Packed(w) => (0..w.rows).flat_map(|row| w.row(row)).map(widen).collect(),
    })
}
