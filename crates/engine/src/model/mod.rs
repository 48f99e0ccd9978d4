//! The network: what a family is made of, its weights, its state, and the forward pass.

mod attention;
mod config;
mod delta_net;
mod error;
mod experts;
mod forward;
mod gpu;
mod head;
mod json;
mod load;
mod mlp;
mod network;
mod routing;
mod rows;
mod saved;
mod state;
mod weight;

pub use config::{DeltaNet, Description, Family, FeedForward, Mixer, Moe, known_families};
pub use error::{ConfigError, ModelError, StateError};
pub use gpu::{CpuShare, GpuWish, VramWish};
pub use head::Logits;
pub use network::{Model, Source};
pub use state::State;
