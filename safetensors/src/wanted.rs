//! Which tensors are wanted, which part of them, and as what.

use std::ops::Range;

use transship_core::Cast;

use crate::error::LoadError;
use crate::header::Entry;
use crate::open_file::OpenFile;
use crate::selection::Selection;
use crate::sources::Chosen;

/// Which names are wanted.
pub(crate) type Filter = Box<dyn FnMut(&str) -> bool + Send>;
/// Which items of which dimension are wanted of a tensor of this name and shape.
pub(crate) type Narrow = Box<dyn FnMut(&str, &[usize]) -> Option<(usize, Range<usize>)> + Send>;

/// What of the files is wanted.
pub(crate) struct Wanted {
    pub(crate) filter: Option<Filter>,
    pub(crate) narrow: Option<Narrow>,
    /// One for a type at most.
    pub(crate) casts: Vec<Cast>,
}

impl Wanted {
    pub(crate) fn keeps(&mut self, name: &str) -> bool {
        self.filter.as_mut().is_none_or(|keep| keep(name))
    }

    /// What is wanted of a tensor of the file of this number.
    pub(crate) fn of_tensor(
        &mut self,
        number: usize,
        file: &OpenFile,
        entry: Entry,
    ) -> Result<Chosen, LoadError> {
        let stored = entry.known_dtype(file)?;
        let (mut shape, mut selection) = (entry.shape.clone(), Selection::whole(entry.offset, entry.bytes));
        let rule = self.narrow.as_mut();
        if let Some((dim, items)) = rule.and_then(|rule| rule(&entry.name, &entry.shape)) {
            match shape.get_mut(dim) {
                Some(count) if items.start <= items.end && items.end <= *count => *count = items.len(),
                _ => return Err(no_such_items(file, entry, dim, items)),
            }
            selection = Selection::narrowed(entry.offset, entry.bytes, &entry.shape, dim, &items);
        }
        let is_changed = |cast: &&Cast| cast.from_dtype() == stored && cast.to_dtype() != stored;
        let cast = self.casts.iter().find(is_changed).copied();
        let dtype = cast.map_or(stored, |cast| cast.to_dtype());
        Ok(Chosen { file: number, dtype, shape, cast, selection, entry })
    }
}

fn no_such_items(file: &OpenFile, entry: Entry, dim: usize, items: Range<usize>) -> LoadError {
    let Entry { name: tensor, shape, offset, .. } = entry;
    let (path, Range { start, end }) = (file.path.clone(), items);
    LoadError::Narrow { path, tensor, offset, shape, dim, start, end }
}
