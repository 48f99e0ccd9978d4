//! Launches that are noted as they are queued, to be queued again as one.

use std::sync::Arc;

use cudarc::driver::CudaGraph;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};

use super::kernels::{Arg, Grid};
use super::memory::Memory;
use super::{Gpu, GpuError};

/// What was queued while `Gpu::record` ran: the same kernels on the same memory.
#[derive(Default)]
pub struct Recording {
    launches: Vec<Launch>,
    /// Memory that was taken meanwhile.
    kept: Vec<Arc<Memory>>,
    graph: Option<Graph>,
}

struct Launch {
    name: &'static str,
    grid: Grid,
    args: Vec<Arg>,
}

struct Graph(CudaGraph);

// SAFETY: the driver lets any thread use a graph whose context it has bound, one at a time; it is
// used behind a reference to the recording only by `replay`, which queues on the one stream.
unsafe impl Send for Graph {}
// SAFETY: as above.
unsafe impl Sync for Graph {}

impl Recording {
    /// How many kernels there are.
    pub fn len(&self) -> usize {
        self.launches.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.launches.is_empty()
    }

    /// Whether the driver takes them as one.
    pub fn is_graph(&self) -> bool {
        self.graph.is_some()
    }
}

impl Gpu {
    /// Runs `body`, and notes the kernels that it queues. Values that it copies must stay what
    /// they are: copies are not noted.
    ///
    /// # Errors
    /// Those of `body`.
    pub fn record<T, E: From<GpuError>>(
        &self,
        body: impl FnOnce() -> Result<T, E>,
    ) -> Result<(T, Recording), E> {
        let hold = || self.recording.lock().expect("no thread panics while it holds this");
        *hold() = Some(Recording::default());
        let done = body();
        let recording = hold().take().unwrap_or_default();
        let mut recording = (done?, recording);
        recording.1.graph = self.graph(&recording.1)?;
        Ok(recording)
    }

    /// Queues everything again.
    ///
    /// # Errors
    /// A device that was lost.
    pub fn replay(&self, recording: &Recording) -> Result<(), GpuError> {
        match &recording.graph {
            Some(graph) => graph.0.launch().map_err(|e| GpuError::of("launching a graph", e)),
            None => self.queue_again(recording),
        }
    }

    fn queue_again(&self, recording: &Recording) -> Result<(), GpuError> {
        for launch in &recording.launches {
            // SAFETY: they were right the first time, and `kept` holds their memory.
            unsafe { self.launch(launch.name, launch.grid, &launch.args)? };
        }
        Ok(())
    }

    /// `None` where the driver has no graphs.
    fn graph(&self, recording: &Recording) -> Result<Option<Graph>, GpuError> {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        if self.stream.begin_capture(mode).is_err() {
            return Ok(None);
        }
        let queued = self.queue_again(recording);
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = self.stream.end_capture(flags);
        queued?;
        let graph = graph.map_err(|e| GpuError::of("making a graph", e))?;
        Ok(graph.map(Graph))
    }

    /// Notes a launch if somebody records.
    pub(super) fn note(&self, name: &'static str, grid: Grid, args: &[Arg]) {
        let mut recording = self.recording.lock().expect("no thread panics while it holds this");
        if let Some(recording) = recording.as_mut() {
            recording.launches.push(Launch { name, grid, args: args.to_vec() });
        }
    }

    /// Keeps memory for as long as what is recorded.
    pub(super) fn keep(&self, memory: &Arc<Memory>) {
        let mut recording = self.recording.lock().expect("no thread panics while it holds this");
        if let Some(recording) = recording.as_mut() {
            recording.kept.push(memory.clone());
        }
    }
}
