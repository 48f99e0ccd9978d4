//! Copies to a GPU beside its computing: a second stream, and page-locked memory to copy from.

use std::any::Any;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, result, sys};

use super::memory::Pinned;
use super::{Buffer, Gpu, GpuError};
use crate::Cpu;

/// A point in the order of the computing.
pub struct Mark(CudaEvent);

/// The stream of copies. What is copied is kept until the device has read it.
pub struct Copies {
    stream: Arc<CudaStream>,
    pending: VecDeque<(CudaEvent, Box<dyn Any + Send>)>,
    ring: Ring,
    locked: Vec<HostLock>,
    /// Whether there are copies that the computing does not wait for yet.
    ahead: bool,
    /// When the copies since `finish` began, and their bytes.
    begun: Option<(CudaEvent, u64)>,
}

/// Page-locked memory that bytes pass through which lie elsewhere.
struct Ring {
    parts: Vec<RingPart>,
    next: usize,
}

struct RingPart {
    memory: Pinned,
    /// Until then the device reads it.
    busy: Option<CudaEvent>,
}

/// An event that knows when it was.
const TIMED: Option<sys::CUevent_flags> = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
const RING_PARTS: usize = 4;
const RING_PART_BYTES: usize = 8 << 20;
/// What a thread copies at a time.
const PIECE_BYTES: usize = 512 << 10;

/// Memory of the host that was locked where it lies.
pub struct HostLock {
    context: Arc<CudaContext>,
    range: Range<usize>,
}

impl Drop for HostLock {
    fn drop(&mut self) {
        // SAFETY: registered once, by `lock_host`. An error changes nothing any more.
        let _ = self.context.bind_to_thread().and_then(|()| unsafe {
            sys::cuMemHostUnregister(self.range.start as *mut _).result()
        });
    }
}

fn failed(error: DriverError) -> GpuError {
    GpuError::of("copying to it", error)
}

impl Gpu {
    /// A stream of copies.
    ///
    /// # Errors
    /// The system does not let memory be locked.
    pub fn copies(&self) -> Result<Copies, GpuError> {
        let stream = self.context.new_stream().map_err(failed)?;
        let part = |_| Ok(RingPart { memory: self.pinned(RING_PART_BYTES)?, busy: None });
        let parts = (0..RING_PARTS).map(part).collect::<Result<_, GpuError>>()?;
        let ring = Ring { parts, next: 0 };
        let (pending, locked) = (VecDeque::new(), Vec::new());
        Ok(Copies { stream, pending, ring, locked, ahead: false, begun: None })
    }

    /// Locks memory of this process, at an address, so that the device reads it by itself. It has
    /// to stay mapped for as long.
    ///
    /// # Errors
    /// The system does not let it be locked.
    pub fn lock_host(&self, range: Range<usize>) -> Result<HostLock, GpuError> {
        let refused = |e| GpuError::of("locking memory of the host", e);
        self.context.bind_to_thread().map_err(refused)?;
        // SAFETY: pins pages; the driver refuses what is not mapped.
        let done =
            unsafe { sys::cuMemHostRegister_v2(range.start as *mut _, range.len(), 0).result() };
        done.map_err(refused)?;
        Ok(HostLock { context: self.context.clone(), range })
    }

    /// What is queued by now.
    ///
    /// # Errors
    /// A device that was lost.
    pub fn mark(&self) -> Result<Mark, GpuError> {
        let event = self.stream.record_event(None);
        event.map(Mark).map_err(|e| GpuError::of("queueing", e))
    }
}

impl Copies {
    /// Copies from locked memory go straight.
    pub fn add_lock(&mut self, lock: HostLock) {
        self.locked.push(lock);
    }

    /// Copies from here on come after what is marked.
    ///
    /// # Errors
    /// A device that was lost.
    pub fn after(&mut self, mark: &Mark) -> Result<(), GpuError> {
        self.stream.wait(&mark.0).map_err(failed)
    }

    /// What the computing queues from here on comes after all copies.
    ///
    /// # Errors
    /// A device that was lost.
    pub fn join(&mut self, gpu: &Gpu) -> Result<(), GpuError> {
        if std::mem::take(&mut self.ahead) {
            let event = self.stream.record_event(None).map_err(failed)?;
            gpu.stream.wait(&event).map_err(failed)?;
        }
        Ok(())
    }

    /// Waits for all copies; how many bytes they were since the last call, and how long they took
    /// from the first one's beginning on.
    ///
    /// # Errors
    /// A device that was lost.
    pub fn finish(&mut self) -> Result<Option<(u64, Duration)>, GpuError> {
        let begun = self.begun.take();
        let end = begun.as_ref().map(|_| self.stream.record_event(TIMED)).transpose();
        let end = end.map_err(failed)?;
        self.stream.synchronize().map_err(failed)?;
        self.pending.clear();
        let (Some((begun, bytes)), Some(end)) = (begun, end) else { return Ok(None) };
        let took = begun.elapsed_ms(&end).map_err(failed)?;
        Ok(Some((bytes, Duration::from_secs_f32(took.max(0.0) / 1e3))))
    }

