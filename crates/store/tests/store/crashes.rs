//! A failure at every single disk operation: the store says that it is incomplete, or is complete,
//! and the same call makes it what it would have been.

use std::ops::ControlFlow;
use std::path::Path;

use crate::faulty::{EIO, ENOSPC, Failure, Faulty};
use crate::mixed::{Source, assert_same};
use store::convert::ConvertError;
use store::jnf::{Store, StoreError};
use store::verify::verify_store;

/// What is there after a failure: nothing usable, or all of it.
fn check_left(source: &Source, out: &Path, what: &str) {
    match Store::open(out) {
        Err(StoreError::NotAStore { .. } | StoreError::Incomplete { .. }) => {}
        Err(other) => panic!("{what}: {other}"),
        Ok(store) => {
            let mut go_on = |_| ControlFlow::Continue(());
            let found = verify_store(&store, Some(&source.checkpoint), &mut go_on).unwrap();
            assert_eq!(found.differences, [], "{what}");
        }
    }
}

fn fail_everywhere(pack: bool, failure: fn(usize) -> Failure) {
    let (folder, whole) = (crate::mixed::folder(), crate::mixed::folder());
    let source = Source::fixture(folder.path());
    let sound = Faulty::sound();
    source.convert_on(&sound, whole.path(), pack).unwrap();
    let operations = sound.operations();
    assert!(operations > 50, "only {operations} operations");
    for at in 0..operations {
        let out = crate::mixed::folder();
        let (failure, what) = (failure(at), format!("{:?} at operation {at}", failure(at)));
        let disk = Faulty::new(at, failure);
        let error = source.convert_on(&disk, out.path(), pack).expect_err(&what);
        assert!(matches!(error, ConvertError::Write { .. }), "{what}: {error}");
        if failure == Failure::PowerLoss {
            disk.lose_power();
        }
        check_left(&source, out.path(), &what);
        source.convert_on(&Faulty::sound(), out.path(), pack).expect(&what);
        assert_same(out.path(), whole.path(), &what);
    }
}

#[test]
fn one_error_at_every_operation() {
    [false, true].into_iter().for_each(|pack| fail_everywhere(pack, |_| Failure::Once(EIO)));
}

#[test]
fn a_disk_that_is_full_from_some_operation_on() {
    [false, true].into_iter().for_each(|pack| fail_everywhere(pack, |_| Failure::Onwards(ENOSPC)));
}

#[test]
fn a_power_failure_at_every_operation() {
    [false, true].into_iter().for_each(|pack| fail_everywhere(pack, |_| Failure::PowerLoss));
}

/// The names of the folders above the store are on the disk, too.
#[test]
fn a_finished_store_in_a_new_folder_survives_a_power_failure() {
    let folder = crate::mixed::folder();
    let source = Source::fixture(folder.path());
    let out = crate::mixed::folder();
    let store = out.path().join("new/and/deeper");
    let disk = Faulty::sound();
    source.convert_on(&disk, &store, true).unwrap();
    disk.lose_power();
    Store::open(&store).expect("what was finished is there");
}

/// Two failures in a row, the second one while going on.
#[test]
fn failures_while_going_on() {
    let (folder, whole) = (crate::mixed::folder(), crate::mixed::folder());
    let source = Source::fixture(folder.path());
    let sound = Faulty::sound();
    source.convert_on(&sound, whole.path(), true).unwrap();
    for at in (0..sound.operations()).step_by(7) {
        let out = crate::mixed::folder();
        let mut failures = 0;
        for next in [at, at / 2, at / 3, 9, 4] {
            let disk = Faulty::new(next, Failure::PowerLoss);
            if source.convert_on(&disk, out.path(), true).is_err() {
                disk.lose_power();
                failures += 1;
            }
            check_left(&source, out.path(), &format!("{failures} failures"));
        }
        assert!(failures >= 3, "{failures} failures");
        source.convert_on(&Faulty::sound(), out.path(), true).unwrap();
        assert_same(out.path(), whole.path(), &format!("from operation {at}"));
    }
}

/// The harness can tell: a disk that says "synced" before anything is, is found out.
#[test]
fn the_harness_finds_what_was_not_synced() {
    let folder = crate::mixed::folder();
    let (partial, place) = (folder.path().join("a.partial"), folder.path().join("a"));
    let disk = Faulty::sound();
    use store::convert::Disk;
    let mut file = disk.create(&partial).unwrap();
    file.write_all(b"whole").unwrap();
    drop(file);
    disk.rename(&partial, &place).unwrap();
    disk.lose_power();
    assert!(!place.exists(), "the folder was not synced");
    assert_eq!(std::fs::read(&partial).unwrap(), b"wh", "the file was not synced");
}
