//! Weights as the checkpoint's bytes, used in place.

use half::bf16;
use numerics::op::linear::{Elements, Matrix};
use numerics::round::widen;
use store::checkpoint::{Checkpoint, Dtype, Tensor};

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
        }
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
        let each = if tensor.dtype == Dtype::F32 { 4 } else { 2 };
        let range = first * cols * each..(first + rows) * cols * each;
        let data = Data::new(tensor.dtype, tensor.bytes.slice(range));
        Weight { name: tensor.name.as_str().into(), first, rows, cols, data }
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

    /// One row as bf16 (an embedding); f32 rows are stored.
    pub(super) fn row(&self, row: usize) -> Result<Vec<bf16>, ModelError> {
        let range = row * self.cols..(row + 1) * self.cols;
        let values: Vec<bf16> = match self.data.elements() {
            Elements::Bf16(w) => w[range].to_vec(),
            Elements::F32(w) => w[range].iter().map(|v| numerics::round::store(*v)).collect(),
            Elements::Packed(_) => unreachable!("only experts are packed"),
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
            Elements::Packed(_) => unreachable!("only experts are packed"),
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
        Elements::Packed(_) => unreachable!("only experts are packed"),
    })
}
