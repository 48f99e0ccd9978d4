//! Random checkpoints of a true shape, in the format of the real ones: to test and to time without
//! a download. Nobody should read meaning into what such a model says.
//!
//! Every value depends only on the seed, the tensor's name and the expert's index (`random`), so a
//! checkpoint of four layers holds the first four layers of the one of forty-eight, and neither the
//! thread count nor the order of writing changes a byte.

mod config;
mod quantile;
mod random;
mod shape;
mod skew;
mod tensors;
#[cfg(test)]
mod tests;
mod write;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, ensure};

pub use shape::Shape;

use random::Normals;
use shape::Dimensions;
use tensors::ShardPlan;
use write::Folder;

/// Skews beyond this overflow the weights long after they stopped being of interest.
const SKEW_MAX: f64 = 8.0;

/// What to make, and where.
///
/// `skew` S multiplies row e of every router by exp(S * g_e), with g_e ~ N(0, 1) per layer and
/// expert: S = 0 leaves all experts alike. Of 256 experts, top-8, the quarter with the largest g_e
/// gets 25 % of the picks at S = 0, about 80 % at S = 0.5 and 97 % at S = 1.
#[derive(Clone, Debug)]
pub struct SynthSpec {
    pub like: Shape,
    /// Instead of the shape's own number of layers.
    pub layers: Option<usize>,
    /// Instead of the shape's own number of routed experts; at least its top-k.
    pub experts: Option<usize>,
    /// Instead of the shape's own width of the residual stream.
    pub hidden: Option<usize>,
    pub seed: u64,
    pub skew: f64,
    /// A folder that does not exist or is empty.
    pub out: PathBuf,
}

/// What was made.
///
/// Units: bytes of all safetensors files; seconds of wall clock.
#[derive(Clone, Debug)]
pub struct SynthReport {
    pub out: PathBuf,
    pub shard_count: usize,
    pub tensor_count: usize,
    pub parameter_count: u64,
    pub size_bytes: u64,
    /// Until the last byte was handed to the operating system.
    pub generate_seconds: f64,
    /// Until all of them were on the disk.
    pub total_seconds: f64,
    /// The share of picks that the quarter of experts with the largest g_e is expected to get: 0.25
    /// without skew. An estimate on random normal inputs; real activations are not normal.
    pub top_quarter_share: f64,
}

/// The names that `Shape` is parsed from.
pub fn presets() -> &'static [&'static str] {
    &shape::PRESET_NAMES
}

/// Writes a random checkpoint and calls `progress(done, total)` with bytes now and then.
///
/// Needs about 1 MB of memory per thread, whatever the size. The shards come first, then
/// config.json once they are on the disk, the index last; after an error or a crash there is no
/// config.json, so nothing opens what is there.
///
/// Errors: an impossible spec, a folder that is not empty, too little space (and how much), I/O.
pub fn synthesize(spec: &SynthSpec, progress: &mut dyn FnMut(u64, u64)) -> Result<SynthReport> {
    let started = Instant::now();
    let dimensions = dimensions_of(spec)?;
    let plans = tensors::shard_plans(&dimensions);
    let size_bytes: u64 = plans.iter().map(ShardPlan::size_bytes).sum();
    let mut folder = Folder::create(&spec.out, size_bytes)?;
    let normals = Normals::new(spec.seed, spec.skew, &tensors::SIGMAS);

    let mut done_bytes = 0;
    for plan in &plans {
        folder.write_shard(plan, &normals, &mut |bytes| {
            done_bytes += bytes;
            progress(done_bytes, size_bytes);
        })?;
    }
    let generate_seconds = started.elapsed().as_secs_f64();
    folder.sync()?;
    folder.write_json("generation_config.json", &config::generation_config(&dimensions))?;
    folder.write_json("config.json", &config::config(&dimensions, spec))?;
    folder.write_json("model.safetensors.index.json", &config::index(&plans))?;
    folder.finish()?;

    Ok(SynthReport {
        out: spec.out.clone(),
        shard_count: plans.len(),
        tensor_count: plans.iter().map(|plan| plan.tensors.len()).sum(),
        parameter_count: plans.iter().map(ShardPlan::value_count).sum(),
        size_bytes,
        generate_seconds,
        total_seconds: started.elapsed().as_secs_f64(),
        top_quarter_share: skew::top_quarter_share(&dimensions, &normals),
    })
}

fn dimensions_of(spec: &SynthSpec) -> Result<Dimensions> {
    let mut dimensions = spec.like.dimensions();
    dimensions.layers = spec.layers.unwrap_or(dimensions.layers);
    dimensions.experts = spec.experts.unwrap_or(dimensions.experts);
    dimensions.hidden = spec.hidden.unwrap_or(dimensions.hidden);
    let top_k = dimensions.top_k;
    ensure!(dimensions.layers > 0, "layers: expected at least 1, found 0");
    ensure!(dimensions.hidden > 0, "hidden: expected at least 1, found 0");
    ensure!(
        dimensions.experts >= top_k,
        "experts: expected at least {top_k}, as each token picks {top_k}; found {}",
        dimensions.experts
    );
    ensure!(
        (0.0..=SKEW_MAX).contains(&spec.skew),
        "skew: expected 0 to {SKEW_MAX}, found {}",
        spec.skew
    );
    Ok(dimensions)
}
