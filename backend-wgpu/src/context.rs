//! What everything of one device shares.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use transship_core::{DeviceId, Error, Result};
use wgpu::{BufferDescriptor, BufferUsages, PollType};

use crate::counters::Counting;
use crate::scopes::{failed, scoped};
use crate::timeline::Timeline;

/// What programs do with tensors: bind them to compute and render pipelines, and copy them.
///
/// `INDIRECT` and `QUERY_RESOLVE` are left out: wgpu makes bind groups of its own for each buffer that has them.
const USAGES: BufferUsages = BufferUsages::STORAGE
    .union(BufferUsages::UNIFORM)
    .union(BufferUsages::VERTEX)
    .union(BufferUsages::COPY_SRC)
    .union(BufferUsages::COPY_DST);

/// A device with its queue, and how far that has come.
pub(crate) struct Context {
    id: DeviceId,
    device: wgpu::Device,
    queue: wgpu::Queue,
    /// What new buffers may be used for.
    usages: BufferUsages,
    largest_buffer: usize,
    /// Mapped for as long as the device lives.
    canary: Option<wgpu::Buffer>,
    timeline: Arc<Timeline>,
    counting: Counting,
}

impl Context {
    pub(crate) fn new(id: DeviceId, device: wgpu::Device, queue: wgpu::Queue) -> Arc<Self> {
        let (timeline, counting) = (Timeline::new(id), Counting::default());
        let largest_buffer = usize::try_from(device.limits().max_buffer_size).unwrap_or(usize::MAX);
        let canary = None;
        let mut context =
            Self { id, device, queue, usages: USAGES, largest_buffer, canary, timeline, counting };
        context.canary = context.create_buffer(8, BufferUsages::MAP_WRITE, "staging", true).ok();
        // GL may refuse index buffers that are anything else as well.
        if context.create_buffer(4, USAGES | BufferUsages::INDEX, "device", false).is_ok() {
            context.usages |= BufferUsages::INDEX;
        }
        Arc::new(context)
    }

    pub(crate) fn id(&self) -> DeviceId {
        self.id
    }

    pub(crate) fn device(&self) -> &wgpu::Device {
        &self.device
    }

    pub(crate) fn queue(&self) -> &wgpu::Queue {
        &self.queue
    }

    pub(crate) fn usages(&self) -> BufferUsages {
        self.usages
    }

    pub(crate) fn largest_buffer(&self) -> usize {
        self.largest_buffer
    }

    pub(crate) fn timeline(&self) -> &Arc<Timeline> {
        &self.timeline
    }

    pub(crate) fn counting(&self) -> &Counting {
        &self.counting
    }

    /// Whether both are the same. The handles of wgpu do not tell: they compare numbers that each `wgpu::Instance` counts
    /// for itself.
    pub(crate) fn is(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }

    pub(crate) fn unsupported(&self, what: &'static str) -> Error {
        Error::Unsupported { device: self.id, what }
    }

    /// Lets wgpu look at the queue and run the callbacks of what is done. Never blocks: it holds none of wgpu's locks
    /// longer than that takes.
    pub(crate) fn poll(&self) -> Result<()> {
        self.timeline.check()?;
        self.counting.driver_called(1);
        // wgpu panics here where the API below it reports a lost device.
        match catch_unwind(AssertUnwindSafe(|| self.device.poll(PollType::Poll))) {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => self.timeline.lose(&error.to_string()),
            Err(panic) => self.timeline.lose(&format!("polling it panicked: {}", message(&*panic))),
        }
        self.timeline.check()
    }

    /// Fails if the queue has not accepted `submission`, which only a lost device does in silence.
    pub(crate) fn check_accepted(&self, submission: wgpu::SubmissionIndex) -> Result<()> {
        let look =
            PollType::Wait { submission_index: Some(submission), timeout: Some(std::time::Duration::ZERO) };
        self.counting.driver_called(1);
        match catch_unwind(AssertUnwindSafe(|| self.device.poll(look))) {
            Ok(Ok(_) | Err(wgpu::PollError::Timeout)) => {}
            Ok(Err(error)) => self.timeline.lose(&error.to_string()),
            Err(panic) => self.timeline.lose(&format!("polling it panicked: {}", message(&*panic))),
        }
        self.timeline.check()
    }

    /// The error of `call`: on a lost device everything is invalid as well.
    pub(crate) fn explain(&self, call: &'static str, error: &wgpu::Error) -> Error {
        let lost = self.check_accepted(self.queue.submit([]));
        lost.err().unwrap_or_else(|| failed(self.id, call, error))
    }

    /// Fails if the device was destroyed and nothing is in flight: wgpu tells that to nobody who submits nothing.
    pub(crate) fn check_alive(&self) -> Result<()> {
        self.poll()?;
        // Views for reading may overlap: several threads may ask at once.
        let mapped = self.canary.as_ref().and_then(|canary| canary.get_mapped_range(..).ok());
        if mapped.is_none() {
            self.timeline.lose("its memory is gone");
        }
        self.timeline.check()
    }

    /// Creates a buffer of `bytes` bytes, which `kind` is for the words of an error.
    pub(crate) fn create_buffer(
        &self,
        bytes: usize,
        usage: BufferUsages,
        kind: &'static str,
        mapped_at_creation: bool,
    ) -> Result<wgpu::Buffer> {
        self.timeline.check()?;
        let (device, limit) = (self.id, self.largest_buffer);
        if bytes > limit {
            return Err(Error::TooLarge { device, kind, requested: bytes, limit });
        }
        let size = bytes as u64;
        self.counting.driver_called(1);
        let (buffer, error) = scoped(&self.device, || {
            self.device.create_buffer(&BufferDescriptor { label: None, size, usage, mapped_at_creation })
        });
        match error {
            None => Ok(buffer),
            Some(wgpu::Error::OutOfMemory { .. }) => {
                Err(Error::OutOfMemory { device, kind, requested: bytes, free: 0, total: 0 })
            }
            Some(other) => Err(failed(device, "Device::create_buffer", &other)),
        }
    }
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}
