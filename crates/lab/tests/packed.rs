//! Packed weights against the same weights plain: bit for bit, at every level.

use numerics::op::linear::{Elements, Job, JobError, Matrix, Output, PackedRows, Prepared, linear};
use numerics::{Cpu, SimdLevel, bf16};
use store::pack::{Packed, encode};

/// The sections of a block where the kernels can read them.
struct Block {
    rows: usize,
    cols: usize,
    bases: Vec<u8>,
    groups: Vec<u16>,
    escape_places: Vec<u32>,
    escape_values: Vec<bf16>,
}

impl Block {
    fn new(rows: usize, cols: usize, weights: &[bf16]) -> Option<Block> {
        let block = encode(rows, cols, bytemuck::cast_slice(weights))?;
        let packed = Packed::parse(&block).expect("what was just written");
        Some(Block {
            rows,
            cols,
            bases: packed.bases().to_vec(),
            groups: bytemuck::pod_collect_to_vec(packed.groups()),
            escape_places: bytemuck::pod_collect_to_vec(packed.escape_places()),
            escape_values: bytemuck::pod_collect_to_vec(packed.escape_values()),
        })
    }

    fn packed(&self) -> PackedRows<'_> {
        PackedRows {
            rows: self.rows,
            cols: self.cols,
            bases: &self.bases,
            groups: &self.groups,
            escape_places: &self.escape_places,
            escape_values: &self.escape_values,
        }
    }
}

fn cpus() -> Vec<Cpu> {
    let levels = SimdLevel::available().into_iter();
    levels.flat_map(|l| [1, 3].map(|n| Cpu::new(l, n).expect("a level of this CPU"))).collect()
}

fn bits(values: &[bf16]) -> &[u16] {
    bytemuck::cast_slice(values)
}

type Outputs = (Result<Vec<u16>, JobError>, Result<Vec<u32>, JobError>);

/// Both outputs of a product.
fn product(cpu: &Cpu, weights: Matrix<'_>, input: &Prepared) -> Outputs {
    let len = weights.rows() * input.tokens();
    let (mut stored, mut plain) = (vec![bf16::ZERO; len], vec![0.0f32; len]);
    let run = |output| linear(cpu, &mut [Job { weights, input, tokens: None, output }]);
    let first = run(Output::Bf16(&mut stored));
    let second = run(Output::F32(&mut plain));
    (
        first.map(|()| bits(&stored).to_vec()),
        second.map(|()| plain.iter().map(|v| v.to_bits()).collect()),
    )
}

/// Compares products with 1, 2 and 33 tokens, and unpacked rows; says whether anything failed.
fn same(rows: usize, cols: usize, weights: &[bf16], inputs: &[bf16]) -> bool {
    let block = Block::new(rows, cols, weights).unwrap_or_else(|| panic!("{rows} x {cols} packs"));
    let mut failed = false;
    for cpu in cpus() {
        let mut unpacked = vec![bf16::NAN; weights.len()];
        block.packed().unpack(&cpu, 0..rows, &mut unpacked);
        assert!(bits(&unpacked) == bits(weights), "{rows} x {cols} at {:?}", cpu.level());
        let middle = rows / 3..rows - rows / 3;
        let some = middle.start * cols..middle.end * cols;
        block.packed().unpack(&cpu, middle, &mut unpacked[some.clone()]);
        assert!(bits(&unpacked[some.clone()]) == bits(&weights[some]));
        for tokens in [1, 2, 33] {
            let input = &Prepared::new(&cpu, inputs[..tokens * cols].to_vec(), cols);
            let plain = product(&cpu, Matrix::new(rows, cols, Elements::Bf16(weights)), input);
            let matrix = Matrix::new(rows, cols, Elements::Packed(block.packed()));
            let (level, threads) = (cpu.level(), cpu.threads());
            // Which of several failures is reported depends on the threads.
            let found = product(&cpu, matrix, input);
            match (&plain.0, &found.0) {
                (Err(_), Err(_)) if threads > 1 => failed = true,
                _ => assert!(plain == found, "{rows} x {cols}, {tokens} tokens at {level:?}"),
            }
            failed |= plain.0.is_err();
        }
    }
    failed
}

