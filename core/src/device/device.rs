//! A device that tensors can lie on and copies can run on.

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Weak};

use crate::backend::host::{HostBackend, HostStream};
use crate::backend::{Backend, BackendStream, Counters, Limits};
use crate::device::thread_queues::ThreadQueues;
use crate::device::{check_limits, host_node};
use crate::device_id::DeviceId;
use crate::error::Result;
use crate::in_flight::carried::{Background, Carried};
use crate::in_flight::memory_budget::MemoryBudget;
use crate::in_flight::submission_queue::SubmissionQueue;
use crate::runtime::sync::{Mutex, OnceLock, statics};
use crate::runtime::topology::{Node, Topology};
use crate::runtime::{at_exit, fork, workers};
use crate::staging::pool::StagingPool;

/// An initialised device. Cloning it is cheap and names the same one; tensors keep their device alive.
///
/// Two devices are the same only if they are the same instance: [`Device::open`] gives the same instance as long as
/// somebody holds it.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    id: DeviceId,
    pub(crate) parts: ManuallyDrop<Parts>,
}

pub(crate) struct Parts {
    background: Mutex<Background>,
    up: ThreadQueues,
    down: ThreadQueues,
    between: ThreadQueues,
    pub(crate) staging: Arc<StagingPool>,
    pub(crate) results: Arc<StagingPool>,
    /// Of what tensors have on the device.
    budget: Arc<MemoryBudget>,
    /// Those that were [checked](check_limits::check), whatever the backend says later.
    limits: Limits,
    /// Where its staging memory lies on the host, if that was chosen.
    node: Option<&'static Node>,
    pub(crate) backend: Arc<dyn Backend>,
}

impl Device {
    /// The host: ordinary memory, no driver.
    pub fn host() -> Self {
        statics! {
            static HOST: OnceLock<Device> = OnceLock::new();
        }
        let make = || {
            let backend: Arc<dyn Backend> = Arc::new(HostBackend::new());
            let queues =
                || ThreadQueues::single(SubmissionQueue::new(backend.clone(), Arc::new(HostStream::new())));
            Self::assemble(backend.clone(), None, backend.limits().clone(), [queues(), queues(), queues()])
        };
        HOST.get_or_init(make).clone()
    }

    /// A device that drives `backend`. [`Device::open`] does this for registered drivers; a program that holds a
    /// backend of its own does it here.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidLimit`](crate::Error::InvalidLimit) if its limits demand what no copy can keep, and what the backend says while it creates its
    /// streams.
    pub fn from_backend(backend: Arc<dyn Backend>) -> Result<Self> {
        fork::check()?;
        Self::on(Topology::of_machine(), backend)
    }

    /// As [`from_backend`](Self::from_backend), on a machine with these nodes, in no child of a fork.
    pub(crate) fn on(topology: &'static Topology, backend: Arc<dyn Backend>) -> Result<Self> {
        // It is there before there can be a child: one that was forked while another thread makes it would wait for that.
        let _ = Self::host();
        fork::watch();
        at_exit::before_drivers();
        let limits = backend.limits().clone();
        check_limits::check(backend.device(), &limits)?;
        let queues =
            [ThreadQueues::new(&backend)?, ThreadQueues::new(&backend)?, ThreadQueues::new(&backend)?];
        let node = host_node::of(&*backend, topology);
        Ok(Self::assemble(backend, node, limits, queues))
    }

    fn assemble(
        backend: Arc<dyn Backend>,
        node: Option<&'static Node>,
        limits: Limits,
        [up, down, between]: [ThreadQueues; 3],
    ) -> Self {
        let staging = StagingPool::for_staging(backend.clone(), node);
        let results = StagingPool::for_results(backend.clone(), node);
        for queue in [&up, &down, &between].into_iter().flat_map(ThreadQueues::all) {
            staging.serve(&queue);
            results.serve(&queue);
        }
        let id = backend.device();
        let (background, budget) = (Mutex::default(), MemoryBudget::unlimited());
        let parts = Parts { background, up, down, between, staging, results, budget, limits, node, backend };
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
        self.queues().try_for_each(|queue| queue.poll())
    }

    /// Waits until the copies of this device that workers carry out are done, whatever comes of them (those that wait for room until their
    /// [deadline](crate::CopyOptions::deadline) included), and nothing that
    /// transship submitted to its own streams of this device is in flight; then frees idle memory. The device can be
    /// used again after that.
    ///
    /// # Errors
    ///
    /// The error of a broken device.
    pub fn drain(&self) -> Result<()> {
        fork::check()?;
        let background: Vec<_> = self.background().lock().all().filter_map(Carried::completion).collect();
        for copy in background {
            // Its handle tells whether it has failed.
            let _ = copy.wait(None);
        }
        self.queues().try_for_each(|queue| queue.drain())?;
        self.trim();
        Ok(())
    }

    /// A copy of this device is left to workers.
    pub(crate) fn note_background(&self, copy: Carried) {
        let seen = self.background().lock().note(copy);
        drop(seen);
    }

    /// Copies of this device that are left to workers.
    pub(crate) fn background(&self) -> &Mutex<Background> {
        &self.0.parts.background
    }

    pub(crate) fn same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// What tells this device from any other that is open; not 0.
    #[inline]
    pub(crate) fn identity(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// What copies of this thread to the device run on.
    pub(crate) fn up(&self) -> Result<Arc<SubmissionQueue>> {
        self.queue_here(&self.0.parts.up)
    }

    /// What copies of this thread from the device to the host run on.
    pub(crate) fn down(&self) -> Result<Arc<SubmissionQueue>> {
        self.queue_here(&self.0.parts.down)
    }

    /// What copies of this thread from devices to the device run on.
    pub(crate) fn between(&self) -> Result<Arc<SubmissionQueue>> {
        self.queue_here(&self.0.parts.between)
    }

    pub(crate) fn staging(&self) -> &Arc<StagingPool> {
        &self.0.parts.staging
    }

    pub(crate) fn node(&self) -> Option<&'static Node> {
        self.0.parts.node
    }

    pub(crate) fn results(&self) -> &Arc<StagingPool> {
        &self.0.parts.results
    }

    pub(crate) fn budget(&self) -> &Arc<MemoryBudget> {
        &self.0.parts.budget
    }

    pub(crate) fn queue_of(&self, stream: Arc<dyn BackendStream>) -> Arc<SubmissionQueue> {
        let queue = SubmissionQueue::new(self.0.parts.backend.clone(), stream);
        self.0.parts.introduce(&queue);
        queue
    }

    pub(crate) fn downgrade(&self) -> WeakDevice {
        WeakDevice(Arc::downgrade(&self.0))
    }

    fn queue_here(&self, queues: &ThreadQueues) -> Result<Arc<SubmissionQueue>> {
        queues.of_this_thread(self.backend(), |queue| self.0.parts.introduce(queue))
    }

    /// Its own, but for those that are lost: what was in flight there is leaked, and whoever waited for it was told.
    fn queues(&self) -> impl Iterator<Item = Arc<SubmissionQueue>> {
        let Parts { up, down, between, .. } = &*self.0.parts;
        [up, down, between].into_iter().flat_map(ThreadQueues::all)
    }
}

impl Parts {
    /// Blocks of the device may be in flight on `queue` from now on.
    fn introduce(&self, queue: &Arc<SubmissionQueue>) {
        self.staging.serve(queue);
        self.results.serve(queue);
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
        workers::retire(Arc::as_ptr(&parts.backend).addr());
        // Releasing a device may block: not on whatever thread happens to drop the last tensor on it.
        workers::dispose(parts);
    }
}
