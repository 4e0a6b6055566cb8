//! The containers of a [`Value`](crate::Value), dropped without recursion.

use std::mem;
use std::ops::{Deref, DerefMut};

use indexmap::IndexMap;

use crate::tree::pair::Pairs;
use crate::tree::paths::Paths;
use crate::tree::tensor_tree::{Stop, TensorTree, Visitor};
use crate::tree::value::Value;
use crate::tree::value_key::Key;

/// The items of a list or a tuple, or the entries of a dict: a `Vec` or an `IndexMap` that is dropped without
/// recursion, so that deep nesting cannot exhaust the stack.
///
/// It dereferences to what it wraps; [`into_inner`](Nested::into_inner) and `into_iter` take it out.
#[derive(Default)]
pub struct Nested<C: Container>(C);

impl<C: Container> Nested<C> {
    /// The `Vec` or `IndexMap`.
    pub fn into_inner(mut self) -> C {
        mem::take(&mut self.0)
    }
}

impl<C: Container> From<C> for Nested<C> {
    fn from(container: C) -> Self {
        Self(container)
    }
}

impl<C: Container> Deref for Nested<C> {
    type Target = C;

    fn deref(&self) -> &C {
        &self.0
    }
}

impl<C: Container> DerefMut for Nested<C> {
    fn deref_mut(&mut self) -> &mut C {
        &mut self.0
    }
}

impl<C: Container + IntoIterator> IntoIterator for Nested<C> {
    type Item = C::Item;
    type IntoIter = C::IntoIter;

    fn into_iter(self) -> C::IntoIter {
        self.into_inner().into_iter()
    }
}

impl<C: Container + TensorTree> TensorTree for Nested<C> {
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        self.0.visit(visitor)
    }

    fn pair(&mut self, into: &mut Self, pairs: &mut Pairs<'_>) -> Result<(), Stop> {
        self.0.pair(&mut into.0, pairs)
    }

    fn show(&self, paths: &mut Paths<'_>) -> Result<(), Stop> {
        self.0.show(paths)
    }
}

/// Takes the containers out, level by level, until what is left to the compiler has no container inside. Nothing is
/// allocated where there is none.
impl<C: Container> Drop for Nested<C> {
    fn drop(&mut self) {
        let mut pending = Vec::new();
        self.0.take_containers(&mut pending);
        while let Some(mut value) = pending.pop() {
            match &mut value {
                Value::List(items) | Value::Tuple(items) => items.0.take_containers(&mut pending),
                Value::Dict(entries) => entries.0.take_containers(&mut pending),
                Value::Tensor(_) | Value::Other(_) => {}
            }
        }
    }
}

/// What a [`Nested`] can wrap. Sealed: nobody can name it outside of this crate.
pub trait Container: Default {
    /// Moves the values that hold others to `pending`.
    fn take_containers(&mut self, pending: &mut Vec<Value>);
}

impl Container for Vec<Value> {
    fn take_containers(&mut self, pending: &mut Vec<Value>) {
        take_containers(self.iter_mut(), pending);
    }
}

impl Container for IndexMap<Key, Value> {
    fn take_containers(&mut self, pending: &mut Vec<Value>) {
        take_containers(self.values_mut(), pending);
    }
}

fn take_containers<'a>(values: impl Iterator<Item = &'a mut Value>, pending: &mut Vec<Value>) {
    pending.extend(
        values.filter(|value| holds_others(value)).map(|value| mem::replace(value, Value::other(()))),
    );
}

fn holds_others(value: &Value) -> bool {
    match value {
        Value::List(items) | Value::Tuple(items) => !items.is_empty(),
        Value::Dict(entries) => !entries.is_empty(),
        Value::Tensor(_) | Value::Other(_) => false,
    }
}
