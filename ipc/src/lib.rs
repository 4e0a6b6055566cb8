//! Tensors of other processes on one machine (Linux): batches from loader processes to the process that has the GPU, and [whole trees](#trees) from any process to
//! another.
//!
//! The process with the GPU makes a [`Feed`] of numbers, and gets one [`Batch`] for each, in their order. Loader processes connect to its socket
//! ([`Loader::connect`]), are given numbers, and write their batches into a ring of slots that both processes map. The ring is page-locked for the GPU, which copies
//! from there: no byte is copied by the host, but by the loader as it writes. Loaders open no device.
//!
//! ```
//! use std::thread;
//! use transship_core::{CopyOptions, Device, Tensor, start_copy};
//! use transship_ipc::{Feed, FeedOptions, Loader};
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("feed");
//! let device = Device::host(); // or a GPU
//! let feed = Feed::new(&path, 0..10, &device, FeedOptions::new(1 << 20))?;
//!
//! // A process of its own, usually.
//! let loader = thread::spawn(move || {
//!     let mut loader = Loader::connect(path)?;
//!     while let Some(job) = loader.next_job()? {
//!         let batch = vec![Tensor::from(vec![job.number() as f32; 1000])];
//!         job.write(&batch)?;
//!     }
//!     Ok::<_, transship_ipc::IpcError>(())
//! });
//!
//! for (number, batch) in feed.enumerate() {
//!     let mut tensors = vec![Tensor::from(vec![0.0_f32; 1000])]; // what it looks like
//!     batch?.put_into(&mut tensors)?;
//!     let there = start_copy(tensors, &device, CopyOptions::default())?.wait()?;
//!     assert_eq!(there[0].as_slice::<f32>()?[0], number as f32);
//! }
//! loader.join().unwrap()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Slots
//!
//! Each loader has a ring of its own, of [`FeedOptions::slots`]. A slot is written by the loader, then belongs to the batch in it, and is
//! given to the loader again once the last tensor over it is dropped and no copy uses it any more. So loaders are ahead by as many batches as they have slots. What takes no
//! slot of theirs, reasons why there is no batch and batches of loaders that have gone, is as much at the most again: nothing new is handed out beside it.
//!
//! # Trees
//!
//! [`Connection::export`] hands a tree of tensors to another process, which gets its own tensors over the same memory: of the host, or of a GPU of
//! CUDA.
//!
//! ```
//! use std::{thread, time::Duration};
//! use transship_core::{CopyOptions, Device, Tensor, start_copy};
//! use transship_ipc::{Exporter, Importer};
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("weights");
//! let device = Device::host(); // or a GPU
//! let exporter = Exporter::bind(&path)?;
//!
//! // A process of its own, usually.
//! let other = thread::spawn(move || {
//!     let mut importer = Importer::connect(path, &device)?;
//!     let there = importer.next().ok_or("no tree came")??;
//!     let mut tree = vec![Tensor::from(vec![0.0_f32; 1000])]; // what it looks like
//!     there.put_into(&mut tree)?;
//!     drop(there);
//!     let copy = start_copy(tree, &device, CopyOptions::default())?.wait()?;
//!     assert_eq!(copy[0].as_slice::<f32>()?, [0.5; 1000]);
//!     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
//! });
//!
//! let mut connection = exporter.accept_within(Duration::from_secs(10))?;
//! let offer = connection.export(&vec![Tensor::from(vec![0.5_f32; 1000])])?;
//! offer.wait_released(Duration::from_secs(10))?; // its tensors have gone there
//! other.join().unwrap().unwrap();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Windows
//!
//! [`Connection::open_window`] is memory of this process that the other one writes, again and again: weights that a trainer sends to where they are used, by one copy.
//!
//! # Ends
//!
//! The connection is the lease of a ring. Where a loader exits, dies or breaks the rules, its numbers are given to others, each batch comes once and in order,
//! and batches that were there stay valid. A number that several loaders died over is [given up](IpcError::GivenUp). Where the feed goes, loaders
//! are told that it is over, also in the middle of a batch; where its process dies, [`IpcError::PeerGone`]. A loader that forks leaves its connection to its children, too: it ends with the last of
//! them, or when [patience](FeedOptions::patience) does.
//!
//! It is the lease of trees as well. Once an importer has let go of the last tensor of one, and no copy uses it, the exporter is told; where the importer ends, dies or breaks
//! the rules, it has nothing any more. Tensors stay valid when their exporter has gone: nobody writes to them then.
//!
//! # Other queues
//!
//! [`Slots`] are such memory alone: for loaders whose numbers somebody else hands out, and whose ends are watched by who started them. The batches of
//! PyTorch's workers come to a GPU so (`transship.LoaderRing` of the Python package).
//!
//! # Whom to trust
//!
//! Both ends check that the other one runs under the same user, and the socket is for that user alone. The memory of a ring is shared: a loader that
//! means harm can change the bytes of its own batches at any time, and waste its numbers; an exporter, those of its trees. So no slice ever points there
//! ([`transship_core::Error::SharedMemory`]), and all that it says is checked. See `docs/SAFETY.md`.

