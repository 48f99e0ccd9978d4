//! Bytes to and from disk: no floats, no GPU, no async, and `unsafe` only in `io`.
#![deny(unsafe_code)]

pub mod checkpoint;
pub mod experts;
mod io;
pub mod pack;
pub mod read;

pub use checkpoint::{Checkpoint, CheckpointError, Dtype, HeaderProblem, Part, Shard, Tensor};
pub use io::mapping::end_on_lost_pages;
