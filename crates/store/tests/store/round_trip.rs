//! What goes in comes out, however it was made.

use std::ops::ControlFlow;

use store::convert::{ConvertError, Lock, RealDisk, convert};
use store::experts::{Encoding, Projection};
use store::jnf::{Store, StoreError};
use store::pack::Packed;
use store::verify::verify_store;

use crate::fixture::{EXPERTS, Fixture, LAYERS, Layout, files};

#[test]
fn every_weight_comes_back_from_both_versions() {
    for layout in [Layout::Fused, Layout::Separate] {
        let fixture = Fixture::new(layout);
        for (pack, name) in [(false, "v1"), (true, "v2")] {
            let store = Store::open(&fixture.store(name, pack)).unwrap();
            let map = store.expert_map();
            let mut packed = 0;
            for layer in 1..=LAYERS {
                for expert in 0..EXPERTS as u32 {
                    // Gate and up lie apart in one layout, one over the other in the other.
                    let bytes = |block: &store::experts::Block, of: &store::experts::ExpertMap| {
                        let at = block.offset_bytes as usize;
                        of.file(block.file).bytes.slice(at..at + block.stored_bytes as usize)
                    };
                    let mut expected: [Vec<u8>; 2] = Default::default();
                    for block in fixture.map.blocks(layer, expert) {
                        let which = usize::from(block.id.projection == Projection::Down);
                        expected[which].extend(bytes(block, &fixture.map).iter());
                    }
                    for (block, expected) in map.blocks(layer, expert).iter().zip(expected) {
                        let stored = bytes(block, &map);
                        let mut found = stored.to_vec();
                        if block.encoding == Encoding::Packed {
                            packed += 1;
                            found = vec![0; expected.len()];
                            Packed::parse(&stored).unwrap().decode(&mut found);
                        }
                        assert!(found == expected, "{name}: {:?}", block.id);
                    }
                }
            }
            assert_eq!(packed > 0, pack, "{name}");
            let mut observe = |_| ControlFlow::Continue(());
            let found = verify_store(&store, Some(&fixture.checkpoint), &mut observe).unwrap();
            assert_eq!(found.differences, []);
            assert_eq!(found.blocks, u64::from(LAYERS) * EXPERTS as u64 * 2);
        }
    }
}

#[test]
fn ranges_of_layers_and_numbers_of_threads_make_the_same_store() {
    let fixture = Fixture::new(Layout::Fused);
    let whole = files(&fixture.store("whole", true));
    for threads in [1, 7] {
        let out = fixture.out(&format!("ranges-{threads}"));
        for (layers, complete) in [(2..=2, false), (0..=1, false), (2..=3, true)] {
            let mut request = fixture.request(&out, true);
            (request.layers, request.threads) = (Some(layers), threads);
            let report = convert(&request, &RealDisk, &mut |_| ControlFlow::Continue(())).unwrap();
            assert_eq!(report.complete, complete);
            if !complete {
                assert!(matches!(Store::open(&out), Err(StoreError::Incomplete { .. })));
            }
        }
        assert!(files(&out) == whole, "{threads} threads");
    }
}

#[test]
fn two_converters_exclude_each_other() {
    let fixture = Fixture::new(Layout::Fused);
    let out = fixture.out("busy");
    std::fs::create_dir(&out).unwrap();
    let lock = Lock::take(&out).unwrap();
    let error = fixture.convert(&out, false, &RealDisk).unwrap_err();
    assert!(matches!(error, ConvertError::Busy { .. }), "{error}");
    drop(lock);
    fixture.convert(&out, false, &RealDisk).unwrap();
}

#[test]
fn a_source_that_changed_meanwhile_is_found() {
    let fixture = Fixture::new(Layout::Fused);
    let out = fixture.out("changed");
    let mut request = fixture.request(&out, false);
    request.layers = Some(1..=1);
    convert(&request, &RealDisk, &mut |_| ControlFlow::Continue(())).unwrap();
    let path = fixture.source().join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let error = fixture.convert(&out, false, &RealDisk).unwrap_err();
    assert!(matches!(error, ConvertError::SourceChanged { .. }), "{error}");
}

#[test]
fn other_folders_checkpoints_and_flags_are_refused() {
    let fixture = Fixture::new(Layout::Fused);
    let error = |result: Result<_, ConvertError>| result.map(|_| ()).unwrap_err();
    let full = fixture.out("full");
    std::fs::create_dir(&full).unwrap();
    std::fs::write(full.join("letter.txt"), "dear").unwrap();
    let found = error(fixture.convert(&full, false, &RealDisk));
    assert!(matches!(found, ConvertError::NotEmpty { .. }), "{found}");
    let out = fixture.store("store", false);
    let found = error(fixture.convert(&out, true, &RealDisk));
    assert!(matches!(found, ConvertError::OtherConversion { field: "encoding", .. }), "{found}");
    let other = Fixture::new(Layout::Separate);
    let found = error(other.convert(&out, false, &RealDisk));
    assert!(matches!(found, ConvertError::OtherConversion { .. }), "{found}");
    let mut request = fixture.request(&out, false);
    request.layers = Some(2..=99);
    let found = error(convert(&request, &RealDisk, &mut |_| ControlFlow::Continue(())));
    assert!(matches!(found, ConvertError::NoSuchLayers { .. }), "{found}");
}
