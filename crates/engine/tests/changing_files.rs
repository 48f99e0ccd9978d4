//! Files that change while a model runs: the tokens of the old file, or a typed error.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use engine::counters::PhaseCounters;
use engine::index::TokenId;
use engine::model::{Logits, Model, ModelError, Source, State};
use engine::tiers::policy::Policy;
use engine::tiers::{Placement, TierError};
use numerics::{Cpu, SimdLevel};
use store::checkpoint::{Checkpoint, CheckpointError, Keep, Part};
use store::read::ReadOptions;

/// A model on a folder of its own.
struct Setting {
    folder: tempfile::TempDir,
    file: PathBuf,
    model: Model,
}

/// All in memory but the experts, which are mapped, or cached and mostly read again.
fn setting(cached: bool) -> Setting {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/golden/qwen3_moe");
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    let mut checkpoint = Checkpoint::open(folder.path()).unwrap();
    let placement = match cached {
        false => Placement::Mapped,
        true => Placement::Cached {
            slots: 3,
            staging: 2,
            ahead: true,
            policy: Policy::default(),
            read: ReadOptions::default(),
        },
    };
    let experts = Some(Model::experts_in_place(&checkpoint).unwrap().1);
    if cached {
        let keep = |part| if part == Part::Experts { Keep::Mapped } else { Keep::Owned };
        checkpoint.own(keep).unwrap();
    }
    let file = checkpoint.shard_path(&checkpoint.shards()[0]);
    let source =
        Source { checkpoint: &checkpoint, experts, digests: Arc::default(), placement, heat: None };
    let cpu = Cpu::new(SimdLevel::detect(), 2).unwrap();
    let model = Model::open(source, cpu).unwrap();
    Setting { folder, file, model }
}

fn answer(model: &Model) -> Result<Vec<u32>, ModelError> {
    let ids: Vec<TokenId> = (0..12).map(|i| TokenId(i * 5 % 60 + 1)).collect();
    let mut state = State::new(model.description());
    let logits = model.forward(&mut state, &ids, Logits::All, &mut PhaseCounters::default())?;
    Ok(logits.into_iter().map(f32::to_bits).collect())
}

#[test]
fn a_file_that_was_replaced_or_deleted_changes_nothing() {
    for cached in [false, true] {
        let Setting { folder: _folder, file, model } = setting(cached);
        let expected = answer(&model).unwrap();
        let other = file.with_extension("other");
        let mut bytes = fs::read(&file).unwrap();
        let half = bytes.len() / 2;
        bytes[half..].fill(0x3f);
        fs::write(&other, bytes).unwrap();
        fs::rename(&other, &file).unwrap();
        assert!(answer(&model).unwrap() == expected, "replaced, cached: {cached}");
        fs::remove_file(&file).unwrap();
        assert!(answer(&model).unwrap() == expected, "deleted, cached: {cached}");
    }
}

#[test]
fn a_file_that_was_written_to_ends_the_answer() {
    for cached in [false, true] {
        let Setting { folder: _folder, file, model } = setting(cached);
        answer(&model).unwrap();
        // Beyond the tick of the file system's clock.
        std::thread::sleep(Duration::from_millis(50));
        let open = fs::OpenOptions::new().write(true).open(&file).unwrap();
        let middle = open.metadata().unwrap().len() / 2;
        open.write_all_at(&[0x3f; 2], middle).unwrap();
        match answer(&model) {
            Err(ModelError::Checkpoint(CheckpointError::Changed { path })) => {
                assert_eq!(path, file)
            }
            other => panic!("cached: {cached}: {other:?}"),
        }
    }
}

#[test]
fn a_file_that_was_cut_ends_the_answer() {
    let Setting { folder: _folder, file, model } = setting(true);
    answer(&model).unwrap();
    let open = fs::OpenOptions::new().write(true).open(&file).unwrap();
    open.set_len(open.metadata().unwrap().len() / 2).unwrap();
    match answer(&model) {
        Err(ModelError::Checkpoint(CheckpointError::Changed { .. })) => {}
        Err(ModelError::Tier(TierError::Read(_))) => {}
        other => panic!("{other:?}"),
    }
}
