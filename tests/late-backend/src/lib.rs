//! A simulated device that is stricter than a real one, for tests and for Miri.
//!
//! It copies **as late as it may**: nothing runs when it is submitted, one operation runs for each look at a stream,
//! and [`wait`](transship_core::backend::BackendStream::wait) runs what it needs and no more. A copy reads and writes
//! through the pointers of its submission when it runs, after a check that both ends are still alive. Memory that is
//! let go of too early, a missing dependency between streams and a read before the end of a copy so become
//! [violations](LateHandle::violations) or wrong bytes, every time and not once in a thousand runs.
//!
//! ```
//! use transship_core::backend::StreamPriority;
//!
//! let late = late_backend::install(late_backend::LateConfig::new("late-doc"))?;
//! let device = late.backend(0);
//! let stream = device.create_stream(StreamPriority::Normal)?;
//! let position = stream.record()?;
//! late.stall();
//! assert_eq!(stream.reached()?, 0);
//! late.release();
//! assert!(stream.wait(position, None)?);
//! assert!(late.violations().is_empty());
//! # Ok::<(), transship_core::Error>(())
//! ```

mod backend;
mod calls;
mod config;
mod handle;
#[path = "../../support/hold.rs"]
mod hold;
mod instance;
mod memory;
mod queue;
mod stream;
mod sync;

use transship_core::Result;

pub use calls::{Call, CallRecord};
pub use config::{LateConfig, SubmitFailure};
pub use handle::LateHandle;

/// Registers one device named `late:0` with the settings of [`LateConfig::new`].
///
/// # Errors
///
/// [`Error::DriverExists`](transship_core::Error::DriverExists) on the second call in a process.
pub fn register() -> Result<LateHandle> {
    install(LateConfig::new("late"))
}

/// Registers a driver of its own, independent of all others.
///
/// # Errors
///
/// [`Error::DriverExists`](transship_core::Error::DriverExists) if the name is taken, and
/// [`Error::InvalidDeviceId`](transship_core::Error::InvalidDeviceId) if it is none.
pub fn install(config: LateConfig) -> Result<LateHandle> {
    let handle = LateHandle::new(config)?;
    transship_core::register_driver(handle.driver())?;
    Ok(handle)
}
