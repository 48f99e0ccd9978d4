//! From CUDA C++ to PTX, by NVRTC.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use cudarc::nvrtc::{CompileError, CompileOptions, compile_ptx_with_opts};

/// Compiles a source for virtual architecture `compute_<least>`. Contraction is off, and nothing
/// is flushed or approximated: what is written is what is computed.
///
/// # Panics
/// If libnvrtc is not to be found in LD_LIBRARY_PATH.
pub fn to_ptx(path: &Path, source: &str, least: u32) -> Result<String> {
    let name = path.file_name().context("a file")?.to_string_lossy().into_owned();
    let folder = path.parent().context("a folder")?.display().to_string();
    let mut options = vec!["--std=c++17".to_string(), "--device-int128".to_string()];
    options.push(format!("--gpu-architecture=compute_{least}"));
    let options = CompileOptions {
        ftz: Some(false),
        prec_sqrt: Some(true),
        prec_div: Some(true),
        fmad: Some(false),
        options,
        include_paths: vec![folder],
        name: Some(name),
        ..CompileOptions::default()
    };
    match compile_ptx_with_opts(source, options) {
        Ok(ptx) => Ok(ptx.to_src()),
        Err(CompileError::CompileError { log, .. }) => Err(anyhow!("{}", log.to_string_lossy())),
        Err(other) => Err(anyhow!("NVRTC: {other}")),
    }
}

/// The same PTX without comments and blank lines, which name builds and paths.
pub fn plain(ptx: &str) -> String {
    let mut out = String::new();
    for line in ptx.lines() {
        let code = line.split_once("//").map_or(line, |(code, _)| code).trim_end();
        if !code.trim().is_empty() {
            out.push_str(code);
            out.push('\n');
        }
    }
    out
}