    /// Queues what `body` copies out of `keep`, which lives until the device has it.
    ///
    /// # Errors
    /// Those of `body`; a device that was lost.
    pub fn keep<K: Send + 'static, T>(
        &mut self,
        cpu: &Cpu,
        keep: K,
        body: impl for<'a> FnOnce(&'a K, &mut Copier<'a, '_>) -> Result<T, GpuError>,
    ) -> Result<T, GpuError> {
        while self.pending.front().is_some_and(|(event, _)| event.is_complete()) {
            self.pending.pop_front();
        }
        let keep = Box::new(keep);
        let mut copier = Copier { copies: self, cpu, source: std::marker::PhantomData };
        let done = body(&keep, &mut copier);
        // Also after an error: some of it may be under way.
        let event = self.stream.record_event(None).map_err(failed)?;
        self.pending.push_back((event, keep));
        done
    }

    fn is_locked(&self, bytes: &[u8]) -> bool {
        let range = bytes.as_ptr_range();
        let (first, end) = (range.start as usize, range.end as usize);
        self.locked.iter().any(|l| l.range.start <= first && end <= l.range.end)
    }

    /// Queues a copy from memory that stays until it is done.
    fn queue(&mut self, from: &[u8], into: &Buffer<u8>, at: usize) -> Result<(), GpuError> {
        assert!(at + from.len() <= into.len(), "inside the buffer");
        let (address, stream) = (into.address() + at as u64, self.stream.cu_stream());
        self.ahead = true;
        match &mut self.begun {
            Some((_, bytes)) => *bytes += from.len() as u64,
            None => {
                let event = self.stream.record_event(TIMED).map_err(failed)?;
                self.begun = Some((event, from.len() as u64));
            }
        }
        // SAFETY: inside the buffer; the callers keep the bytes until an event behind this.
        let done = self
            .stream
            .context()
            .bind_to_thread()
            .and_then(|()| unsafe { result::memcpy_htod_async(address, from, stream) });
        done.map_err(failed)
    }
}

/// Queues copies of bytes that live as long as 'a, which outlasts the copies.
pub struct Copier<'a, 'c> {
    copies: &'c mut Copies,
    cpu: &'c Cpu,
    source: std::marker::PhantomData<&'a [u8]>,
}

impl<'a> Copier<'a, '_> {
    /// Copies bytes that are kept.
    pub(super) fn write(
        &mut self,
        from: &'a [u8],
        into: &Buffer<u8>,
        at: usize,
    ) -> Result<(), GpuError> {
        if from.is_empty() {
            return Ok(());
        }
        match self.copies.is_locked(from) {
            true => self.copies.queue(from, into, at),
            false => self.through_ring(from, into, at),
        }
    }

    /// Copies bytes that may go when this returns.
    pub(super) fn through_ring(
        &mut self,
        from: &[u8],
        into: &Buffer<u8>,
        at: usize,
    ) -> Result<(), GpuError> {
        for (i, bytes) in from.chunks(RING_PART_BYTES).enumerate() {
            let index = self.copies.ring.next;
            self.copies.ring.next = (index + 1) % RING_PARTS;
            let part = &mut self.copies.ring.parts[index];
            if let Some(busy) = part.busy.take() {
                busy.synchronize().map_err(failed)?;
            }
            let memory = &mut part.memory.bytes_mut()?[..bytes.len()];
            let pieces = memory.chunks_mut(PIECE_BYTES).zip(bytes.chunks(PIECE_BYTES));
            let mut pieces: Vec<_> = pieces.collect();
            self.cpu.each_mut(&mut pieces, |(to, from)| to.copy_from_slice(from));
            self.queue_part(index, bytes.len(), into, at + i * RING_PART_BYTES)?;
        }
        Ok(())
    }

    fn queue_part(
        &mut self,
        index: usize,
        len: usize,
        into: &Buffer<u8>,
        at: usize,
    ) -> Result<(), GpuError> {
        // Out of the ring while the copies are borrowed; the memory stays where it is.
        let mut part = self.copies.ring.parts.remove(index);
        let queued = part.memory.bytes_mut().and_then(|b| self.copies.queue(&b[..len], into, at));
        let event = self.copies.stream.record_event(None).map_err(failed);
        let done = match (queued, event) {
            (Ok(()), Ok(event)) => {
                part.busy = Some(event);
                Ok(())
            }
            (Err(error), _) | (_, Err(error)) => Err(error),
        };
        self.copies.ring.parts.insert(index, part);
        done
    }
}
