//! Packed projections: every bit comes back, and nothing that was not written is read.

use proptest::prelude::*;
use store::pack::{PackError, Packed, encode};

/// Written by version 1; kept for ever.
const FIXTURE: &[u8] = include_bytes!("data/packed-v1.bin");
/// What it was made from: 7 rows of 300.
const FIXTURE_BF16: &[u8] = include_bytes!("data/packed-v1.bf16");

fn bytes(values: &[u16]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// The bits of values that are about N(0, deviation).
fn normal(count: usize, seed: u64, deviation: f32) -> Vec<u16> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut unit = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99_999_999_977);
        (state >> 40) as f64 / 16_777_216.0
    };
    let mut value = || {
        let radius = (-2.0 * (1.0 - unit()).ln()).sqrt();
        (radius * (std::f64::consts::TAU * unit()).cos()) as f32 * deviation
    };
    (0..count).map(|_| (value().to_bits() >> 16) as u16).collect()
}

fn there_and_back(rows: usize, cols: usize, values: &[u16]) -> usize {
    let plain = bytes(values);
    let block = encode(rows, cols, &plain).unwrap_or_else(|| panic!("{rows} x {cols} packs"));
    let packed = Packed::parse(&block).expect("what was just written");
    let mut out = vec![0xaa; plain.len()];
    packed.decode(&mut out);
    assert!(out == plain, "{rows} x {cols}");
    block.len()
}

#[test]
fn every_bf16_comes_back_in_rows_of_any_length() {
    let count = 1 << 21;
    let mut values = normal(count, 3, 0.02);
    for bits in 0..=u16::MAX {
        values[usize::from(bits) * 31 + usize::from(bits) % 31] = bits;
    }
    for cols in [3, 64, 100, 127, 128, 129, 1000, 4096, count] {
        let rows = count / cols;
        there_and_back(rows, cols, &values[..rows * cols]);
    }
}

#[test]
fn normal_weights_take_less_than_76_percent() {
    for (rows, cols) in [(2048, 3072), (3072, 1024), (512, 2048), (300, 768)] {
        let values = normal(rows * cols, 7, 0.02);
        let stored = there_and_back(rows, cols, &values);
        let share = stored as f64 / (2 * rows * cols) as f64;
        assert!(share <= 0.76, "{rows} x {cols}: {share}");
    }
}

#[test]
fn what_would_not_be_smaller_is_left_alone() {
    let spread: Vec<u16> = (0..4096u32).map(|i| (i * 16 + i % 16) as u16).collect();
    assert_eq!(encode(4, 1024, &bytes(&spread)), None);
    assert_eq!(encode(0, 128, &[]), None);
    assert_eq!(encode(128, 0, &[]), None);
    // A base for each element.
    assert_eq!(encode(4096, 1, &bytes(&normal(4096, 1, 1.0))), None);
}

#[test]
fn version_1_is_read_for_ever() {
    let packed = Packed::parse(FIXTURE).expect("version 1");
    assert_eq!((packed.rows(), packed.cols()), (7, 300));
    assert!(packed.escape_places().len() / 4 > 10, "escapes are part of it");
    let mut out = vec![0; FIXTURE_BF16.len()];
    packed.decode(&mut out);
    assert!(out == FIXTURE_BF16);
    assert_eq!(encode(7, 300, FIXTURE_BF16).as_deref(), Some(FIXTURE));
}

#[test]
fn the_document_describes_the_header() {
    let document = include_str!("../../../FORMAT.md");
    let section = document.split("## Packed projection").nth(1).expect("the section");
    let field = |name: &str| {
        let rows = section.lines().map(|l| l.split('|').map(str::trim).collect::<Vec<_>>());
        let row = rows.into_iter().find(|row| row.get(3) == Some(&name)).expect("a row");
        let [offset, len] = [row[1], row[2]].map(|v| v.parse::<usize>().expect("a number"));
        let mut bytes = [0; 8];
        bytes[..len].copy_from_slice(&FIXTURE[offset..offset + len]);
        u64::from_le_bytes(bytes)
    };
    let names = ["magic", "version", "rows", "cols", "groups", "escapes"];
    let magic = u64::from(u32::from_le_bytes(*b"TFPK"));
    assert_eq!(names.map(field), [magic, 1, 7, 300, 17, 16]);
}

