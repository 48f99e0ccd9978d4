//! A session's memory on a GPU, and its way there and back.

use numerics::cuda::{DeviceKeyValues, Gpu, GpuError};
use numerics::op::attention::KeyValues;

use super::super::config::Description;
use super::super::state::{DeltaState, LayerState, State};
use super::delta_net::GpuDeltaState;

/// One layer's memory on a device.
pub(in super::super) enum GpuLayerState {
    Attention(DeviceKeyValues),
    DeltaNet(GpuDeltaState),
}

/// Moves what is on the host to the device.
pub(super) fn to_device(gpu: &Gpu, state: &mut State) -> Result<(), GpuError> {
    for layer in &mut state.layers {
        let moved = match layer {
            LayerState::Attention(cache) => {
                let (k, v) = cache.export();
                let mut moved = DeviceKeyValues::new(gpu, cache.head_count(), cache.head_dim())?;
                if !k.is_empty() {
                    moved.append(gpu, &gpu.upload(&k)?, &gpu.upload(&v)?, &gpu.zeros(1)?)?;
                }
                GpuLayerState::Attention(moved)
            }
            LayerState::DeltaNet(state) => GpuLayerState::DeltaNet(GpuDeltaState {
                history: gpu.upload(&state.history)?,
                memory: gpu.upload(&state.memory)?,
            }),
            LayerState::Gpu(_) => continue,
        };
        *layer = LayerState::Gpu(moved);
    }
    Ok(())
}

/// A copy on the host.
pub(super) fn to_host(gpu: &Gpu, d: &Description, state: &State) -> Result<State, GpuError> {
    let mut copy = State::new(d);
    copy.positions = state.positions;
    for (layer, from) in copy.layers.iter_mut().zip(&state.layers) {
        *layer = match from {
            LayerState::Gpu(GpuLayerState::Attention(cache)) => {
                let (k, v) = cache.export(gpu)?;
                let mut moved = KeyValues::new(d.kv_heads, d.head_dim);
                moved.append(&k, &v);
                LayerState::Attention(moved)
            }
            LayerState::Gpu(GpuLayerState::DeltaNet(state)) => LayerState::DeltaNet(DeltaState {
                history: gpu.download(&state.history)?,
                memory: gpu.download(&state.memory)?,
            }),
            LayerState::Attention(cache) => LayerState::Attention(cache.clone()),
            LayerState::DeltaNet(state) => LayerState::DeltaNet(state.clone()),
        };
    }
    Ok(copy)
}
