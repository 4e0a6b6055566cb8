//! The tensors of a tree in an order that is the same on all ranks: that of maps is not.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt::Write;
use std::ptr;

use transship::{Tensor, TensorTree, for_each_path, for_each_tensor};

use crate::error::{Error, Result};
use crate::reduce_op::ReduceOp;

/// The tensors of one tree.
pub(crate) struct Leaves {
    /// All paths, one behind the other, and where each ends.
    text: String,
    ends: Vec<usize>,
    pub(crate) tensors: Vec<Tensor>,
    /// Where in the tree each is.
    places: Vec<usize>,
    /// Whether a key of a map is on the way to it.
    keyed: Vec<bool>,
}

impl Leaves {
    /// In the order of their paths. What `tree` shares with other structures becomes its own.
    pub(crate) fn of<S: TensorTree>(tree: &mut S) -> Result<Self> {
        unshare(tree)?;
        Self::as_shown(tree, (0, 0))?.sorted()
    }

    fn with_room(letters: usize, count: usize) -> Self {
        Self {
            text: String::with_capacity(letters),
            ends: Vec::with_capacity(count),
            tensors: Vec::with_capacity(count),
            places: Vec::with_capacity(count),
            keyed: Vec::with_capacity(count),
        }
    }

    /// With room for so many letters of paths and so many tensors.
    fn as_shown<S: TensorTree>(tree: &S, (letters, count): (usize, usize)) -> Result<Self> {
        let mut leaves = Self::with_room(letters, count);
        for_each_path(tree, |path, tensor| {
            // Writing to a string does not fail.
            let _ = write!(leaves.text, "{path}");
            leaves.ends.push(leaves.text.len());
            leaves.tensors.push(tensor.clone());
            leaves.places.push(ptr::from_ref(tensor).addr());
            leaves.keyed.push(path.has_key());
            Ok(())
        })?;
        Ok(leaves)
    }

    /// Fails where keys of a map print alike: their tensors have one path, and another order in each map.
    fn sorted(self) -> Result<Self> {
        let mut order: Vec<usize> = (0..self.ends.len()).collect();
        // As in a manifest: those of the same path stay in the order in which they are shown.
        order.sort_by_key(|number| self.path(*number));
        let mut sorted = Self::with_room(self.text.len(), order.len());
        for number in order {
            let (Some(tensor), Some(place)) = (self.tensors.get(number), self.places.get(number)) else {
                continue;
            };
            sorted.text.push_str(self.path(number));
            sorted.ends.push(sorted.text.len());
            sorted.tensors.push(tensor.clone());
            sorted.places.push(*place);
            sorted.keyed.push(self.has_key(number));
        }
        let alike = (1..sorted.ends.len())
            .find(|number| sorted.has_key(*number) && sorted.path(*number) == sorted.path(number - 1));
        alike.map_or(Ok(()), |number| Err(printed_alike(sorted.path(number))))?;
        Ok(sorted)
    }

    /// The same of leaves that stay in the order in which they are shown.
    fn check_keys(&self) -> Result<()> {
        let mut seen = HashSet::new();
        let mut keyed = (0..self.ends.len()).filter(|number| self.has_key(*number));
        let alike = keyed.find(|number| !seen.insert(self.path(*number)));
        alike.map_or(Ok(()), |number| Err(printed_alike(self.path(number))))
    }

    fn has_key(&self, number: usize) -> bool {
        self.keyed.get(number).copied().unwrap_or_default()
    }

    fn path(&self, number: usize) -> &str {
        let end = self.ends.get(number).copied().unwrap_or_default();
        let start =
            number.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or_default();
        self.text.get(start..end).unwrap_or_default()
    }

    /// Those of each tree, which have the same paths, types and shapes.
    pub(crate) fn of_ranks<S: TensorTree>(trees: &mut [S]) -> Result<Vec<Self>> {
        Self::alike(trees, |one, other| (one.dtype(), one.shape()) == (other.dtype(), other.shape()))
    }

    /// Those of each tree, which have the same paths.
    pub(crate) fn with_same_paths<S: TensorTree>(trees: &mut [S]) -> Result<Vec<Self>> {
        Self::alike(trees, |_, _| true)
    }

    /// All in one order, which is that of paths unless the trees show theirs in the same one.
    fn alike<S: TensorTree>(
        trees: &mut [S],
        is_like: impl Fn(&Tensor, &Tensor) -> bool,
    ) -> Result<Vec<Self>> {
        trees.iter_mut().try_for_each(unshare)?;
        let mut ranks: Vec<Self> = Vec::with_capacity(trees.len());
        for tree in &*trees {
            // They are mostly alike.
            let room = ranks.last().map_or((0, 0), |rank| (rank.text.len(), rank.ends.len()));
            ranks.push(Self::as_shown(tree, room)?);
        }
        let are_alike = |one: &Self, other: &Self| {
            let mut pairs = one.tensors.iter().zip(&other.tensors);
            (&one.text, &one.ends) == (&other.text, &other.ends)
                && pairs.all(|(one, other)| is_like(one, other))
        };
        if ranks.windows(2).all(|two| matches!(two, [one, other] if are_alike(one, other))) {
            ranks.first().map_or(Ok(()), Self::check_keys)?;
            return Ok(ranks);
        }
        let ranks = ranks.into_iter().map(Self::sorted).collect::<Result<Vec<_>>>()?;
        let Some((first, others)) = ranks.split_first() else { return Ok(ranks) };
        for (rank, other) in (1..).zip(others) {
            if let Some(error) = first_difference(other, first, &is_like) {
                return Err(Error::RanksDiffer { rank, error });
            }
        }
        Ok(ranks)
    }

