//! Structures whose shape is known only at run time.

use std::any::Any;
use std::fmt;
use std::hash::Hash;

use indexmap::{Equivalent, IndexMap};

use crate::tensor::tensor::Tensor;
use crate::tree::pair::Pairs;
use crate::tree::paths::Paths;
use crate::tree::tensor_tree::{Stop, TensorTree, Visitor};
use crate::tree::value_key::Key;
use crate::tree::value_nested::Nested;

/// How many levels of a value are printed by `Debug`.
const PRINTED_LEVELS: usize = 16;

/// A structure whose shape is known only at run time: a tensor, a list, a tuple or a dict of such, or anything else,
/// which is passed through untouched.
///
/// ```
/// use transship_core::{Tensor, Value};
///
/// let boxes = Tensor::from_vec(vec![0.0_f32; 8], &[2, 4])?;
/// let sample = Value::dict([("boxes", boxes.into()), ("name", Value::other(String::from("front")))]);
///
/// assert_eq!(sample.get("boxes").and_then(Value::as_tensor).map(Tensor::shape), Some(&[2, 4][..]));
/// assert_eq!(sample.get("name").and_then(Value::downcast_ref::<String>).map(String::as_str), Some("front"));
/// match sample {
///     Value::Dict(entries) => assert_eq!(entries.into_iter().count(), 2),
///     other => unreachable!("{other:?}"),
/// }
/// # Ok::<(), transship_core::Error>(())
/// ```
///
/// Values are dropped without recursion, however deeply they are nested. Nesting inside of [`Other`](Value::Other) is
/// the business of the type in there.
pub enum Value {
    /// A tensor.
    Tensor(Tensor),
    /// Values in a row, of a number that may change.
    List(Nested<Vec<Value>>),
    /// Values in a row, of a fixed number. Only a mark: it is treated like a list.
    Tuple(Nested<Vec<Value>>),
    /// Values by key, in the order in which they were put in.
    Dict(Nested<IndexMap<Key, Value>>),
    /// Anything else.
    Other(Box<dyn Any + Send + Sync>),
}

impl Value {
    /// A list.
    pub fn list(items: impl IntoIterator<Item = Self>) -> Self {
        Self::List(Vec::from_iter(items).into())
    }

    /// A tuple.
    pub fn tuple(items: impl IntoIterator<Item = Self>) -> Self {
        Self::Tuple(Vec::from_iter(items).into())
    }

    /// A dict. Of several values with the same key, the last one stays, at the place of the first.
    pub fn dict<K: Into<Key>>(entries: impl IntoIterator<Item = (K, Self)>) -> Self {
        Self::Dict(IndexMap::from_iter(entries.into_iter().map(|(key, value)| (key.into(), value))).into())
    }

    /// Anything that is not to be looked into.
    pub fn other<T: Any + Send + Sync>(other: T) -> Self {
        Self::Other(Box::new(other))
    }

