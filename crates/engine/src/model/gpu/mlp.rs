//! Gated MLPs on a GPU: as model/mlp.rs.

use half::bf16;
use numerics::cuda::{Buffer, DeviceMatrix, DeviceOutput, Gpu, GpuError, LinearJob, Site};

use super::super::mlp::{GateUp, Mlp};
use super::rows::Uploader;

/// `down(silu(gate(x)) * up(x))`; gate and up in one, or one after the other.
#[derive(Clone)]
pub(super) struct GpuMlp {
    pub(super) inner: Vec<DeviceMatrix>,
    pub(super) down: DeviceMatrix,
}

/// The tokens of an MLP: rows of x, and its rows in the bank's buffers.
pub(super) struct Use<'a> {
    pub(super) mlp: &'a GpuMlp,
    /// Where in the bank's `tokens` its own begin; also the first of its rows.
    pub(super) first: usize,
    pub(super) count: usize,
    /// Of the inner projections and of down.
    pub(super) sites: [Site; 2],
}

/// MLPs of one width that run together.
pub(super) struct Bank<'a> {
    pub(super) uses: Vec<Use<'a>>,
    /// Rows of x of all uses; `None` where they are all rows in order.
    pub(super) tokens: Option<&'a Buffer<u32>>,
    /// Where they go, `[rows, hidden]`, from row `first` on.
    pub(super) out: &'a Buffer<bf16>,
    pub(super) first: usize,
}

impl GpuMlp {
    pub(super) fn upload(from: &Mlp, up: &mut Uploader<'_>) -> Result<(Self, [Site; 2]), GpuError> {
        let weights = match &from.gate_up {
            GateUp::Fused(both) => vec![both],
            GateUp::Split(gate, up) => vec![gate, up],
        };
        let inner = weights.into_iter().map(|w| up.projection(w));
        let mut inner = inner.collect::<Result<Vec<_>, _>>()?;
        let down = up.projection(&from.down)?;
        let sites = [inner[0].site, down.site];
        let inner = inner.drain(..).map(|p| p.matrix).collect();
        Ok((GpuMlp { inner, down: down.matrix }, sites))
    }

    pub(super) fn width(&self) -> usize {
        self.down.cols()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.inner.iter().chain([&self.down]).map(DeviceMatrix::bytes).sum()
    }

    /// Bytes if none of it were packed.
    pub(super) fn plain_bytes(&self) -> u64 {
        self.inner.iter().chain([&self.down]).map(DeviceMatrix::plain_bytes).sum()
    }
}

impl Bank<'_> {
    fn rows(&self) -> usize {
        self.uses.iter().map(|u| u.count).sum()
    }
}

/// Runs banks side by side: x `[tokens, hidden]`.
pub(super) fn run(gpu: &Gpu, x: &Buffer<bf16>, banks: &[Bank<'_>]) -> Result<(), GpuError> {
    let banks: Vec<&Bank<'_>> = banks.iter().filter(|b| b.rows() > 0).collect();
    let inner = banks.iter().map(|b| gpu.room(b.rows() * 2 * b.uses[0].mlp.width()));
    let inner = inner.collect::<Result<Vec<Buffer<bf16>>, _>>()?;
    let jobs: Vec<_> = banks.iter().zip(&inner).flat_map(|(b, y)| b.inner_jobs(x, y)).collect();
    gpu.linear(&jobs)?;
    let active = banks.iter().zip(&inner).map(|(b, y)| gpu.activate(y, b.uses[0].mlp.width()));
    let active = active.collect::<Result<Vec<_>, _>>()?;
    let jobs: Vec<_> = banks.iter().zip(&active).flat_map(|(b, x)| b.down_jobs(x)).collect();
    gpu.linear(&jobs)
}

impl<'a> Use<'a> {
    /// gate | up of every row; `tokens` as of its bank.
    pub(super) fn inner_jobs(
        &self,
        tokens: Option<&'a Buffer<u32>>,
        x: &'a Buffer<bf16>,
        y: &'a Buffer<bf16>,
    ) -> Vec<LinearJob<'a>> {
        let (mut jobs, mut column) = (Vec::new(), 0);
        for weights in &self.mlp.inner {
            jobs.push(LinearJob {
                x_first: if tokens.is_some() { 0 } else { self.first },
                tokens,
                tokens_first: self.first,
                output_first: self.first,
                stride: 2 * self.mlp.width(),
                column,
                ..LinearJob::new(weights, x, self.count, DeviceOutput::Bf16(y), self.sites[0])
            });
            column += weights.rows();
        }
        jobs
    }
}

impl Bank<'_> {
    /// gate | up of every row.
    fn inner_jobs<'a>(&'a self, x: &'a Buffer<bf16>, y: &'a Buffer<bf16>) -> Vec<LinearJob<'a>> {
        self.uses.iter().flat_map(|one| one.inner_jobs(self.tokens, x, y)).collect()
    }

    fn down_jobs<'a>(&'a self, x: &'a Buffer<bf16>) -> Vec<LinearJob<'a>> {
        let job = |one: &'a Use<'a>| {
            let output = DeviceOutput::Bf16(self.out);
            LinearJob {
                x_first: one.first,
                output_first: self.first + one.first,
                ..LinearJob::new(&one.mlp.down, x, one.count, output, one.sites[1])
            }
        };
        self.uses.iter().map(job).collect()
    }
}
