//! The tensors of a structure that is filled, taken out of it and put back.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use transship::{Manifest, Tensor, TensorTree, for_each_path, for_each_tensor};

use crate::error::{Error, Failed, Result};
use crate::pack::ALIGNMENT;
use crate::transfer::Transfer;

/// A structure whose tensors are in a transfer: in the place of each there is its number.
pub(crate) struct Taken<S> {
    pub(crate) tree: S,
    /// In the order of their paths.
    pub(crate) tensors: Vec<Tensor>,
    /// Of the structure as it was.
    pub(crate) manifest: Manifest,
}

/// What a transfer leaves behind: the tensors that it had, unless a failed copy has kept one, and why it has failed.
pub(crate) struct Filled {
    pub(crate) tensors: Vec<Option<Tensor>>,
    pub(crate) error: Option<Error>,
}

/// A transfer into the memory of a structure, which comes out of it. As a [`Transfer`].
#[must_use = "the structure comes out of it"]
pub struct TransferInto<S> {
    transfer: Transfer<Filled>,
    tree: Option<S>,
}

pub(crate) fn take<S: TensorTree>(mut tree: S) -> Result<Taken<S>, Failed<S>> {
    let mut taken = Vec::new();
    match try_take(&mut tree, &mut taken) {
        Ok(manifest) => Ok(Taken { tree, tensors: taken.into_iter().flatten().collect(), manifest }),
        Err(error) => {
            // A visit that shows other tensors than before lets nobody say where those go that were taken.
            let value = taken.iter().all(Option::is_none).then_some(tree);
            Err(Failed { error: Box::new(error.into()), value })
        }
    }
}

fn try_take<S: TensorTree>(tree: &mut S, taken: &mut Vec<Option<Tensor>>) -> transship::Result<Manifest> {
    // What the tree shares with others becomes its own, in a place of its own.
    for_each_tensor(tree, |_| Ok(()))?;
    let manifest = Manifest::packed(tree, ALIGNMENT)?;
    // A tensor is known by where it is in memory: it is in the same place when it is visited.
    let mut places = Vec::new();
    for_each_path(tree, |path, tensor| {
        places.push((path.to_string(), std::ptr::from_ref(tensor).addr()));
        Ok(())
    })?;
    places.sort_by(|one, other| one.0.cmp(&other.0));
    let numbers: HashMap<usize, usize> =
        places.iter().enumerate().map(|(number, (_, place))| (*place, number)).collect();
    let number_of = |tensor: &Tensor| numbers.get(&std::ptr::from_ref(tensor).addr()).copied();
    // All of them are known before the first one goes.
    let mut seen = HashSet::new();
    for_each_tensor(tree, |place| {
        let is_new = number_of(place).is_some_and(|number| seen.insert(number));
        if is_new { Ok(()) } else { Err(changed(places.len(), seen.len() + 1)) }
    })?;
    if seen.len() != places.len() {
        return Err(changed(places.len(), seen.len()));
    }
    taken.resize(places.len(), None);
    let mut second = 0;
    for_each_tensor(tree, |place| {
        second += 1;
        let slot = number_of(place).and_then(|number| Some((number, taken.get_mut(number)?)));
        let (number, slot) =
            slot.filter(|(_, slot)| slot.is_none()).ok_or_else(|| changed(places.len(), second))?;
        *slot = Some(std::mem::replace(place, Tensor::scalar(number as u64)));
        Ok(())
    })?;
    if second == places.len() { Ok(manifest) } else { Err(changed(places.len(), second)) }
}

/// Each tensor into the place that has its number; where one is missing, the reason for that.
fn put_back<S: TensorTree>(mut tree: S, mut tensors: Vec<Option<Tensor>>) -> Result<S, transship::Error> {
    let (first, mut second) = (tensors.len(), 0);
    for_each_tensor(&mut tree, |place| {
        second += 1;
        let number = place.item::<u64>().ok().and_then(|number| usize::try_from(number).ok());
        let tensor = number.and_then(|number| tensors.get_mut(number)?.take());
        *place = tensor.ok_or_else(|| changed(first, second))?;
        Ok(())
    })?;
    if second == first { Ok(tree) } else { Err(changed(first, second)) }
}

fn changed(first: usize, second: usize) -> transship::Error {
    transship::Error::TreeChanged { first, second }
}

impl<S: TensorTree> TransferInto<S> {
    pub(crate) fn new(transfer: Transfer<Filled>, tree: S) -> Self {
        Self { transfer, tree: Some(tree) }
    }

    /// Blocks until it is done, or its time is over, and gives the structure back.
    ///
    /// # Errors
    ///
    /// What has failed; [`Error::TimedOut`].
    pub fn wait(mut self) -> Result<S, Failed<S>> {
        let filled = self.transfer.wait_by_reference();
        self.end(filled)
    }

    /// Whether it is done, well or not. Never blocks.
    pub fn is_ready(&self) -> bool {
        self.transfer.is_ready()
    }

    fn end(&mut self, filled: Result<Filled>) -> Result<S, Failed<S>> {
        let filled = filled.and_then(|filled| Ok((filled, self.tree.take().ok_or(Error::Lost)?)));
        let (Filled { tensors, error }, tree) =
            filled.map_err(|error| Failed { error: Box::new(error), value: None })?;
        match (put_back(tree, tensors), error) {
            (Ok(tree), None) => Ok(tree),
            (Ok(tree), Some(error)) => Err(Failed { error: Box::new(error), value: Some(tree) }),
            (Err(missing), error) => {
                Err(Failed { error: Box::new(error.unwrap_or(missing.into())), value: None })
            }
        }
    }
}

impl<S: TensorTree + Unpin> Future for TransferInto<S> {
    type Output = Result<S, Failed<S>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let filled = ready!(Pin::new(&mut self.transfer).poll(context));
        Poll::Ready(self.end(filled))
    }
}

impl<S> fmt::Debug for TransferInto<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransferInto").field("transfer", &self.transfer).finish_non_exhaustive()
    }
}
