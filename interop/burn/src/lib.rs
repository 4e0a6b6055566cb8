#![doc = include_str!("../README.md")]

mod device;
mod element;
mod error;
mod from_burn;
mod memory;
mod primitive;
mod to_burn;

pub use device::SharedDevice;
pub use element::Kind;
pub use error::{Error, Result};
