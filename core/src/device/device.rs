//! A device that tensors can lie on and copies can run on.

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Weak};

use crate::backend::host::{HostBackend, HostStream};
use crate::backend::{Backend, BackendStream, Buffer, Counters, Direction, Limits, StreamPriority, limits};
use crate::device::drivers;
use crate::device::stream::Stream;
use crate::device::thread_queues::Lanes;
use crate::device_id::DeviceId;
use crate::error::{Error, Result};
use crate::in_flight::completion::Completion;
use crate::in_flight::queue::Lane;
use crate::job::path;
use crate::runtime::sync::{Mutex, OnceLock, statics};
use crate::runtime::{fork, workers};
use crate::staging::pool::{Pool, PoolStatistics};

/// An initialised device. Cloning it is cheap and names the same one; tensors keep their device alive.
///
/// Two devices are the same only if they are the same instance: [`Device::open`] gives the same instance as long as
/// somebody holds it.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    id: DeviceId,
    parts: ManuallyDrop<Parts>,
}

struct Parts {
    /// Copies that workers carry out.
    background: Mutex<Vec<Weak<Completion>>>,
    up: Lanes,
    down: Lanes,
    between: Lanes,
    staging: Arc<Pool>,
    results: Arc<Pool>,
    /// Those that were [checked](limits::check), whatever the backend says later.
    limits: Limits,
    backend: Arc<dyn Backend>,
}

impl Device {
    /// Opens the device that `id` names, blocking while the driver initialises it.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownDriver`], [`Error::DriverUnavailable`], [`Error::NoSuchDevice`], [`Error::InvalidLimit`], or what the
    /// driver says.
    pub fn open(id: DeviceId) -> Result<Self> {
        pollster::block_on(Self::open_async(id))
    }

