//! The index of a sharded model: which tensor is in which file.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

use crate::error::{LoadError, printable};
use crate::open_file::OpenFile;

/// Longer files are no index. As long as the longest header.
pub(crate) const MOST_BYTES: u64 = 100_000_000;
/// What an index is before the first model of its folder is complete: a text without a `weight_map`, so that the first files are not taken
/// for a model.
pub(crate) const UNFINISHED: &[u8] =
    br#"{"unfinished": "the first save to this folder has not come to its end; save again"}"#;

/// An index.
pub(crate) struct Index {
    pub(crate) path: PathBuf,
    /// The names of files by those of tensors.
    pub(crate) weight_map: BTreeMap<String, String>,
}

impl Index {
    pub(crate) fn read(path: &Path) -> Result<Self, LoadError> {
        let wrong = |reason| LoadError::Index { path: path.to_owned(), reason };
        let file = OpenFile::open(path)?;
        if file.bytes > MOST_BYTES {
            return Err(wrong(format!("it has {} bytes, and {MOST_BYTES} are allowed", file.bytes)));
        }
        let mut text = vec![0; file.bytes as usize];
        let read = file.read_exact_at(&mut text, 0);
        read.map_err(|source| LoadError::Read { path: path.to_owned(), offset: 0, source })?;
        if text == UNFINISHED {
            let reason = "the first save to its folder goes on, or has not come to its end: wait for it, or save again";
            return Err(wrong(reason.to_owned()));
        }
        let Contents { weight_map } =
            serde_json::from_slice(&text).map_err(|error| wrong(printable(&error.to_string())))?;
        for (tensor, file) in &weight_map.0 {
            if !is_plain(file) {
                return Err(wrong(format!("tensor {tensor:?} is in {file:?}, which is no plain file name")));
            }
        }
        Ok(Self { path: path.to_owned(), weight_map: weight_map.0 })
    }

    /// Where the file of this name is: beside the index.
    pub(crate) fn beside(&self, file: &str) -> PathBuf {
        self.path.with_file_name(file)
    }
}

/// Whether it names a file in the same folder, and nothing else on any system.
fn is_plain(file: &str) -> bool {
    !matches!(file, "" | "." | "..") && !file.contains(['/', '\\', ':']) && !file.contains(char::is_control)
}

#[derive(serde::Deserialize)]
#[serde(expecting = "an index with a weight_map")]
struct Contents {
    weight_map: WeightMap,
}

struct WeightMap(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(WeightMapVisitor)
    }
}

/// Refuses a tensor that is there twice, of which a map would keep one.
struct WeightMapVisitor;

impl<'de> Visitor<'de> for WeightMapVisitor {
    type Value = WeightMap;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of file names by those of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
        let mut files = BTreeMap::new();
        while let Some((tensor, file)) = map.next_entry::<String, String>()? {
            if files.contains_key(&tensor) {
                return Err(A::Error::custom(format!("tensor {tensor:?} is there twice")));
            }
            files.insert(tensor, file);
        }
        Ok(WeightMap(files))
    }
}
