//! Which files to read, and which tensors of them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

use transship_core::{Cast, DType};

use crate::error::LoadError;
use crate::header::{Entry, Header};
use crate::index::Index;
use crate::open_file::OpenFile;
use crate::selection::Selection;
use crate::tensors::LoadedFile;
use crate::wanted::Wanted;

pub(crate) const INDEX: &str = ".safetensors.index.json";
pub(crate) const FILE: &str = ".safetensors";

/// Files that are open, and the tensors to load.
pub(crate) struct Sources {
    pub(crate) files: Vec<OpenFile>,
    /// By file, then by their place in it.
    pub(crate) tensors: Vec<Chosen>,
    pub(crate) loaded_files: Vec<LoadedFile>,
}

/// A tensor to load.
pub(crate) struct Chosen {
    /// The number of its file.
    pub(crate) file: usize,
    /// What it has when it is loaded.
    pub(crate) dtype: DType,
    /// When it is loaded.
    pub(crate) shape: Vec<usize>,
    /// Elements of a type to another one.
    pub(crate) cast: Option<Cast>,
    pub(crate) selection: Selection,
    pub(crate) entry: Entry,
}

impl Chosen {
    /// How many bytes it has when it is loaded.
    pub(crate) fn bytes(&self) -> usize {
        let stored = self.selection.bytes();
        self.cast.map_or(stored, |cast| stored / cast.from_dtype().size() * self.dtype.size())
    }

    /// How many bytes of the file become so many.
    pub(crate) fn stored_bytes(&self, bytes: usize) -> usize {
        self.cast.map_or(bytes, |cast| bytes / self.dtype.size() * cast.from_dtype().size())
    }
}

impl Sources {
    /// Those of a path: a file, an index, or a folder with either.
    pub(crate) fn of(path: &Path, wanted: &mut Wanted) -> Result<Self, LoadError> {
        match kind_of(path)? {
            Kind::Files(files) => Self::of_files(&files, wanted),
            Kind::Index(index) => Self::of_index(&Index::read(&index)?, wanted),
        }
    }

    pub(crate) fn of_files(paths: &[PathBuf], wanted: &mut Wanted) -> Result<Self, LoadError> {
        let headers = paths.iter().map(|path| read(path)).collect::<Result<Vec<_>, _>>()?;
        Self::chosen(headers, wanted, |wanted, name| wanted.keeps(name))
    }

    /// The files that the index names for one of the tensors. Each must have those, and no other, that the index says.
    fn of_index(index: &Index, wanted: &mut Wanted) -> Result<Self, LoadError> {
        let mut by_file: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let mut kept = HashSet::new();
        for (tensor, file) in &index.weight_map {
            by_file.entry(file).or_default().push(tensor);
            if wanted.keeps(tensor) {
                kept.insert(tensor.as_str());
            }
        }
        let mut headers = Vec::new();
        for (name, tensors) in by_file {
            if tensors.iter().any(|tensor| kept.contains(tensor)) {
                let (file, header) = read(&index.beside(name)).map_err(|error| of_index(error, index))?;
                check_against(index, &tensors, &file, &header)?;
                headers.push((file, header));
            }
        }
        Self::chosen(headers, wanted, |_, name| kept.contains(name))
    }

    fn chosen(
        headers: Vec<(OpenFile, Header)>,
        wanted: &mut Wanted,
        keeps: impl Fn(&mut Wanted, &str) -> bool,
    ) -> Result<Self, LoadError> {
        check_unique(&headers)?;
        let (mut files, mut tensors, mut loaded_files) = (Vec::new(), Vec::new(), Vec::new());
        for (number, (file, header)) in headers.into_iter().enumerate() {
            for entry in header.entries {
                if keeps(wanted, &entry.name) {
                    tensors.push(wanted.of_tensor(number, &file, entry)?);
                }
            }
            loaded_files.push(LoadedFile { path: file.path.clone(), metadata: header.metadata });
            files.push(file);
        }
        Ok(Self { files, tensors, loaded_files })
    }

    /// Bytes of all tensors to load, as the files have them.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.selection.bytes() as u64).sum()
    }

    /// The file of a tensor.
    pub(crate) fn file(&self, number: usize) -> Option<&OpenFile> {
        self.files.get(number)
    }
}

enum Kind {
    Files(Vec<PathBuf>),
    Index(PathBuf),
}

fn kind_of(path: &Path) -> Result<Kind, LoadError> {
    let cannot = |source| LoadError::Open { path: path.to_owned(), index: None, source };
    if !std::fs::metadata(path).map_err(cannot)?.is_dir() {
        let is_index = path.extension().is_some_and(|extension| extension == "json");
        let path = path.to_owned();
        return Ok(if is_index { Kind::Index(path) } else { Kind::Files(vec![path]) });
    }
    let (mut files, mut indices) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(path).map_err(cannot)? {
        let entry = entry.map_err(cannot)?;
        let name = entry.file_name();
        match name.to_str() {
            Some(name) if name.ends_with(INDEX) => indices.push(entry.path()),
            Some(name) if name.ends_with(FILE) => files.push(entry.path()),
            _ => {}
        }
    }
    files.sort();
    let holds = |found| Err(LoadError::Folder { path: path.to_owned(), found });
    match (files.len(), indices.len(), indices.pop()) {
        (_, 1, Some(index)) => Ok(Kind::Index(index)),
        (0, 0, _) => holds("no .safetensors file".to_owned()),
        (_, 0, _) => Ok(Kind::Files(files)),
        (_, indices, _) => holds(format!("{indices} indices of .safetensors files")),
    }
}

fn read(path: &Path) -> Result<(OpenFile, Header), LoadError> {
    let file = OpenFile::open(path)?;
    let header = Header::read(&file)?;
    Ok((file, header))
}

/// The error of a file that an index names.
fn of_index(error: LoadError, index: &Index) -> LoadError {
    match error {
        LoadError::Open { path, source, .. } => {
            LoadError::Open { path, index: Some(index.path.clone()), source }
        }
        other => other,
    }
}

/// Fails unless `file` has just these tensors, which the index says are there.
fn check_against(index: &Index, tensors: &[&str], file: &OpenFile, header: &Header) -> Result<(), LoadError> {
    let (path, of_index) = (|| file.path.clone(), || index.path.clone());
    let there: HashSet<&str> = header.entries.iter().map(|entry| entry.name.as_str()).collect();
    if let Some(tensor) = tensors.iter().find(|tensor| !there.contains(**tensor)) {
        return Err(LoadError::Missing { path: path(), tensor: (*tensor).to_owned(), index: of_index() });
    }
    let named: HashSet<&str> = tensors.iter().copied().collect();
    match header.entries.iter().find(|entry| !named.contains(entry.name.as_str())) {
        None => Ok(()),
        Some(Entry { name, offset, .. }) => Err(LoadError::NotInIndex {
            path: path(),
            tensor: name.clone(),
            offset: *offset,
            index: of_index(),
        }),
    }
}

/// Fails if two files have a tensor of the same name.
fn check_unique(headers: &[(OpenFile, Header)]) -> Result<(), LoadError> {
    let mut seen: HashMap<&str, &OpenFile> = HashMap::new();
    for (file, header) in headers {
        for entry in &header.entries {
            if let Some(other) = seen.insert(&entry.name, file) {
                return Err(LoadError::Twice {
                    path: file.path.clone(),
                    tensor: entry.name.clone(),
                    offset: entry.offset,
                    other: other.path.clone(),
                });
            }
        }
    }
    Ok(())
}
