//! `cargo xtask ptx`: the kernels of crates/numerics/cuda as the PTX that the program carries.
//!
//! NVRTC compiles them, so no GPU is needed; ptxas assembles them for every card that is meant to
//! run them. Both come from NVIDIA's wheels: see CONTRIBUTING.md.

mod assemble;
mod compile;
mod lint;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rayon::prelude::*;

use assemble::{Assembled, Assembler};

/// Compute capabilities that the kernels are assembled for.
const TARGETS: [u32; 7] = [75, 80, 86, 89, 90, 100, 120];

/// A source and what became of it.
struct Kernels {
    name: String,
    /// The least capability that it is for.
    least: u32,
    ptx: String,
}

/// Writes the PTX, or with `check` proves that it is what the sources give.
pub fn run(root: &Path, check: bool) -> Result<bool> {
    let sources = root.join("crates/numerics/cuda");
    let assembler = Assembler::find()?;
    let mut all = Vec::new();
    for path in sources_in(&sources)? {
        all.push(compile(&path, &assembler).with_context(|| path.display().to_string())?);
    }
    let mut good = true;
    for kernels in &all {
        for finding in lint::findings(&kernels.ptx) {
            println!("{}: {finding}", kernels.name);
            good = false;
        }
        let path = sources.join("ptx").join(format!("{}.ptx", kernels.name));
        if !check {
            fs::write(&path, &kernels.ptx)?;
        } else if fs::read_to_string(&path).unwrap_or_default() != kernels.ptx {
            println!("{}: not what its source gives: run `cargo xtask ptx`", path.display());
            good = false;
        }
    }
    println!("kernels       PTX  entries  registers  spilled  assembled for");
    let tables: Vec<_> = all.par_iter().map(|k| assembled(k, &assembler)).collect();
    for line in tables {
        println!("{}", line?);
    }
    Ok(good)
}

fn sources_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "cu") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// The least capability that a source is for: `// Needs compute capability 8.0.` in it, or 7.5.
fn least_capability(source: &str) -> Result<u32> {
    let Some((_, rest)) = source.split_once("// Needs compute capability ") else {
        return Ok(TARGETS[0]);
    };
    let digits: String = rest.chars().take(3).filter(char::is_ascii_digit).collect();
    digits.parse().context("a capability is written 8.0")
}

fn compile(path: &Path, assembler: &Assembler) -> Result<Kernels> {
    let source = fs::read_to_string(path)?;
    let name = path.file_stem().context("a name")?.to_string_lossy().into_owned();
    let least = least_capability(&source)?;
    let ptx = compile::to_ptx(path, &source, least)?;
    let ptx = assembler.with_oldest_version(&compile::plain(&ptx), least)?;
    Ok(Kernels { name, least, ptx })
}

/// A line of the table.
fn assembled(kernels: &Kernels, assembler: &Assembler) -> Result<String> {
    let (mut most, mut targets) = (Assembled::default(), Vec::new());
    for target in TARGETS.iter().filter(|t| **t >= kernels.least) {
        let one = assembler.assemble(&kernels.ptx, *target);
        let one = one.with_context(|| format!("{} for sm_{target}", kernels.name))?;
        most = most.max(one);
        targets.push(target.to_string());
    }
    let version = kernels.ptx.lines().find_map(|l| l.strip_prefix(".version "));
    let entries = kernels.ptx.matches(".entry ").count();
    if entries == 0 {
        bail!("{} has no kernels", kernels.name);
    }
    Ok(format!(
        "{:<12} {:>4} {:>8} {:>10} {:>8}  {}",
        kernels.name,
        version.unwrap_or("?"),
        entries,
        most.registers,
        most.spilled_bytes,
        targets.join(" ")
    ))
}
