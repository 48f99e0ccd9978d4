//! The gated delta net on a GPU: as model/delta_net.rs.

use half::bf16;
use numerics::cuda::{Buffer, DeviceDeltaInputs, DeviceGates, DeviceTaps, Gpu, GpuError, Site};

use super::super::config::{DeltaNet, Description};
use super::super::delta_net::DeltaNetLayer;
use super::rows::{Projection, Uploader};

/// The weights of a delta-net layer.
pub(super) struct GpuDeltaNet {
    net: DeltaNet,
    qkv: Projection,
    z: Projection,
    b: Projection,
    a: Projection,
    taps: DeviceTaps,
    gates: DeviceGates,
    norm: Buffer<f32>,
    out: Projection,
    sites: [Site; 4],
}

/// A delta-net layer's memory, as in model/state.rs.
pub(in super::super) struct GpuDeltaState {
    pub(super) history: Buffer<bf16>,
    pub(super) memory: Buffer<f32>,
}

impl GpuDeltaNet {
    pub(super) fn upload(from: &DeltaNetLayer, up: &mut Uploader<'_>) -> Result<Self, GpuError> {
        let sites = ["convolution", "delta net q, k", "delta rule", "gated norm"];
        Ok(GpuDeltaNet {
            net: from.net,
            qkv: up.projection(&from.qkv)?,
            z: up.projection(&from.z)?,
            b: up.projection(&from.b)?,
            a: up.projection(&from.a)?,
            taps: DeviceTaps::upload(up.gpu, &from.taps)?,
            gates: DeviceGates {
                a_log: up.vector(&from.a_log)?,
                dt_bias: up.vector(&from.dt_bias)?,
            },
            norm: up.vector(&from.norm)?,
            out: up.projection(&from.out)?,
            sites: sites.map(|part| up.part(part)),
        })
    }

    /// x `[tokens, hidden]` to `[tokens, hidden]`; the state advances by the chunk.
    pub(super) fn forward(
        &self,
        gpu: &Gpu,
        d: &Description,
        state: &mut GpuDeltaState,
        x: &Buffer<bf16>,
    ) -> Result<Buffer<bf16>, GpuError> {
        let tokens = x.len() / d.hidden;
        let (mixed, z) = (self.qkv.room(gpu, tokens)?, self.z.room(gpu, tokens)?);
        let (b, a) = (self.b.room(gpu, tokens)?, self.a.room(gpu, tokens)?);
        gpu.linear(&[
            self.qkv.job(x, tokens, &mixed),
            self.z.job(x, tokens, &z),
            self.b.job(x, tokens, &b),
            self.a.job(x, tokens, &a),
        ])?;
        let [conv, heads, rule, norm] = self.sites;
        let mixed = self.taps.convolve(gpu, &mixed, &state.history, conv)?;
        let (mixed, a, b) = (&mixed, &a, &b);
        let inputs = DeviceDeltaInputs { mixed, a, b, heads_site: heads, rule_site: rule };
        let o = gpu.delta_rule(self.net.shape, &self.gates, &inputs, &state.memory)?;
        let y = gpu.gated_norm(&o, &z, &self.norm, d.eps, self.net.shape.value_heads, norm)?;
        self.out.run(gpu, &y, tokens)
    }

    pub(super) fn bytes(&self) -> u64 {
        let all = [&self.qkv, &self.z, &self.b, &self.a, &self.out];
        all.map(|p| p.matrix.bytes()).iter().sum()
    }
}
