//! Capturing a stream into a graph, and the calls that break a capture.

use std::cell::Cell;

use crate::failure::Failure;
use crate::sim::{Kind, Sim};
use crate::stream::Work;

/// Whose unsafe calls break a capture, and which captures break a thread's calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaptureMode {
    /// Everybody's.
    Global,
    /// Those of the thread that captures.
    ThreadLocal,
    /// Nobody's.
    Relaxed,
}

/// A stream that is being captured.
#[derive(Debug)]
pub(crate) struct Capture {
    pub(crate) mode: CaptureMode,
    pub(crate) thread: std::thread::ThreadId,
    pub(crate) broken: bool,
    pub(crate) graph: Vec<(Work, &'static str)>,
    /// The handle of the graph, and what objects it holds.
    pub(crate) number: u64,
    pub(crate) held: Vec<u64>,
}

thread_local! {
    static MODE: Cell<CaptureMode> = const { Cell::new(CaptureMode::Global) };
}

/// Sets the mode of this thread and returns the one before.
pub fn exchange_capture_mode(mode: CaptureMode) -> CaptureMode {
    MODE.replace(mode)
}

/// The mode of this thread.
pub(crate) fn mode() -> CaptureMode {
    MODE.get()
}

impl Sim {
    /// Whether the stream is being captured: `None`, or whether the capture is still sound.
    pub fn capture_status(&mut self, stream: u64) -> Result<Option<bool>, Failure> {
        let stream = self.stream_of_current(stream)?;
        Ok(self.stream(stream)?.capture.as_ref().map(|capture| !capture.broken))
    }

    /// The graph of a capture that is sound; `None` where nothing is captured.
    pub fn captured_graph(&mut self, stream: u64) -> Result<Option<u64>, Failure> {
        let stream = self.stream_of_current(stream)?;
        let capture = self.stream(stream)?.capture.as_ref();
        Ok(capture.filter(|capture| !capture.broken).map(|capture| capture.number))
    }

    /// Captures what is submitted to the stream from now on.
    pub fn begin_capture(&mut self, stream: u64, mode: CaptureMode) -> Result<(), Failure> {
        let number = self.stream_of_current(stream)?;
        let thread = std::thread::current().id();
        let graph = self.new_handle(Kind::Graph);
        let stream = self.stream(number)?;
        if stream.capture.is_some() {
            return Err(Failure::InvalidValue);
        }
        let (work, held) = (Vec::new(), Vec::new());
        stream.capture = Some(Capture { mode, thread, broken: false, graph: work, number: graph, held });
        self.captured.insert(number);
        Ok(())
    }

    /// Ends the capture; the graph.
    pub fn end_capture(&mut self, stream: u64) -> Result<u64, Failure> {
        let number = self.stream_of_current(stream)?;
        let stream = self.stream(number)?;
        let context = stream.context;
        let capture = stream.capture.take().ok_or(Failure::InvalidValue)?;
        self.captured.remove(&number);
        if capture.broken {
            capture.held.into_iter().for_each(|object| self.let_go(object));
            return Err(Failure::CaptureInvalidated);
        }
        self.add_graph(capture.number, context, capture.graph, capture.held);
        Ok(capture.number)
    }

    /// Fails if a call that is unsafe during captures is one now; breaks those captures.
    pub(crate) fn check_capture(&mut self) -> Result<(), Failure> {
        let (thread, mode) = (std::thread::current().id(), MODE.get());
        let mut safe = true;
        let captured: Vec<u64> = self.captured.iter().copied().collect();
        for stream in captured {
            let Some(capture) = self.streams.get_mut(&stream).and_then(|stream| stream.capture.as_mut())
            else {
                continue;
            };
            let own = capture.thread == thread;
            let breaks = match mode {
                CaptureMode::Relaxed => false,
                CaptureMode::ThreadLocal => own && capture.mode != CaptureMode::Relaxed,
                CaptureMode::Global => match capture.mode {
                    CaptureMode::Global => true,
                    CaptureMode::ThreadLocal => own,
                    CaptureMode::Relaxed => false,
                },
            };
            capture.broken |= breaks;
            safe &= !breaks;
        }
        if safe { Ok(()) } else { Err(Failure::CaptureUnsupported) }
    }

    /// Fails if this stream is being captured; that breaks the capture, whatever the mode.
    pub(crate) fn check_uncaptured(&mut self, stream: u64) -> Result<(), Failure> {
        match &mut self.stream(stream)?.capture {
            None => Ok(()),
            Some(capture) => {
                capture.broken = true;
                Err(Failure::CaptureUnsupported)
            }
        }
    }
}
