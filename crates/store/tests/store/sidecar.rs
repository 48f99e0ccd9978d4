//! What is known of a folder used in place.

use std::fs;
use std::ops::ControlFlow;

use store::Checkpoint;
use store::experts::{BlockId, Found, Projection, Provenance};
use store::sidecar::{Sidecar, SidecarError};
use store::verify::{Findings, InPlace, Sums, VerifyError, What, verify_in_place};

use crate::fixture::{Fixture, Layout};

fn id(expert: u32) -> BlockId {
    BlockId { layer: 1, expert, projection: Projection::Down }
}

fn verify(fixture: &Fixture, with: InPlace<'_>) -> (Sidecar, Findings) {
    let checkpoint = Checkpoint::open(&fixture.source()).unwrap();
    verify_in_place(&checkpoint, &fixture.map, with, &mut |_| ControlFlow::Continue(())).unwrap()
}

#[test]
fn what_runs_learn_is_kept_and_what_was_verified_weighs_more() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new/manifest.json");
    let seen = |expert, sum| vec![(id(expert), sum, Provenance::FirstSeen)];
    Sidecar::update(&path, "f", seen(1, 10)).unwrap();
    Sidecar::update(&path, "f", seen(2, 20)).unwrap();
    // A second reading does not take the place of the first, a verified one does.
    Sidecar::update(&path, "f", seen(1, 11)).unwrap();
    Sidecar::update(&path, "f", vec![(id(2), 21, Provenance::Manifest)]).unwrap();
    Sidecar::update(&path, "f", seen(2, 22)).unwrap();
    let digests = Sidecar::load(&path, "f").unwrap().digests();
    assert_eq!(digests.check(id(1), 10), Found::Equal(Provenance::FirstSeen));
    assert_eq!(digests.check(id(2), 21), Found::Equal(Provenance::Manifest));
    let error = Sidecar::load(&path, "g").unwrap_err();
    assert!(matches!(error, SidecarError::OtherCheckpoint { .. }), "{error}");
    let good = fs::read(&path).unwrap();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        fs::write(&path, bad).unwrap();
        let error = Sidecar::load(&path, "f").unwrap_err();
        assert!(matches!(error, SidecarError::Sealed { .. }), "byte {at}: {error}");
    }
}

#[test]
fn verifying_again_finds_a_changed_byte_and_names_its_block() {
    for layout in [Layout::Fused, Layout::Separate] {
        let fixture = Fixture::new(layout);
        let (known, findings) = verify(&fixture, InPlace::default());
        assert_eq!((findings.differences.len(), findings.files), (0, 1));
        assert_eq!(findings.blocks, fixture.map.all().count() as u64);
        let with = InPlace { known: Some(&known), sums: None };
        assert_eq!(verify(&fixture, with).1.differences, []);
        let block = fixture.map.blocks(2, 1).last().unwrap();
        let path = fixture.source().join("model.safetensors");
        let mut bytes = fs::read(&path).unwrap();
        bytes[block.offset_bytes as usize + 5] ^= 0x10;
        fs::write(&path, bytes).unwrap();
        let differences = verify(&fixture, with).1.differences;
        let what: Vec<What> = differences.iter().map(|d| d.what).collect();
        assert_eq!(what, [What::Sha256, What::Checksum]);
        assert_eq!(differences[1].block, Some(block.id));
        assert_eq!(differences[1].tensor.as_deref(), Some(&*block.tensor));
    }
}

#[test]
fn files_are_compared_with_what_sha256sum_printed() {
    let fixture = Fixture::new(Layout::Fused);
    let (known, _) = verify(&fixture, InPlace::default());
    let list = fixture.folder.path().join("SHA256SUMS");
    let differences = |text: String| {
        fs::write(&list, text).unwrap();
        let sums = Sums::read(&list).unwrap();
        let with = InPlace { sums: Some(&sums), known: None };
        let found = verify(&fixture, with).1.differences;
        found.iter().map(|d| d.what).collect::<Vec<_>>()
    };
    let hash = known.files[0].sha256;
    assert_eq!(differences(format!("{hash}  ./model.safetensors\n")), []);
    assert_eq!(differences(format!("{hash} *model.safetensors\n\n")), []);
    let other = "0".repeat(64);
    assert_eq!(differences(format!("{other}  model.safetensors\n")), [What::Sha256]);
    assert_eq!(differences(format!("{hash}  gone.safetensors\n")), [What::Absent]);
    for bad in ["abc  file", "just-one-word", &format!("{hash}  ")] {
        fs::write(&list, format!("{hash}  a\n{bad}\n")).unwrap();
        let error = Sums::read(&list).unwrap_err();
        assert!(matches!(error, VerifyError::BadSums { line: 2, .. }), "{bad}: {error}");
    }
}
