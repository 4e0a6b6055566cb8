//! Streams of the driver, our own and other people's, and how far they have come.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::sys;
use transship_core::backend::{BackendStream, StreamPriority, TimeMark};
use transship_core::{DeviceId, Error, Result};

use crate::context::{Context, ContextGuard};
use crate::event::Event;
use crate::mark::CudaMark;
use crate::ring::Ring;

/// How long a wait asks again and again before it sleeps: small copies are done within this.
const SPIN: Duration = Duration::from_micros(200);
/// How long a wait with a time-out sleeps between two questions, at first and at the most.
const SHORTEST_NAP: Duration = Duration::from_micros(50);
const LONGEST_NAP: Duration = Duration::from_micros(500);

/// A stream of a CUDA device.
///
/// Positions count the events recorded through this object; two objects over one driver stream count apart.
pub struct CudaStream(Arc<Queue>);

/// What a stream and the memory allocated on it share.
pub(crate) struct Queue {
    ring: Ring,
    origin: Origin,
    handle: sys::CUstream,
    context: Arc<Context>,
}

/// Who destroys the stream.
enum Origin {
    Own,
    /// The caller of [`CudaStream::from_raw`].
    Lent,
    /// Kept alive for as long as this.
    Cudarc(Arc<cudarc::driver::CudaStream>),
}

// SAFETY: a stream handle may be used by any thread; the ring orders events and positions.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl CudaStream {
    /// Creates a stream that does not order itself against the legacy default stream.
    pub(crate) fn create(context: &Arc<Context>, priority: StreamPriority) -> Result<Self> {
        let driver = context.enter()?;
        let (mut least, mut greatest) = (0, 0);
        let mut handle = std::ptr::null_mut();
        // SAFETY: the context is current; the results are written to locals.
        unsafe {
            driver.context_priorities(&mut least, &mut greatest)?;
            let priority = match priority {
                StreamPriority::Normal => 0,
                StreamPriority::High => greatest,
            };
            let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
            driver.stream_create(&mut handle, flags, priority)?;
        }
        context.counting().stream_created();
        Ok(Self::over(context, handle, Origin::Own))
    }

    /// Wraps a stream of somebody else. The legacy default stream (null) is a stream like others here.
    ///
    /// # Safety
    ///
    /// `handle` is a stream that is not destroyed before this object and all memory allocated on it are
    /// gone.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the driver says that it is of another context, and for the per-thread default stream.
    pub(crate) unsafe fn from_raw(context: &Arc<Context>, handle: sys::CUstream) -> Result<Self> {
        refuse_per_thread(context.id(), handle)?;
        let mut actual = std::ptr::null_mut();
        // SAFETY: the caller's promise; the context of the stream is written to a local.
        unsafe { context.enter()?.stream_context(handle, &mut actual)? };
        if actual != context.handle() {
            let what = "use a stream of a context other than its primary one";
            return Err(Error::Unsupported { device: context.id(), what });
        }
        Ok(Self::over(context, handle, Origin::Lent))
    }

    /// Wraps a stream of cudarc's, which lives as long as this. Its context is `context`.
    pub(crate) fn from_cudarc(context: &Arc<Context>, stream: Arc<cudarc::driver::CudaStream>) -> Self {
        Self::over(context, stream.cu_stream(), Origin::Cudarc(stream))
    }

    fn over(context: &Arc<Context>, handle: sys::CUstream, origin: Origin) -> Self {
        Self(Arc::new(Queue { ring: Ring::default(), origin, handle, context: context.clone() }))
    }

    /// Our own kind of stream behind the seam, if it is one.
    pub(crate) fn of(stream: &dyn BackendStream) -> Option<&Self> {
        (stream as &dyn Any).downcast_ref()
    }

    /// The handle, for calls of the driver. Work submitted to it is covered by the positions recorded afterwards.
    pub fn cu_stream(&self) -> sys::CUstream {
        self.0.handle
    }

    /// Whether it wraps a stream of cudarc's that nobody else holds any more.
    pub(crate) fn is_orphan(&self) -> bool {
        // cudarc makes a new object for the default stream each time.
        !self.0.handle.is_null()
            && matches!(&self.0.origin, Origin::Cudarc(stream) if Arc::strong_count(stream) == 1)
    }

    pub(crate) fn queue(&self) -> &Arc<Queue> {
        &self.0
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.0.context
    }
}

/// The handle of the per-thread default stream means another stream on each thread: what one thread submits to it another
/// one, the reactor for instance, would look for on a stream of its own, find done, and free memory in use.
pub(crate) fn refuse_per_thread(device: DeviceId, handle: sys::CUstream) -> Result<()> {
    const PER_THREAD: usize = 2;
    if handle.addr() == PER_THREAD {
        let what = "use the per-thread default stream, which is another one on each thread; create a stream";
        return Err(Error::Unsupported { device, what });
    }
    Ok(())
}

impl Queue {
    pub(crate) fn handle(&self) -> sys::CUstream {
        self.handle
    }

