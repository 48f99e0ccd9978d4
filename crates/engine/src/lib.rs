//! Tokens in, tokens out: text, model, generation. No HTTP, no unsafe code, no floats of its own
//! but the elementwise f32 chains of NUMERICS.md; every reduction is an operation of `numerics`.

#![forbid(unsafe_code)]

pub mod counters;
pub mod embedded;
pub mod generate;
pub mod index;
pub mod limits;
pub mod model;
pub mod text;
pub mod tiers;
