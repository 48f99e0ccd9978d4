//! `model.safetensors.index.json`: which shard holds which tensor.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Error as _, MapAccess, Visitor};

use super::error::CheckpointError;
use super::header::reason_of;
use super::source::is_plain_name;

pub const INDEX_NAME: &str = "model.safetensors.index.json";

/// The index, its shard names proven to stay in the folder.
#[derive(Debug)]
pub struct Index {
    /// Tensor name as in the file, to shard name.
    pub shard_of: BTreeMap<String, String>,
}

impl Index {
    pub fn parse(path: &Path, json: &[u8]) -> Result<Index, CheckpointError> {
        let file: IndexFile =
            serde_json::from_slice(json).map_err(|error| CheckpointError::BadJson {
                path: path.to_path_buf(),
                line: error.line(),
                reason: reason_of(&error),
            })?;
        let index = Index { shard_of: file.weight_map.0 };
        let leads_astray =
            |shard: &&String| !is_plain_name(shard) || !shard.ends_with(".safetensors");
        match index.shard_of.values().find(leads_astray) {
            None => Ok(index),
            Some(shard) => Err(CheckpointError::BadShardName {
                path: path.to_path_buf(),
                shard: shard.clone(),
            }),
        }
    }

    pub fn shard_names(&self) -> BTreeSet<&str> {
        self.shard_of.values().map(String::as_str).collect()
    }
}

#[derive(Deserialize)]
struct IndexFile {
    weight_map: WeightMap,
}

/// A map that refuses a key listed twice, where serde would keep the last.
struct WeightMap(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(WeightMapVisitor)
    }
}

struct WeightMapVisitor;

impl<'de> Visitor<'de> for WeightMapVisitor {
    type Value = WeightMap;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object of tensor names to shard names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
        let mut shard_of = BTreeMap::new();
        while let Some((tensor, shard)) = map.next_entry::<String, String>()? {
            if shard_of.contains_key(&tensor) {
                return Err(A::Error::custom(format!("tensor {tensor} is listed twice")));
            }
            shard_of.insert(tensor, shard);
        }
        Ok(WeightMap(shard_of))
    }
}
