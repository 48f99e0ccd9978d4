//! Full attention on a GPU: as model/attention.rs.

use half::bf16;
use numerics::cuda::{Buffer, DeviceKeyValues, Gpu, GpuError, Queries, Site};

use super::super::attention::Attention;
use super::super::config::Description;
use super::inputs::Inputs;
use super::rows::{Projection, Uploader};

/// The weights of an attention layer.
pub(super) struct GpuAttention {
    q_proj: Projection,
    k_proj: Projection,
    v_proj: Projection,
    o_proj: Projection,
    q_norm: Buffer<f32>,
    k_norm: Buffer<f32>,
    sites: [Site; 3],
}

impl GpuAttention {
    pub(super) fn upload(from: &Attention, up: &mut Uploader<'_>) -> Result<Self, GpuError> {
        Ok(GpuAttention {
            q_proj: up.projection(&from.q_proj)?,
            k_proj: up.projection(&from.k_proj)?,
            v_proj: up.projection(&from.v_proj)?,
            o_proj: up.projection(&from.o_proj)?,
            q_norm: up.vector(&from.q_norm)?,
            k_norm: up.vector(&from.k_norm)?,
            sites: ["q_norm", "k_norm", "attention"].map(|part| up.part(part)),
        })
    }

    /// x `[tokens, hidden]` to `[tokens, hidden]`; the cache grows by the chunk.
    pub(super) fn forward(
        &self,
        gpu: &Gpu,
        d: &Description,
        inputs: &Inputs,
        cache: &mut DeviceKeyValues,
        x: &Buffer<bf16>,
    ) -> Result<Buffer<bf16>, GpuError> {
        let tokens = x.len() / d.hidden;
        let q = self.q_proj.room(gpu, tokens)?;
        let (k, v) = (self.k_proj.room(gpu, tokens)?, self.v_proj.room(gpu, tokens)?);
        gpu.linear(&[
            self.q_proj.job(x, tokens, &q),
            self.k_proj.job(x, tokens, &k),
            self.v_proj.job(x, tokens, &v),
        ])?;
        let (q, gate) = match d.output_gate {
            true => gpu.split_heads(&q, d.heads, d.head_dim).map(|(q, gate)| (q, Some(gate)))?,
            false => (q, None),
        };
        let [q_site, k_site, site] = self.sites;
        let q = gpu.rms_norm(&q, &self.q_norm, d.eps, q_site)?;
        let k = gpu.rms_norm(&k, &self.k_norm, d.eps, k_site)?;
        gpu.rotate(&q, d.heads, d.head_dim, &inputs.cosines, &inputs.sines)?;
        gpu.rotate(&k, d.kv_heads, d.head_dim, &inputs.cosines, &inputs.sines)?;
        let position = &inputs.position;
        cache.append(gpu, &k, &v, position)?;
        let scale = (d.head_dim as f64).powf(-0.5) as f32;
        let (q, gate) = (&q, gate.as_ref());
        let out = cache.attend(gpu, &Queries { q, gate, heads: d.heads, position, scale, site })?;
        self.o_proj.run(gpu, &out, tokens)
    }

    pub(super) fn bytes(&self) -> u64 {
        let all = [&self.q_proj, &self.k_proj, &self.v_proj, &self.o_proj];
        all.map(|p| p.matrix.bytes()).iter().sum()
    }
}
