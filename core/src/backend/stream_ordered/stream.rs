//! Streams of the driver, our own and other people's, and how far they have come.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::stream_ordered::api::{Api, EventKind};
use crate::backend::stream_ordered::context::{Context, Current};
use crate::backend::stream_ordered::event::Event;
use crate::backend::stream_ordered::event_ring::EventRing;
use crate::backend::stream_ordered::time_mark::Mark;
use crate::backend::{BackendStream, StreamPriority, TimeMark};
use crate::device_id::DeviceId;
use crate::error::{Error, Result};
use crate::runtime::backoff::Backoff;
use crate::runtime::lent_collector;
use crate::runtime::sync::atomic::{AtomicUsize, Ordering};
use crate::runtime::sync::{Instant, Mutex, hint, statics, thread};

/// How long a wait asks again and again before it sleeps, which ends late: 16 MiB from the host took 1.45 ms with
/// 200 us of this on an H200 machine, and 1.13 ms with more.
const SPIN: Duration = Duration::from_millis(1);
/// Longer than this only so many threads ask at a time, others sleep: they would keep the processor, and the driver, from those
/// who copy.
const SHORT_SPIN: Duration = Duration::from_micros(200);
const MOST_SPINNING: usize = 2;
statics! {
    static SPINNING: AtomicUsize = AtomicUsize::new(0);
}

/// A stream of a device.
///
/// Positions count the events recorded through this object; two objects over one driver stream count apart.
pub struct OrderedStream<A: Api>(Arc<StreamState<A>>);

/// What a stream and the memory allocated on it share.
pub(crate) struct StreamState<A: Api> {
    events: EventRing<A>,
    /// Streams of peers that work on behalf of this one (`push.rs`): one for each peer, and for no other stream.
    beside: Mutex<Vec<Arc<Self>>>,
    origin: StreamOwner,
    handle: A::Stream,
    context: Arc<Context<A>>,
}

/// Who destroys the stream.
enum StreamOwner {
    Own,
    /// The caller of [`OrderedStream::lent`].
    Lent,
    /// This, which is kept for as long.
    Kept(Box<dyn Any + Send + Sync>),
}

// SAFETY: a stream handle may be used by every thread (`Api`, promise 1); the ring orders events and positions.
unsafe impl<A: Api> Send for StreamState<A> {}
// SAFETY: as above.
unsafe impl<A: Api> Sync for StreamState<A> {}

impl<A: Api> OrderedStream<A> {
    /// Creates a stream that does not order itself against the default stream.
    pub(crate) fn create(context: &Arc<Context<A>>, priority: StreamPriority) -> Result<Self> {
        // SAFETY: the device is current.
        let handle = unsafe { context.enter()?.create_stream(priority)? };
        context.counters().stream_created();
        Ok(Self::over(context, handle, StreamOwner::Own))
    }

    /// Wraps a stream of somebody else. The default stream is a stream like others here.
    ///
    /// # Safety
    ///
    /// `handle` is a stream of the device, the same one on every thread, that is not destroyed before this object and all
    /// memory allocated on it are gone, and no memory that was handed to it waits for the end of a capture (see
    /// [`Stream::synchronize`](crate::Stream::synchronize)).
    pub unsafe fn lent(context: &Arc<Context<A>>, handle: A::Stream) -> Self {
        Self::over(context, handle, StreamOwner::Lent)
    }

    /// Wraps a stream that `owner` keeps alive, which is let go of with this object and all memory allocated on it; the
    /// device is current then.
    ///
    /// # Safety
    ///
    /// `handle` is a stream of the device, the same one on every thread, that is not destroyed before `owner` is dropped.
    pub unsafe fn kept(
        context: &Arc<Context<A>>,
        handle: A::Stream,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Self {
        Self::over(context, handle, StreamOwner::Kept(owner))
    }

    fn over(context: &Arc<Context<A>>, handle: A::Stream, origin: StreamOwner) -> Self {
        let (events, beside) = (EventRing::new(), Mutex::default());
        Self(Arc::new(StreamState { events, beside, origin, handle, context: context.clone() }))
    }

    /// This kind of stream behind the seam, if it is one.
    pub fn of(stream: &dyn BackendStream) -> Option<&Self> {
        (stream as &dyn Any).downcast_ref()
    }

    /// The handle, for calls of the driver. Work submitted to it is covered by the positions recorded afterwards.
    pub fn handle(&self) -> A::Stream {
        self.0.handle
    }

    /// The name of its device.
    pub fn device(&self) -> DeviceId {
        self.0.context.id()
    }

    pub(crate) fn state(&self) -> &Arc<StreamState<A>> {
        &self.0
    }

    pub(crate) fn context(&self) -> &Arc<Context<A>> {
        &self.0.context
    }
}

/// The handle of the per-thread default stream means another stream on each thread: what one thread submits to it another
/// one, the reactor for instance, would look for on a stream of its own, find done, and free memory in use.
///
/// # Errors
///
/// [`Error::Unsupported`] if it is that one.
pub fn refuse_per_thread<T>(device: DeviceId, handle: *const T) -> Result<()> {
    const PER_THREAD: usize = 2;
    if handle.addr() == PER_THREAD {
        let what = "use the per-thread default stream, which is another one on each thread; create a stream";
        return Err(Error::Unsupported { device, what });
    }
    Ok(())
}

impl<A: Api> StreamState<A> {
    pub(crate) fn handle(&self) -> A::Stream {
        self.handle
    }

