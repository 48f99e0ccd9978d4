//! The files that tidy looks at, in memory, so that every rule can be tested on a made-up tree.

use anyhow::{Context, Result};
use std::fs;
use std::path::Path;

/// Folders that hold build products or data, not text of ours.
const SKIPPED_FOLDERS: &[&str] = &["target", ".git", "node_modules", "__pycache__"];
const TEXT_EXTENSIONS: &[&str] = &["rs", "toml", "md", "py", "sh", "c", "h", "cu", "cuh"];
const TEXT_FILES: &[&str] = &[".ci/run", ".gitignore", "LICENSE"];

/// One text file; `path` is relative to the repository root and uses `/`.
pub struct File {
    pub path: String,
    pub text: String,
}

impl File {
    pub fn extension(&self) -> &str {
        self.name().rsplit_once('.').map_or("", |(_, extension)| extension)
    }

    pub fn name(&self) -> &str {
        self.path.rsplit_once('/').map_or(&self.path, |(_, name)| name)
    }

    pub fn is_rust(&self) -> bool {
        self.extension() == "rs"
    }

    /// Code of any language, as opposed to prose and manifests.
    pub fn is_source(&self) -> bool {
        matches!(self.extension(), "rs" | "py" | "sh" | "c" | "h" | "cu" | "cuh")
            || self.path == ".ci/run"
    }

    /// Lines with their numbers, from 1.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line))
    }
}

/// All text files, sorted by path.
pub struct Tree {
    pub files: Vec<File>,
}

impl Tree {
    /// Reads the tree under `root`.
    pub fn read(root: &Path) -> Result<Tree> {
        let mut files = Vec::new();
        collect(root, "", &mut files)?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Tree { files })
    }

    pub fn get(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }
}

fn collect(root: &Path, folder: &str, files: &mut Vec<File>) -> Result<()> {
    let absolute = root.join(folder);
    let entries = fs::read_dir(&absolute).with_context(|| absolute.display().to_string())?;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
        let kind = entry.file_type()?;
        if kind.is_dir() && !SKIPPED_FOLDERS.contains(&name.as_str()) {
            collect(root, &path, files)?;
        } else if kind.is_file() && is_text(&path, &name) {
            let text = fs::read_to_string(entry.path()).with_context(|| path.clone())?;
            files.push(File { path, text });
        }
    }
    Ok(())
}

fn is_text(path: &str, name: &str) -> bool {
    TEXT_FILES.contains(&path)
        || name.rsplit_once('.').is_some_and(|(_, end)| TEXT_EXTENSIONS.contains(&end))
}
