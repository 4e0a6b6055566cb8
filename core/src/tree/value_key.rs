//! The keys of a dict.

use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use indexmap::Equivalent;

/// A key of a [`Value::Dict`](crate::Value::Dict). Keys of different variants are different: `Int(1)` is not
/// `Bool(true)`.
///
/// ```
/// use transship_core::{Key, Value};
///
/// let grid = Value::dict([(Key::from("size"), Value::other(2)), (Key::other((0, 1)), Value::other('x'))]);
/// assert!(grid.get("size").is_some());
/// assert!(grid.get(&Key::other((0, 1))).is_some());
/// ```
#[derive(Clone, PartialEq, Eq)]
pub enum Key {
    /// A text.
    Str(String),
    /// An integer.
    Int(i64),
    /// A truth value.
    Bool(bool),
    /// Anything else that can be compared and hashed.
    Other(OtherKey),
}

/// A key of any type.
#[derive(Clone)]
pub struct OtherKey(Arc<dyn AnyKey>);

impl Key {
    /// A key of any type.
    pub fn other<T: Any + Eq + Hash + fmt::Debug + Send + Sync>(key: T) -> Self {
        Self::Other(OtherKey(Arc::new(key)))
    }

    /// The text, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(text) => Some(text),
            _ => None,
        }
    }

    /// What [`other`](Key::other) was given, if it was a `T`.
    pub fn downcast_ref<T: Any>(&self) -> Option<&T> {
        match self {
            Self::Other(key) => key.0.as_any().downcast_ref(),
            _ => None,
        }
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Self::Str(text.to_owned())
    }
}

impl From<String> for Key {
    fn from(text: String) -> Self {
        Self::Str(text)
    }
}

impl From<i64> for Key {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl From<bool> for Key {
    fn from(truth: bool) -> Self {
        Self::Bool(truth)
    }
}

/// Each variant hashes like what it holds, so that a dict can be asked for a `&str` without making a `Key` of it.
impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Self::Str(text) => text.hash(state),
            Self::Int(number) => number.hash(state),
            Self::Bool(truth) => truth.hash(state),
            Self::Other(key) => key.0.hash_into(state),
        }
    }
}

impl Equivalent<Key> for str {
    fn equivalent(&self, key: &Key) -> bool {
        key.as_str() == Some(self)
    }
}

impl Equivalent<Key> for i64 {
    fn equivalent(&self, key: &Key) -> bool {
        matches!(key, Key::Int(number) if number == self)
    }
}

impl Equivalent<Key> for bool {
    fn equivalent(&self, key: &Key) -> bool {
        matches!(key, Key::Bool(truth) if truth == self)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Str(text) => text.fmt(f),
            Self::Int(number) => number.fmt(f),
            Self::Bool(truth) => truth.fmt(f),
            Self::Other(key) => key.fmt(f),
        }
    }
}

impl PartialEq for OtherKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.equals(other.0.as_any())
    }
}

impl Eq for OtherKey {}

impl fmt::Debug for OtherKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// `Any + Eq + Hash`, as a trait object.
trait AnyKey: fmt::Debug + Send + Sync {
    fn as_any(&self) -> &dyn Any;
    fn equals(&self, other: &dyn Any) -> bool;
    fn hash_into(&self, state: &mut dyn Hasher);
}

impl<T: Any + Eq + Hash + fmt::Debug + Send + Sync> AnyKey for T {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn equals(&self, other: &dyn Any) -> bool {
        other.downcast_ref() == Some(self)
    }

    fn hash_into(&self, mut state: &mut dyn Hasher) {
        self.hash(&mut state);
    }
}
