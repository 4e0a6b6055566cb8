//! Events.

use std::time::Instant;

use crate::failure::Failure;
use crate::sim::{Kind, Sim};
use crate::stream::{Point, Work};

/// An event.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) context: u64,
    pub(crate) timing: bool,
    /// Where it was recorded last.
    pub(crate) recorded: Option<Point>,
    /// When the device came by there.
    pub(crate) time: Option<Instant>,
    pub(crate) call: &'static str,
}

impl Sim {
    /// Creates an event of the current context.
    pub fn create_event(&mut self, timing: bool) -> Result<u64, Failure> {
        let context = self.usable_context()?;
        let number = self.new_handle(Kind::Event);
        let call = self.call;
        self.events.insert(number, Event { context, timing, recorded: None, time: None, call });
        Ok(number)
    }

    /// Destroys an event; what waits for it already goes on waiting.
    pub fn destroy_event(&mut self, event: u64) -> Result<(), Failure> {
        let context = self.event(event)?.context;
        if let Some(lost) = self.context(context)?.lost {
            return Err(lost);
        }
        self.events.remove(&event);
        Ok(())
    }

    /// Records an event behind what was submitted to the stream.
    pub fn record_event(&mut self, event: u64, stream: u64) -> Result<(), Failure> {
        let stream = self.stream_of_current(stream)?;
        let context = self.stream(stream)?.context;
        if self.event(event)?.context != context {
            self.violation("the event is of another context than the stream".to_owned());
            return Err(Failure::InvalidHandle);
        }
        let recorded = self.submit(stream, Work::Record { event }, Vec::new())?;
        self.event(event)?.recorded = recorded;
        Ok(())
    }

    /// Whether the event was reached. Asking may let something move, or not.
    pub fn query_event(&mut self, event: u64) -> Result<bool, Failure> {
        let event = self.usable_event(event)?;
        self.check_capture()?;
        let Some(point) = self.event(event)?.recorded else { return Ok(true) };
        if self.is_done(point) {
            return Ok(true);
        }
        self.asked();
        self.usable_event(event)?;
        Ok(self.is_done(point))
    }

    /// Blocks until the event is reached.
    pub fn synchronize_event(&mut self, event: u64) -> Result<(), Failure> {
        let event = self.usable_event(event)?;
        self.check_capture()?;
        match self.event(event)?.recorded {
            Some(point) => self.finish(point),
            None => Ok(()),
        }
    }

    /// Makes later work of the stream wait for the event as it is recorded now.
    pub fn wait_event(&mut self, stream: u64, event: u64) -> Result<(), Failure> {
        let stream = self.stream_of_current(stream)?;
        match self.event(event)?.recorded {
            Some(point) => self.submit(stream, Work::Wait, vec![point]).map(drop),
            None => Ok(()),
        }
    }

    /// Milliseconds between two events.
    pub fn elapsed(&mut self, start: u64, end: u64) -> Result<f32, Failure> {
        let mut times = [None; 2];
        for (time, event) in times.iter_mut().zip([start, end]) {
            let event = self.usable_event(event)?;
            let found = self.event(event)?;
            let (timing, recorded, reached) = (found.timing, found.recorded, found.time);
            match recorded {
                Some(point) if timing => *time = reached.filter(|_| self.is_done(point)),
                _ => return Err(Failure::InvalidHandle),
            }
        }
        match times {
            [Some(start), Some(end)] => Ok(end.saturating_duration_since(start).as_secs_f32() * 1e3),
            _ => Err(Failure::NotReady),
        }
    }

    fn event(&mut self, event: u64) -> Result<&mut Event, Failure> {
        self.check_initialised()?;
        if !self.events.contains_key(&event) {
            return Err(self.missing(Kind::Event, event));
        }
        self.events.get_mut(&event).ok_or(Failure::InvalidHandle)
    }

    /// The event, unless its context is lost.
    fn usable_event(&mut self, event: u64) -> Result<u64, Failure> {
        let context = self.event(event)?.context;
        match self.context(context)?.lost {
            None => Ok(event),
            Some(lost) => Err(lost),
        }
    }
}
