//! Ceilings of a GPU, measured as the kernels are.

use std::sync::Arc;
use std::time::Instant;

use super::kernels::{Grid, args};
use super::{Buffer, Copies, Gpu, GpuError};
use crate::Cpu;

/// Rounds of `probe_tensor`.
const ROUNDS: usize = 4096;
/// Blocks of both probes for each multiprocessor.
const BLOCKS: usize = 8;

/// Locked memory of the host and a place for it on the device; in this order they go.
pub struct CopyProbe {
    copies: Copies,
    into: Buffer<u8>,
    memory: Arc<Vec<u8>>,
}

impl CopyProbe {
    /// Queues one copy.
    ///
    /// # Errors
    /// A device that was lost.
    pub fn queue(&mut self, cpu: &Cpu) -> Result<(), GpuError> {
        let (memory, into) = (self.memory.clone(), &self.into);
        self.copies.keep(cpu, memory, |m: &Arc<Vec<u8>>, copier| copier.write(m, into, 0))
    }

    /// Waits for what was queued.
    ///
    /// # Errors
    /// A device that was lost.
    pub fn finish(&mut self) -> Result<(), GpuError> {
        self.copies.finish().map(drop)
    }

    /// Bytes a second of one copy and nothing else.
    ///
    /// # Errors
    /// A device that was lost.
    pub fn bandwidth(&mut self, gpu: &Gpu, cpu: &Cpu) -> Result<f64, GpuError> {
        gpu.synchronize()?;
        let started = Instant::now();
        self.queue(cpu)?;
        self.finish()?;
        Ok(self.memory.len() as f64 / started.elapsed().as_secs_f64())
    }

    /// Bytes of one copy.
    pub fn bytes(&self) -> usize {
        self.memory.len()
    }
}

impl Gpu {
    /// Bytes a second of reading a buffer once with all threads and nothing else.
    ///
    /// # Errors
    /// A device that was lost.
    pub fn read_bandwidth(&self, memory: &Buffer<u8>) -> Result<f64, GpuError> {
        let out = self.zeros::<u32>(1)?;
        let grid = Grid::line(self.info.multiprocessors * BLOCKS, 256);
        let chunks = super::kernels::Arg::Address((memory.len() / 16) as u64);
        let seconds = self.seconds(|| {
            let args = args![memory, chunks, &out];
            // SAFETY: reads whole pieces of 16 bytes of the buffer.
            unsafe { self.launch("probe_read", grid, args) }
        })?;
        Ok(memory.len() as f64 / seconds)
    }

    /// Operations a second of bf16 tensor cores as the products use them.
    ///
    /// # Errors
    /// A device that was lost.
    pub fn tensor_peak(&self) -> Result<f64, GpuError> {
        let out = self.zeros::<f32>(1)?;
        let blocks = self.info.multiprocessors * BLOCKS;
        // SAFETY: writes one value at most.
        let seconds = self.seconds(|| unsafe {
            self.launch("probe_tensor", Grid::line(blocks, 256), args![ROUNDS, &out])
        })?;
        let products = (blocks * 8 * ROUNDS * 8) as f64;
        Ok(products * 2.0 * (16 * 8 * 16) as f64 / seconds)
    }

    /// What copies `bytes` of locked memory of the host again and again.
    ///
    /// # Errors
    /// Not enough memory; memory that cannot be locked.
    pub fn copy_probe(&self, bytes: usize) -> Result<CopyProbe, GpuError> {
        let memory = Arc::new(vec![1u8; bytes]);
        let first = memory.as_ptr() as usize;
        let mut copies = self.copies()?;
        copies.add_lock(self.lock_host(first..first + bytes)?);
        Ok(CopyProbe { copies, into: self.room(bytes)?, memory })
    }

    /// Seconds of what `queue` queues, the second time.
    ///
    /// # Errors
    /// A device that was lost.
    pub fn seconds(
        &self,
        mut queue: impl FnMut() -> Result<(), GpuError>,
    ) -> Result<f64, GpuError> {
        queue()?;
        self.synchronize()?;
        let started = Instant::now();
        queue()?;
        self.synchronize()?;
        Ok(started.elapsed().as_secs_f64())
    }
}