    /// The stream of `peer` that works on behalf of this one. It is created at the first call, and anew where it is lost.
    pub(crate) fn beside(&self, peer: &Arc<Context<A>>) -> Result<Arc<Self>> {
        let mut all = self.beside.lock();
        all.retain(|stream| stream.check().is_ok());
        if let Some(known) = all.iter().find(|stream| stream.context.is_same(peer)) {
            return Ok(known.clone());
        }
        let OrderedStream(created) = OrderedStream::create(peer, StreamPriority::Normal)?;
        all.push(created.clone());
        Ok(created)
    }

    /// Whether the stream is ours, which means that nobody captures it and that it lives as long as this.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self.origin, StreamOwner::Own)
    }

    /// Fails while somebody captures the stream: his graph would copy out of memory that is in use by others when it is
    /// launched, and the events of a capture can be neither asked nor waited for.
    pub(crate) fn check_uncaptured(&self, driver: &Current<'_, A>) -> Result<()> {
        if self.is_own() {
            return Ok(());
        }
        // SAFETY: the device is current, the stream alive.
        match unsafe { driver.is_capturing(self.handle)? } {
            false => Ok(()),
            true => {
                let why = "and what was asked needs one that runs";
                Err(Error::StreamCaptured { device: self.context.id(), why })
            }
        }
    }

    /// Nothing proves any more what the stream has done.
    pub(crate) fn lose(&self, error: Error) {
        self.events.lose(error, self.context.id());
    }

    /// Fails if nothing proves any more what the stream has done.
    pub(crate) fn check(&self) -> Result<()> {
        self.events.check()
    }

    pub(crate) fn record(&self, driver: &Current<'_, A>) -> Result<u64> {
        self.check_uncaptured(driver)?;
        // SAFETY: a stream of this device, which is current.
        unsafe { self.events.record(&self.context, driver, self.handle) }
    }

    pub(crate) fn reached(&self) -> Result<u64> {
        match self.events.known() {
            (reached, true) => Ok(reached),
            _ => self.events.ask(&self.context.enter()?),
        }
    }

    /// Makes later work of this stream wait for a position of another one, which works on behalf of it: what was submitted there
    /// counts as submitted here.
    pub(crate) fn take_over(&self, other: &Self, position: u64) -> Result<()> {
        self.wait_for(other, position)?;
        if let Some(event) = other.events.event_behind(position) {
            self.events.stand_for(event);
        }
        Ok(())
    }

    /// Makes later work of this stream wait for a position of another one, which may be of another device.
    pub(crate) fn wait_for(&self, other: &Self, position: u64) -> Result<()> {
        self.check()?;
        // What was reached before the other one was lost stays reached.
        if other.events.known().0 >= position || other.reached()? >= position {
            return Ok(());
        }
        let Some(event) = other.events.event_behind(position) else {
            // Another thread has just seen it reached, or it was never recorded.
            return if other.events.known().0 >= position { Ok(()) } else { Err(Error::NotReady) };
        };
        let driver = self.context.enter()?;
        self.check_uncaptured(&driver)?;
        // SAFETY: the stream and the event are alive; the event is not recorded again while we hold it, and the
        // driver takes its state within the call.
        unsafe { driver.wait_event(self.handle, event.handle()) }
    }

    fn wait(&self, position: u64, timeout: Option<Duration>) -> Result<bool> {
        let start = Instant::now();
        let deadline = timeout.and_then(|timeout| start.checked_add(timeout));
        let until = |spin| deadline.map_or(start + spin, |deadline| deadline.min(start + spin));
        if self.spin(position, until(SHORT_SPIN))? {
            return Ok(true);
        }
        let spinning = Spinning::begin();
        if spinning.is_one_of_few() && self.spin(position, until(SPIN))? {
            return Ok(true);
        }
        drop(spinning);
        self.nap(position, start, deadline)
    }

