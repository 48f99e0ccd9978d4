//! Memory of a GPU, and memory of the host that the GPU can read.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DriverError, PinnedHostSlice, result};
use half::bf16;

use super::{Gpu, GpuError};

/// What buffers hold: plain values that are the same on both sides.
pub trait Element: Pod {}

impl Element for u8 {}
impl Element for u32 {}
impl Element for u64 {}
impl Element for f32 {}
impl Element for bf16 {}

/// A piece of device memory; freed in the order of the stream, when nobody holds it any more.
pub(super) struct Memory {
    _slice: CudaSlice<u8>,
}

/// Values in the memory of a GPU. Freed in the order of the stream: work that was queued before
/// still has it.
pub struct Buffer<T> {
    pub(super) memory: Arc<Memory>,
    address: u64,
    len: usize,
    values: PhantomData<T>,
}

impl<T> Buffer<T> {
    /// Memory of a stream before there is a `Gpu`.
    pub(super) fn first(stream: &Arc<CudaStream>, len: usize) -> Result<Buffer<T>, GpuError> {
        let bytes = (len * size_of::<T>()).max(1);
        // SAFETY: any bits are values of T, and every operation writes its output whole.
        let slice = unsafe { stream.alloc::<u8>(bytes) };
        let slice = slice.map_err(|e| GpuError::of("taking memory", e))?;
        Ok(Buffer::over(slice, stream, len))
    }

    fn over(slice: CudaSlice<u8>, stream: &Arc<CudaStream>, len: usize) -> Buffer<T> {
        let address = slice.device_ptr(stream).0;
        let memory = Arc::new(Memory { _slice: slice });
        Buffer { memory, address, len, values: PhantomData }
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it starts.
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// The same memory from value `at` on, as other values.
    ///
    /// # Panics
    /// If they are not all inside.
    pub fn part<U>(&self, at: usize, len: usize) -> Buffer<U> {
        let first = at * size_of::<T>();
        assert!(first + len * size_of::<U>() <= self.len * size_of::<T>(), "inside the buffer");
        let (memory, address) = (self.memory.clone(), self.address + first as u64);
        Buffer { memory, address, len, values: PhantomData }
    }
}

/// Page-locked memory of the host: copies from it run beside the host.
pub struct Pinned {
    slice: PinnedHostSlice<u8>,
}

impl Pinned {
    /// How many bytes there are.
    pub(super) fn len(&self) -> usize {
        self.slice.len()
    }

    /// The bytes, once no copy reads them any more.
    ///
    /// # Errors
    /// The device was lost.
    pub fn bytes_mut(&mut self) -> Result<&mut [u8], GpuError> {
        self.slice.as_mut_slice().map_err(|e| GpuError::of("waiting for a copy", e))
    }
}

impl Gpu {
    /// Room for values that are not there yet.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn room<T: Element>(&self, len: usize) -> Result<Buffer<T>, GpuError> {
        let bytes = (len * size_of::<T>()).max(1);
        // SAFETY: any bits are values of T, and every operation writes its output whole.
        let slice = unsafe { self.stream.alloc::<u8>(bytes) };
        let slice = slice.map_err(|e| self.no_room(bytes, e))?;
        let buffer = Buffer::over(slice, &self.stream, len);
        self.keep(&buffer.memory);
        Ok(buffer)
    }

