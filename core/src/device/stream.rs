//! Streams and events, as far as copies need them.

use std::fmt;
use std::sync::Arc;

use std::time::Duration;

use crate::backend::{BackendStream, StreamPriority, Ticket, TimeMark};
use crate::device::device::Device;
use crate::device_id::DeviceId;
use crate::error::Result;
use crate::in_flight::after_cancel::InFlight;
use crate::in_flight::submission_queue::SubmissionQueue;
use crate::runtime::fork;

/// An ordered queue of work of one device. Cloning it names the same stream.
#[derive(Clone)]
pub struct Stream {
    pub(crate) device: Device,
    queue: Arc<SubmissionQueue>,
}

impl Stream {
    /// A stream of `device` that somebody else created; backend crates wrap their native streams with it.
    pub fn from_backend(device: &Device, stream: Arc<dyn BackendStream>) -> Self {
        Self { device: device.clone(), queue: device.queue_of(stream) }
    }

    /// That of a queue of `device`.
    pub(crate) fn of_queue(device: &Device, queue: &Arc<SubmissionQueue>) -> Self {
        Self { device: device.clone(), queue: queue.clone() }
    }

    /// Whether both are the same object of the backend's.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.backend_stream(), other.backend_stream())
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The stream of the backend, for a downcast in the backend's own crate.
    pub fn backend_stream(&self) -> &Arc<dyn BackendStream> {
        self.queue.stream()
    }

    /// Marks the point behind everything submitted so far.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn record(&self) -> Result<Event> {
        crate::runtime::fork::check()?;
        let position = self.queue.stream().record()?;
        Ok(Event { device: self.device.id(), ticket: self.queue.ticket(position) })
    }

    /// Makes later work of this stream wait for `event`, on the device; the host goes on.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`](crate::Error::Unsupported) if the event is of another driver, or of
    /// another device with wgpu; or what the driver says.
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        crate::runtime::fork::check()?;
        self.queue.stream().wait_for(&*event.ticket.stream, event.ticket.position)
    }

    /// Makes later work of this stream wait for what was submitted to `other` so far, on the device.
    ///
    /// # Errors
    ///
    /// As [`wait_event`](Self::wait_event).
    pub fn wait_stream(&self, other: &Stream) -> Result<()> {
        self.wait_event(&other.record()?)
    }

    /// Makes later work of this stream wait for what a copy has [in flight](crate::CopyHandle::in_flight), on the device. Blocks at most until
    /// all of that is submitted.
    ///
    /// # Errors
    ///
    /// As [`wait_event`](Self::wait_event), and [`InFlight::is_over`].
    pub fn wait_in_flight(&self, copy: &InFlight) -> Result<()> {
        crate::runtime::fork::check()?;
        self.queue.check()?;
        copy.precede(self.queue.stream())
    }

    /// Whether everything submitted so far is done.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn is_idle(&self) -> Result<bool> {
        crate::runtime::fork::check()?;
        self.record()?.is_reached()
    }

    /// Blocks until everything submitted so far is done, and what copies on this stream have used is let go of. Memory that went
    /// while the stream was being captured waits for it no longer. Owners of memory that was lent may be dropped a moment later, by
    /// another thread: this waits for none of them.
    ///
    /// # Errors
    ///
    /// What the driver says, errors of earlier asynchronous work included.
    pub fn synchronize(&self) -> Result<()> {
        crate::runtime::fork::check()?;
        self.record()?.wait(None)?;
        self.queue.go_on_deferred();
        self.queue.poll()
    }

    /// Marks this point with the time at which the device comes by.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`](crate::Error::Unsupported) where the device has no clock, or what the driver says.
    pub fn mark_time(&self) -> Result<Box<dyn TimeMark>> {
        crate::runtime::fork::check()?;
        self.queue.stream().mark()
    }

    pub(crate) fn queue(&self) -> &Arc<SubmissionQueue> {
        &self.queue
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({})", self.device.id())
    }
}

/// A point on a stream.
#[derive(Clone)]
pub struct Event {
    device: DeviceId,
    ticket: Ticket,
}

impl Event {
    /// Whether the device has come by. Never blocks.
    ///
    /// # Errors
    ///
    /// What the driver says, errors of earlier asynchronous work included.
    pub fn is_reached(&self) -> Result<bool> {
        crate::runtime::fork::check()?;
        self.ticket.is_reached()
    }

    /// Blocks until the device comes by; `false` on time-out.
    ///
    /// # Errors
    ///
    /// As [`is_reached`](Self::is_reached).
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        crate::runtime::fork::check()?;
        self.ticket.stream.wait(self.ticket.position, timeout)
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({}, {})", self.device, self.ticket.position)
    }
}

impl Device {
    /// Creates a stream.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn create_stream(&self, priority: StreamPriority) -> Result<Stream> {
        fork::check()?;
        Ok(Stream::from_backend(self, self.backend().create_stream(priority)?))
    }
}
