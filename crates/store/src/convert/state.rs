//! What an unfinished conversion knows of its source: `conversion.json`.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::checkpoint::Stamp;
use crate::jnf::{CONVERSION_NAME, StoreError, StoredAs, unseal};

/// `format` of the file.
pub const STATE_FORMAT: &str = "jnf-conversion";

/// The source, and what its files were when the conversion began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    pub format: String,
    pub version: u64,
    pub source: String,
    pub stamps: Vec<Stamp>,
}

impl State {
    pub fn new(source: &str, stamps: Vec<Stamp>) -> State {
        let source = source.to_string();
        State { format: STATE_FORMAT.to_string(), version: 1, source, stamps }
    }

    /// Reads it; `None` if there is none.
    ///
    /// Errors: `Io`, `Sealed`.
    pub fn read(root: &Path) -> Result<Option<State>, StoreError> {
        let path = root.join(CONVERSION_NAME);
        match fs::read(&path) {
            Ok(bytes) => match unseal(&bytes, STATE_FORMAT, &[1], "1") {
                Ok(state) => Ok(Some(state)),
                Err(problem) => Err(StoreError::Sealed { path, problem }),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(StoreError::Io { path, source }),
        }
    }
}

/// The command that completes a store.
pub fn completing_command(root: &Path, stored: StoredAs) -> String {
    let source = State::read(root).ok().flatten();
    let source = source.map_or_else(|| "DIR".to_string(), |state| state.source);
    let pack = match stored {
        StoredAs::Bf16 => "",
        StoredAs::Packed => " --pack",
    };
    format!("tarfa convert --model {source} --out {}{pack}", root.display())
}
