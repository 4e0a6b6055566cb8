//! Streams of a backend, and positions on them.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::runtime::foreign;

/// An ordered queue of work of one device, and the count of how far it has come.
///
/// # Safety
///
/// See the first promise of [`Backend`](crate::backend::Backend); and [`twin`](BackendStream::twin) and [`is_same`](BackendStream::is_same) answer as they say,
/// since memory is given back by what they answer.
pub unsafe trait BackendStream: Any + Send + Sync {
    /// Marks the point behind everything submitted so far and returns its position.
    ///
    /// # Errors
    ///
    /// [`Error::StreamCaptured`] while somebody captures the stream into a graph, and then only: core asks again later. Or what
    /// the driver says.
    fn record(&self) -> Result<u64>;

    /// `Some` for streams that the backend has created and nobody else submits to: another object for the same stream, with the same positions, by which core records and waits when nobody holds this one
    /// any more. `None` if work can be submitted to the stream without holding this object, because it is somebody else's: memory
    /// that was handed to it then waits for whatever is submitted as long as the memory is there.
    fn twin(&self) -> Option<Arc<dyn BackendStream>> {
        None
    }

    /// Whether `other`, another object, is for the same stream: a position recorded through one is behind what was submitted
    /// through either. Asked only of streams without a [`twin`](Self::twin).
    fn is_same(&self, other: &dyn BackendStream) -> bool {
        let _ = other;
        false
    }

    /// Makes later work of this stream wait, on the device, until `position` of `other` is reached.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if it cannot wait for that one, which is of another driver or another device: the caller waits on a
    /// host thread then.
    fn wait_for(&self, other: &dyn BackendStream, position: u64) -> Result<()>;

    /// Fails once the stream is lost: nothing will prove any more what it has done. Core submits nothing to it then. Asks nobody.
    ///
    /// # Errors
    ///
    /// [`Error::StreamLost`], or that of the device.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// The highest position reached, asking the driver; never blocks.
    ///
    /// # Errors
    ///
    /// The error of the device if it is broken; what is in flight then may never be proved to be done.
    fn reached(&self) -> Result<u64>;

    /// Blocks until `position` is reached, spinning for some microseconds before it sleeps; `false` on time-out.
    ///
    /// # Errors
    ///
    /// As [`reached`](BackendStream::reached).
    fn wait(&self, position: u64, timeout: Option<Duration>) -> Result<bool>;

    /// Marks this point with a time stamp, for [`elapsed`](TimeMark::elapsed_since).
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] where the device has no clock, or what the driver says.
    fn mark(&self) -> Result<Box<dyn TimeMark>>;
}

/// A point on a stream with the time at which the device came by.
pub trait TimeMark: Any + Send + Sync {
    /// Microseconds between `earlier` and this mark.
    ///
    /// # Errors
    ///
    /// [`Error::NotReady`] if one of them was not reached yet.
    fn elapsed_since(&self, earlier: &dyn TimeMark) -> Result<f64>;
}

/// A position of a stream: reached, and everything before it is done.
#[derive(Clone)]
pub struct Ticket {
    /// The stream.
    pub stream: Arc<dyn BackendStream>,
    /// The position on it.
    pub position: u64,
}

/// How urgent a stream is against the others of its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum StreamPriority {
    /// As most streams.
    #[default]
    Normal,
    /// Its work starts before that of the others.
    High,
}

impl Ticket {
    /// Whether the position is reached, asking the driver.
    ///
    /// # Errors
    ///
    /// The error of the device if it is broken.
    pub fn is_reached(&self) -> Result<bool, Error> {
        Ok(reached(&*self.stream)? >= self.position)
    }
}

/// [`BackendStream::reached`]. A panic says as little as an error of what the device still does.
pub(crate) fn reached(stream: &dyn BackendStream) -> Result<u64, Error> {
    foreign::checked(|| stream.reached())
}
