//! Streams and events, as far as copies need them.

use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{BackendStream, Ticket, TimeMark};
use crate::device::device::Device;
use crate::device_id::DeviceId;
use crate::error::Result;
use crate::in_flight::queue::Lane;
use crate::runtime::sync::thread_local;

/// An ordered queue of work of one device. Cloning it names the same stream.
#[derive(Clone)]
pub struct Stream {
    device: Device,
    lane: Arc<Lane>,
}

impl Stream {
    /// A stream of `device` that somebody else created; backend crates wrap their native streams with it.
    pub fn from_backend(device: &Device, stream: Arc<dyn BackendStream>) -> Self {
        Self { device: device.clone(), lane: device.lane_of(stream) }
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The stream of the backend, for a downcast in the backend's own crate.
    pub fn backend_stream(&self) -> &Arc<dyn BackendStream> {
        self.lane.stream()
    }

    /// Marks the point behind everything submitted so far.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn record(&self) -> Result<Event> {
        crate::runtime::fork::check()?;
        let position = self.lane.stream().record()?;
        Ok(Event { device: self.device.id(), ticket: self.lane.ticket(position) })
    }

    /// Makes later work of this stream wait for `event`, on the device; the host goes on.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`](crate::Error::Unsupported) if the event is of another driver, or of
    /// another device with wgpu; or what the driver says.
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        crate::runtime::fork::check()?;
        self.lane.stream().wait_for(&*event.ticket.stream, event.ticket.position)
    }

    /// Makes later work of this stream wait for what was submitted to `other` so far, on the device.
    ///
    /// # Errors
    ///
    /// As [`wait_event`](Self::wait_event).
    pub fn wait_stream(&self, other: &Stream) -> Result<()> {
        self.wait_event(&other.record()?)
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
        self.lane.go_on_deferred();
        self.lane.poll()
    }

    /// Marks this point with the time at which the device comes by.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`](crate::Error::Unsupported) where the device has no clock, or what the driver says.
    pub fn mark_time(&self) -> Result<Box<dyn TimeMark>> {
        crate::runtime::fork::check()?;
        self.lane.stream().mark()
    }

    /// Makes this the current stream of its device on this thread, until the scope is dropped: copies that name no
    /// stream run on it.
    #[must_use = "the scope ends when it is dropped"]
    pub fn enter(&self) -> Scope {
        Scope::new(Entered::Stream(self.clone()))
    }

    /// The current stream of `device` on this thread, if one was entered.
    pub fn current(device: &Device) -> Option<Self> {
        entered(|entered| match entered {
            Entered::Stream(stream) if stream.device.same_as(device) => Some(stream.clone()),
            _ => None,
        })
    }

    pub(crate) fn lane(&self) -> &Arc<Lane> {
        &self.lane
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
    /// Makes this the current device of this thread, until the scope is dropped.
    #[must_use = "the scope ends when it is dropped"]
    pub fn enter(&self) -> Scope {
        Scope::new(Entered::Device(self.clone()))
    }

    /// The current device of this thread: the one entered last, else the host.
    pub fn current() -> Self {
        let device = |entered: &Entered| match entered {
            Entered::Device(device) => Some(device.clone()),
            Entered::Stream(_) => None,
        };
        entered(device).unwrap_or_else(Self::host)
    }
}

/// While it lives, a device or a stream is the current one of this thread; then the one before is again.
pub struct Scope {
    number: u64,
    not_send: PhantomData<*const ()>,
}

enum Entered {
    Device(Device),
    Stream(Stream),
}

thread_local! {
    static CURRENT: RefCell<Vec<(u64, Entered)>> = const { RefCell::new(Vec::new()) };
}

/// What was entered last of those that `find` looks for. At the end of a thread nothing is.
fn entered<R>(find: impl Fn(&Entered) -> Option<R>) -> Option<R> {
    let last = |current: &RefCell<Vec<(u64, Entered)>>| {
        current.borrow().iter().rev().find_map(|(_, entered)| find(entered))
    };
    CURRENT.try_with(last).ok().flatten()
}

impl Scope {
    fn new(entered: Entered) -> Self {
        let enter = |current: &RefCell<Vec<(u64, Entered)>>| {
            let mut current = current.borrow_mut();
            let number = current.last().map_or(0, |(last, _)| last + 1);
            current.push((number, entered));
            number
        };
        // At the end of a thread there is nothing to enter: no scope has this number.
        Self { number: CURRENT.try_with(enter).unwrap_or(u64::MAX), not_send: PhantomData }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        // The thread may be at its end already.
        let left = CURRENT.try_with(|current| {
            let mut current = current.borrow_mut();
            let index = current.iter().position(|(number, _)| *number == self.number)?;
            Some(current.remove(index))
        });
        // Only now, when nothing is borrowed: that may run foreign code.
        drop(left);
    }
}
