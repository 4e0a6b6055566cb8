//! Structures with an order of their own: of their maps, of each visit, of each clone.

use std::collections::HashMap;
use std::hash::{BuildHasher, DefaultHasher, Hasher};

use transship::{Pairs, Stop, Tensor, TensorTree, Visitor};

use crate::data::Random;

/// Tensors by their number.
pub(crate) type Map = HashMap<usize, Tensor, Order>;

/// So many tensors, in one of three ways.
pub(crate) enum Tree {
    List(Vec<Tensor>),
    /// What is cloned is put together anew, in another order.
    Map(Map),
    /// Each visit has an order of its own.
    Turning(Vec<Tensor>, Random),
}

/// The order of a map.
#[derive(Clone, Copy)]
pub(crate) struct Order(u64);

impl BuildHasher for Order {
    type Hasher = DefaultHasher;

    fn build_hasher(&self) -> DefaultHasher {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.0);
        hasher
    }
}

/// A map with an order of its own.
pub(crate) fn map(tensors: impl IntoIterator<Item = (usize, Tensor)>, seed: u64) -> Map {
    let mut map = Map::with_hasher(Order(seed));
    map.extend(tensors);
    map
}

impl Tree {
    pub(crate) fn new(tensors: Vec<Tensor>, random: &mut Random) -> Self {
        match random.next() % 3 {
            0 => Self::List(tensors),
            1 => Self::Map(map(tensors.into_iter().enumerate(), random.next())),
            _ => Self::Turning(tensors, Random::new(random.next())),
        }
    }

    /// The tensors, each at its number.
    pub(crate) fn into_tensors(mut self) -> Vec<Tensor> {
        match &mut self {
            Self::List(tensors) | Self::Turning(tensors, _) => std::mem::take(tensors),
            Self::Map(map) => {
                let mut entries: Vec<_> = map.drain().collect();
                entries.sort_by_key(|(number, _)| *number);
                entries.into_iter().map(|(_, tensor)| tensor).collect()
            }
        }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        if let Self::Map(map) = self {
            // Where a value of a map panics when it is dropped, the standard library leaks those behind it; a list goes on.
            drop(map.drain().collect::<Vec<_>>());
        }
    }
}

impl Clone for Tree {
    fn clone(&self) -> Self {
        match self {
            Self::List(tensors) => Self::List(tensors.clone()),
            Self::Map(held) => {
                let entries = held.iter().map(|(number, tensor)| (*number, tensor.clone()));
                Self::Map(map(entries, held.hasher().0.wrapping_add(1)))
            }
            Self::Turning(tensors, _) => Self::Turning(tensors.clone(), Random::new(tensors.len() as u64)),
        }
    }
}

impl TensorTree for Tree {
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        match self {
            Self::List(tensors) => tensors.visit(visitor),
            Self::Map(map) => map.visit(visitor),
            Self::Turning(tensors, random) => {
                let mut shown: Vec<&mut Tensor> = tensors.iter_mut().collect();
                for last in (1..shown.len()).rev() {
                    shown.swap(last, random.next() as usize % (last + 1));
                }
                shown.into_iter().try_for_each(|tensor| visitor.tensor(tensor))
            }
        }
    }

    fn pair(&mut self, into: &mut Self, pairs: &mut Pairs<'_>) -> Result<(), Stop> {
        match (self, into) {
            (Self::Map(value), Self::Map(into)) => value.pair(into, pairs),
            (Self::List(value) | Self::Turning(value, _), Self::List(into) | Self::Turning(into, _)) => {
                value.pair(into, pairs)
            }
            _ => Err(pairs.differ("one kind of tree", "another")),
        }
    }
}
