#![doc = include_str!("../README.md")]

#[cfg(not(any(feature = "cuda", feature = "wgpu")))]
compile_error!("transship-burn needs its feature `cuda` or `wgpu`");

#[cfg(feature = "cuda")]
mod cuda;
mod device;
mod element;
mod error;
mod from_burn;
mod loan;
mod part;
mod primitive;
mod runtime;
mod shown;
mod to_burn;
mod tree;
#[cfg(feature = "wgpu")]
mod wgpu;

pub use device::SharedDevice;
pub use element::Kind;
pub use error::{Error, Result};
pub use tree::BurnTree;
