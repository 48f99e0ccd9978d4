//! The kernels of a GPU beside its ceilings.

use anyhow::Result;
use numerics::cuda::{Buffer, DeviceMatrix, DeviceOutput, Gpu, LinearJob, Site};
use numerics::op::linear::{Elements, Matrix};
use numerics::{Cpu, bf16};

use super::{KernelRow, KernelSpec, against, fill, packed, weights};

/// Bytes of a copy that runs beside the computing.
const COPY_BYTES: usize = 1 << 30;

/// Runs everything and calls `row` as each figure is there.
///
/// # Errors
/// Not enough memory; a device that was lost.
pub fn run(
    cpu: &Cpu,
    gpu: &Gpu,
    spec: &KernelSpec,
    mut row: impl FnMut(&KernelRow),
) -> Result<Vec<KernelRow>> {
    let mut out = Vec::new();
    let mut push = |r: KernelRow| {
        row(&r);
        out.push(r);
    };
    let rows = spec.bytes / 2 / spec.k;
    let host = weights(rows * spec.k, cpu);
    let plain = Matrix::new(rows, spec.k, Elements::Bf16(&host));
    let at = &Place { gpu, cpu, spec };
    let memory = gpu.zeros::<u8>(spec.bytes)?;
    {
        let w = DeviceMatrix::upload(gpu, &plain)?;
        push(at.matvec("exact matvec to bf16", &memory, &w, false)?);
        push(at.matvec("exact matvec to f32", &memory, &w, true)?);
        push(at.streaming(&w)?);
    }
    push(at.packed(&memory, &host)?);
    // Products bind on arithmetic: a part of the matrix suffices.
    let some = rows.min(16384);
    let part = Matrix::new(some, spec.k, Elements::Bf16(&host[..some * spec.k]));
    let w = DeviceMatrix::upload(gpu, &part)?;
    for tokens in &spec.tokens {
        push(at.product(&w, *tokens)?);
    }
    Ok(out)
}

/// Where and what to measure.
struct Place<'a> {
    gpu: &'a Gpu,
    cpu: &'a Cpu,
    spec: &'a KernelSpec,
}

impl Place<'_> {
    fn input(&self, tokens: usize) -> Result<Buffer<bf16>> {
        let mut x = vec![bf16::ZERO; tokens * self.spec.k];
        fill(77, &mut x);
        Ok(self.gpu.upload(&x)?)
    }

    fn seconds(&self, jobs: &[LinearJob<'_>]) -> f64 {
        self.gpu.seconds(|| self.gpu.linear(jobs)).expect("the device stays")
    }

    /// The same matrix packed, in projections of the size of experts.
    fn packed(&self, memory: &Buffer<u8>, host: &[bf16]) -> Result<KernelRow> {
        let projections = packed::encoded(self.cpu, self.spec, host);
        let on_device = projections.iter().map(|p| DeviceMatrix::upload(self.gpu, &p.matrix()));
        let on_device = on_device.collect::<Result<Vec<_>, _>>()?;
        let (x, y) = (self.input(1)?, self.gpu.room::<bf16>(host.len() / self.spec.k)?);
        let (mut jobs, mut first) = (Vec::new(), 0);
        for w in &on_device {
            let output = DeviceOutput::Bf16(&y);
            let stride = y.len();
            jobs.push(LinearJob {
                stride,
                column: first,
                ..LinearJob::new(w, &x, 1, output, Site(1))
            });
            first += w.rows();
        }
        let bytes = 2.0 * host.len() as f64;
        let ceiling = || self.gpu.read_bandwidth(memory).expect("the device stays") / 1e9;
        let rate = || bytes / self.seconds(&jobs) / 1e9;
        Ok(against(self.spec, "packed matvec, in bf16 bytes", "GB/s", ceiling, rate))
    }

    fn matvec(
        &self,
        kernel: &str,
        memory: &Buffer<u8>,
        w: &DeviceMatrix,
        wide: bool,
    ) -> Result<KernelRow> {
        let (x, rows) = (self.input(1)?, w.rows());
        let (stored, floats) = (self.gpu.room::<bf16>(rows)?, self.gpu.room::<f32>(rows)?);
        let output = if wide { DeviceOutput::F32(&floats) } else { DeviceOutput::Bf16(&stored) };
        let job = LinearJob::new(w, &x, 1, output, Site(1));
        let bytes = 2.0 * (rows * w.cols()) as f64;
        let ceiling = || self.gpu.read_bandwidth(memory).expect("the device stays") / 1e9;
        Ok(against(self.spec, kernel, "GB/s", ceiling, || {
            bytes / self.seconds(std::slice::from_ref(&job)) / 1e9
        }))
    }

    fn product(&self, w: &DeviceMatrix, tokens: usize) -> Result<KernelRow> {
        let x = self.input(tokens)?;
        let y = self.gpu.room::<bf16>(tokens * w.rows())?;
        let job = LinearJob::new(w, &x, tokens, DeviceOutput::Bf16(&y), Site(1));
        let operations = 2.0 * (w.rows() * w.cols() * tokens) as f64;
        let name = format!("exact product, {tokens} tokens");
        let ceiling = || self.gpu.tensor_peak().expect("the device stays") / 1e12;
        let rate = || operations / self.seconds(std::slice::from_ref(&job)) / 1e12;
        Ok(against(self.spec, &name, "TFLOP/s", ceiling, rate))
    }

    /// Copies from the host while matvecs run without a pause.
    fn streaming(&self, w: &DeviceMatrix) -> Result<KernelRow> {
        let (x, y) = (self.input(1)?, self.gpu.room::<bf16>(w.rows())?);
        let job = LinearJob::new(w, &x, 1, DeviceOutput::Bf16(&y), Site(1));
        let bare = &std::cell::RefCell::new(self.gpu.copy_probe(COPY_BYTES)?);
        let each = self.seconds(std::slice::from_ref(&job));
        let ceiling =
            || bare.borrow_mut().bandwidth(self.gpu, self.cpu).expect("the device stays") / 1e9;
        let rate = || {
            let mut copy = bare.borrow_mut();
            let seconds = copy.bytes() as f64 / 50e9;
            let started = std::time::Instant::now();
            // More computing than copying, queued first, so that it outlasts the copy.
            for _ in 0..(2.0 * seconds / each) as usize + 1 {
                self.gpu.linear(std::slice::from_ref(&job)).expect("the device stays");
            }
            copy.queue(self.cpu).and_then(|()| copy.finish()).expect("the device stays");
            copy.bytes() as f64 / started.elapsed().as_secs_f64() / 1e9
        };
        Ok(against(self.spec, "copy from the host while computing", "GB/s", ceiling, rate))
    }
}
