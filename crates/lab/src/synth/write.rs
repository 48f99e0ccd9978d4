//! From plans to files: in parallel, within a fixed memory, and never half-done under a whole name.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use rayon::prelude::*;
use serde_json::{Map, Value, json};

use super::random::{BLOCK_VALUES, BlockId, Fill, Normals};
use super::tensors::{ShardPlan, TensorPlan, VALUE_BYTES};

/// Blocks made between two calls of the progress function: 64 MiB.
const BATCH_BLOCKS: usize = 128;
/// Config, index and the file system's own needs.
const SPARE_BYTES: u64 = 64 << 20;

/// A folder being filled; dropped before `finish`, it takes away all it has written.
pub struct Folder {
    path: PathBuf,
    created: bool,
    written: Vec<PathBuf>,
    finished: bool,
}

impl Folder {
    /// Errors: the folder holds something already, or its disk lacks the space.
    pub fn create(path: &Path, size_bytes: u64) -> Result<Folder> {
        check_space(path, size_bytes)?;
        let created = !path.exists();
        fs::create_dir_all(path).with_context(|| format!("create {}", path.display()))?;
        let folder = Folder { path: path.into(), created, written: Vec::new(), finished: false };
        let mut entries = fs::read_dir(path).with_context(|| format!("list {}", path.display()))?;
        ensure!(
            entries.next().is_none(),
            "{} is not empty; give a new folder, or empty this one first",
            path.display()
        );
        Ok(folder)
    }

    /// Writes one shard under a `.partial` name, then renames it.
    pub fn write_shard(
        &mut self,
        plan: &ShardPlan,
        normals: &Normals,
        on_bytes: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let partial = self.path.join(format!("{}.partial", plan.file_name));
        self.written.push(partial.clone());
        let failed = || format!("write {}", partial.display());
        let file = File::create_new(&partial).with_context(failed)?;
        file.write_all_at(&plan.prefix, 0).with_context(failed)?;
        on_bytes(plan.prefix.len() as u64);
        let blocks = blocks_of(plan);
        for batch in blocks.chunks(BATCH_BLOCKS) {
            write_batch(&file, batch, normals).with_context(failed)?;
            on_bytes(batch.iter().map(|block| block.size_bytes as u64).sum());
        }
        self.rename(&partial, &plan.file_name)
    }

    /// Waits until all that was written is on the disk.
    pub fn sync(&self) -> Result<()> {
        for path in &self.written {
            let failed = || format!("write {} to the disk", path.display());
            File::open(path).and_then(|file| file.sync_all()).with_context(failed)?;
        }
        Ok(())
    }

    pub fn write_json(&mut self, name: &str, value: &Value) -> Result<()> {
        let partial = self.path.join(format!("{name}.partial"));
        self.written.push(partial.clone());
        let text = serde_json::to_string_pretty(value).context("serialise")? + "\n";
        fs::write(&partial, text).with_context(|| format!("write {}", partial.display()))?;
        self.rename(&partial, name)
    }

    /// All is written; nothing is taken away any more.
    pub fn finish(mut self) -> Result<()> {
        self.sync()?;
        let failed = || format!("write {} to the disk", self.path.display());
        File::open(&self.path).and_then(|folder| folder.sync_all()).with_context(failed)?;
        self.finished = true;
        Ok(())
    }

    fn rename(&mut self, partial: &Path, name: &str) -> Result<()> {
        let whole = self.path.join(name);
        fs::rename(partial, &whole).with_context(|| format!("rename {}", partial.display()))?;
        *self.written.last_mut().expect("the partial file was noted") = whole;
        Ok(())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        // an error is on its way already; one more from cleaning up would only hide it
        for path in self.written.iter().rev() {
            let _ = fs::remove_file(path);
        }
        if self.created {
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// The length field and the header of a safetensors file, padded to a multiple of eight bytes.
pub fn prefix_of(tensors: &[TensorPlan]) -> Vec<u8> {
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({"format": "pt", "made_by": "tarfa synth"}));
    let mut begin = 0;
    for tensor in tensors {
        let end = begin + tensor.size_bytes();
        let info = json!({"dtype": "BF16", "shape": tensor.shape, "data_offsets": [begin, end]});
        header.insert(tensor.name.clone(), info);
        begin = end;
    }
    let mut json = Value::Object(header).to_string();
    json.push_str(&" ".repeat(json.len().next_multiple_of(8) - json.len()));
    [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat()
}

/// One block and its place in the file.
struct Block<'a> {
    id: BlockId<'a>,
    fill: Fill,
    offset: u64,
    size_bytes: usize,
}

/// Every block of a shard, in the order of the file.
fn blocks_of(plan: &ShardPlan) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut offset = plan.prefix.len() as u64;
    for tensor in &plan.tensors {
        let units = tensor.expert_count.unwrap_or(1);
        let unit_values = tensor.value_count() / units as u64;
        for expert in 0..units {
            for block in 0..unit_values.div_ceil(BLOCK_VALUES) {
                let values = BLOCK_VALUES.min(unit_values - block * BLOCK_VALUES);
                let size_bytes = (values * VALUE_BYTES) as usize;
                let id = BlockId { tensor: &tensor.name, expert, block };
                blocks.push(Block { id, fill: tensor.fill, offset, size_bytes });
                offset += size_bytes as u64;
            }
        }
    }
    assert_eq!(offset, plan.size_bytes(), "the blocks of {} cover it", plan.file_name);
    blocks
}

/// Each thread writes its block where it belongs, so no order has to be kept.
fn write_batch(file: &File, batch: &[Block], normals: &Normals) -> std::io::Result<()> {
    let buffer = || vec![0; (BLOCK_VALUES * VALUE_BYTES) as usize];
    batch.par_iter().try_for_each_init(buffer, |buffer, block| {
        let bytes = &mut buffer[..block.size_bytes];
        normals.fill(block.fill, block.id, bytes);
        file.write_all_at(bytes, block.offset)
    })
}

/// Refuses what the disk cannot hold, before a byte is written.
fn check_space(path: &Path, size_bytes: u64) -> Result<()> {
    let existing = path.ancestors().find(|ancestor| ancestor.is_dir()).unwrap_or(Path::new("."));
    let disk = rustix::fs::statvfs(existing)
        .with_context(|| format!("ask for the free space of {}", existing.display()))?;
    let free_bytes = disk.f_bavail.saturating_mul(disk.f_frsize);
    match missing_bytes(size_bytes, free_bytes) {
        None => Ok(()),
        Some(missing) => bail!(
            "{}: {} needed, {} free, {} missing; free that much, or ask for fewer layers",
            path.display(),
            gigabytes(size_bytes),
            gigabytes(free_bytes),
            gigabytes(missing)
        ),
    }
}

/// How much the disk lacks, if it does.
pub fn missing_bytes(size_bytes: u64, free_bytes: u64) -> Option<u64> {
    size_bytes.saturating_add(SPARE_BYTES).checked_sub(free_bytes).filter(|missing| *missing > 0)
}

fn gigabytes(bytes: u64) -> String {
    format!("{:.2} GB", bytes as f64 / 1e9)
}
