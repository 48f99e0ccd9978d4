//! From PTX to what cards run, by ptxas: proof that each of them takes it.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail};

/// Versions of PTX, the oldest first; a driver for CUDA 11.8 takes the last of them.
const VERSIONS: [&str; 12] =
    ["6.3", "6.4", "6.5", "7.0", "7.1", "7.2", "7.3", "7.4", "7.5", "7.6", "7.7", "7.8"];

/// ptxas and a folder for its files.
pub struct Assembler {
    program: PathBuf,
    folder: PathBuf,
    files: AtomicUsize,
}

/// What the kernels of a source need, of each the most.
#[derive(Clone, Copy, Default)]
pub struct Assembled {
    pub registers: u32,
    pub spilled_bytes: u32,
}

impl Assembled {
    pub fn max(self, other: Assembled) -> Assembled {
        Assembled {
            registers: self.registers.max(other.registers),
            spilled_bytes: self.spilled_bytes.max(other.spilled_bytes),
        }
    }
}

impl Assembler {
    /// The one that PTXAS names, else on the PATH.
    pub fn find() -> Result<Assembler> {
        let program = PathBuf::from(env::var_os("PTXAS").unwrap_or_else(|| "ptxas".into()));
        let there = Command::new(&program).arg("--version").output();
        if !there.is_ok_and(|done| done.status.success()) {
            bail!(
                "{}: not to be run; pip install nvidia-cuda-nvcc-cu12==12.9.86 and name its \
                 bin/ptxas in PTXAS",
                program.display()
            );
        }
        let folder = env::temp_dir().join(format!("tarfa-ptx-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        Ok(Assembler { program, folder, files: AtomicUsize::new(0) })
    }

    /// The same PTX with the oldest version in its head that it may have, so that old drivers
    /// take it.
    pub fn with_oldest_version(&self, ptx: &str, target: u32) -> Result<String> {
        let line = ptx.lines().find(|l| l.starts_with(".version ")).context("no version")?;
        let mut refused = None;
        for version in VERSIONS {
            let older = ptx.replacen(line, &format!(".version {version}"), 1);
            match self.assemble(&older, target) {
                Ok(_) => return Ok(older),
                Err(error) => refused = Some(error),
            }
        }
        self.assemble(ptx, target)?;
        let newest = VERSIONS[VERSIONS.len() - 1];
        let refused = refused.context("there are versions")?;
        Err(refused.context(format!("needs a newer version of PTX than {newest}")))
    }

    /// Assembles for sm_<target>.
    pub fn assemble(&self, ptx: &str, target: u32) -> Result<Assembled> {
        let file = self.files.fetch_add(1, Ordering::Relaxed);
        let path = self.folder.join(format!("{file}.ptx"));
        fs::write(&path, ptx)?;
        let mut command = Command::new(&self.program);
        command.arg("-v").arg(format!("-arch=sm_{target}")).arg(&path);
        let done = command.arg("-o").arg(path.with_extension("cubin")).output()?;
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        if !done.status.success() {
            bail!("{said}");
        }
        let numbers = |behind: &str, unit: &str| {
            let found = said.split(unit).filter_map(|before| {
                let number = before.rsplit(behind).next()?;
                number.trim().parse::<u32>().ok()
            });
            found.max().unwrap_or(0)
        };
        let spilled_bytes = numbers(", ", " bytes spill stores");
        Ok(Assembled { registers: numbers("Used ", " registers"), spilled_bytes })
    }
}

impl Drop for Assembler {
    fn drop(&mut self) {
        // Best effort: it is in the system's folder for such files.
        let _ = fs::remove_dir_all(&self.folder);
    }
}