    /// The tensor, if it is one.
    pub fn as_tensor(&self) -> Option<&Tensor> {
        match self {
            Self::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// The items, if it is a list or a tuple.
    pub fn as_list(&self) -> Option<&[Self]> {
        match self {
            Self::List(items) | Self::Tuple(items) => Some(items),
            _ => None,
        }
    }

    /// The entries, if it is a dict.
    pub fn as_dict(&self) -> Option<&IndexMap<Key, Self>> {
        match self {
            Self::Dict(entries) => Some(entries),
            _ => None,
        }
    }

    /// What [`other`](Value::other) was given, if it was a `T`.
    pub fn downcast_ref<T: Any>(&self) -> Option<&T> {
        match self {
            Self::Other(other) => other.downcast_ref(),
            _ => None,
        }
    }

    /// The item at `index`, if it is a list or a tuple that long.
    pub fn index(&self, index: usize) -> Option<&Self> {
        self.as_list()?.get(index)
    }

    /// The value of `key` (a `&str`, `&i64`, `&bool` or `&Key`), if it is a dict that has it.
    pub fn get<Q: Hash + Equivalent<Key> + ?Sized>(&self, key: &Q) -> Option<&Self> {
        self.as_dict()?.get(key)
    }

    /// The tensor.
    ///
    /// # Errors
    ///
    /// The value itself, if it is no tensor.
    pub fn into_tensor(self) -> Result<Tensor, Self> {
        match self {
            Self::Tensor(tensor) => Ok(tensor),
            other => Err(other),
        }
    }

    /// The items of a list or a tuple.
    ///
    /// # Errors
    ///
    /// The value itself, if it is neither.
    pub fn into_list(self) -> Result<Vec<Self>, Self> {
        match self {
            Self::List(items) | Self::Tuple(items) => Ok(items.into_inner()),
            other => Err(other),
        }
    }

    /// The entries of a dict.
    ///
    /// # Errors
    ///
    /// The value itself, if it is no dict.
    pub fn into_dict(self) -> Result<IndexMap<Key, Self>, Self> {
        match self {
            Self::Dict(entries) => Ok(entries.into_inner()),
            other => Err(other),
        }
    }

    /// What [`other`](Value::other) was given.
    ///
    /// # Errors
    ///
    /// The value itself, if that was no `T`.
    pub fn downcast<T: Any>(self) -> Result<T, Self> {
        match self {
            Self::Other(other) if other.is::<T>() => match other.downcast() {
                Ok(other) => Ok(*other),
                Err(other) => Err(Self::Other(other)),
            },
            other => Err(other),
        }
    }
}

impl TensorTree for Value {
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        visitor.variant(self.variant());
        match self {
            Self::Tensor(tensor) => visitor.tensor(tensor),
            Self::List(items) | Self::Tuple(items) => visitor.on_enough_stack(|visitor| items.visit(visitor)),
            Self::Dict(entries) => visitor.on_enough_stack(|visitor| entries.visit(visitor)),
            Self::Other(_) => Ok(()),
        }
    }

    fn pair(&mut self, into: &mut Self, pairs: &mut Pairs<'_>) -> Result<(), Stop> {
        match (self, into) {
            (Self::Tensor(value), Self::Tensor(into)) => value.pair(into, pairs),
            (Self::List(value), Self::List(into)) | (Self::Tuple(value), Self::Tuple(into)) => {
                value.pair(into, pairs)
            }
            (Self::Dict(value), Self::Dict(into)) => value.pair(into, pairs),
            (Self::Other(_), Self::Other(_)) => Ok(()),
            (value, into) => Err(pairs.differ(value.variant(), into.variant())),
        }
    }

    fn show(&self, paths: &mut Paths<'_>) -> Result<(), Stop> {
        match self {
            Self::Tensor(tensor) => tensor.show(paths),
            Self::List(items) | Self::Tuple(items) => items.show(paths),
            Self::Dict(entries) => entries.show(paths),
            Self::Other(_) => Ok(()),
        }
    }
}

impl Value {
    /// What it is, as errors name it.
    fn variant(&self) -> &'static str {
        match self {
            Self::Tensor(_) => "a tensor",
            Self::List(_) => "a list",
            Self::Tuple(_) => "a tuple",
            Self::Dict(_) => "a dict",
            Self::Other(_) => "something else",
        }
    }
}

impl From<Tensor> for Value {
    fn from(tensor: Tensor) -> Self {
        Self::Tensor(tensor)
    }
}

impl From<Vec<Value>> for Value {
    fn from(items: Vec<Value>) -> Self {
        Self::List(items.into())
    }
}

impl From<IndexMap<Key, Value>> for Value {
    fn from(entries: IndexMap<Key, Value>) -> Self {
        Self::Dict(entries.into())
    }
}

impl FromIterator<Value> for Value {
    fn from_iter<I: IntoIterator<Item = Value>>(items: I) -> Self {
        Self::list(items)
    }
}

impl<K: Into<Key>> FromIterator<(K, Value)> for Value {
    fn from_iter<I: IntoIterator<Item = (K, Value)>>(entries: I) -> Self {
        Self::dict(entries)
    }
}

/// Prints the first levels only, so that deep nesting cannot exhaust the stack.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Printed { value: self, levels: PRINTED_LEVELS }.fmt(f)
    }
}

struct Printed<'a> {
    value: &'a Value,
    levels: usize,
}

impl fmt::Debug for Printed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inside = |value| Printed { value, levels: self.levels - 1 };
        match self.value {
            Value::Tensor(tensor) => tensor.fmt(f),
            Value::Other(_) => f.write_str("Other(..)"),
            _ if self.levels == 0 => f.write_str(".."),
            Value::List(items) => f.debug_list().entries(items.iter().map(inside)).finish(),
            Value::Tuple(items) => {
                let mut tuple = f.debug_tuple("");
                for item in items.iter() {
                    tuple.field(&inside(item));
                }
                tuple.finish()
            }
            Value::Dict(entries) => {
                f.debug_map().entries(entries.iter().map(|(key, value)| (key, inside(value)))).finish()
            }
        }
    }
}