    /// Asks until it is so or `until` has come, once at the least.
    fn spin(&self, position: u64, until: Instant) -> Result<bool> {
        if self.events.known().0 >= position {
            return Ok(true);
        }
        let driver = self.context.enter()?;
        loop {
            if self.events.poll(&driver)? >= position {
                return Ok(true);
            }
            if Instant::now() >= until {
                return Ok(false);
            }
            hint::spin_loop();
        }
    }

    /// Asks now and then until it is so or `deadline` has come. Nobody sleeps in the driver: see [`EventKind::Plain`].
    fn nap(&self, position: u64, since: Instant, deadline: Option<Instant>) -> Result<bool> {
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(self.reached()? >= position);
            }
            let nap = Backoff::FOR_A_STREAM.next(since);
            thread::sleep(left.map_or(nap, |left| nap.min(left)));
            if self.reached()? >= position {
                return Ok(true);
            }
            // Nothing is pending there: either another thread has just seen it reached, or it was never recorded.
            if self.events.event_behind(position).is_none() && self.events.known().0 < position {
                return Err(Error::NotReady);
            }
        }
    }
}

/// A thread that may spin for long.
struct Spinning {
    before: usize,
}

impl Spinning {
    fn begin() -> Self {
        Self { before: SPINNING.fetch_add(1, Ordering::Relaxed) }
    }

    fn is_one_of_few(&self) -> bool {
        self.before < MOST_SPINNING
    }
}

impl Drop for Spinning {
    fn drop(&mut self) {
        SPINNING.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<A: Api> Drop for StreamState<A> {
    fn drop(&mut self) {
        let Ok(driver) = self.context.enter() else { return };
        match std::mem::replace(&mut self.origin, StreamOwner::Lent) {
            StreamOwner::Lent => {}
            StreamOwner::Own => {
                // SAFETY: created by `create` and not used again. The driver finishes what was submitted.
                let _ = unsafe { driver.destroy_stream(self.handle) };
            }
            StreamOwner::Kept(owner) => {
                let kept = OwnerInContext { owner: Some(owner), context: self.context.clone() };
                lent_collector::let_go(Box::new(kept));
            }
        }
    }
}

/// The owner of a stream that is gone. It finds the device current, on whatever thread.
struct OwnerInContext<A: Api> {
    owner: Option<Box<dyn Any + Send + Sync>>,
    context: Arc<Context<A>>,
}

impl<A: Api> Drop for OwnerInContext<A> {
    fn drop(&mut self) {
        // Owners may make a device current and leave it so: the guard takes that back.
        let _current = self.context.enter();
        drop(self.owner.take());
    }
}

// SAFETY: an event is recorded behind the copies of its position, and a position counts as reached once the driver says
// so of that event and of all before it.
unsafe impl<A: Api> BackendStream for OrderedStream<A> {
    fn record(&self) -> Result<u64> {
        self.0.record(&self.0.context.enter()?)
    }

    fn twin(&self) -> Option<Arc<dyn BackendStream>> {
        match self.0.origin {
            StreamOwner::Own | StreamOwner::Kept(_) => Some(Arc::new(Self(self.0.clone()))),
            StreamOwner::Lent => None,
        }
    }

    fn is_same(&self, other: &dyn BackendStream) -> bool {
        Self::of(other)
            .is_some_and(|other| self.handle() == other.handle() && self.context().is_same(other.context()))
    }

    fn wait_for(&self, other: &dyn BackendStream, position: u64) -> Result<()> {
        let Some(other) = Self::of(other) else {
            let device = self.0.context.id();
            return Err(Error::Unsupported { device, what: "wait for a stream of another driver" });
        };
        self.0.wait_for(&other.0, position)
    }

    fn check(&self) -> Result<()> {
        self.0.check()
    }

    fn reached(&self) -> Result<u64> {
        self.0.reached()
    }

    fn wait(&self, position: u64, timeout: Option<Duration>) -> Result<bool> {
        self.0.wait(position, timeout)
    }

    fn mark(&self) -> Result<Box<dyn TimeMark>> {
        let event = Event::create(&self.0.context, EventKind::Timing)?;
        let driver = self.0.context.enter()?;
        // SAFETY: a stream of this device, which is current, and a new event of it.
        unsafe { driver.record_event(event.handle(), self.0.handle)? };
        Ok(Box::new(Mark::new(event)))
    }
}
