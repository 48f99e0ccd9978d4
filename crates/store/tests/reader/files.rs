//! The backends agree; files that are not what they were are refused.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use store::experts::Digests;
use store::read::{Backend, Fetch, Io, ReadError, Urgency};

use crate::fixture::{EXPERTS, Fixture, check_all, fetch, open, options, write};

#[test]
fn ring_pool_and_memory_give_the_same_bytes() {
    let fixture = Fixture::new();
    for io in [Io::Auto, Io::Pread] {
        let (reader, arena) = open(&fixture.map, &fixture.manifest(), &options(io)).unwrap();
        check_all(&fixture, &reader, &arena);
    }
    let (reader, arena) =
        open(&fixture.embedded(), &fixture.manifest(), &options(Io::Auto)).unwrap();
    assert!(matches!(reader.backend(), Backend::Memory));
    check_all(&fixture, &reader, &arena);
}

#[test]
fn a_file_system_without_direct_reads_is_read_through_the_page_cache() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return };
    let fixture = Fixture::in_folder(folder);
    let (reader, arena) = open(&fixture.map, &fixture.manifest(), &options(Io::Auto)).unwrap();
    check_all(&fixture, &reader, &arena);
}

#[test]
fn what_was_new_is_expected_from_then_on() {
    let fixture = Fixture::new();
    let digests = Arc::new(Digests::default());
    let (reader, arena) = open(&fixture.map, &digests, &options(Io::Auto)).unwrap();
    let (first, second) = (fetch(&reader, &arena, 2), fetch(&reader, &arena, 2));
    assert_eq!((first.tally.new, second.tally.first_seen), (2, 2));
    drop((first, second));
    let mut damaged = fixture.bytes.clone();
    damaged[7 + 2 * 79_001 + 5] ^= 4;
    write(&fixture.path(), &damaged);
    let third = fetch(&reader, &arena, 2);
    assert!(matches!(third.result, Err(ReadError::Differs { .. })), "{third:?}");
}

#[test]
fn a_file_that_was_replaced_while_open_is_read_as_it_was() {
    let fixture = Fixture::new();
    let (reader, arena) = open(&fixture.map, &fixture.manifest(), &options(Io::Auto)).unwrap();
    let other = fixture.folder.path().join("other");
    write(&other, &vec![0; fixture.bytes.len()]);
    std::fs::rename(&other, fixture.path()).unwrap();
    check_all(&fixture, &reader, &arena);
}

#[test]
fn a_file_that_was_overwritten_or_cut_is_an_error_that_names_it() {
    for io in [Io::Auto, Io::Pread] {
        let fixture = Fixture::new();
        let (reader, arena) = open(&fixture.map, &fixture.manifest(), &options(io)).unwrap();
        write(&fixture.path(), &fixture.bytes[..200_000]);
        let error = fetch(&reader, &arena, EXPERTS - 1).result.unwrap_err();
        assert!(matches!(error, ReadError::Io { .. }), "{error}");
        assert!(error.to_string().contains("experts.bin"), "{error}");
        assert!(error.to_string().contains("expert 5"), "{error}");
        write(&fixture.path(), &vec![1; fixture.bytes.len()]);
        let error = fetch(&reader, &arena, 0).result.unwrap_err();
        assert!(matches!(error, ReadError::Differs { .. }), "{error}");
        assert_eq!(arena.free_count(), 3);
    }
}

#[test]
fn swapped_blocks_are_found() {
    let fixture = Fixture::new();
    let mut swapped = fixture.bytes.clone();
    let (a, b) = (7, 7 + 79_001);
    swapped[a..a + 79_001].copy_from_slice(&fixture.bytes[b..b + 79_001]);
    swapped[b..b + 79_001].copy_from_slice(&fixture.bytes[a..a + 79_001]);
    write(&fixture.path(), &swapped);
    let (reader, arena) = open(&fixture.map, &fixture.manifest(), &options(Io::Auto)).unwrap();
    for expert in [0, 1] {
        let error = fetch(&reader, &arena, expert).result.unwrap_err();
        assert!(matches!(error, ReadError::Differs { .. }), "{error}");
    }
    assert!(fetch(&reader, &arena, 2).result.is_ok());
}

#[test]
fn a_file_of_another_length_and_an_absent_one_are_refused() {
    let fixture = Fixture::new();
    write(&fixture.path(), &fixture.bytes[1..]);
    let refused = open(&fixture.map, &fixture.manifest(), &options(Io::Auto)).err().unwrap();
    assert!(matches!(refused, ReadError::Length { .. }), "{refused}");
    std::fs::remove_file(fixture.path()).unwrap();
    let refused = open(&fixture.map, &fixture.manifest(), &options(Io::Auto)).err().unwrap();
    assert!(matches!(refused, ReadError::Open { .. }), "{refused}");
}

#[test]
fn every_fetch_is_answered_when_the_reader_goes_away() {
    for io in [Io::Auto, Io::Pread] {
        let fixture = Fixture::new();
        let (reader, arena) = open(&fixture.map, &fixture.manifest(), &options(io)).unwrap();
        let (reply, answers) = channel();
        for (expert, urgency) in [(0, Urgency::Demand), (1, Urgency::Ahead), (2, Urgency::Ahead)] {
            let (slot, reply) = (arena.take().unwrap(), reply.clone());
            reader.fetch(Fetch { layer: 0, expert, urgency, slot, reply });
        }
        reader.cancel_ahead();
        drop(reader);
        drop(reply);
        for _ in 0..3 {
            let fetched = answers.recv_timeout(Duration::from_secs(20)).unwrap();
            match fetched.result {
                Ok(_) | Err(ReadError::Stopped) => {}
                Err(ReadError::Cancelled) => assert_eq!(fetched.urgency, Urgency::Ahead),
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(arena.free_count(), 3);
    }
}
