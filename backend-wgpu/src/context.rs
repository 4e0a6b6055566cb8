//! What everything of one device shares.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use transship_core::{DeviceId, Error, Result};
use wgpu::{BufferDescriptor, BufferUsages, PollType};

use crate::counters::WgpuCounters;
use crate::kernels::Kernels;
use crate::recycled::Recycled;
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

/// A buffer that is mapped, if anything is.
const PROBE: BufferDescriptor<'static> =
    BufferDescriptor { label: None, size: 8, usage: BufferUsages::MAP_WRITE, mapped_at_creation: true };

/// A device with its queue, and how far that has come.
pub(crate) struct Context {
    id: DeviceId,
    device: wgpu::Device,
    queue: wgpu::Queue,
    /// What new buffers may be used for.
    usages: BufferUsages,
    largest_buffer: usize,
    timeline: Arc<Timeline>,
    counters: WgpuCounters,
    recycled: Recycled<wgpu::Buffer>,
    kernels: Kernels,
}

impl Context {
    pub(crate) fn new(id: DeviceId, device: wgpu::Device, queue: wgpu::Queue) -> Arc<Self> {
        let (timeline, counters, recycled) = (Timeline::new(id), WgpuCounters::default(), Recycled::new());
        let largest_buffer = usize::try_from(device.limits().max_buffer_size).unwrap_or(usize::MAX);
        let kernels = Kernels::new(&device);
        let mut context =
            Self { id, device, queue, usages: USAGES, largest_buffer, timeline, counters, recycled, kernels };
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

    pub(crate) fn counters(&self) -> &WgpuCounters {
        &self.counters
    }

    /// The large buffers that nobody uses any more.
    pub(crate) fn recycled(&self) -> &Recycled<wgpu::Buffer> {
        &self.recycled
    }

    pub(crate) fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    /// How many bytes of device memory are kept, for tensors and for what gathers.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.recycled.bytes() + self.kernels.workspaces.bytes()
    }

    /// Lets go of them; returns how many there were.
    pub(crate) fn trim(&self) -> usize {
        self.recycled.trim() + self.kernels.workspaces.trim()
    }

    /// Fails if the device is known to be lost; nothing is kept for it then.
    pub(crate) fn check(&self) -> Result<()> {
        self.timeline.check().inspect_err(|_| {
            self.trim();
        })
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
        self.check()?;
        self.counters.driver_called(1);
        // wgpu panics here where the API below it reports a lost device.
        match catch_unwind(AssertUnwindSafe(|| self.device.poll(PollType::Poll))) {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => self.timeline.lose(&error.to_string()),
            Err(panic) => self.timeline.lose(&format!("polling it panicked: {}", message(&*panic))),
        }
        self.check()
    }

    /// The error of `call`: on a lost device everything is invalid as well.
    pub(crate) fn explain(&self, call: &'static str, error: &wgpu::Error) -> Error {
        self.check_alive().err().unwrap_or_else(|| failed(self.id, call, error))
    }

    /// Fails if the device is lost by now. wgpu tells that to nobody who submits something, and waiting for a submission,
    /// even for no time at all, panics in wgpu 30 if another thread polls in that moment; but nothing can be mapped any more.
    pub(crate) fn check_alive(&self) -> Result<()> {
        self.check()?;
        self.counters.driver_called(1);
        let (buffer, error) = scoped(&self.device, || self.device.create_buffer(&PROBE));
        if error.is_none() && buffer.get_mapped_range(..).is_err() {
            self.timeline.lose("it maps nothing any more");
        }
        self.check()
    }

    /// Creates a buffer of `bytes` bytes, which `kind` is for the words of an error. If there is no memory left, what is kept
    /// goes first.
    pub(crate) fn create_buffer(
        &self,
        bytes: usize,
        usage: BufferUsages,
        kind: &'static str,
        mapped_at_creation: bool,
    ) -> Result<wgpu::Buffer> {
        self.recycled.make_room(|| self.try_create_buffer(bytes, usage, kind, mapped_at_creation))
    }

    fn try_create_buffer(
        &self,
        bytes: usize,
        usage: BufferUsages,
        kind: &'static str,
        mapped_at_creation: bool,
    ) -> Result<wgpu::Buffer> {
        self.check()?;
        let (device, limit) = (self.id, self.largest_buffer);
        if bytes > limit {
            return Err(Error::TooLarge { device, kind, requested: bytes, limit });
        }
        let size = bytes as u64;
        self.counters.driver_called(1);
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