/// Sums of four uniform values, about N(0, 0.58 * scale).
fn noise(n: usize, seed: u64, scale: f32) -> Vec<bf16> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut unit = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / 16_777_216.0) - 0.5
    };
    (0..n).map(|_| bf16::from_f32((unit() + unit() + unit() + unit()) * scale)).collect()
}

const COLS: [usize; 9] = [64, 127, 128, 192, 256, 768, 2048, 3072, 130];

#[test]
fn normal_weights_of_every_width() {
    for cols in COLS {
        let rows = 41;
        let w = noise(rows * cols, cols as u64, 0.035);
        assert!(!same(rows, cols, &w, &noise(33 * cols, 5, 2.0)));
    }
    // One column has a base for each weight, which never pays.
    assert!(Block::new(41, 1, &noise(41, 1, 1.0)).is_none());
}

#[test]
fn rows_of_very_different_size_and_escapes_almost_everywhere() {
    for cols in COLS {
        let rows = 37;
        let mut w = noise(rows * cols, 11, 1.0);
        for (i, v) in w.iter_mut().enumerate() {
            let scale = 2f32.powi((i / cols % 7) as i32 * 9 - 27);
            // One in eighteen is far from the others, above, below, subnormal or a zero.
            *v = match i % 72 {
                5 => bf16::from_f32(v.to_f32() * scale * 1e6),
                19 => bf16::from_f32(v.to_f32() * scale * 1e-9),
                33 => bf16::from_bits(i as u16 & 0x807f),
                47 => bf16::from_f32(-0.0),
                _ => bf16::from_f32(v.to_f32() * scale),
            };
        }
        let escapes = Block::new(rows, cols, &w).expect("just below the limit").escape_places;
        assert!(escapes.len() > w.len() / 20, "{} escapes of {}", escapes.len(), w.len());
        assert!(!same(rows, cols, &w, &noise(33 * cols, 13, 3.0)));
    }
}

#[test]
fn zeros_ties_and_cancellation() {
    for cols in [128, 192, 768] {
        let rows = 38;
        assert!(!same(rows, cols, &vec![bf16::ZERO; rows * cols], &noise(33 * cols, 3, 1.0)));
        assert!(!same(
            rows,
            cols,
            &vec![bf16::from_f32(-0.0); rows * cols],
            &noise(33 * cols, 3, 1.0)
        ));
        for odd in [1.0f32, 3.0] {
            // 1 + odd * 2^-8 lies half-way between two bf16; huge products cancel, as escapes.
            let mut w = vec![bf16::ZERO; rows * cols];
            let mut x = noise(33 * cols, 7, 1.0);
            for row in w.chunks_mut(cols) {
                (row[0], row[cols - 1]) = (bf16::ONE, bf16::ONE);
                (row[1], row[97]) = (bf16::from_f32(1e15), bf16::from_f32(-1e15));
            }
            for x in x.chunks_mut(cols) {
                (x[0], x[cols - 1]) = (bf16::ONE, bf16::from_f32(odd / 256.0));
                (x[1], x[97]) = (bf16::from_f32(1e10), bf16::from_f32(1e10));
            }
            assert!(!same(rows, cols, &w, &x));
        }
        // Coarse values: many sums are ties of f32.
        let coarse = |n, seed| -> Vec<bf16> {
            let values = noise(n, seed, 1.0);
            values.iter().map(|v| bf16::from_f32((v.to_f32() * 64.0).round() / 8.0)).collect()
        };
        assert!(!same(rows, cols, &coarse(rows * cols, 1), &coarse(33 * cols, 2)));
    }
}

