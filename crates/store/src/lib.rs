//! Bytes to and from disk: no floats, no GPU, no async, and `unsafe` only in `io`.
#![deny(unsafe_code)]

pub mod checkpoint;
pub mod convert;
pub mod experts;
mod io;
pub mod jnf;
pub mod pack;
pub mod read;
pub mod sidecar;
pub mod verify;

pub use checkpoint::{Checkpoint, CheckpointError, Dtype, HeaderProblem, Part, Shard, Tensor};
pub use io::mapping::end_on_lost_pages;
