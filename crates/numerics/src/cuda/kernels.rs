//! The kernels: PTX that the program carries, and how they are launched.

use std::collections::HashMap;
use std::sync::Arc;

use cudarc::driver::sys::{
    CUdevice_attribute as DeviceAttribute, CUfunction_attribute as Attribute,
};
use cudarc::driver::{CudaContext, CudaFunction, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;

use super::{Gpu, GpuError, Wide};

/// A source, the compute capability that it needs, and its kernels; `true` where there is one for
/// each accumulator.
type Source = (&'static str, (i32, i32), &'static [(&'static str, bool)]);

const SOURCES: [Source; 17] = [
    (include_str!("../../cuda/ptx/linear.ptx"), BASE, &[("linear", true)]),
    (
        include_str!("../../cuda/ptx/product.ptx"),
        (8, 0),
        &[("row_lengths", false), ("product", false)],
    ),
    (include_str!("../../cuda/ptx/doubts.ptx"), (8, 0), &[("product_doubts", true)]),
    (
        include_str!("../../cuda/ptx/unpack.ptx"),
        BASE,
        &[("unpack", false), ("unpack_escapes", false)],
    ),
    (include_str!("../../cuda/ptx/norm.ptx"), BASE, &[("rms_norm", true), ("gated_norm", true)]),
    (
        include_str!("../../cuda/ptx/rope.ptx"),
        BASE,
        &[("split_heads", false), ("rope", false), ("append_keys", false)],
    ),
    (
        include_str!("../../cuda/ptx/attention.ptx"),
        BASE,
        &[("attention_scores", true), ("attention_soften", true), ("attention_mix", true)],
    ),
    (
        include_str!("../../cuda/ptx/attention_tiles.ptx"),
        (8, 0),
        &[("row_notes", false), ("tile_scores", false), ("tile_mix", false)],
    ),
    (include_str!("../../cuda/ptx/conv.ptx"), BASE, &[("conv", true), ("conv_history", false)]),
    (include_str!("../../cuda/ptx/delta_inputs.ptx"), BASE, &[("delta_inputs", true)]),
    (
        include_str!("../../cuda/ptx/delta_rule.ptx"),
        BASE,
        &[("delta_rule", true), ("delta_rule_long", true)],
    ),
    (include_str!("../../cuda/ptx/router.ptx"), BASE, &[("route", true)]),
    (include_str!("../../cuda/ptx/experts.ptx"), BASE, &[("expert_jobs", false)]),
    (
        include_str!("../../cuda/ptx/probe.ptx"),
        (8, 0),
        &[("probe_read", false), ("probe_tensor", false)],
    ),
    (include_str!("../../cuda/ptx/mix.ptx"), BASE, &[("mix", true)]),
    (include_str!("../../cuda/ptx/elementwise.ptx"), BASE, &[("add", false), ("activate", false)]),
    (
        include_str!("../../cuda/ptx/elementary.ptx"),
        BASE,
        &[("exp32_map", false), ("log1p32_map", false)],
    ),
];

/// The least compute capability there is PTX for.
pub(super) const BASE: (i32, i32) = (7, 5);

/// Shared memory that kernels take beside what they are launched with, at most.
const STATIC_BYTES: u32 = 2048;

/// All kernels of a context, by the name without its accumulator.
pub(super) struct Kernels {
    by_name: HashMap<&'static str, CudaFunction>,
    /// Dynamic shared memory that `product_doubts` may have.
    doubts_bytes: u32,
}

/// How many threads run a kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    pub(super) blocks: (usize, usize, usize),
    /// Threads of a block.
    pub(super) block: u32,
    /// Dynamic shared memory.
    pub(super) shared_bytes: u32,
}

impl Grid {
    /// Blocks in one dimension, no dynamic shared memory.
    pub(super) fn line(blocks: usize, block: u32) -> Grid {
        Grid { blocks: (blocks, 1, 1), block, shared_bytes: 0 }
    }

    /// Enough blocks of 256 for so many threads.
    pub(super) fn threads(count: usize) -> Grid {
        Grid::line(count.div_ceil(256), 256)
    }
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub(super) enum Arg {
    Address(u64),
    U32(u32),
    F32(f32),
}

impl<T> From<&super::Buffer<T>> for Arg {
    fn from(buffer: &super::Buffer<T>) -> Arg {
        Arg::Address(buffer.address())
    }
}

impl<T> From<Option<&super::Buffer<T>>> for Arg {
    fn from(buffer: Option<&super::Buffer<T>>) -> Arg {
        Arg::Address(buffer.map_or(0, super::Buffer::address))
    }
}

impl From<super::Site> for Arg {
    fn from(site: super::Site) -> Arg {
        Arg::U32(site.0)
    }
}

/// An address by itself.
#[derive(Clone, Copy)]
pub(super) struct Address(pub(super) u64);

impl Address {
    /// Of the value at an index.
    pub(super) fn of<T>(buffer: &super::Buffer<T>, index: usize) -> Address {
        Address(buffer.address() + (index * size_of::<T>()) as u64)
    }
}

impl From<Address> for Arg {
    fn from(address: Address) -> Arg {
        Arg::Address(address.0)
    }
}

impl From<usize> for Arg {
    fn from(count: usize) -> Arg {
        Arg::U32(u32::try_from(count).expect("counts of a kernel fit 32 bits"))
    }
}

impl From<u32> for Arg {
    fn from(value: u32) -> Arg {
        Arg::U32(value)
    }
}

impl From<f32> for Arg {
    fn from(value: f32) -> Arg {
        Arg::F32(value)
    }
}

impl Kernels {
    /// All that a card of this compute capability can run.
    pub(super) fn load(
        context: &Arc<CudaContext>,
        wide: Wide,
        capability: (i32, i32),
    ) -> Result<Kernels, GpuError> {
        let mut by_name = HashMap::new();
        for (source, _, kernels) in SOURCES.iter().filter(|(_, needs, _)| *needs <= capability) {
            let module = context.load_module(Ptx::from_src(*source));
            let module = module.map_err(|e| GpuError::of("loading its kernels", e))?;
            for (name, by_wide) in *kernels {
                let full =
                    if *by_wide { format!("{name}_{}", wide.suffix()) } else { (*name).into() };
                let kernel = module.load_function(&full);
                let kernel = kernel.map_err(|_| GpuError::NoKernel { name: full })?;
                by_name.insert(*name, kernel);
            }
        }
        let most = DeviceAttribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        let most = context.attribute(most).map_err(|e| GpuError::of("asking what it is", e))?;
        let doubts_bytes = (most as u32).saturating_sub(STATIC_BYTES);
        for (name, bytes) in [
            ("product", super::product::SHARED_BYTES),
            ("product_doubts", doubts_bytes),
            ("linear", super::linear::SHARED_BYTES),
        ] {
            if let Some(kernel) = by_name.get(name) {
                let most = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                let set = kernel.set_attribute(most, bytes as i32);
                set.map_err(|e| GpuError::of("asking for shared memory", e))?;
            }
        }
        Ok(Kernels { by_name, doubts_bytes })
    }

    /// Dynamic shared memory for the inputs of `product_doubts`, at most.
    pub(super) fn doubts_bytes(&self) -> usize {
        self.doubts_bytes as usize
    }

    /// Whether products can run on tensor cores.
    pub(super) fn has_tensor_cores(&self) -> bool {
        self.by_name.contains_key("product")
    }
}

impl Gpu {
    /// Where a kernel reports what is not finite.
    pub(super) fn failure(&self) -> Address {
        Address(self.failure.address())
    }

    /// Queues a kernel.
    ///
    /// # Safety
    /// The arguments are those of the kernel, in its order, and the buffers are as large as it
    /// takes them to be.
    pub(super) unsafe fn launch(
        &self,
        name: &'static str,
        grid: Grid,
        args: &[Arg],
    ) -> Result<(), GpuError> {
        let (x, y, z) = grid.blocks;
        if x * y * z == 0 {
            return Ok(());
        }
        assert!(y < 1 << 16 && z < 1 << 16, "{name}: a grid of {x} x {y} x {z}");
        self.note(name, grid, args);
        let kernel = &self.kernels.by_name[name];
        let mut builder = self.stream.launch_builder(kernel);
        for arg in args {
            match arg {
                Arg::Address(address) => builder.arg(address),
                Arg::U32(value) => builder.arg(value),
                Arg::F32(value) => builder.arg(value),
            };
        }
        let config = LaunchConfig {
            grid_dim: (x as u32, y as u32, z as u32),
            block_dim: (grid.block, 1, 1),
            shared_mem_bytes: grid.shared_bytes,
        };
        // SAFETY: the caller's promise.
        unsafe { builder.launch(config) }.map_err(|e| GpuError::of(name, e))?;
        Ok(())
    }
}

/// The arguments of a launch, each whatever it is.
macro_rules! args {
    ($($arg:expr),* $(,)?) => { &[$($crate::cuda::kernels::Arg::from($arg)),*] };
}
pub(super) use args;
