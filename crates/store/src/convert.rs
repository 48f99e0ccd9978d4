//! Making a store from a checkpoint: nothing is lost, whenever it stops.
//!
//! The manifest is the one truth about what is finished. A layer, a dense file, a copied file is
//! written beside its place, synced, renamed, and only then listed; what is not listed is written
//! again. So the store is at every moment either complete or says what it lacks.

mod dense;
mod disk;
mod error;
mod finish;
mod layer;
mod lock;
mod plan;
mod source;
mod state;
mod steps;

use std::ops::{ControlFlow, RangeInclusive};
use std::path::{Path, PathBuf};

pub use disk::{Disk, DiskFile, RealDisk, publish};
pub use error::ConvertError;
pub use finish::used_sha256;
pub use lock::Lock;
pub(crate) use source::Sources;
pub use state::completing_command;

use crate::checkpoint::Checkpoint;
use crate::experts::ExpertMap;
use crate::jnf::ExpertLayer;
use steps::Conversion;

/// What to convert, where to, and how.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    pub checkpoint: &'a Checkpoint,
    /// Its routed experts, in place.
    pub experts: &'a ExpertMap,
    pub out: PathBuf,
    /// All where it is `None`.
    pub layers: Option<RangeInclusive<u32>>,
    /// Version 2, packed where that is smaller; else version 1, as they are.
    pub pack: bool,
    /// Of this program, as the manifest names it.
    pub tool: String,
    pub threads: usize,
}

/// How far it is, in bytes of weights to be read in this run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    pub done_bytes: u64,
    pub total_bytes: u64,
}

/// Called often; says whether to go on.
pub type Observe<'a> = &'a mut dyn FnMut(Progress) -> ControlFlow<()>;

/// What a run did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub layers_written: Vec<u32>,
    /// Asked for, and there from an earlier run.
    pub layers_kept: Vec<u32>,
    /// Not there yet.
    pub layers_missing: Vec<u32>,
    pub complete: bool,
    /// Weights read.
    pub read_bytes: u64,
}

/// Converts a checkpoint, or the layers asked for, or goes on where an earlier run stopped.
///
/// Errors: every `ConvertError`; afterwards the store opens as `Incomplete`, and the same call
/// goes on.
pub fn convert(
    request: &Request,
    disk: &dyn Disk,
    observe: Observe,
) -> Result<Report, ConvertError> {
    let shapes = plan::expert_layers(request.checkpoint, request.experts)?;
    let wanted = wanted(request, &shapes)?;
    make_root(disk, &request.out)?;
    let _lock = Lock::take(&request.out)?;
    let mut conversion = Conversion::begin(request, disk, shapes)?;
    let result = conversion.run(&wanted, observe);
    result.map_err(|stopped| conversion.error_of(stopped))
}

fn wanted(request: &Request, shapes: &[ExpertLayer]) -> Result<Vec<ExpertLayer>, ConvertError> {
    let Some(range) = &request.layers else { return Ok(shapes.to_vec()) };
    let model_last = request.experts.layer_count().saturating_sub(1) as u32;
    let (first, last) = (*range.start(), *range.end());
    if first > last || last > model_last {
        return Err(ConvertError::NoSuchLayers { first, last, model_last });
    }
    Ok(shapes.iter().filter(|shape| range.contains(&shape.layer)).copied().collect())
}

/// Makes the store's folder; where it is new, a crash must not take its name away either.
fn make_root(disk: &dyn Disk, out: &Path) -> Result<(), ConvertError> {
    let folders = out.ancestors().take_while(|folder| !folder.as_os_str().is_empty());
    let new: Vec<&Path> = folders.take_while(|folder| !folder.exists()).collect();
    disk.create_dir(out).map_err(layer::failed_at(out))?;
    for folder in new {
        let above = folder.parent().filter(|above| !above.as_os_str().is_empty());
        let above = above.unwrap_or(Path::new("."));
        disk.sync_dir(above).map_err(layer::failed_at(above))?;
    }
    Ok(())
}

/// Free space that is left alone.
const SPARE_BYTES: u64 = 1 << 20;

/// Refuses what does not fit.
fn check_space(disk: &dyn Disk, out: &Path, size_bytes: u64) -> Result<(), ConvertError> {
    let free = disk.free_bytes(out).map_err(layer::failed_at(out))?;
    let needed = size_bytes.saturating_add(SPARE_BYTES);
    match needed.checked_sub(free) {
        None | Some(0) => Ok(()),
        Some(missing) => {
            Err(ConvertError::NoSpace { path: out.to_path_buf(), needed, free, missing })
        }
    }
}
