//! From a structure to a part of it.

use std::fmt;
use std::fmt::Write as _;

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

impl Step<'_> {
    /// Appends it to `path` as it prints. Without a formatter, which takes most of the time of a walk, but for keys.
    pub(crate) fn print_to(&self, path: &mut String) {
        match self {
            Self::Field(name) => {
                path.push('.');
                path.push_str(name);
            }
            Self::Index(index) => {
                path.push('[');
                print_number(*index, path);
                path.push(']');
            }
            // Writing to a string does not fail.
            Self::Key(_) => {
                let _ = write!(path, "{self}");
            }
        }
    }
}

/// Appends `number` in decimals.
pub(crate) fn print_number(number: usize, text: &mut String) {
    if number >= 10 {
        print_number(number / 10, text);
    }
    text.push(char::from(b'0' + (number % 10) as u8));
}
