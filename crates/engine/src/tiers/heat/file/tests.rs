//! Heats on disk: whole, damaged and foreign.

use super::*;
use crate::index::{ExpertIdx, LayerIdx};
use crate::tiers::Phase;

const SHAPE: Shape = Shape { layers: 3, experts: 5, top_k: 2 };

fn fingerprint() -> String {
    "ab".repeat(32)
}

fn some() -> Heat {
    let mut heat = Heat::new(SHAPE);
    heat.pass(Phase::Prefill, 64);
    heat.note(Phase::Prefill, LayerIdx(0), ExpertIdx(4), 64);
    heat.pass(Phase::Decode, 1);
    heat.note(Phase::Decode, LayerIdx(2), ExpertIdx(1), 1);
    heat
}

#[test]
fn what_is_saved_is_loaded_and_added_to() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("new/heat");
    assert_eq!(load(&path, &fingerprint(), SHAPE), Loaded::Absent);
    let first = save(&path, &fingerprint(), &some()).expect("saves");
    assert_eq!(load(&path, &fingerprint(), SHAPE), Loaded::Known(Box::new(first)));
    let second = save(&path, &fingerprint(), &some()).expect("saves");
    assert_eq!((second.tokens(), second.total(LayerIdx(0), ExpertIdx(4))), (130, 128));
    let names: Vec<_> = fs::read_dir(path.parent().expect("a folder")).expect("reads").collect();
    assert_eq!(names.len(), 1, "nothing partial is left: {names:?}");
}

#[test]
fn every_flipped_byte_is_found_and_the_file_set_aside() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("heat");
    let good = bytes_of(&some(), &fingerprint());
    for place in 0..good.len() {
        let mut bytes = good.clone();
        bytes[place] ^= 0x10;
        fs::write(&path, &bytes).expect("writes");
        let Loaded::SetAside { why, moved_to } = load(&path, &fingerprint(), SHAPE) else {
            panic!("byte {place} was changed unnoticed");
        };
        let expected = if place < MAGIC.len() { Broken::Foreign } else { Broken::Checksum };
        assert_eq!(why, expected, "byte {place}");
        assert_eq!(fs::read(moved_to.expect("renamed")).expect("kept"), bytes);
        assert_eq!(load(&path, &fingerprint(), SHAPE), Loaded::Absent);
    }
}

#[test]
fn every_truncation_is_found() {
    let good = bytes_of(&some(), &fingerprint());
    for length in 0..good.len() {
        assert!(parse(&good[..length], &fingerprint(), SHAPE).is_err(), "{length} bytes");
    }
    assert!(parse(&good, &fingerprint(), SHAPE).is_ok());
}

#[test]
fn what_belongs_to_another_model_is_refused() {
    let good = bytes_of(&some(), &fingerprint());
    let other = "cd".repeat(32);
    let found = fingerprint();
    assert_eq!(parse(&good, &other, SHAPE), Err(Broken::OtherCheckpoint { found }));
    let wide = Shape { experts: 6, ..SHAPE };
    let expected = Err(Broken::OtherShape { found: SHAPE, expected: wide });
    assert_eq!(parse(&good, &fingerprint(), wide), expected);
}

#[test]
fn a_sound_checksum_over_senseless_counts_is_refused() {
    let mut heat = some();
    heat.decode.counts[0] = f64::NAN;
    let bytes = bytes_of(&heat, &fingerprint());
    assert_eq!(parse(&bytes, &fingerprint(), SHAPE), Err(Broken::Count));
}

#[test]
fn a_heat_lies_in_the_checkpoints_folder_if_it_may() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = heat_path(Some(folder.path()), &fingerprint()).expect("a place");
    assert_eq!(path, folder.path().join(".tarfa/heat"));
    let absent = folder.path().join("absent");
    let path = heat_path(Some(&absent), &fingerprint()).expect("a place");
    assert!(path.ends_with(format!("tarfa/{}/heat", fingerprint())), "{}", path.display());
}
