//! A state on disk, as a safetensors file: one process can go on where another stopped.

use std::collections::HashMap;
use std::path::Path;

use half::bf16;
use numerics::op::attention::KeyValues;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use super::config::Description;
use super::error::StateError;
use super::network::Model;
use super::state::{LayerState, State};

/// Version of this layout.
const VERSION: &str = "tarfa state 1";

/// A named tensor to write.
struct Part {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl State {
    /// Writes the state of a session on `model`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, model: &Model, path: &Path) -> Result<(), StateError> {
        match model.state_on_host(self)? {
            Some(copy) => copy.write(&model.description, model.fingerprint(), path),
            None => self.write(&model.description, model.fingerprint(), path),
        }
    }

    fn write(&self, d: &Description, fingerprint: &str, path: &Path) -> Result<(), StateError> {
        let mut parts = Vec::new();
        for (i, layer) in self.layers.iter().enumerate() {
            parts.extend(layer_parts(d, i, layer, self.positions));
        }
        let metadata = HashMap::from([
            ("format".to_string(), VERSION.to_string()),
            ("fingerprint".to_string(), fingerprint.to_string()),
            ("positions".to_string(), self.positions.to_string()),
        ]);
        let mut views = Vec::new();
        for p in &parts {
            let view = TensorView::new(p.dtype, p.shape.clone(), &p.bytes);
            views.push((p.name.clone(), view.expect("shapes follow from the description")));
        }
        let bytes = safetensors::serialize(views, Some(metadata))
            .map_err(|source| StateError::Format { path: path.into(), source })?;
        write_whole(path, &bytes).map_err(|source| StateError::Io { path: path.into(), source })
    }

    /// Reads a state that `save` wrote for the same checkpoint.
    ///
    /// # Errors
    /// An unreadable file, another format, another checkpoint, another shape.
    pub fn load(d: &Description, fingerprint: &str, path: &Path) -> Result<State, StateError> {
        let bytes =
            std::fs::read(path).map_err(|source| StateError::Io { path: path.into(), source })?;
        let format = |source| StateError::Format { path: path.into(), source };
        let file = SafeTensors::deserialize(&bytes).map_err(format)?;
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(format)?;
        let metadata = header.metadata().clone().unwrap_or_default();
        let found = |field: &str| metadata.get(field).cloned().unwrap_or_default();
        let reader = Reader { path, file };
        reader.equal("format", found("format"), VERSION.into())?;
        reader.equal("fingerprint", found("fingerprint"), fingerprint.into())?;
        let positions: usize = found("positions")
            .parse()
            .map_err(|_| reader.mismatch("positions", found("positions"), "a number".into()))?;
        let mut state = State::new(d);
        state.positions = positions;
        for (i, layer) in state.layers.iter_mut().enumerate() {
            reader.layer(d, i, layer, positions)?;
        }
        Ok(state)
    }
}

fn layer_parts(d: &Description, i: usize, layer: &LayerState, positions: usize) -> Vec<Part> {
    match layer {
        LayerState::Attention(cache) => {
            let (k, v) = cache.export();
            let shape = vec![positions, d.kv_heads, d.head_dim];
            let part = |name: &str, values: &[bf16]| Part {
                name: format!("layers.{i}.{name}"),
                dtype: Dtype::BF16,
                shape: shape.clone(),
                bytes: bytemuck::cast_slice(values).to_vec(),
            };
            vec![part("k", &k), part("v", &v)]
        }
        LayerState::DeltaNet(state) => vec![
            Part {
                name: format!("layers.{i}.history"),
                dtype: Dtype::BF16,
                shape: vec![state.history.len()],
                bytes: bytemuck::cast_slice(&state.history).to_vec(),
            },
            Part {
                name: format!("layers.{i}.memory"),
                dtype: Dtype::F32,
                shape: vec![state.memory.len()],
                bytes: bytemuck::cast_slice(&state.memory).to_vec(),
            },
        ],
        LayerState::Gpu(_) => unreachable!("a copy on the host is written"),
    }
}

/// Never leaves half a file under the final name.
fn write_whole(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let partial = path.with_extension("partial");
    let file = std::fs::File::create(&partial)?;
    std::io::Write::write_all(&mut &file, bytes)?;
    file.sync_all()?;
    std::fs::rename(&partial, path)
}

struct Reader<'a> {
    path: &'a Path,
    file: SafeTensors<'a>,
}

impl Reader<'_> {
    fn mismatch(&self, field: &str, found: String, expected: String) -> StateError {
        StateError::Mismatch { path: self.path.into(), field: field.into(), found, expected }
    }

    fn equal(&self, field: &str, found: String, expected: String) -> Result<(), StateError> {
        if found == expected { Ok(()) } else { Err(self.mismatch(field, found, expected)) }
    }

    /// The bytes of a tensor of a given type and shape.
    fn tensor(&self, name: &str, dtype: Dtype, shape: &[usize]) -> Result<&[u8], StateError> {
        let view = self
            .file
            .tensor(name)
            .map_err(|source| StateError::Format { path: self.path.into(), source })?;
        let found = format!("{:?} {:?}", view.dtype(), view.shape());
        self.equal(name, found, format!("{dtype:?} {shape:?}"))?;
        Ok(view.data())
    }

    fn layer(
        &self,
        d: &Description,
        i: usize,
        layer: &mut LayerState,
        positions: usize,
    ) -> Result<(), StateError> {
        match layer {
            LayerState::Attention(cache) => {
                let shape = [positions, d.kv_heads, d.head_dim];
                let read = |name: &str| {
                    let bytes = self.tensor(&format!("layers.{i}.{name}"), Dtype::BF16, &shape)?;
                    Ok::<Vec<bf16>, StateError>(bytemuck::pod_collect_to_vec(bytes))
                };
                *cache = KeyValues::new(d.kv_heads, d.head_dim);
                cache.append(&read("k")?, &read("v")?);
            }
            LayerState::DeltaNet(state) => {
                let history = format!("layers.{i}.history");
                let bytes = self.tensor(&history, Dtype::BF16, &[state.history.len()])?;
                state.history = bytemuck::pod_collect_to_vec(bytes);
                let memory = format!("layers.{i}.memory");
                let bytes = self.tensor(&memory, Dtype::F32, &[state.memory.len()])?;
                state.memory = bytemuck::pod_collect_to_vec(bytes);
            }
            LayerState::Gpu(_) => unreachable!("a new state is on the host"),
        }
        Ok(())
    }
}
