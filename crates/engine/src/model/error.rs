//! What can be wrong with a model, and during a pass.

use std::path::PathBuf;

use crate::index::TokenId;

/// A config.json that does not describe a model this engine computes exactly.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("model_type {found:?} is not known; known: {known}")]
    UnknownFamily { found: String, known: &'static str },

    #[error("config.json has no {field}, which {family} needs")]
    Missing { field: &'static str, family: &'static str },

    #[error("config.json: {field} is {found}, expected {expected}")]
    Value { field: &'static str, found: String, expected: String },

    #[error(
        "rope_type {found:?} is not supported; supported: default (the exact definition of \
             others is not in NUMERICS.md yet)"
    )]
    RopeType { found: String },
}

/// Why a model cannot be made or a pass cannot be finished.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error(transparent)]
    Config(#[from] ConfigError),

    #[error(transparent)]
    Checkpoint(#[from] store::checkpoint::CheckpointError),

    #[error(transparent)]
    Tier(#[from] crate::tiers::TierError),

    #[error(transparent)]
    Gpu(#[from] numerics::cuda::GpuError),

    #[error(
        "{found_bytes} bytes of GPU memory cannot hold the dense weights ({dense_bytes} bytes) and \
             the experts that are in use: {needed_bytes} bytes would do, as --vram-budget or as \
             free memory of the device"
    )]
    VramBudget { needed_bytes: u64, found_bytes: u64, dense_bytes: u64 },

    #[error(
        "layer {layer}, {projection} of expert {expert}: the store holds {found:?}, config.json \
             says {expected:?}; convert the checkpoint again"
    )]
    BlockShape {
        layer: u32,
        expert: u32,
        projection: &'static str,
        expected: [usize; 2],
        found: [usize; 2],
    },

    #[error("tensor {tensor}: {problem}; convert the checkpoint again")]
    Packed { tensor: String, problem: store::pack::PackError },

    #[error(
        "tensor {tensor}: its packed block is {found:?}, the store's index says {expected:?}; \
             convert the checkpoint again"
    )]
    PackedShape { tensor: String, expected: [usize; 2], found: [usize; 2] },

    #[error(
        "tensor {tensor} holds {value} at row {row}, column {column}: a weight must be \
             finite; the file is damaged or badly converted: download it again"
    )]
    WeightNotFinite { tensor: String, row: usize, column: usize, value: f32 },

    #[error(
        "layer {layer}, {part}: the value of token {token} at row {row} is not finite (the \
             exact sum is beyond the format); this checkpoint cannot answer this prompt in bf16"
    )]
    ActivationNotFinite { layer: String, part: String, token: usize, row: usize },

    #[error("token {} is outside the vocabulary of {vocab}", token.0)]
    Token { token: TokenId, vocab: usize },

    #[error("the prompt is empty; give at least one token")]
    EmptyPrompt,

    #[error(
        "{needed} positions are needed, the model has {limit} (max_position_embeddings); \
             shorten the prompt or generate fewer tokens"
    )]
    TooLong { needed: usize, limit: usize },
}

/// Why a saved state cannot be used or written.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error(transparent)]
    Gpu(#[from] numerics::cuda::GpuError),

    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },

    #[error("{path}: not a saved state: {source}")]
    Format { path: PathBuf, source: safetensors::SafeTensorError },

    #[error(
        "{path}: {field} is {found}, expected {expected}; this state belongs to another \
             model or version"
    )]
    Mismatch { path: PathBuf, field: String, found: String, expected: String },
}
