//! From a structure to a part of it.

use std::fmt;

/// A step from a structure to a part of it, as paths are written: `.field`, `[3]`, `["key"]`.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum Step<'a> {
    /// A field of a struct, by its name or number.
    Field(&'a str),
    /// An item of a list, by its index.
    Index(usize),
    /// An entry of a map, by its key.
    Key(&'a dyn fmt::Debug),
}

impl fmt::Display for Step<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Index(index) => write!(f, "[{index}]"),
            Self::Key(key) => write!(f, "[{key:?}]"),
        }
    }
}