    /// Zeros.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn zeros<T: Element>(&self, len: usize) -> Result<Buffer<T>, GpuError> {
        let buffer = self.room(len)?;
        self.clear(&buffer)?;
        Ok(buffer)
    }

    /// Overwrites all of a buffer with zeros.
    ///
    /// # Errors
    /// A device that was lost.
    pub fn clear<T: Element>(&self, buffer: &Buffer<T>) -> Result<(), GpuError> {
        let bytes = buffer.len * size_of::<T>();
        // SAFETY: all of the buffer, which outlives what is queued.
        self.queue("clearing memory", bytes, || unsafe {
            result::memset_d8_async(buffer.address, 0, bytes, self.stream.cu_stream())
        })
    }

    /// Values of the host.
    ///
    /// # Errors
    /// Not enough memory; a device that was lost.
    pub fn upload<T: Element>(&self, from: &[T]) -> Result<Buffer<T>, GpuError> {
        let buffer = self.room(from.len())?;
        self.write(from, &buffer, 0)?;
        Ok(buffer)
    }

    /// Overwrites some values from `at` on, in the order of the stream.
    ///
    /// # Errors
    /// A device that was lost.
    pub fn write<T: Element>(
        &self,
        from: &[T],
        into: &Buffer<T>,
        at: usize,
    ) -> Result<(), GpuError> {
        assert!(at + from.len() <= into.len, "inside the buffer");
        let address = into.address + (at * size_of::<T>()) as u64;
        // SAFETY: inside the buffer, which outlives what is queued; memory that is not page-locked
        // has been read when the call returns.
        self.queue("copying to it", from.len(), || unsafe {
            result::memcpy_htod_async(address, from, self.stream.cu_stream())
        })
    }

    /// Values to the host; waits for all work before.
    ///
    /// # Errors
    /// A device that was lost.
    pub fn download<T: Element>(&self, from: &Buffer<T>) -> Result<Vec<T>, GpuError> {
        self.download_part(from, 0..from.len)
    }

    /// Some values to the host; waits for all work before.
    ///
    /// # Errors
    /// A device that was lost.
    pub fn download_part<T: Element>(
        &self,
        from: &Buffer<T>,
        range: Range<usize>,
    ) -> Result<Vec<T>, GpuError> {
        assert!(range.end <= from.len, "inside the buffer");
        let mut out = vec![T::zeroed(); range.len()];
        let address = from.address + (range.start * size_of::<T>()) as u64;
        // SAFETY: inside the buffer, and `out` is as long; nobody reads it before the wait below.
        self.queue("copying from it", range.len(), || unsafe {
            result::memcpy_dtoh_async(&mut out, address, self.stream.cu_stream())
        })?;
        self.synchronize()?;
        Ok(out)
    }

    /// Queues a copy to the host, which is to be read after `synchronize` only.
    pub(super) fn queue_download<T: Element>(
        &self,
        from: &Buffer<T>,
        into: &mut [u8],
    ) -> Result<(), GpuError> {
        assert_eq!(into.len(), from.len * size_of::<T>(), "all of the buffer");
        // SAFETY: `into` is as long as the buffer, and the callers wait before it goes.
        self.queue("copying from it", into.len(), || unsafe {
            result::memcpy_dtoh_async(into, from.address, self.stream.cu_stream())
        })
    }

    /// Copies values on the device.
    ///
    /// # Errors
    /// A device that was lost.
    pub fn copy<T: Element>(
        &self,
        from: &Buffer<T>,
        range: Range<usize>,
        into: &Buffer<T>,
        at: usize,
    ) -> Result<(), GpuError> {
        assert!(range.end <= from.len && at + range.len() <= into.len, "inside the buffers");
        let address = |b: &Buffer<T>, i: usize| b.address + (i * size_of::<T>()) as u64;
        let (source, target) = (address(from, range.start), address(into, at));
        let bytes = range.len() * size_of::<T>();
        // SAFETY: inside both buffers, which outlive what is queued.
        self.queue("copying on it", bytes, || unsafe {
            result::memcpy_dtod_async(target, source, bytes, self.stream.cu_stream())
        })
    }

    /// Calls the driver unless there is nothing to do.
    fn queue(
        &self,
        doing: &'static str,
        count: usize,
        call: impl FnOnce() -> Result<(), DriverError>,
    ) -> Result<(), GpuError> {
        if count == 0 {
            return Ok(());
        }
        self.context.bind_to_thread().and_then(|()| call()).map_err(|e| GpuError::of(doing, e))
    }

    /// A copy of a buffer.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn duplicate<T: Element>(&self, from: &Buffer<T>) -> Result<Buffer<T>, GpuError> {
        let copy = self.room(from.len)?;
        self.copy(from, 0..from.len, &copy, 0)?;
        Ok(copy)
    }

    /// Page-locked memory of the host.
    ///
    /// # Errors
    /// The system does not let so much be locked.
    pub fn pinned(&self, bytes: usize) -> Result<Pinned, GpuError> {
        // Plain pages, not write-combined ones: the host may read what it wrote.
        // SAFETY: any bits are bytes; who reads them has written them.
        let slice = unsafe { self.context.alloc_pinned_with_flags::<u8>(bytes.max(1), 0) };
        Ok(Pinned { slice: slice.map_err(|e| GpuError::of("locking memory of the host", e))? })
    }

    /// Bytes free and in all.
    ///
    /// # Errors
    /// A device that was lost.
    pub fn memory(&self) -> Result<(usize, usize), GpuError> {
        self.context.mem_get_info().map_err(|e| GpuError::of("asking for its memory", e))
    }

    fn no_room(&self, asked_bytes: usize, error: DriverError) -> GpuError {
        match (error.0, self.memory()) {
            (CUresult::CUDA_ERROR_OUT_OF_MEMORY, Ok((free_bytes, total_bytes))) => {
                GpuError::OutOfMemory { asked_bytes, free_bytes, total_bytes }
            }
            _ => GpuError::of("taking memory", error),
        }
    }
}
