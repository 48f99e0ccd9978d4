//! The operations on an NVIDIA GPU, with the bits of the CPU.
//!
//! The driver is loaded at run time: without one the program works as before. Everything is
//! queued on one stream, in order; only what brings values to the host waits.

mod attention;
mod conv;
mod delta_rule;
mod error;
mod experts;
mod kernels;
mod linear;
mod matrix;
mod memory;
mod mix;
mod norm;
mod probe;
mod product;
mod recording;
mod rope;
mod router;
mod streams;

use std::sync::{Arc, Mutex};

use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::{CudaContext, CudaStream, result, sys};

pub use attention::{DeviceKeyValues, Queries, REACH};
pub use conv::DeviceTaps;
pub use delta_rule::{DeviceDeltaInputs, DeviceGates};
pub use error::GpuError;
pub use experts::{ExpertTable, TokenExperts, TokenShared};
pub use linear::{DeviceOutput, LinearJob};
pub use matrix::{DeviceMatrix, MatrixLayout};
pub use memory::{Buffer, Element, Pinned};
pub use mix::DeviceTerms;
pub use probe::CopyProbe;
pub use recording::Recording;
pub use router::DeviceRouting;
pub use streams::{Copier, Copies, HostLock, Mark};

use kernels::Kernels;

/// How sums are carried where f32 does not suffice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wide {
    /// One f64: cards with half the rate of f32.
    F64,
    /// Two f32: cards whose f64 is slow.
    Pair,
}

impl Wide {
    fn suffix(self) -> &'static str {
        match self {
            Wide::F64 => "f64",
            Wide::Pair => "pair",
        }
    }
}

/// What a device is.
#[derive(Clone, Debug)]
pub struct GpuInfo {
    pub ordinal: usize,
    pub name: String,
    /// Compute capability.
    pub capability: (i32, i32),
    pub multiprocessors: usize,
    pub memory_bytes: usize,
    /// Highest CUDA version that the driver supports, as it says it: 12080 is 12.8.
    pub driver: i32,
    /// Whether memory errors are corrected.
    pub ecc: bool,
}

/// A site of the network, for what is not finite: never 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Site(pub u32);

/// The first value that was not finite.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failed {
    pub site: Site,
    pub at: crate::NonFinite,
}

/// A device that is ready to compute.
pub struct Gpu {
    info: GpuInfo,
    wide: Wide,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    kernels: Kernels,
    /// Site, token, row and an unused word.
    failure: Buffer<u32>,
    recording: Mutex<Option<Recording>>,
    /// Page-locked memory that values come back to.
    readback: Mutex<Option<Pinned>>,
}

/// The PTX needs a driver of this CUDA version.
const NEEDED_DRIVER: (i32, i32) = (11, 8);

impl Gpu {
    /// What the driver supports, and how many devices it sees.
    ///
    /// # Errors
    /// No driver, or one that is too old.
    pub fn driver() -> Result<(i32, usize), GpuError> {
        // SAFETY: opens a library of the system by its name.
        if !unsafe { sys::is_culib_present() } {
            return Err(GpuError::NoDriver);
        }
        let count = CudaContext::device_count().map_err(|error| match error.0 {
            sys::CUresult::CUDA_ERROR_NO_DEVICE => GpuError::NoDevice,
            _ => GpuError::of("looking for devices", error),
        })?;
        let mut version = 0;
        // SAFETY: the driver writes one integer.
        let done = unsafe { sys::cuDriverGetVersion(&mut version) };
        done.result().map_err(|e| GpuError::of("asking for its version", e))?;
        let (found_major, found_minor) = (version / 1000, version % 1000 / 10);
        let (needed_major, needed_minor) = NEEDED_DRIVER;
        if (found_major, found_minor) < NEEDED_DRIVER {
            return Err(GpuError::DriverTooOld {
                found_major,
                found_minor,
                needed_major,
                needed_minor,
            });
        }
        Ok((version, count as usize))
    }

