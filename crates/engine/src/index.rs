//! Indices that are never mixed up.

use serde::{Deserialize, Serialize};

/// A token of the vocabulary.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct TokenId(pub u32);

/// A layer, counted from the embedding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LayerIdx(pub usize);

/// A routed expert of a layer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ExpertIdx(pub u32);