    /// Opens the device that `id` names.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub async fn open_async(id: DeviceId) -> Result<Self> {
        fork::check()?;
        drivers::open(id).await
    }

    /// The host: ordinary memory, no driver.
    pub fn host() -> Self {
        statics! {
            static HOST: OnceLock<Device> = OnceLock::new();
        }
        let make = || {
            let backend: Arc<dyn Backend> = Arc::new(HostBackend::new());
            let lanes = || Lanes::single(Lane::new(backend.clone(), Arc::new(HostStream::new())));
            Self::assemble(backend.clone(), backend.limits().clone(), [lanes(), lanes(), lanes()])
        };
        HOST.get_or_init(make).clone()
    }

    /// The most capable device there is: the first of the driver with the highest
    /// [preference](crate::backend::Driver::preference) that can be used, the host where there is no other.
    ///
    /// # Errors
    ///
    /// What the driver says while it initialises the device.
    pub fn best() -> Result<Self> {
        fork::check()?;
        Self::open(drivers::best())
    }

    /// All devices of all drivers in this program that can be used here, without initialising them; the best first.
    pub fn list() -> Vec<DeviceId> {
        drivers::list()
    }

    /// A device that drives `backend`. [`Device::open`] does this for registered drivers; a program that holds a
    /// backend of its own does it here.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidLimit`] if its limits demand what no copy can keep, and what the backend says while it creates its
    /// streams.
    pub fn from_backend(backend: Arc<dyn Backend>) -> Result<Self> {
        fork::check()?;
        // It is there before there can be a child: one that was forked while another thread makes it would wait for that.
        let _ = Self::host();
        fork::watch();
        let limits = backend.limits().clone();
        limits::check(backend.device(), &limits)?;
        let lanes = [Lanes::new(&backend)?, Lanes::new(&backend)?, Lanes::new(&backend)?];
        Ok(Self::assemble(backend, limits, lanes))
    }

    fn assemble(backend: Arc<dyn Backend>, limits: Limits, [up, down, between]: [Lanes; 3]) -> Self {
        let staging = Pool::for_staging(backend.clone());
        let results = Pool::for_results(backend.clone());
        for lane in [&up, &down, &between].into_iter().flat_map(Lanes::all) {
            staging.serve(lane);
            results.serve(lane);
        }
        let id = backend.device();
        let background = Mutex::default();
        let parts = Parts { background, up, down, between, staging, results, limits, backend };
        Self(Arc::new(Inner { id, parts: ManuallyDrop::new(parts) }))
    }

    /// Its name.
    pub fn id(&self) -> DeviceId {
        self.0.id
    }

    /// The hardware and the driver in their own words.
    pub fn description(&self) -> &str {
        self.0.parts.backend.description()
    }

    /// Whether it is the host.
    pub fn is_host(&self) -> bool {
        self.0.id.is_host()
    }

    /// What it demands of a plan.
    pub fn limits(&self) -> &Limits {
        &self.0.parts.limits
    }

    /// What was asked of its driver so far.
    pub fn counters(&self) -> Counters {
        if fork::is_child() { Counters::default() } else { self.0.parts.backend.counters() }
    }

    /// The backend, for a downcast in the backend's own crate.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.0.parts.backend
    }

    /// Creates a stream.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn create_stream(&self, priority: StreamPriority) -> Result<Stream> {
        fork::check()?;
        Ok(Stream::from_backend(self, self.0.parts.backend.create_stream(priority)?))
    }

    /// Blocks until everything submitted to the device by anybody is done, and what copies on the device's own streams have
    /// used is let go of. Owners of memory that was lent may be dropped a moment later, by another thread: this waits for none
    /// of them.
    ///
    /// # Errors
    ///
    /// What the driver says, errors of earlier asynchronous work included.
    pub fn synchronize(&self) -> Result<()> {
        fork::check()?;
        self.0.parts.backend.synchronize()?;
        self.lanes().try_for_each(|lane| lane.poll())
    }

    /// Allocates staging memory for copies of `bytes` bytes and warms the device's own memory up, so that the first such
    /// copy is as fast as the later ones. May block for milliseconds. Nothing is page-locked for what the device has no room
    /// for.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`] and [`Error::OutOfMemory`], pinned or on the device.
    pub fn prepare(&self, bytes: usize) -> Result<()> {
        fork::check()?;
        self.allocate(bytes, self.up())?.release(&[]);
        if !self.is_host() {
            let Parts { staging, results, .. } = &*self.0.parts;
            let block = path::staging_block_up(bytes, self);
            staging.prepare(bytes, block, Direction::Upload)?;
            // Where staging is mapped, results come down through it into memory of their own.
            match self.limits().mapped_staging {
                true => staging.prepare(bytes, block, Direction::Download)?,
                false => results.prepare(bytes, usize::MAX, Direction::Download)?,
            }
        }
        Ok(())
    }

    /// Frees idle staging memory, and gives idle device memory back to the driver; returns how many bytes. May block for
    /// milliseconds.
    pub fn trim(&self) -> usize {
        if fork::is_child() {
            return 0;
        }
        self.0.parts.staging.trim() + self.0.parts.results.trim() + self.0.parts.backend.trim()
    }

    /// The most pinned memory that staging may hold, in bytes (default: 64 MiB).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] below 64 KiB, the smallest block.
    pub fn set_staging_budget(&self, bytes: usize) -> Result<()> {
        set_budget(&self.0.parts.staging, "staging_budget", bytes)
    }

    /// The most pinned memory that results on the host may hold, in bytes (default: 256 MiB). Results above it are
    /// ordinary memory, and the report says so.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] below 64 KiB, the smallest block.
    pub fn set_result_budget(&self, bytes: usize) -> Result<()> {
        set_budget(&self.0.parts.results, "result_budget", bytes)
    }

    /// What staging holds.
    pub fn staging_statistics(&self) -> PoolStatistics {
        statistics(&self.0.parts.staging)
    }

    /// What pinned results on the host hold.
    pub fn result_statistics(&self) -> PoolStatistics {
        statistics(&self.0.parts.results)
    }

    /// Waits until the copies of this device that workers carry out are done, whatever comes of them, and nothing that
    /// transship submitted to its own streams of this device is in flight; then frees idle memory. The device can be
    /// used again after that.
    ///
    /// # Errors
    ///
    /// The error of a broken device.
    pub fn shutdown(&self) -> Result<()> {
        fork::check()?;
        let background = std::mem::take(&mut *self.0.parts.background.lock());
        for copy in background.iter().filter_map(Weak::upgrade) {
            // Its handle tells whether it has failed.
            let _ = copy.wait(None);
        }
        self.lanes().try_for_each(|lane| lane.drain())?;
        self.trim();
        Ok(())
    }

    /// Workers carry out a copy of this device.
    pub(crate) fn note_background(&self, copy: &Arc<Completion>) {
        let mut background = self.0.parts.background.lock();
        background.retain(|known| known.strong_count() > 0);
        background.push(Arc::downgrade(copy));
    }

    pub(crate) fn same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// What tells this device from any other that is open; not 0.
    #[inline]
    pub(crate) fn identity(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Allocates memory of the device in stream order of `lane`: at least `bytes` bytes, in whole granules. If there is
    /// none left, idle memory is given back to the driver first, and that once.
    pub(crate) fn allocate(&self, bytes: usize, lane: &Lane) -> Result<Box<dyn Buffer>> {
        self.allocate_by(bytes, |bytes| self.backend().allocate(bytes, &**lane.stream()))
    }

    /// The same, of memory that the host writes first, where there is some.
    pub(crate) fn allocate_open(&self, bytes: usize, lane: &Lane) -> Result<Box<dyn Buffer>> {
        self.allocate_by(bytes, |bytes| self.backend().allocate_open(bytes, &**lane.stream()))
    }

    fn allocate_by(
        &self,
        bytes: usize,
        allocate: impl Fn(usize) -> Result<Box<dyn Buffer>>,
    ) -> Result<Box<dyn Buffer>> {
        let (device, kind, limit) = (self.id(), "device", self.limits().largest_buffer);
        let rounded = self.limits().copy_granularity.round_up(bytes).filter(|rounded| *rounded <= limit);
        let rounded = rounded.ok_or(Error::TooLarge { device, kind, requested: bytes, limit })?;
        match allocate(rounded) {
            Err(Error::OutOfMemory { .. }) if self.backend().trim() > 0 => allocate(rounded),
            other => other,
        }
    }

    /// What copies of this thread to the device run on.
    pub(crate) fn up(&self) -> &Arc<Lane> {
        self.lane_here(&self.0.parts.up)
    }

    /// What copies of this thread from the device to the host run on.
    pub(crate) fn down(&self) -> &Arc<Lane> {
        self.lane_here(&self.0.parts.down)
    }

    /// What copies of this thread from devices to the device run on.
    pub(crate) fn between(&self) -> &Arc<Lane> {
        self.lane_here(&self.0.parts.between)
    }

    pub(crate) fn staging(&self) -> &Arc<Pool> {
        &self.0.parts.staging
    }

    pub(crate) fn results(&self) -> &Arc<Pool> {
        &self.0.parts.results
    }

    pub(crate) fn lane_of(&self, stream: Arc<dyn BackendStream>) -> Arc<Lane> {
        let lane = Lane::new(self.0.parts.backend.clone(), stream);
        self.0.parts.introduce(&lane);
        lane
    }

    pub(crate) fn downgrade(&self) -> WeakDevice {
        WeakDevice(Arc::downgrade(&self.0))
    }

    fn lane_here<'a>(&'a self, lanes: &'a Lanes) -> &'a Arc<Lane> {
        lanes.of_this_thread(self.backend(), |lane| self.0.parts.introduce(lane))
    }

    fn lanes(&self) -> impl Iterator<Item = &Arc<Lane>> {
        let Parts { up, down, between, .. } = &*self.0.parts;
        [up, down, between].into_iter().flat_map(Lanes::all)
    }
}

impl Parts {
    /// Blocks of the device may be in flight on `lane` from now on.
    fn introduce(&self, lane: &Arc<Lane>) {
        self.staging.serve(lane);
        self.results.serve(lane);
    }
}

/// Finds a device again as long as somebody holds it.
pub(crate) struct WeakDevice(Weak<Inner>);

impl WeakDevice {
    pub(crate) fn upgrade(&self) -> Option<Device> {
        self.0.upgrade().map(Device)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.0.id, self.description())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: the field is not touched again.
        let parts = unsafe { ManuallyDrop::take(&mut self.parts) };
        // Releasing a device may block: not on whatever thread happens to drop the last tensor on it.
        workers::dispose(parts);
    }
}

fn statistics(pool: &Pool) -> PoolStatistics {
    if fork::is_child() { PoolStatistics::default() } else { pool.statistics() }
}

fn set_budget(pool: &Arc<Pool>, name: &'static str, bytes: usize) -> Result<()> {
    if bytes < crate::staging::pool::SMALLEST_BLOCK {
        let reason = "it must be at least 65536, the smallest block";
        return Err(Error::InvalidOption { name, value: bytes.to_string(), reason });
    }
    fork::check()?;
    pool.set_budget(bytes);
    Ok(())
}