    /// Whether the stream is ours, which means that nobody captures it and that it lives as long as this.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self.origin, Origin::Own)
    }

    /// Fails while somebody captures the stream: his graph would copy out of memory that is in use by others when it is
    /// launched, and the events of a capture can be neither asked nor waited for.
    pub(crate) fn check_uncaptured(&self, driver: &ContextGuard<'_>) -> Result<()> {
        if self.is_own() {
            return Ok(());
        }
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream is alive; the status is written to a local.
        unsafe { driver.stream_is_capturing(self.handle, &mut status)? };
        match status {
            sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE => Ok(()),
            _ => Err(Error::Unsupported {
                device: self.context.id(),
                what: "copy on a stream that is being captured",
            }),
        }
    }

    /// Nothing proves any more what the stream has done.
    pub(crate) fn distrust(&self, error: Error) {
        self.ring.distrust(error);
    }

    pub(crate) fn record(&self, driver: &ContextGuard<'_>) -> Result<u64> {
        self.check_uncaptured(driver)?;
        // SAFETY: a stream of this context, which is current.
        unsafe { self.ring.record(&self.context, driver, self.handle) }
    }

    pub(crate) fn reached(&self) -> Result<u64> {
        match self.ring.known() {
            (reached, true) => Ok(reached),
            _ => self.ring.poll(&*self.context.enter()?),
        }
    }

    /// Makes later work of this stream wait for a position of another one, which may be of another device.
    pub(crate) fn wait_for(&self, other: &Self, position: u64) -> Result<()> {
        if other.reached()? >= position {
            return Ok(());
        }
        let Some(event) = other.ring.event_behind(position) else { return Ok(()) };
        let driver = self.context.enter()?;
        self.check_uncaptured(&driver)?;
        // SAFETY: the stream and the event are alive; the event is not recorded again while we hold it, and the
        // driver takes its state within the call.
        unsafe { driver.stream_wait_event(self.handle, event.handle(), 0) }
    }

    fn wait(&self, position: u64, timeout: Option<Duration>) -> Result<bool> {
        let start = Instant::now();
        let deadline = timeout.and_then(|timeout| start.checked_add(timeout));
        if self.spin(position, deadline.map_or(start + SPIN, |deadline| deadline.min(start + SPIN)))? {
            return Ok(true);
        }
        match deadline {
            Some(deadline) => self.nap(position, deadline),
            None => self.sleep(position).map(|()| true),
        }
    }

    /// Asks until it is so or `until` has come, once at the least.
    fn spin(&self, position: u64, until: Instant) -> Result<bool> {
        if self.ring.known().0 >= position {
            return Ok(true);
        }
        let driver = self.context.enter()?;
        loop {
            if self.ring.poll(&driver)? >= position {
                return Ok(true);
            }
            if Instant::now() >= until {
                return Ok(false);
            }
            std::hint::spin_loop();
        }
    }

    fn nap(&self, position: u64, deadline: Instant) -> Result<bool> {
        let mut nap = SHORTEST_NAP;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(self.reached()? >= position);
            }
            std::thread::sleep(nap.min(left));
            if self.reached()? >= position {
                return Ok(true);
            }
            nap = (nap * 2).min(LONGEST_NAP);
        }
    }

    /// Sleeps in the driver: on the event of the position, and on older ones where those are still not reached then.
    fn sleep(&self, position: u64) -> Result<()> {
        let mut next = position;
        while let Some(event) = self.ring.event_behind(next) {
            self.synchronize(&event)?;
            if self.reached()? >= position {
                return Ok(());
            }
            next = 0;
        }
        // Nothing is pending there: either another thread has seen it reached, or it was never recorded.
        match self.ring.known().0 >= position {
            true => Ok(()),
            false => Err(Error::NotReady),
        }
    }

    fn synchronize(&self, event: &Event) -> Result<()> {
        let driver = self.context.enter()?;
        // SAFETY: the event is alive and not recorded again while we hold it.
        unsafe { driver.event_synchronize(event.handle()) }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let Ok(driver) = self.context.enter() else { return };
        match std::mem::replace(&mut self.origin, Origin::Lent) {
            Origin::Lent => {}
            Origin::Own => {
                // SAFETY: created by `create` and not used again. The driver finishes what was submitted.
                let _ = unsafe { driver.stream_destroy(self.handle) };
            }
            // cudarc makes its context current and leaves it so: the guard takes that back.
            Origin::Cudarc(stream) => drop(stream),
        }
    }
}

// SAFETY: an event is recorded behind the copies of its position, and a position counts as reached once the driver says
// so of that event and of all before it.
unsafe impl BackendStream for CudaStream {
    fn record(&self) -> Result<u64> {
        self.0.record(&self.0.context.enter()?)
    }

    fn wait_for(&self, other: &dyn BackendStream, position: u64) -> Result<()> {
        let Some(other) = Self::of(other) else {
            let device = self.0.context.id();
            return Err(Error::Unsupported { device, what: "wait for a stream of another driver" });
        };
        self.0.wait_for(&other.0, position)
    }

    fn reached(&self) -> Result<u64> {
        self.0.reached()
    }

    fn wait(&self, position: u64, timeout: Option<Duration>) -> Result<bool> {
        self.0.wait(position, timeout)
    }

    fn mark(&self) -> Result<Box<dyn TimeMark>> {
        let event = Event::timing(&self.0.context)?;
        let driver = self.0.context.enter()?;
        // SAFETY: a stream of this context, which is current, and a new event of it.
        unsafe { driver.event_record(event.handle(), self.0.handle)? };
        Ok(Box::new(CudaMark::new(event)))
    }
}
