//! Streams as programs see them, and what they submit to them.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::thread;
use std::time::Instant;

use crate::context::{self, Context};
use crate::failure::Failure;
use crate::sim::{Kind, Sim};
use crate::stream::{HostFunction, Op, Point, Stream, Work};

/// The handle of the default stream that each thread has of its own; those below are the legacy default stream.
const PER_THREAD: u64 = 2;

/// The least and the greatest priority of streams: a lower number is more urgent.
pub const PRIORITIES: (i32, i32) = (0, -5);

impl Sim {
    /// Creates a stream of the current context.
    pub fn create_stream(&mut self, blocking: bool, priority: i32) -> Result<u64, Failure> {
        let context = self.usable_context()?;
        let device = self.context(context)?.device;
        Ok(self.add_stream(context, device, blocking, priority.clamp(PRIORITIES.1, PRIORITIES.0)))
    }

    /// Destroys a stream; its work is done all the same.
    pub fn destroy_stream(&mut self, stream: u64) -> Result<(), Failure> {
        let context = self.stream(stream)?.context;
        let context = self.context(context)?;
        if let Some(lost) = context.lost {
            return Err(lost);
        }
        if context.is_default(stream) {
            return Err(Failure::InvalidHandle);
        }
        let gone = self.stream(stream)?;
        gone.destroyed = true;
        if gone.queue.is_empty() {
            self.streams.remove(&stream);
        }
        Ok(())
    }

    /// Whether all work of the stream is done. Asking may let something move, or not.
    pub fn query_stream(&mut self, stream: u64) -> Result<bool, Failure> {
        let number = self.stream_of_current(stream)?;
        self.check_uncaptured(number)?;
        self.check_capture()?;
        if self.stream(number)?.queue.is_empty() {
            return Ok(true);
        }
        self.asked();
        let number = self.stream_of_current(stream)?;
        Ok(self.stream(number)?.queue.is_empty())
    }

    /// Blocks until all work of the stream is done.
    pub fn synchronize_stream(&mut self, stream: u64) -> Result<(), Failure> {
        let number = self.stream_of_current(stream)?;
        self.check_uncaptured(number)?;
        self.check_capture()?;
        self.drain(number)
    }

    /// The context of a stream.
    pub fn stream_context(&mut self, stream: u64) -> Result<u64, Failure> {
        let number = self.resolve(stream)?;
        Ok(self.stream(number)?.context)
    }

    /// The priority of a stream.
    pub fn stream_priority(&mut self, stream: u64) -> Result<i32, Failure> {
        let number = self.resolve(stream)?;
        Ok(self.stream(number)?.priority)
    }

    /// Calls a function, on a thread of the driver, when the stream gets there.
    pub fn launch_host(
        &mut self,
        stream: u64,
        function: unsafe extern "C" fn(*mut c_void),
        data: *mut c_void,
    ) -> Result<(), Failure> {
        let stream = self.stream_of_current(stream)?;
        self.submit(stream, Work::Host(HostFunction { function, data }), Vec::new()).map(drop)
    }

    pub(crate) fn add_stream(&mut self, context: u64, device: usize, blocking: bool, priority: i32) -> u64 {
        let number = self.new_handle(Kind::Stream);
        let call = self.call;
        let stream = Stream {
            context,
            device,
            blocking,
            priority,
            queue: VecDeque::new(),
            tail: 0,
            done: 0,
            busy: false,
            destroyed: false,
            capture: None,
            call,
        };
        self.streams.insert(number, stream);
        number
    }

    pub(crate) fn stream(&mut self, stream: u64) -> Result<&mut Stream, Failure> {
        self.check_initialised()?;
        if self.streams.get(&stream).is_none_or(|stream| stream.destroyed) {
            return Err(self.missing(Kind::Stream, stream));
        }
        self.streams.get_mut(&stream).ok_or(Failure::InvalidHandle)
    }

    /// The stream that a handle stands for, which must be of the current context.
    pub(crate) fn stream_of_current(&mut self, handle: u64) -> Result<u64, Failure> {
        let context = self.usable_context()?;
        let stream = self.resolve(handle)?;
        match self.stream(stream)?.context == context {
            true => Ok(stream),
            false => {
                self.violation("the stream is of another context than the current one".to_owned());
                Err(Failure::InvalidContext)
            }
        }
    }

    /// Submits work to a stream; where it stands there, unless it is captured into a graph.
    pub(crate) fn submit(
        &mut self,
        stream: u64,
        work: Work,
        mut after: Vec<Point>,
    ) -> Result<Option<Point>, Failure> {
        let call = self.call;
        if let Some(capture) = self.stream(stream)?.capture.as_mut() {
            capture.graph.push((work, call));
            return Ok(None);
        }
        let work = if std::mem::take(&mut self.fail_late) { Work::Fail } else { work };
        after.extend(self.legacy_order(stream)?);
        self.work += 1;
        let number = self.work;
        let submitted = self.stream(stream)?;
        submitted.tail = number;
        submitted.queue.push_back(Op { number, after, work, since: Instant::now(), call });
        self.active.insert(stream);
        self.notify();
        Ok(Some(Point { stream, number }))
    }

    /// The default stream waits for every blocking stream of its context, and those for it.
    fn legacy_order(&mut self, stream: u64) -> Result<Vec<Point>, Failure> {
        let Stream { context, blocking, .. } = *self.stream(stream)?;
        if !blocking {
            return Ok(Vec::new());
        }
        let default = self.context(context)?.default_stream;
        let others = self.streams.iter().filter(|(number, other)| {
            let counts = if stream == default { **number != default } else { **number == default };
            counts && other.blocking && other.context == context
        });
        Ok(others.map(|(number, other)| Point { stream: *number, number: other.tail }).collect())
    }

    /// The default stream of this thread.
    fn per_thread(&mut self, context: u64) -> Result<u64, Failure> {
        let thread = thread::current().id();
        let Context { device, ref per_thread, .. } = *self.context(context)?;
        if let Some(known) = per_thread.get(&thread) {
            return Ok(*known);
        }
        let stream = self.add_stream(context, device, true, 0);
        self.context(context)?.per_thread.insert(thread, stream);
        Ok(stream)
    }

    /// The stream behind a handle of the program's.
    fn resolve(&mut self, handle: u64) -> Result<u64, Failure> {
        if handle > PER_THREAD {
            return self.stream(handle).map(|_| handle);
        }
        let context = context::current().ok_or(Failure::InvalidContext)?;
        if handle == PER_THREAD {
            return self.per_thread(context);
        }
        Ok(self.context(context)?.default_stream)
    }
}
