//! What happens around a conversion: others at work, a source that changes, too little room.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::faulty::Full;
use crate::mixed::{SHARDS, Source, assert_same};
use store::convert::{ConvertError, Lock, RealDisk, convert};
use store::jnf::{Store, StoreError};

#[test]
fn two_converters_exclude_each_other() {
    let (folder, out) = (crate::mixed::folder(), crate::mixed::folder());
    let source = Source::fixture(folder.path());
    let lock = Lock::take(out.path()).unwrap();
    let error = source.convert_on(&RealDisk, out.path(), false).unwrap_err();
    assert!(matches!(error, ConvertError::Busy { .. }), "{error}");
    let holder = format!("process {}", std::process::id());
    assert!(error.to_string().contains(&holder), "{error}");
    drop(lock);
    source.convert(out.path(), false);
}

#[test]
fn a_lock_left_behind_locks_nobody_out() {
    let (folder, out) = (crate::mixed::folder(), crate::mixed::folder());
    fs::write(out.path().join("convert.lock"), "process 1").unwrap();
    Source::fixture(folder.path()).convert(out.path(), false);
    assert!(!out.path().join("convert.lock").exists());
}

/// Many threads want one store: each is refused, or finds it done; it is whole in the end.
#[test]
fn a_crowd_makes_one_store() {
    let (folder, out) = (crate::mixed::folder(), crate::mixed::folder());
    let alone = crate::mixed::folder();
    let source = Source::fixture(folder.path());
    source.convert(alone.path(), true);
    std::thread::scope(|scope| {
        let one = || loop {
            match source.convert_on(&RealDisk, out.path(), true) {
                Ok(report) => return assert!(report.complete),
                Err(ConvertError::Busy { .. }) => std::thread::yield_now(),
                Err(other) => panic!("{other}"),
            }
        };
        (0..4).for_each(|_| drop(scope.spawn(one)));
    });
    assert_same(out.path(), alone.path(), "a crowd");
}

fn set_modified(path: &Path, seconds: u64) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

#[test]
fn a_source_that_changes_at_any_step_is_detected() {
    for change_at in 0..8 {
        let (folder, out) = (crate::mixed::folder(), crate::mixed::folder());
        let source = Source::fixture(folder.path());
        let mut calls = 0;
        let done = convert(&source.request(out.path(), false), &RealDisk, &mut |_| {
            if calls == change_at {
                set_modified(&folder.path().join(SHARDS[1]), 1_000_000_000);
            }
            calls += 1;
            ControlFlow::Continue(())
        });
        let error = done.unwrap_err();
        assert!(matches!(error, ConvertError::SourceChanged { .. }), "{error}");
        for words in [SHARDS[1], "the time of change", "empty folder"] {
            assert!(error.to_string().contains(words), "{error}");
        }
        let left = Store::open(out.path()).unwrap_err();
        assert!(matches!(left, StoreError::Incomplete { .. }), "{left}");
    }
}

#[test]
fn a_source_that_changes_between_two_runs_is_detected() {
    let (folder, out) = (crate::mixed::folder(), crate::mixed::folder());
    let source = Source::fixture(folder.path());
    source.convert_layers(out.path(), 0..=0).unwrap();
    // same length, other weights
    let path = folder.path().join(SHARDS[0]);
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::remove_file(&path).unwrap();
    fs::write(&path, bytes).unwrap();
    let error = Source::reopen(folder.path()).convert_layers(out.path(), 2..=2).unwrap_err();
    assert!(matches!(error, ConvertError::SourceChanged { .. }), "{error}");
}

#[test]
fn too_little_room_is_refused_before_a_weight_is_written() {
    let (folder, out) = (crate::mixed::folder(), crate::mixed::folder());
    let source = Source::fixture(folder.path());
    let free_bytes = 1_000_000;
    let error = source.convert_on(&Full(free_bytes), out.path(), false).unwrap_err();
    let ConvertError::NoSpace { needed, free, missing, .. } = &error else { panic!("{error}") };
    assert_eq!((*free, *missing), (free_bytes, needed - free_bytes));
    assert!(error.to_string().contains(&format!("{missing} are missing")), "{error}");
    assert_eq!(fs::read_dir(out.path().join("layers")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(out.path().join("dense")).unwrap().count(), 0);
    source.convert(out.path(), false);
}

#[test]
fn an_interruption_is_said_and_gone_on_from() {
    let (folder, out) = (crate::mixed::folder(), crate::mixed::folder());
    let source = Source::fixture(folder.path());
    let stop = &mut |_| ControlFlow::Break(());
    let error = convert(&source.request(out.path(), true), &RealDisk, stop).unwrap_err();
    assert!(error.to_string().contains("0 of 2 layers are done"), "{error}");
    assert!(source.convert(out.path(), true).complete);
}

#[test]
fn a_folder_of_something_else_is_left_alone() {
    let (folder, out) = (crate::mixed::folder(), crate::mixed::folder());
    let source = Source::fixture(folder.path());
    fs::write(out.path().join("thesis.tex"), "years").unwrap();
    let error = source.convert_on(&RealDisk, out.path(), false).unwrap_err();
    assert!(error.to_string().contains("thesis.tex"), "{error}");
    let left: Vec<_> = fs::read_dir(out.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    let into_itself = source.convert_on(&RealDisk, folder.path(), false).unwrap_err();
    assert!(matches!(into_itself, ConvertError::NotEmpty { .. }), "{into_itself}");
}

#[test]
fn a_store_of_another_conversion_is_left_alone() {
    let (folder, out) = (crate::mixed::folder(), crate::mixed::folder());
    let source = Source::fixture(folder.path());
    source.convert(out.path(), false);
    let error = source.convert_on(&RealDisk, out.path(), true).unwrap_err();
    assert!(error.to_string().contains("its encoding is bf16, this one's is packed"), "{error}");
    let config = folder.path().join("config.json");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("fixture", "other")).unwrap();
    let error = Source::reopen(folder.path()).convert_on(&RealDisk, out.path(), false).unwrap_err();
    assert!(error.to_string().contains("source fingerprint"), "{error}");
    Store::open(out.path()).unwrap();
}
