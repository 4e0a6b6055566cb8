#![doc = include_str!("../README.md")]

mod containers;
mod copy;
#[cfg(feature = "cuda")]
mod cuda;
mod device;
mod element;
mod error;
mod found;
mod gather;
mod landing;
mod plan;
mod source;
mod tree;

pub use copy::{CopyHandle, start_copy, start_import};
pub use device::close_devices;
pub use error::{CopyError, Error, Result};
pub use transship::Step;
pub use transship_derive::TensorTree;
#[doc(hidden)]
pub use tree::Pairs;
pub use tree::{MAX_DEPTH, Paths, Stop, TensorTree, Visitor};