#[cfg(target_os = "linux")]
mod arrived;
#[cfg(target_os = "linux")]
mod batch;
#[cfg(target_os = "linux")]
mod connection;
#[cfg(target_os = "linux")]
mod copy_in_parts;
#[cfg(target_os = "linux")]
mod deadline;
#[cfg(target_os = "linux")]
mod error;
#[cfg(target_os = "linux")]
mod event_fd;
#[cfg(target_os = "linux")]
mod exporter;
#[cfg(target_os = "linux")]
mod feed;
#[cfg(target_os = "linux")]
mod filler;
#[cfg(target_os = "linux")]
mod imported;
#[cfg(target_os = "linux")]
mod importer;
#[cfg(target_os = "linux")]
mod in_place;
#[cfg(target_os = "linux")]
mod job;
#[cfg(target_os = "linux")]
mod kept;
#[cfg(target_os = "linux")]
mod lasting;
#[cfg(target_os = "linux")]
mod ledger;
#[cfg(target_os = "linux")]
mod listener;
#[cfg(target_os = "linux")]
mod loader;
#[cfg(target_os = "linux")]
mod loan;
#[cfg(target_os = "linux")]
mod locked;
#[cfg(target_os = "linux")]
mod mapped_piece;
#[cfg(target_os = "linux")]
mod mapping;
#[cfg(target_os = "linux")]
mod offer;
#[cfg(target_os = "linux")]
mod options;
#[cfg(target_os = "linux")]
mod packed;
#[cfg(target_os = "linux")]
mod peer;
#[cfg(target_os = "linux")]
mod pools;
#[cfg(target_os = "linux")]
mod received;
#[cfg(target_os = "linux")]
mod ring;
#[cfg(target_os = "linux")]
mod schedule;
#[cfg(target_os = "linux")]
mod shared_piece;
#[cfg(target_os = "linux")]
mod slot_memory;
#[cfg(target_os = "linux")]
mod slots;
#[cfg(target_os = "linux")]
mod socket;
#[cfg(target_os = "linux")]
mod turn;
#[cfg(target_os = "linux")]
mod turns;
#[cfg(target_os = "linux")]
mod window;
#[cfg(target_os = "linux")]
mod wire;

#[cfg(target_os = "linux")]
pub use batch::Batch;
#[cfg(target_os = "linux")]
pub use connection::Connection;
#[cfg(target_os = "linux")]
pub use error::IpcError;
#[cfg(target_os = "linux")]
pub use exporter::Exporter;
#[cfg(target_os = "linux")]
pub use feed::Feed;
#[cfg(target_os = "linux")]
pub use filler::{ClaimedSlot, SlotFiller};
#[cfg(target_os = "linux")]
pub use imported::Imported;
#[cfg(target_os = "linux")]
pub use importer::{Arrival, Importer};
#[cfg(target_os = "linux")]
pub use in_place::InPlace;
#[cfg(target_os = "linux")]
pub use job::Job;
#[cfg(target_os = "linux")]
pub use loader::Loader;
#[cfg(target_os = "linux")]
pub use offer::Offer;
#[cfg(target_os = "linux")]
pub use options::FeedOptions;
#[cfg(target_os = "linux")]
pub use slots::{SlotLease, Slots};
#[cfg(target_os = "linux")]
pub use turn::Turn;
#[cfg(target_os = "linux")]
pub use window::Window;
