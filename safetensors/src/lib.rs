//! Loads `.safetensors` files to a device, and saves tensors of any device to such files.
//!
//! A team of threads of its own reads the files straight into pinned blocks, and the device copies out of full blocks while the
//! threads read into others; they [convert](LoadOptions::cast) what is wanted as another type, and leave out
//! [what is not wanted](LoadOptions::narrow). Nothing is mapped, no tensor lies in host memory as a whole, and a file system that hangs holds up the
//! one call that reads from it, and no other copy of the process. To the host, the threads read into the tensors themselves.
//!
//! ```
//! use transship_core::Device;
//! use transship_safetensors::{LoadOptions, load};
//!
//! # let file = tempfile::NamedTempFile::with_suffix(".safetensors")?;
//! # let header = br#"{"layers.0.weight":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
//! # let start = (header.len() as u64).to_le_bytes();
//! # std::fs::write(file.path(), [&start[..], header, &1.0_f32.to_le_bytes(), &2.0_f32.to_le_bytes()].concat())?;
//! # let path = file.path();
//! let mut tensors = load(path, &Device::host(), LoadOptions::default())?;
//! let weight = tensors.remove("layers.0.weight").ok_or("no weight")?;
//! assert_eq!(weight.as_slice::<f32>()?, [1.0, 2.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`save`] goes the other way, from any structure of tensors. Windows of a few MiB come down while other threads write theirs.
//!
//! # Memory
//!
//! - Host memory, for saving: at most [`SaveOptions::budget`] of tensors that have come down, a buffer of 256 KiB for each thread, and the
//!   headers.
//! - Host memory, for loading: at most [`LoadOptions::budget`] of pinned blocks, a buffer of 256 KiB for each thread (of 1 MiB where files are read
//!   [past the page cache](LoadOptions::direct_io)), and the headers.
//! - Device memory: a tensor of 1 MiB or more has an allocation of its own, and its memory goes with it. Smaller ones are packed, in
//!   the order of the files, into allocations of up to 64 MiB; such memory goes with the last of its tensors. Each tensor begins at
//!   a multiple of 256 bytes, however it lies in its file.
//! - On the host each tensor has memory of its own.
//!
//! # Files
//!
//! What is loaded is what the header says, and every header that is not exact is refused: see [`LoadError`]. A file that is changed
//! or replaced while it is read is an error as well.

#![forbid(unsafe_code)]

#[cfg(target_endian = "big")]
compile_error!("the elements of a .safetensors file are little-endian");

mod direct;
mod error;
mod header;
mod host;
mod index;
mod load;
mod open_file;
mod options;
mod pack;
mod read;
mod save;
mod selection;
mod sources;
mod team;
mod tensors;
mod to_device;
mod trace;
mod wanted;
mod window;

pub use error::{LoadError, Place};
pub use load::{load, load_files};
pub use options::{LoadOptions, Progress};
pub use save::error::SaveError;
pub use save::options::{SaveOptions, SaveProgress};
pub use save::save::save;
pub use tensors::{LoadedFile, Tensors};
