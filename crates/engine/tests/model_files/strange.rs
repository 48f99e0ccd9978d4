//! Sizes that nothing likes: odd, prime, one. The recipes and the hashes are made by
//! `oracle/strange.py`, which reads NUMERICS.md on its own.

use engine::generate::Session;
use engine::generate::digest::logits_sha256;
use engine::index::TokenId;
use numerics::{SimdLevel, bf16};
use safetensors::tensor::Dtype;
use serde::Deserialize;
use serde_json::Value;

use super::folder::{Folder, load, run};

#[derive(Deserialize)]
struct Case {
    about: String,
    config: Value,
    tensors: Vec<Recipe>,
    prompt: Vec<u32>,
    prompt_logits_sha256: Vec<String>,
    tokens: Vec<u32>,
    logits_sha256: Vec<String>,
}

/// name, dtype, bits, shift, shape
#[derive(Deserialize)]
struct Recipe(String, String, u32, i32, Vec<usize>);

impl Recipe {
    /// Values `m * 2^-shift` with signed integers m of `bits` bits, exact in the dtype.
    fn bytes(&self, index: usize) -> (Dtype, Vec<u8>) {
        let Recipe(_, dtype, bits, shift, shape) = self;
        let limit = (1i64 << (bits - 1)) - 1;
        let mut state = (index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1);
        let values = (0..shape.iter().product()).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005);
            state = state.wrapping_add(1_442_695_040_888_963_407);
            let m = (state >> 33) as i64 % (2 * limit + 1) - limit;
            m as f32 * (0.5f32).powi(*shift)
        });
        match dtype.as_str() {
            "F32" => (Dtype::F32, values.flat_map(f32::to_le_bytes).collect()),
            "BF16" => (Dtype::BF16, values.flat_map(|v| exact(v).to_le_bytes()).collect()),
            other => panic!("dtype {other}"),
        }
    }
}

fn exact(v: f32) -> bf16 {
    assert!(v.to_bits() & 0xffff == 0, "{v} is no bf16");
    numerics::round::store(v)
}

fn cases() -> Vec<Case> {
    serde_json::from_str(include_str!("../data/strange_models.json")).expect("cases")
}

fn folder(case: &Case) -> Folder {
    let mut folder = Folder { config: case.config.clone(), tensors: Default::default() };
    for (index, recipe) in case.tensors.iter().enumerate() {
        let (dtype, bytes) = recipe.bytes(index);
        folder.add(&recipe.0, dtype, &recipe.4, bytes);
    }
    folder
}

fn check(case: &Case, dir: &std::path::Path, level: SimdLevel, chunk: usize) {
    let label = format!("{} {level:?} chunk {chunk}", case.about);
    let model = load(dir, level).unwrap_or_else(|e| panic!("{label}: {e}"));
    let mut session = Session::new(model, chunk);
    let ids: Vec<TokenId> = case.prompt.iter().map(|id| TokenId(*id)).collect();
    let (mut hashes, mut last) = (Vec::new(), Vec::new());
    session
        .prompt_rows(&ids, |row| {
            hashes.push(logits_sha256(row));
            last = row.to_vec();
        })
        .unwrap_or_else(|e| panic!("{label}: {e}"));
    assert_eq!(hashes, case.prompt_logits_sha256, "{label}");
    for (i, (token, hash)) in case.tokens.iter().zip(&case.logits_sha256).enumerate() {
        assert_eq!(logits_sha256(&last), *hash, "{label}: generated {i}");
        last = session.step(TokenId(*token)).unwrap_or_else(|e| panic!("{label}: {e}"));
    }
}

/// Proves that the comparison can fail: the sign of one weight changes the logits.
#[test]
fn the_sign_of_one_weight_matters() {
    for case in &cases() {
        let mut folder = folder(case);
        let wrapped = case.config.get("text_config").is_some();
        let prefix = if wrapped { "model.language_model." } else { "model." };
        let norm = folder.tensor(&format!("{prefix}norm.weight"));
        *norm.bytes.last_mut().expect("values") ^= 0x80;
        let level = SimdLevel::detect();
        let bits = run(folder.write().path(), &case.prompt, level).expect("runs");
        let logits: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
        let sound = case.prompt_logits_sha256.last().expect("a hash");
        assert_ne!(logits_sha256(&logits), *sound, "{}", case.about);
    }
}

#[test]
fn strange_sizes_equal_the_oracle() {
    let cases = cases();
    assert_eq!(cases.len(), 7);
    for case in &cases {
        let dir = folder(case).write();
        for level in SimdLevel::available() {
            for chunk in [1, 4, usize::MAX] {
                check(case, dir.path(), level, chunk);
            }
        }
    }
}