#[test]
fn no_part_of_a_block_is_enough() {
    for len in 0..FIXTURE.len() {
        Packed::parse(&FIXTURE[..len]).expect_err("truncated");
    }
    let longer = [FIXTURE, &[0; 64]].concat();
    Packed::parse(&longer).expect_err("longer");
}

#[test]
fn each_kind_of_damage_is_named() {
    let damaged = |at: usize, bytes: &[u8]| {
        let mut block = FIXTURE.to_vec();
        block[at..at + bytes.len()].copy_from_slice(bytes);
        Packed::parse(&block).expect_err("damaged")
    };
    let packed = Packed::parse(FIXTURE).expect("version 1");
    let at = |part: &[u8]| part.as_ptr() as usize - FIXTURE.as_ptr() as usize;
    let (places, values) = (at(packed.escape_places()), at(packed.escape_values()));
    let found = [
        damaged(0, b"X"),
        damaged(4, &[2]),
        damaged(8, &u64::MAX.to_le_bytes()),
        damaged(24, &[1]),
        damaged(32, &[0]),
        damaged(50, &[1]),
        damaged(64, &[241]),
        damaged(64 + 7, &[1]),
        damaged(places, &u32::MAX.to_le_bytes()),
        damaged(places + 4, &FIXTURE[places..places + 4]),
        damaged(values, &[0x80, 0x3c]),
        damaged(values, &[FIXTURE[values] ^ 1]),
    ];
    use PackError::*;
    assert!(matches!(found[0], Magic { .. }));
    assert!(matches!(found[1], Version { found: 2 }));
    assert!(matches!(found[2], Shape { .. }));
    assert!(matches!(found[3], Groups { expected: 17, found: 1 }));
    assert!(matches!(found[4], Length { .. }));
    assert!(matches!(found[5], Padding { offset: 50, .. }));
    assert!(matches!(found[6], Base { row: 0, .. }));
    assert!(matches!(found[7], Padding { offset: 71, .. }));
    assert!(matches!(found[8], Place { index: 0, .. }));
    assert!(matches!(found[9], Place { index: 1, .. }));
    assert!(matches!(found[10], NeedlessEscape { index: 0, .. }));
    assert!(matches!(found[11], Substitute { index: 0, .. }));
    // The last lanes of the last group stand behind the last element.
    let end = at(packed.groups()) + packed.groups().len();
    assert!(matches!(damaged(end - 1, &[FIXTURE[end - 1] ^ 0x40]), Tail { .. }));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_damage_is_refused_or_decodes_to_what_it_says(
        changes in prop::collection::vec((0..FIXTURE.len(), any::<u8>()), 1..4),
    ) {
        let mut block = FIXTURE.to_vec();
        for (at, byte) in changes {
            block[at] = byte;
        }
        if let Ok(packed) = Packed::parse(&block) {
            let mut out = vec![0; 2 * packed.rows() * packed.cols()];
            packed.decode(&mut out);
            // One projection, one encoding, but that a base need not be the best one.
            if let Some(again) = encode(packed.rows(), packed.cols(), &out)
                && Packed::parse(&again).expect("just written").bases() == packed.bases()
            {
                prop_assert!(again == block);
            }
        }
    }

    #[test]
    fn any_rows_come_back(rows in 1usize..9, cols in 100usize..400, seed: u64, strange: u16) {
        let mut values = normal(rows * cols, seed, 1.0);
        let len = values.len();
        for i in 0..len / 100 {
            values[(i * 97 + seed as usize % len) % len] = strange.wrapping_mul(i as u16 + 1);
        }
        let plain = bytes(&values);
        if let Some(block) = encode(rows, cols, &plain) {
            let mut out = vec![0; plain.len()];
            Packed::parse(&block).expect("what was just written").decode(&mut out);
            prop_assert!(out == plain);
        }
    }
}
