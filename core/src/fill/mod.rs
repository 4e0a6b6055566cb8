//! Memory of a device that the program fills itself, piece by piece: what loaders of files are written with.
//!
//! A [`Filler`] has pinned blocks of its own, within a budget, so that a thread that waits for a slow disk with a block in its
//! hands holds up no copy of the process. Threads of the program take blocks, append bytes, and submit them; the device copies
//! while they append to the next ones. When everything is submitted, [`Filler::finish`] waits, and gives out the memory, in which
//! tensors of any shape can be placed.
//!
//! ```
//! use transship_core::fill::{Filler, Part};
//! use transship_core::{CopyOptions, DType, Device, Tensor, start_copy};
//!
//! # late_backend::register()?;
//! # let device = Device::open("late:0".parse()?)?;
//! let mut filler = Filler::new(&device, 1 << 20)?;
//! let memory = filler.allocate(512, 2)?;
//! let mut block = filler.block()?; // on any thread
//! block.append(&[1, 2, 3, 4])?;
//! block.append_zeros(252)?;
//! block.append(&[7; 256])?;
//! filler.submit(block, &[Part { memory, to_offset: 0, from_offset: 0, bytes: 512 }])?;
//! let filled = filler.finish()?;
//! let tensors = [filled.tensor(memory, 0, &[2, 2], DType::U8)?, filled.tensor(memory, 256, &[256], DType::I8)?];
//! let [small, _] = start_copy(tensors, &Device::host(), CopyOptions::default())?.wait()?;
//! assert_eq!(small.as_slice::<u8>()?, [1, 2, 3, 4]);
//! # Ok::<(), transship_core::Error>(())
//! ```

pub(crate) mod block;
pub(crate) mod filler;

pub use block::FillBlock;
pub use filler::{Filled, Filler, Part};
