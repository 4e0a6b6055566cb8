//! The tensors of a structure, in the order of their paths: that of maps differs from process to process.

use crate::error::{Error, Result};
use crate::manifest::known_tree::KnownTree;
use crate::manifest::seen_at::SeenAt;
use crate::tensor::layout::Layout;
use crate::tensor::tensor::Tensor;
use crate::tree::paths::for_each_printed_path;
use crate::tree::tensor_tree::TensorTree;

/// All tensors of a structure, each with what somebody wants to know of it.
pub(crate) struct Entries<T> {
    /// All of them, one behind the other.
    paths: String,
    /// Where each ends; as `kept` in the order in which they are shown.
    ends: Vec<usize>,
    kept: Vec<T>,
    seen: Vec<SeenAt>,
    /// Whether a key of a map is on the way.
    keyed: Vec<bool>,
    /// By path.
    order: Vec<Key>,
}

/// What tells most paths apart, and the number of the tensor.
struct Key {
    letters: u64,
    number: usize,
}

/// All tensors of `tree`, with what `keep` makes of each. Fails where keys of a map print alike: their tensors have one path, and another order in each map.
pub(crate) fn entries<S: TensorTree + ?Sized, T>(
    tree: &S,
    mut keep: impl FnMut(&Tensor) -> Result<T>,
) -> Result<Entries<T>> {
    let (mut paths, mut ends) = (String::new(), Vec::new());
    let (mut kept, mut seen, mut keyed) = (Vec::new(), Vec::new(), Vec::new());
    for_each_printed_path(tree, |path, tensor| {
        paths.push_str(path.as_str());
        ends.push(paths.len());
        kept.push(keep(tensor)?);
        seen.push(SeenAt::of(tensor));
        keyed.push(path.has_key());
        Ok(())
    })?;
    let mut entries = Entries { paths, ends, kept, seen, keyed, order: Vec::new() };
    entries.order = entries.sorted();
    match entries.printed_alike() {
        Some(path) => Err(Error::KeysPrintAlike { path: path.to_owned() }),
        None => Ok(entries),
    }
}

impl<T> Entries<T> {
    /// By their paths, each with its number among those that are shown. Those of the same path stay in the order in which they are shown.
    pub(crate) fn by_path(&self) -> impl Iterator<Item = (usize, &str, &T)> {
        self.order
            .iter()
            .filter_map(|Key { number, .. }| Some((*number, self.path(*number), self.kept.get(*number)?)))
    }

    /// What was kept, in the order in which they are shown.
    pub(crate) fn shown(&self) -> impl Iterator<Item = &T> {
        self.kept.iter()
    }

    /// What the structure is known by, and what was kept, in the order in which they are shown.
    pub(crate) fn into_known_and_shown(self, layout: impl FnMut(&T) -> Layout) -> (KnownTree, Vec<T>) {
        let Self { paths, ends, kept, seen, .. } = self;
        (KnownTree::new(paths, ends, kept.iter().map(layout), seen), kept)
    }

    /// What was kept, in the order in which they are shown.
    pub(crate) fn into_shown(self) -> Vec<T> {
        self.kept
    }

    fn path(&self, number: usize) -> &str {
        let start = number.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        let path = self.ends.get(number).and_then(|end| self.paths.get(start..*end));
        path.unwrap_or_default()
    }

    /// The first path with a key that two tensors have.
    fn printed_alike(&self) -> Option<&str> {
        let has_key = |key: &Key| self.keyed.get(key.number).copied().unwrap_or_default();
        self.order.windows(2).find_map(|two| match two {
            [one, other] if one.letters == other.letters && has_key(one) && has_key(other) => {
                let path = self.path(one.number);
                (path == self.path(other.number)).then_some(path)
            }
            _ => None,
        })
    }

    fn sorted(&self) -> Vec<Key> {
        let first = self.path(0).as_bytes();
        let numbers = 0..self.kept.len();
        let shared = numbers.clone().fold(first.len(), |shared, number| {
            let both = first.iter().take(shared).zip(self.path(number).as_bytes());
            both.take_while(|(one, other)| one == other).count()
        });
        let key = |number| Key { letters: letters(self.path(number).as_bytes().iter().skip(shared)), number };
        let mut order: Vec<Key> = numbers.map(key).collect();
        order.sort_unstable_by(|one, other| {
            let by_path = || self.path(one.number).cmp(self.path(other.number));
            let order = one.letters.cmp(&other.letters).then_with(by_path);
            order.then(one.number.cmp(&other.number))
        });
        order
    }
}

/// The first eight bytes, which are in order as they are. Where there are fewer, zeros: that may be equal, and is never the wrong way round.
fn letters<'a>(path: impl Iterator<Item = &'a u8>) -> u64 {
    let mut letters = [0; 8];
    letters.iter_mut().zip(path).for_each(|(letter, byte)| *letter = *byte);
    u64::from_be_bytes(letters)
}
