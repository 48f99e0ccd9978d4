//! Reads that go wrong: once is survived, for ever is an error that names the place.

use std::time::Duration;

use store::read::{Fault, Injection, Io, ReadError, ReadOptions};

use crate::fixture::{Fixture, check_all, fetch, open, options};

fn with(fault: Fault, times: u64) -> ReadOptions {
    ReadOptions { faults: vec![(0, vec![Injection { fault, times }])], ..options(Io::Auto) }
}

/// Inside the first block of expert 1.
const PLACE: u64 = 7 + 79_001 + 20_000;
const ALWAYS: u64 = u64::MAX;

#[test]
fn what_passes_costs_only_time() {
    let fixture = Fixture::new();
    let faults = [
        (Fault::Short { count: 5000 }, 1),
        (Fault::Short { count: 12_345 }, ALWAYS),
        (Fault::Interrupted, 3),
        (Fault::Flip { offset_bytes: PLACE }, 1),
        (Fault::Slow { delay: Duration::from_millis(20) }, 4),
    ];
    for (fault, times) in faults {
        let (reader, arena) = open(&fixture.map, &fixture.manifest(), &with(fault, times)).unwrap();
        check_all(&fixture, &reader, &arena);
    }
}

#[test]
fn a_flip_is_read_again_and_counted() {
    let fixture = Fixture::new();
    let fault = Fault::Flip { offset_bytes: PLACE };
    let (reader, arena) = open(&fixture.map, &fixture.manifest(), &with(fault, 1)).unwrap();
    let fetched = fetch(&reader, &arena, 1);
    assert!(fetched.result.is_ok());
    assert_eq!((fetched.tally.retries, fetched.tally.manifest), (1, 2));
}

#[test]
fn a_flip_that_stays_names_its_block() {
    let fixture = Fixture::new();
    let fault = Fault::Flip { offset_bytes: PLACE };
    let (reader, arena) = open(&fixture.map, &fixture.manifest(), &with(fault, ALWAYS)).unwrap();
    let fetched = fetch(&reader, &arena, 1);
    let error = fetched.result.unwrap_err();
    let ReadError::Differs { offset_bytes, id, expected, found, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!((*offset_bytes, id.expert), (7 + 79_001, 1));
    assert_ne!(expected, found);
    assert_eq!(arena.free_count(), 3);
    assert!(fetch(&reader, &arena, 0).result.is_ok(), "others are unharmed");
}

#[test]
fn an_error_of_the_drive_and_an_early_end_name_the_file() {
    let fixture = Fixture::new();
    for fault in [Fault::Io, Fault::End] {
        let (reader, arena) = open(&fixture.map, &fixture.manifest(), &with(fault, 1)).unwrap();
        let error = fetch(&reader, &arena, 3).result.unwrap_err();
        assert!(matches!(error, ReadError::Io { .. }), "{error}");
        assert!(error.to_string().contains("experts.bin"), "{error}");
        check_all(&fixture, &reader, &arena);
    }
}
