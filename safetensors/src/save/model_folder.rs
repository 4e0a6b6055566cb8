//! A folder with a model of several files, which is what its index names.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::index::{Index, MOST_BYTES as MOST_INDEX_BYTES, UNFINISHED};
use crate::save::error::SaveError;
use crate::save::folder;
use crate::save::plan::PlannedFile;
use crate::save::temporary::{Temporary, is_random, name_of, random, remove_dead, remove_stale};
use crate::save::write::Target;
use crate::sources::{FILE, INDEX};

/// Files have this name, and more, in front of [`FILE`], and the index in front of [`INDEX`].
const MODEL: &str = "model";
pub(crate) struct ModelFolder {
    path: PathBuf,
    index: PathBuf,
}

impl ModelFolder {
    /// The folder of this path, which is made if there is none. Removes what dead writers have left there.
    pub(crate) fn open(path: &Path) -> Result<Self, SaveError> {
        match fs::create_dir(path) {
            Ok(()) => folder::sync(folder::of(path))?,
            Err(_) if path.is_dir() => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(SaveError::path(path, "is a file; name a folder for several files"));
            }
            Err(error) => return Err(SaveError::file(path, "created")(error)),
        }
        let folder = Self { path: path.to_owned(), index: path.join(format!("{MODEL}{INDEX}")) };
        folder.check()?;
        remove_stale(path);
        Ok(folder)
    }

    /// Names for so many files, which no others have.
    pub(crate) fn names(&self, count: usize) -> impl Iterator<Item = String> {
        let tag = random();
        (1..=count).map(move |number| format!("{MODEL}-{tag}-{number:05}-of-{count:05}{FILE}"))
    }

    /// The index of these files. Fails if it would be longer than one may be.
    pub(crate) fn index_of(&self, targets: &[Target]) -> Result<Vec<u8>, SaveError> {
        let index = index_of(targets);
        match index.len() as u64 <= MOST_INDEX_BYTES {
            true => Ok(index),
            false => Err(SaveError::path(
                &self.path,
                format!(
                    "would need an index of {} bytes, and {MOST_INDEX_BYTES} are allowed; give the tensors shorter names, or save them to several \
                     folders",
                    index.len()
                ),
            )),
        }
    }

    /// Puts the files in their places, then the index that names them, and removes what it replaces.
    pub(crate) fn commit(&self, mut targets: Vec<Target>, index: &[u8]) -> Result<(), SaveError> {
        // Until the lock is let go of, no other writer changes the index, or removes what is not named there yet.
        let _locked = folder::lock(&self.path)?;
        self.check()?;
        let replaced = self.replaced()?;
        let is_first = !self.index.exists();
        if is_first {
            self.replace_index(UNFINISHED)?;
        }
        if let Err(error) = self.put_in_place(&mut targets, index) {
            // Its files go before it: they would be taken for a model.
            drop(targets);
            // Unless others, who could not be locked out, have replaced it.
            if is_first && fs::read(&self.index).is_ok_and(|text| text == UNFINISHED) {
                let _ = fs::remove_file(&self.index);
            }
            return Err(error);
        }
        targets.iter_mut().for_each(|target| target.temporary.keep());
        folder::sync(&self.path)?;
        let new: BTreeSet<_> =
            targets.iter().filter_map(|target| name_of(target.temporary.target())).collect();
        for file in replaced.iter().filter(|file| !new.contains(file.as_str())) {
            let _ = fs::remove_file(self.path.join(file));
        }
        remove_dead(&self.path, |name| is_of_a_save(name) && !new.contains(name));
        Ok(())
    }

    /// After an error the index is the old one.
    fn put_in_place(&self, targets: &mut [Target], index: &[u8]) -> Result<(), SaveError> {
        targets.iter_mut().try_for_each(|target| target.temporary.rename())?;
        folder::sync(&self.path)?;
        self.replace_index(index)
    }

    /// Fails where the new model and what is there would be taken for one, or none.
    fn check(&self) -> Result<(), SaveError> {
        let entries = fs::read_dir(&self.path).map_err(SaveError::file(&self.path, "read"))?;
        let mut file_without_index = None;
        let (has_index, named) = (self.index.exists(), self.replaced()?);
        for entry in entries {
            let path = entry.map_err(SaveError::file(&self.path, "read"))?.path();
            match name_of(&path) {
                Some(name) if name.ends_with(INDEX) && path != self.index => {
                    let found = format!(
                        "has another index, {name}, beside which a second model cannot lie; name another folder"
                    );
                    return Err(SaveError::path(&self.path, found));
                }
                Some(name)
                    if has_index && name.strip_suffix(FILE) == Some(MODEL) && !named.contains(name) =>
                {
                    let found =
                        format!("has {name} as well, which other programs take for the model; move it away");
                    return Err(SaveError::path(&self.path, found));
                }
                Some(name) if name.ends_with(FILE) => file_without_index = Some(name.to_owned()),
                _ => {}
            }
        }
        match file_without_index.filter(|_| !has_index) {
            None => Ok(()),
            Some(name) => {
                let found = format!(
                    "has {name}, and no index that says which model it belongs to; name that file or another folder, or \
                     move it away"
                );
                Err(SaveError::path(&self.path, found))
            }
        }
    }

    /// The files that the index names now.
    fn replaced(&self) -> Result<BTreeSet<String>, SaveError> {
        // One that cannot be understood names none.
        let index = if self.index.exists() { Index::read(&self.index).ok() } else { None };
        let files = index.into_iter().flat_map(|index| index.weight_map.into_values());
        Ok(files.filter(|file| file.ends_with(FILE)).collect())
    }

    /// On return the index is in its place, though its folder need not be synced.
    fn replace_index(&self, text: &[u8]) -> Result<(), SaveError> {
        let mut temporary = Temporary::create(self.index.clone())?;
        temporary.write_all(text).map_err(SaveError::file(&self.index, "written"))?;
        temporary.sync()?;
        temporary.rename()?;
        temporary.keep();
        Ok(())
    }
}

/// Whether a save gives such names to the files of a model.
fn is_of_a_save(name: &str) -> bool {
    let inside = name.strip_prefix(MODEL).and_then(|rest| rest.strip_prefix('-')?.strip_suffix(FILE));
    let Some((tag, number)) = inside.and_then(|inside| inside.split_once('-')) else { return false };
    let is_number = |text: &str| text.len() >= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    is_random(tag) && number.split_once("-of-").is_some_and(|(one, all)| is_number(one) && is_number(all))
}

#[derive(Serialize)]
struct IndexText<'a> {
    metadata: IndexMetadata,
    weight_map: BTreeMap<&'a str, &'a str>,
}

#[derive(Serialize)]
struct IndexMetadata {
    total_size: u64,
}

fn index_of(targets: &[Target]) -> Vec<u8> {
    let (mut total_size, mut weight_map) = (0, BTreeMap::new());
    for Target { temporary, planned: PlannedFile { tensors, .. } } in targets {
        for tensor in tensors {
            total_size += tensor.tensor.nbytes() as u64;
            weight_map.insert(tensor.name.as_str(), name_of(temporary.target()).unwrap_or_default());
        }
    }
    let text = serde_json::to_vec_pretty(&IndexText { metadata: IndexMetadata { total_size }, weight_map });
    // Texts and numbers always have a form.
    text.unwrap_or_default()
}
