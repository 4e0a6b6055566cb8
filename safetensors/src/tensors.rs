//! Tensors by name.

use std::collections::{BTreeMap, btree_map};
use std::path::{Path, PathBuf};

use transship_core::{Pairs, Paths, Stop, Tensor, TensorTree, Visitor};

/// Tensors by name, in the order of their names, and what the files say beside them. Copies go through it as through a map.
#[derive(Debug, Clone, Default)]
pub struct Tensors {
    pub(crate) by_name: BTreeMap<String, Tensor>,
    pub(crate) files: Vec<LoadedFile>,
}

/// A file that tensors were loaded from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedFile {
    pub(crate) path: PathBuf,
    pub(crate) metadata: BTreeMap<String, String>,
}

impl Tensors {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Their names, in order.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// The tensor of this name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.by_name.get(name)
    }

    /// The tensor of this name, to be changed.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Tensor> {
        self.by_name.get_mut(name)
    }

    /// Takes the tensor of this name out.
    pub fn remove(&mut self, name: &str) -> Option<Tensor> {
        self.by_name.remove(name)
    }

    /// Names and tensors, in the order of the names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Tensor)> {
        self.by_name.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// The files that they were loaded from, in the order in which they were named: those of a sharded model by name.
    pub fn files(&self) -> &[LoadedFile] {
        &self.files
    }

    /// What the first file that has this key in its `__metadata__` says there.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.files.iter().find_map(|file| file.metadata.get(key)).map(String::as_str)
    }
}

impl LoadedFile {
    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its `__metadata__`.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }
}

impl IntoIterator for Tensors {
    type Item = (String, Tensor);
    type IntoIter = btree_map::IntoIter<String, Tensor>;

    fn into_iter(self) -> Self::IntoIter {
        self.by_name.into_iter()
    }
}

impl TensorTree for Tensors {
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        self.by_name.visit(visitor)
    }

    fn pair(&mut self, into: &mut Self, pairs: &mut Pairs<'_>) -> Result<(), Stop> {
        self.by_name.pair(&mut into.by_name, pairs)
    }

    fn show(&self, paths: &mut Paths<'_>) -> Result<(), Stop> {
        self.by_name.show(paths)
    }
}
