//! Where the files of a checkpoint come from: a folder, or the program itself.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::error::CheckpointError;
use crate::io::mapping::map_read_only;
use crate::jnf::DENSE_FOLDER;

/// The seam under the parser: the same checks run over either.
#[derive(Debug)]
pub enum Source {
    Folder(PathBuf),
    /// A store: the same, with the shards in a folder of their own.
    Store(PathBuf),
    Embedded {
        label: PathBuf,
        files: Vec<(&'static str, &'static [u8])>,
    },
}

impl Source {
    /// The folder, or what stands for it in messages.
    pub fn root(&self) -> &Path {
        match self {
            Self::Folder(folder) | Self::Store(folder) => folder,
            Self::Embedded { label, .. } => label,
        }
    }

    pub fn path_of(&self, name: &str) -> PathBuf {
        match self {
            Self::Store(folder) if is_shard_name(name) => folder.join(DENSE_FOLDER).join(name),
            _ => self.root().join(name),
        }
    }

    /// The names of all files, sorted.
    pub fn names(&self) -> Result<Vec<String>, CheckpointError> {
        let mut names = match self {
            Self::Folder(folder) | Self::Store(folder) => file_names(folder)?,
            Self::Embedded { files, .. } => {
                files.iter().map(|(name, _)| name.to_string()).collect()
            }
        };
        names.sort();
        Ok(names)
    }

    /// The names of all *.safetensors files, sorted.
    pub fn safetensors_names(&self) -> Result<Vec<String>, CheckpointError> {
        let mut names = match self {
            Self::Store(folder) => file_names(&folder.join(DENSE_FOLDER))?,
            Self::Folder(_) | Self::Embedded { .. } => self.names()?,
        };
        names.retain(|name| is_shard_name(name));
        names.sort();
        Ok(names)
    }

    /// A small file as it is, copied into memory; `None` if there is none.
    pub fn read(&self, name: &str) -> Result<Option<Bytes>, CheckpointError> {
        self.fetch(name, |path| fs::read(path).map(Bytes::from))
    }

    /// A large file, mapped; `None` if there is none.
    pub fn map(&self, name: &str) -> Result<Option<Bytes>, CheckpointError> {
        self.fetch(name, map_read_only)
    }

    fn fetch(
        &self,
        name: &str,
        from_disk: impl Fn(&Path) -> std::io::Result<Bytes>,
    ) -> Result<Option<Bytes>, CheckpointError> {
        assert!(is_plain_name(name), "{name}: not a plain file name");
        match self {
            Self::Embedded { files, .. } => {
                let file = files.iter().find(|(file_name, _)| *file_name == name);
                Ok(file.map(|(_, bytes)| Bytes::from_static(bytes)))
            }
            Self::Folder(_) | Self::Store(_) => {
                let path = self.path_of(name);
                match from_disk(&path) {
                    Ok(bytes) => Ok(Some(bytes)),
                    Err(source) if source.kind() == ErrorKind::NotFound => Ok(None),
                    Err(source) => Err(CheckpointError::Io { path, source }),
                }
            }
        }
    }
}

fn is_shard_name(name: &str) -> bool {
    name.ends_with(".safetensors")
}

/// True for a name that cannot lead out of the folder.
pub fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['/', '\\', '\0']) && name != "." && name != ".."
}

fn file_names(folder: &Path) -> Result<Vec<String>, CheckpointError> {
    let failed = |source| CheckpointError::Io { path: folder.to_path_buf(), source };
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        // a name that is not UTF-8 cannot be a shard: no index could spell it
        names.extend(entry.map_err(failed)?.file_name().into_string().ok());
    }
    Ok(names)
}