    /// Opens a device; `wide` is chosen by what it is good at unless given.
    ///
    /// # Errors
    /// No driver, no such device, one that is too old, kernels that the driver does not take.
    pub fn open(ordinal: usize, wide: Option<Wide>) -> Result<Gpu, GpuError> {
        let (driver, count) = Gpu::driver()?;
        match count {
            0 => return Err(GpuError::NoDevice),
            _ if ordinal >= count => return Err(GpuError::NoSuchDevice { asked: ordinal, count }),
            _ => {}
        }
        let context = CudaContext::new(ordinal).map_err(|e| GpuError::of("opening it", e))?;
        // SAFETY: one stream orders all work, and the copies beside it have events of their own.
        unsafe { context.disable_event_tracking() };
        let info = GpuInfo::of(&context, driver)?;
        let (major, minor) = info.capability;
        if (major, minor) < kernels::BASE {
            return Err(GpuError::TooOldDevice { name: info.name, major, minor });
        }
        keep_freed_memory(&context)?;
        let wide = wide.unwrap_or_else(|| info.wide(&context));
        let stream = context.new_stream().map_err(|e| GpuError::of("making a stream", e))?;
        let kernels = Kernels::load(&context, wide, info.capability)?;
        let (words, recording) = ([0u32; 4], Mutex::new(None));
        let failure = Buffer::first(&stream, words.len())?;
        let readback = Mutex::new(None);
        let gpu = Gpu { info, wide, context, stream, kernels, failure, recording, readback };
        gpu.write(&words, &gpu.failure, 0)?;
        Ok(gpu)
    }

    pub fn info(&self) -> &GpuInfo {
        &self.info
    }

    /// What carries wide sums.
    pub fn wide(&self) -> Wide {
        self.wide
    }

    /// Waits for all work.
    ///
    /// # Errors
    /// A device that was lost.
    pub fn synchronize(&self) -> Result<(), GpuError> {
        self.stream.synchronize().map_err(|e| GpuError::of("waiting for it", e))
    }

    /// Waits for all work; some values, and the first since the last call that was not finite, if
    /// any.
    ///
    /// # Errors
    /// A device that was lost.
    pub fn finish(&self, values: Option<&Buffer<f32>>) -> Result<Finished, GpuError> {
        let mut readback = self.readback.lock().expect("no thread panics while it holds this");
        let len = values.map_or(0, Buffer::len);
        let bytes = 4 * (self.failure.len() + len);
        if readback.as_ref().is_none_or(|r| r.len() < bytes) {
            *readback = Some(self.pinned(bytes.next_power_of_two())?);
        }
        let memory = readback.as_mut().expect("it was just made").bytes_mut()?;
        let (words, rest) = memory.split_at_mut(4 * self.failure.len());
        self.queue_download(&self.failure, words)?;
        if let Some(values) = values {
            self.queue_download(values, &mut rest[..4 * len])?;
        }
        self.synchronize()?;
        let values = bytemuck::cast_slice(&rest[..4 * len]).to_vec();
        let words: [u32; 4] = bytemuck::pod_read_unaligned(words);
        if words[0] == 0 {
            return Ok(Finished { values, failed: None });
        }
        self.write(&[0; 4], &self.failure, 0)?;
        let at = crate::NonFinite { token: words[1] as usize, row: words[2] as usize };
        Ok(Finished { values, failed: Some(Failed { site: Site(words[0]), at }) })
    }
}

/// Lets memory that is freed stay with the process, to be taken again: given back at every wait, it
/// would cost milliseconds at the next taking.
fn keep_freed_memory(context: &CudaContext) -> Result<(), GpuError> {
    let mut all = u64::MAX;
    let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the pool of a device that is open; the attribute is a 64-bit count, which is read.
    let set = unsafe {
        result::device::get_default_mem_pool(context.cu_device()).and_then(|pool| {
            result::mem_pool::set_attribute(pool, threshold, (&raw mut all).cast())
        })
    };
    set.map_err(|e| GpuError::of("keeping memory", e))
}

/// What was there when all work was done.
pub struct Finished {
    pub values: Vec<f32>,
    /// Where the values are worth nothing.
    pub failed: Option<Failed>,
}

impl GpuInfo {
    fn of(context: &Arc<CudaContext>, driver: i32) -> Result<GpuInfo, GpuError> {
        let asked = |e| GpuError::of("asking what it is", e);
        let attribute = |a| context.attribute(a).map_err(asked);
        Ok(GpuInfo {
            ordinal: context.ordinal(),
            name: context.name().map_err(asked)?,
            capability: context.compute_capability().map_err(asked)?,
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?
                as usize,
            memory_bytes: context.total_mem().map_err(asked)?,
            driver,
            ecc: attribute(Attribute::CU_DEVICE_ATTRIBUTE_ECC_ENABLED)? != 0,
        })
    }

    /// f64 where it runs at half the rate of f32.
    fn wide(&self, context: &Arc<CudaContext>) -> Wide {
        let ratio = Attribute::CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO;
        match context.attribute(ratio) {
            Ok(ratio) if ratio <= 2 => Wide::F64,
            _ => Wide::Pair,
        }
    }
}