    /// Fails unless elements of all of them can be combined.
    pub(crate) fn check_reducible(&self, op: ReduceOp) -> Result<()> {
        match self.named().find(|(_, tensor)| !op.takes(tensor.dtype())) {
            Some((path, tensor)) => {
                let (path, dtype) = (path.to_owned(), tensor.dtype());
                Err(Error::NotReducible { path, dtype, op, by_nccl: false })
            }
            None => Ok(()),
        }
    }

    /// Puts other tensors into their places in each of `trees`, which were not moved since: one for each, in their order. None is put unless all can be.
    pub(crate) fn put_all<S: TensorTree>(
        all: &[Self],
        trees: &mut [S],
        tensors: Vec<Vec<Tensor>>,
    ) -> Result<()> {
        let orders = all.iter().zip(&mut *trees).map(|(leaves, tree)| leaves.order_of_visit(tree));
        let orders = orders.collect::<Result<Vec<_>>>()?;
        for ((order, tree), tensors) in orders.into_iter().zip(trees).zip(tensors) {
            let mut tensors: Vec<Option<Tensor>> = tensors.into_iter().map(Some).collect();
            let (first, mut second, mut order) = (tensors.len(), 0, order.into_iter());
            for_each_tensor(tree, |place| {
                let tensor = order.next().and_then(|number| tensors.get_mut(number)?.take());
                *place = tensor.ok_or(transship::Error::TreeChanged { first, second })?;
                second += 1;
                Ok(())
            })?;
        }
        Ok(())
    }

    /// The same for one tree.
    pub(crate) fn put<S: TensorTree>(&self, tree: &mut S, tensors: Vec<Tensor>) -> Result<()> {
        Self::put_all(std::slice::from_ref(self), std::slice::from_mut(tree), vec![tensors])
    }

    /// The numbers of the tensors in the order in which `tree` shows their places.
    fn order_of_visit<S: TensorTree>(&self, tree: &mut S) -> Result<Vec<usize>> {
        let (mut order, mut by_place) = (Vec::with_capacity(self.tensors.len()), None);
        let first = self.tensors.len();
        for_each_tensor(tree, |place| {
            let second = order.len();
            let number = self.number_at(ptr::from_ref(place).addr(), second, &mut by_place);
            order.push(number.ok_or(transship::Error::TreeChanged { first, second })?);
            Ok(())
        })?;
        let second = order.len();
        if second == first { Ok(order) } else { Err(transship::Error::TreeChanged { first, second }.into()) }
    }

    /// The number of the tensor at `place`: mostly `expected`, else looked for in `by_place`, which is made then.
    fn number_at(
        &self,
        place: usize,
        expected: usize,
        by_place: &mut Option<Vec<(usize, usize)>>,
    ) -> Option<usize> {
        if self.places.get(expected) == Some(&place) {
            return Some(expected);
        }
        let sorted = || {
            let mut sorted: Vec<_> = self.places.iter().copied().zip(0..).collect();
            sorted.sort_unstable();
            sorted
        };
        let by_place = by_place.get_or_insert_with(sorted);
        let found = by_place.binary_search_by_key(&place, |(place, _)| *place).ok()?;
        by_place.get(found).map(|(_, number)| *number)
    }

    /// Their paths, and they themselves.
    pub(crate) fn named(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.tensors.iter().enumerate().map(|(number, tensor)| (self.path(number), tensor))
    }
}

fn printed_alike(path: &str) -> Error {
    transship::Error::KeysPrintAlike { path: path.to_owned() }.into()
}

/// Makes what a tree shares with other structures its own (`Arc`): it shows its tensors in the same places from then on.
fn unshare<S: TensorTree>(tree: &mut S) -> Result<()> {
    Ok(for_each_tensor(tree, |_| Ok(()))?)
}

/// The first tensor that only one of both has, or that is not like that of the other.
fn first_difference(
    own: &Leaves,
    other: &Leaves,
    is_like: impl Fn(&Tensor, &Tensor) -> bool,
) -> Option<transship::Error> {
    let (mut ones, mut others) = (own.named(), other.named());
    loop {
        let (path, own, other) = match (ones.next(), others.next()) {
            (None, None) => return None,
            (Some((path, one)), None) => (path, Some(one), None),
            (None, Some((path, other))) => (path, None, Some(other)),
            (Some((path, one)), Some((other_path, other))) => match path.cmp(other_path) {
                Ordering::Less => (path, Some(one), None),
                Ordering::Greater => (other_path, None, Some(other)),
                Ordering::Equal if is_like(one, other) => continue,
                Ordering::Equal => (path, Some(one), Some(other)),
            },
        };
        let (path, own, other) = (path.to_owned(), described(own), described(other));
        return Some(transship::Error::ManifestMismatch { path, own, other });
    }
}

fn described(tensor: Option<&Tensor>) -> String {
    tensor.map_or("no tensor".to_owned(), |tensor| format!("{} {:?}", tensor.dtype(), tensor.shape()))
}
