//! What can go wrong with a GPU, in words.

use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;

/// Why a GPU cannot do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    #[error(
        "no NVIDIA driver: libcuda.so.1 is not to be found; install the driver, or in a container \
         pass the GPU through (docker run --gpus all)"
    )]
    NoDriver,
    #[error(
        "the NVIDIA driver supports CUDA {found_major}.{found_minor}, the kernels need \
         {needed_major}.{needed_minor}: install a newer driver"
    )]
    DriverTooOld { found_major: i32, found_minor: i32, needed_major: i32, needed_minor: i32 },
    #[error(
        "the driver is there, but it sees no GPU (in a container the device nodes /dev/nvidia* \
         may be absent)"
    )]
    NoDevice,
    #[error("there is no cuda:{asked}: the driver sees {count} GPUs, counted from 0")]
    NoSuchDevice { asked: usize, count: usize },
    #[error("{name} has compute capability {major}.{minor}; the kernels need 7.5 or newer")]
    TooOldDevice { name: String, major: i32, minor: i32 },
    #[error("out of GPU memory: {asked_bytes} bytes asked for, {free_bytes} of {total_bytes} free")]
    OutOfMemory { asked_bytes: usize, free_bytes: usize, total_bytes: usize },
    #[error("the GPU was lost while {doing}: {message} (its sessions are gone)")]
    Lost { doing: &'static str, message: String },
    #[error("the GPU driver failed while {doing}: {message}")]
    Driver { doing: &'static str, message: String },
    #[error("kernel {name} is not in the program: the build is broken")]
    NoKernel { name: String },
}

impl GpuError {
    /// The error of a driver call.
    pub(super) fn of(doing: &'static str, error: DriverError) -> GpuError {
        let name = error.error_name().map_or("unknown".into(), |n| n.to_string_lossy());
        let words = error.error_string().map_or("no words".into(), |n| n.to_string_lossy());
        let message = format!("{words} ({name})");
        match error.0 {
            CUresult::CUDA_ERROR_LAUNCH_FAILED
            | CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
            | CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
            | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
            | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
            | CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE
            | CUresult::CUDA_ERROR_UNKNOWN => GpuError::Lost { doing, message },
            _ => GpuError::Driver { doing, message },
        }
    }
}
