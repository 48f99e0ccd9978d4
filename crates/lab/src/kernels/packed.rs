//! Packed projections: the codec, and the product that reads them in place.

use std::time::Instant;

use numerics::op::linear::{Elements, Job, Matrix, Output, PackedRows, Prepared, linear};
use numerics::{Cpu, bf16};
use store::pack::{Packed, encode};

use super::{KernelRow, KernelSpec, against, bandwidth, fill};

/// Bytes of bf16 in each projection, about those of an expert.
const PROJECTION_BYTES: usize = 12 << 20;

/// A projection in memory that the kernels can read in place.
pub(super) struct Projection {
    pub(super) rows: usize,
    cols: usize,
    bases: Vec<u8>,
    groups: Vec<u16>,
    escape_places: Vec<u32>,
    escape_values: Vec<bf16>,
}

impl Projection {
    fn new(rows: usize, cols: usize, weights: &[bf16]) -> Projection {
        let block = encode(rows, cols, bytemuck::cast_slice(weights)).expect("smaller when packed");
        let packed = Packed::parse(&block).expect("what was just written");
        Projection {
            rows,
            cols,
            bases: packed.bases().to_vec(),
            groups: bytemuck::pod_collect_to_vec(packed.groups()),
            escape_places: bytemuck::pod_collect_to_vec(packed.escape_places()),
            escape_values: bytemuck::pod_collect_to_vec(packed.escape_values()),
        }
    }

    pub(super) fn matrix(&self) -> Matrix<'_> {
        Matrix::new(self.rows, self.cols, Elements::Packed(self.packed()))
    }

    fn packed(&self) -> PackedRows<'_> {
        PackedRows {
            rows: self.rows,
            cols: self.cols,
            bases: &self.bases,
            groups: &self.groups,
            escape_places: &self.escape_places,
            escape_values: &self.escape_values,
        }
    }
}

/// The matrix cut into projections of the size of experts.
fn projections<'a>(spec: &KernelSpec, w: &'a [bf16]) -> Vec<(usize, &'a [bf16])> {
    let rows = (PROJECTION_BYTES / 2 / spec.k).max(1);
    w.chunks(rows * spec.k).map(|part| (part.len() / spec.k, part)).collect()
}

/// The matrix as packed projections.
pub(super) fn encoded(cpu: &Cpu, spec: &KernelSpec, w: &[bf16]) -> Vec<Projection> {
    let parts = projections(spec, w);
    let mut built: Vec<Option<Projection>> = parts.iter().map(|_| None).collect();
    let mut slots: Vec<_> = built.iter_mut().zip(&parts).collect();
    cpu.each_mut(&mut slots, |(slot, (rows, part))| {
        **slot = Some(Projection::new(*rows, spec.k, part));
    });
    built.into_iter().flatten().collect()
}

/// Encodes, unpacks and multiplies; rates are those of the bf16 that the packed bytes stand for.
pub(super) fn measure(cpu: &Cpu, spec: &KernelSpec, w: &[bf16], mut push: impl FnMut(KernelRow)) {
    let parts = projections(spec, w);
    let one = Cpu::new(cpu.level(), 1).expect("a level of this machine");
    let built = encoded(cpu, spec, w);
    let few = &built[..built.len().min(16)];
    let few_bytes = 2.0 * few.iter().map(|p| (p.rows * p.cols) as f64).sum::<f64>();
    let read_one = || bandwidth(&one, &w[..w.len().min(few_bytes as usize / 2)]);
    push(against(spec, "encode, one core", "GB/s", read_one, || {
        let started = Instant::now();
        for (rows, part) in &parts[..few.len()] {
            std::hint::black_box(encode(*rows, spec.k, bytemuck::cast_slice(part)));
        }
        few_bytes / started.elapsed().as_secs_f64() / 1e9
    }));
    let mut rows = vec![bf16::ZERO; (128 << 10) / 2 / spec.k * spec.k];
    push(against(spec, "unpack, one core", "GB/s", read_one, || {
        few_bytes / unpack(&one, few, &mut rows) / 1e9
    }));
    let product = || 2.0 * w.len() as f64 / matvec(cpu, spec.k, &built) / 1e9;
    push(against(spec, "matvec packed", "GB/s", || bandwidth(cpu, w), product));
}

/// Seconds to unpack some projections, a few rows at a time into the same memory.
fn unpack(cpu: &Cpu, from: &[Projection], rows: &mut [bf16]) -> f64 {
    let started = Instant::now();
    for p in from {
        let together = rows.len() / p.cols;
        for first in (0..p.rows).step_by(together) {
            let some = first..(first + together).min(p.rows);
            let len = some.len() * p.cols;
            p.packed().unpack(cpu, some, &mut rows[..len]);
        }
    }
    started.elapsed().as_secs_f64()
}

/// Seconds of one product of all projections with one token, to bf16.
fn matvec(cpu: &Cpu, k: usize, projections: &[Projection]) -> f64 {
    let mut x = vec![bf16::ZERO; k];
    fill(77, &mut x);
    let mut out = vec![bf16::ZERO; projections.iter().map(|p| p.rows).sum()];
    let started = Instant::now();
    cpu.enter(|| {
        let input = &Prepared::new(cpu, x, k);
        let mut rest = out.as_mut_slice();
        let mut jobs = Vec::new();
        for p in projections {
            let (output, others) = std::mem::take(&mut rest).split_at_mut(p.rows);
            rest = others;
            jobs.push(Job {
                weights: p.matrix(),
                input,
                tokens: None,
                output: Output::Bf16(output),
            });
        }
        linear(cpu, &mut jobs).expect("finite weights");
    });
    started.elapsed().as_secs_f64()
}
