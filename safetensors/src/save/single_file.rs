//! Which paths a single file can have.

use std::fs;
use std::path::{Path, is_separator};

use crate::index::Index;
use crate::save::error::SaveError;
use crate::save::folder;
use crate::save::temporary::name_of;
use crate::sources::{FILE, INDEX};

/// Fails where the path names no file, where something else lies, and where the file would be in the way of a model of several files.
pub(crate) fn check(path: &Path) -> Result<(), SaveError> {
    let refused = |found: String| Err(SaveError::path(path, found));
    let name = match name_of(path) {
        _ if path.as_os_str().to_string_lossy().ends_with(is_separator) || path.file_name().is_none() => {
            return refused("names no file; name one".to_owned());
        }
        Some(name) if name.ends_with(INDEX) => {
            return refused("is the name of an index; name its folder, or another file".to_owned());
        }
        name => name,
    };
    if path.symlink_metadata().is_ok_and(|found| !found.is_file() && !found.is_symlink()) {
        return refused("is no regular file; name another path".to_owned());
    }
    match name.and_then(|name| index_in_the_way(path, name)) {
        None => Ok(()),
        Some(index) => refused(format!(
            "lies beside {index}, the index of the model that it belongs to or would be taken for; name the folder, or another file"
        )),
    }
}

/// The name of an index beside the file that names it, or that goes by the same name.
fn index_in_the_way(path: &Path, name: &str) -> Option<String> {
    // A folder that cannot be read has no index for anybody.
    let entries = fs::read_dir(folder::of(path)).into_iter().flatten().flatten();
    let mut indices = entries.filter_map(|entry| entry.file_name().into_string().ok());
    indices.find(|index| {
        let Some(model) = index.strip_suffix(INDEX) else { return false };
        let names_it = || {
            let index = Index::read(&path.with_file_name(index));
            index.is_ok_and(|index| index.weight_map.values().any(|file| file == name))
        };
        name.strip_suffix(FILE) == Some(model) || names_it()
    })
}
