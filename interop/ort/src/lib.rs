#![doc = include_str!("../README.md")]

mod bind;
mod error;
mod value;

pub use bind::bind;
pub use error::{Error, Result};
pub use value::value_over;
