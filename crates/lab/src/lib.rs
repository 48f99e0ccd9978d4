//! Measuring and proving: synthetic checkpoints, the distance from other implementations,
//! receipts, ceilings and benchmarks.

#![forbid(unsafe_code)]

pub mod bench;
pub mod golden;
pub mod kernels;
pub mod reads;
pub mod receipt;
pub mod sim;
pub mod synth;
