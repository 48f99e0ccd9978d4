//! Ways to compute, of which none may change a bit.

use anyhow::Result;
use engine::model::Model;
use numerics::{Cpu, SimdLevel};
use store::checkpoint::Checkpoint;

const LEVELS: [SimdLevel; 3] = [SimdLevel::Scalar, SimdLevel::Avx2, SimdLevel::Avx512];
const THREADS: [usize; 3] = [1, 2, 4];
/// Chunk sizes beside the whole prompt, each at one thread count.
const CHUNKS: [usize; 2] = [1, 64];
const CHUNK_THREADS: usize = 2;
/// The whole prompt in one piece.
const WHOLE: usize = usize::MAX;

/// Where the work is done.
#[derive(Clone, Copy)]
pub enum Device {
    Cpu { level: SimdLevel, threads: usize },
}

/// A device and how it gets a prompt: one row of the table.
#[derive(Clone, Copy)]
pub struct Lane {
    pub device: Device,
    pub chunk: usize,
}

impl Device {
    /// The first column.
    pub fn name(self) -> &'static str {
        match self {
            Device::Cpu { .. } => "cpu",
        }
    }
}

impl Lane {
    /// The second column.
    pub fn path(&self) -> String {
        let Device::Cpu { level, threads } = self.device;
        let chunk = match self.chunk {
            WHOLE => "all".to_string(),
            chunk => chunk.to_string(),
        };
        format!("{:<6}  threads {threads}  chunk {chunk}", level.name())
    }

    /// The model on this device; `None` if this machine has no such device.
    ///
    /// # Errors
    /// The model cannot be loaded though the device is there.
    pub fn open(&self, checkpoint: &Checkpoint) -> Result<Option<Model>> {
        let Device::Cpu { level, threads } = self.device;
        if !SimdLevel::available().contains(&level) {
            return Ok(None);
        }
        Ok(Some(Model::load(checkpoint, Cpu::new(level, threads)?)?))
    }
}

/// Every lane, or one for each level.
pub fn lanes(quick: bool) -> Vec<Lane> {
    let mut lanes = Vec::new();
    for level in LEVELS {
        let lane = |threads, chunk| Lane { device: Device::Cpu { level, threads }, chunk };
        if quick {
            lanes.push(lane(CHUNK_THREADS, CHUNKS[1]));
            continue;
        }
        lanes.extend(THREADS.map(|threads| lane(threads, WHOLE)));
        lanes.extend(CHUNKS.map(|chunk| lane(CHUNK_THREADS, chunk)));
    }
    lanes
}
