//! The tensors of a structure that are to be copied, each once, and the way back of their copies.

use std::hash::{Hash, Hasher};
use std::ptr::NonNull;

use candle_core::{Tensor, TensorId};
use rustc_hash::FxHashMap;

use crate::error::{Error, Result};
use crate::source;
use crate::tree::{TensorTree, for_each_tensor};

/// What a structure has shown.
pub(crate) struct Found {
    /// Each once: views of the same elements are one.
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) places: Places,
}

/// What a structure shows, in its order, and which of the copies each is to be replaced by.
pub(crate) struct Places(Vec<(TensorId, Option<usize>)>);

impl Found {
    /// Looks at every tensor of `tree`. Those that `stays` is true of are not copied.
    pub(crate) fn new<S: TensorTree>(tree: &mut S, stays: impl Fn(&Tensor) -> bool) -> Result<Self> {
        let (mut tensors, mut places, mut known) = (Vec::new(), Vec::new(), FxHashMap::default());
        for_each_tensor(tree, |tensor| {
            let number = (!stays(tensor)).then(|| {
                *known.entry(Elements::of(tensor)).or_insert_with(|| {
                    tensors.push(tensor.clone());
                    tensors.len() - 1
                })
            });
            places.push((tensor.id(), number));
            Ok(())
        })?;
        Ok(Self { tensors, places: Places(places) })
    }
}

impl Places {
    /// How many tensors are to be replaced.
    pub(crate) fn len(&self) -> usize {
        self.0.iter().filter(|(_, number)| number.is_some()).count()
    }

    /// Puts the copies where their sources are.
    ///
    /// # Errors
    ///
    /// [`Error::TreeChanged`] where `tree` shows others than before; what comes first is replaced then.
    pub(crate) fn put<S: TensorTree>(&self, tree: &mut S, copies: &[Tensor]) -> Result<()> {
        let mut shown = self.0.iter();
        for_each_tensor(tree, |tensor| {
            let (id, number) = shown.next().ok_or(Error::TreeChanged)?;
            if *id != tensor.id() {
                return Err(Error::TreeChanged);
            }
            if let Some(copy) = number.and_then(|number| copies.get(number)) {
                *tensor = copy.clone();
            }
            Ok(())
        })?;
        if shown.next().is_some() { Err(Error::TreeChanged) } else { Ok(()) }
    }
}

/// Which elements of which storage: equal for tensors that are the same.
struct Elements {
    storage: usize,
    tensor: Tensor,
}

impl Elements {
    fn of(tensor: &Tensor) -> Self {
        let storage = NonNull::from(source::lock_of(tensor)).addr().get();
        Self { storage, tensor: tensor.clone() }
    }
}

impl PartialEq for Elements {
    fn eq(&self, other: &Self) -> bool {
        self.storage == other.storage && self.tensor.layout() == other.tensor.layout()
    }
}

impl Eq for Elements {}

impl Hash for Elements {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.storage.hash(state);
        self.tensor.layout().start_offset().hash(state);
    }
}