#[test]
fn what_a_chain_of_f32_loses_is_within_the_bound() {
    // At every level the elements 0, 32, 64... are one chain. 1 + 2^-8 - 2^-23 is just below the
    // middle of two bf16; fourteen products below half a unit of f32 lead across it, and f32 drops
    // each of them.
    let (rows, cols) = (40, 512);
    let mut w = noise(rows * cols, 37, 1.0);
    let mut x = vec![bf16::ZERO; 33 * cols];
    for row in w.chunks_mut(cols) {
        row.iter_mut().step_by(32).for_each(|w| *w = bf16::from_f32(1.9375));
        (row[0], row[32]) = (bf16::ONE, bf16::from_f32(217.0 / 256.0));
    }
    for x in x.chunks_mut(cols) {
        x.iter_mut().step_by(32).for_each(|x| *x = bf16::from_f32(2f32.powi(-25)));
        (x[0], x[32]) = (bf16::ONE, bf16::from_f32(151.0 * 2f32.powi(-15)));
    }
    assert!(!same(rows, cols, &w, &x));
    let block = Block::new(rows, cols, &w).expect("smaller");
    for cpu in cpus() {
        let input = &Prepared::new(&cpu, x[..cols].to_vec(), cols);
        let matrix = Matrix::new(rows, cols, Elements::Packed(block.packed()));
        let stored = product(&cpu, matrix, input).0.expect("finite");
        assert_eq!(stored, vec![bf16::from_f32(1.0 + 1.0 / 128.0).to_bits(); rows]);
    }
}

#[test]
fn huge_inputs_and_an_input_far_above_the_others() {
    let (rows, cols) = (40, 2048);
    let w = noise(rows * cols, 17, 0.035);
    let mut x = noise(33 * cols, 19, 1.0);
    for (i, v) in x.iter_mut().enumerate() {
        *v = match i % 517 {
            3 => bf16::from_f32(2000.0),
            4 => bf16::from_f32(1e-38),
            _ => *v,
        };
    }
    assert!(!same(rows, cols, &w, &x));
    let huge: Vec<bf16> = x.iter().map(|v| bf16::from_f32(v.to_f32() * 1e33)).collect();
    assert!(!same(rows, cols, &w, &huge));
    let small: Vec<bf16> = x.iter().map(|v| bf16::from_f32(v.to_f32() * 1e-37)).collect();
    assert!(!same(rows, cols, &w, &small));
}

#[test]
fn a_weight_that_is_not_finite_is_the_same_error() {
    for cols in [128, 192, 2048] {
        let rows = 41;
        for bad in [bf16::NAN, bf16::INFINITY, bf16::NEG_INFINITY, bf16::from_bits(0xffff)] {
            let mut w = noise(rows * cols, 23, 1.0);
            w[29 * cols + cols - 1] = bad;
            assert!(same(rows, cols, &w, &noise(33 * cols, 29, 1.0)));
        }
        let w = vec![bf16::from_f32(2f32.powi(64)); rows * cols];
        let x = vec![bf16::from_f32(2f32.powi(63)); 33 * cols];
        assert!(same(rows, cols, &w, &x), "2^127 * {cols} is beyond the formats");
    }
}

#[test]
fn numerics_unpacks_what_the_store_decodes() {
    let (rows, cols) = (512, 300);
    let mut w = noise(rows * cols, 31, 1.0);
    for bits in (0..=u16::MAX).step_by(16) {
        w[usize::from(bits) * 2 + 9] = bf16::from_bits(bits | bits >> 12);
    }
    let block = encode(rows, cols, bytemuck::cast_slice(&w)).expect("smaller");
    let mut decoded = vec![0u8; 2 * w.len()];
    Packed::parse(&block).expect("what was just written").decode(&mut decoded);
    let held = Block::new(rows, cols, &w).expect("smaller");
    for cpu in cpus() {
        let mut unpacked = vec![bf16::ZERO; w.len()];
        held.packed().unpack(&cpu, 0..rows, &mut unpacked);
        assert!(bytemuck::cast_slice::<bf16, u8>(&unpacked) == decoded);
    }
}
