//! What goes in comes out, however it was made.

use std::ops::ControlFlow;

use store::convert::{RealDisk, convert};
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
