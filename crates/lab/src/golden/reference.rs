//! A `reference.npz`: what another implementation computed from the same weights.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use engine::index::TokenId;
use npyz::npz::NpzArchive;

/// The names under which files keep float64 logits, the better one first: the second is only
/// float64 where the reference implementation does not insist on f32.
const FLOAT64_NAMES: [&str; 2] = ["logits_strict64", "logits_f64"];

/// An open file, and which of its logits count as float64.
pub(super) struct Reference {
    archive: NpzArchive<BufReader<File>>,
    float64_name: &'static str,
    path: String,
}

impl Reference {
    pub(super) fn open(path: &Path) -> Result<Reference> {
        let name = path.display().to_string();
        let archive = NpzArchive::open(path).with_context(|| format!("{name}: not readable"))?;
        let mut reference = Reference { archive, float64_name: FLOAT64_NAMES[0], path: name };
        if !reference.has(FLOAT64_NAMES[0], 0) {
            reference.float64_name = FLOAT64_NAMES[1];
        }
        ensure!(reference.prompts() > 0, "{}: no array ids_0", reference.path);
        Ok(reference)
    }

    /// The name of the arrays that count as float64.
    pub(super) fn float64_name(&self) -> &'static str {
        self.float64_name
    }

    /// Prompts 0 to this number are there.
    pub(super) fn prompts(&self) -> usize {
        (0..).take_while(|i| self.has("ids", *i)).count()
    }

    fn has(&self, name: &str, prompt: usize) -> bool {
        let wanted = format!("{name}_{prompt}");
        self.archive.array_names().any(|found| found == wanted)
    }

    pub(super) fn ids(&mut self, prompt: usize) -> Result<Vec<TokenId>> {
        self.tokens("ids", prompt)?.with_context(|| format!("no ids_{prompt}"))
    }

    /// The greedy tokens of `greedy_{kind}_{prompt}`, if the file has them.
    pub(super) fn greedy(&mut self, kind: &str, prompt: usize) -> Result<Option<Vec<TokenId>>> {
        self.tokens(&format!("greedy_{kind}"), prompt)
    }

    fn tokens(&mut self, name: &str, prompt: usize) -> Result<Option<Vec<TokenId>>> {
        let Some(numbers) = self.numbers(name, prompt)? else { return Ok(None) };
        let token = |v: &f64| {
            ensure!(*v >= 0.0 && *v <= f64::from(u32::MAX), "{name}_{prompt}: {v} is no token");
            Ok(TokenId(*v as u32))
        };
        numbers.iter().map(token).collect::<Result<_>>().map(Some)
    }

    /// Float64 logits of the last positions, `[positions, vocab]`.
    pub(super) fn float64_logits(&mut self, prompt: usize) -> Result<Vec<f64>> {
        self.logits(self.float64_name, prompt)
    }

    /// The logits of the reference implementation in bf16, for the same positions.
    pub(super) fn bf16_logits(&mut self, prompt: usize) -> Result<Vec<f64>> {
        self.logits("logits_bf16", prompt)
    }

    fn logits(&mut self, name: &str, prompt: usize) -> Result<Vec<f64>> {
        let found = self.numbers(name, prompt)?;
        found.with_context(|| format!("{}: no array {name}_{prompt}", self.path))
    }

    /// An array of any of the types in use; all of them are exact in f64 (ids are small).
    fn numbers(&mut self, name: &str, prompt: usize) -> Result<Option<Vec<f64>>> {
        let full = format!("{name}_{prompt}");
        let context = || format!("{}, array {full}", self.path);
        let Some(array) = self.archive.by_name(&full).with_context(context)? else {
            return Ok(None);
        };
        ensure!(array.order() == npyz::Order::C, "{}: not row-major", context());
        let kind = array.dtype().descr();
        let values = match kind.as_str() {
            "'<f8'" => array.into_vec::<f64>(),
            "'<f4'" => array.into_vec::<f32>().map(|v| widen(v, f64::from)),
            "'<i4'" => array.into_vec::<i32>().map(|v| widen(v, f64::from)),
            "'<i8'" => array.into_vec::<i64>().map(|v| widen(v, |v| v as f64)),
            _ => bail!("{}: type {kind}, expected <f8, <f4, <i4 or <i8", context()),
        };
        values.with_context(context).map(Some)
    }
}

fn widen<T>(values: Vec<T>, each: impl Fn(T) -> f64) -> Vec<f64> {
    values.into_iter().map(each).collect()
}
