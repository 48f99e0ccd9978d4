//! The threads and the instruction level that a model runs with.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::SimdLevel;

/// The processor as the operations see it: a level and a pool of threads.
///
/// Neither can change a bit; both change only the time.
#[derive(Clone)]
pub struct Cpu {
    level: SimdLevel,
    pool: Option<Arc<rayon::ThreadPool>>,
    threads: usize,
}

/// What can go wrong when the threads are made.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// The level asked for is not there.
    #[error("this processor has no {}; the best here is {}", wanted.name(), best.name())]
    Level {
        /// The level asked for.
        wanted: SimdLevel,
        /// The best level of this machine.
        best: SimdLevel,
    },
    /// The operating system refused a thread.
    #[error("cannot start {threads} threads: {source}; use fewer (--threads)")]
    Threads {
        /// How many were asked for.
        threads: usize,
        /// The pool's own error.
        source: rayon::ThreadPoolBuildError,
    },
}

impl Cpu {
    /// A pool of `threads` threads that use `level`.
    ///
    /// # Errors
    /// A level that this machine lacks, or threads that cannot be started.
    pub fn new(level: SimdLevel, threads: usize) -> Result<Cpu, CpuError> {
        let best = SimdLevel::detect();
        if level > best {
            return Err(CpuError::Level { wanted: level, best });
        }
        let threads = threads.max(1);
        let pool = if threads == 1 {
            None
        } else {
            let built = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .thread_name(|i| format!("tarfa-{i}"))
                .build()
                .map_err(|source| CpuError::Threads { threads, source })?;
            Some(Arc::new(built))
        };
        Ok(Cpu { level, pool, threads })
    }

    /// All of this machine's cores at its best level.
    ///
    /// # Errors
    /// Threads that cannot be started.
    pub fn detect() -> Result<Cpu, CpuError> {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        Cpu::new(SimdLevel::detect(), threads)
    }

    /// The instruction level.
    pub fn level(&self) -> SimdLevel {
        self.level
    }

    /// How many threads work.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `f` inside the pool, so that `each` need not wake anybody to begin.
    pub fn enter<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        match &self.pool {
            Some(pool) => pool.install(f),
            None => f(),
        }
    }

    /// Calls `work(i)` for every `i < count`, each once, on any thread, in no order.
    pub fn each(&self, count: usize, work: impl Fn(usize) + Sync) {
        match &self.pool {
            Some(pool) if count > 1 => {
                let next = AtomicUsize::new(0);
                let take = || {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    (i < count).then_some(i)
                };
                pool.broadcast(|_| {
                    while let Some(i) = take() {
                        work(i);
                    }
                });
            }
            _ => (0..count).for_each(work),
        }
    }
}

/// A slice whose items are handed out one to a thread.
struct Items<T>(*mut T);

// SAFETY: `each` hands every index to exactly one call, so no item is reached twice.
unsafe impl<T: Send> Sync for Items<T> {}

impl<T> Items<T> {
    /// # Safety
    /// `i` is inside the slice and no other call has it.
    #[allow(clippy::mut_from_ref)]
    unsafe fn item(&self, i: usize) -> &mut T {
        // SAFETY: passed on to the caller.
        unsafe { &mut *self.0.add(i) }
    }
}

impl Cpu {
    /// Calls `work` for every item, each once, on any thread, in no order.
    pub fn each_mut<T: Send>(&self, items: &mut [T], work: impl Fn(&mut T) + Sync) {
        let all = Items(items.as_mut_ptr());
        self.each(items.len(), |i| {
            // SAFETY: `each` calls this once for every index below the length, and the
            // exclusive borrow of `items` lasts until all calls have returned.
            work(unsafe { all.item(i) });
        });
    }
}
