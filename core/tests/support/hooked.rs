//! A device that runs code of a test in the middle of its calls; for the rest it is the simulated one.

#![allow(dead_code, reason = "no test file uses all of it")]

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

use transship_core::backend::{
    Backend, BackendStream, Buffer, CopyOp, Counters, DeviceProperties, Direction, KernelTable, Limits,
    RawMemory, Staging, StreamPriority, Submission,
};
use transship_core::{DeviceId, Result};

type Hook<T> = Mutex<Option<Box<dyn FnOnce(T) + Send>>>;

pub(crate) struct Hooked {
    device: Arc<dyn Backend>,
    limits: Limits,
    before_allocate: Hook<()>,
    before_allocate_staging: Hook<()>,
    before_submit: Hook<()>,
    after_submit: Hook<u64>,
    _owner: Box<dyn Any + Send + Sync>,
}

impl Hooked {
    pub(crate) fn new(device: Arc<dyn Backend>) -> Arc<Self> {
        Self::with_owner(device, ())
    }

    /// `owner` is dropped with the device.
    pub(crate) fn with_owner(device: Arc<dyn Backend>, owner: impl Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self::over(device, owner))
    }

    /// Buffers of it are no larger than that.
    pub(crate) fn with_largest_buffer(device: Arc<dyn Backend>, largest_buffer: usize) -> Arc<Self> {
        let mut hooked = Self::over(device, ());
        hooked.limits.largest_buffer = largest_buffer;
        Arc::new(hooked)
    }

    fn over(device: Arc<dyn Backend>, owner: impl Send + Sync + 'static) -> Self {
        Self {
            limits: device.limits().clone(),
            device,
            before_allocate: Hook::default(),
            before_allocate_staging: Hook::default(),
            before_submit: Hook::default(),
            after_submit: Hook::default(),
            _owner: Box::new(owner),
        }
    }

    /// The next allocation of device memory runs `hook` first.
    pub(crate) fn before_next_allocate(&self, hook: impl FnOnce() + Send + 'static) {
        set(&self.before_allocate, |()| hook());
    }

    /// The next allocation of staging memory runs `hook` first.
    pub(crate) fn before_next_allocate_staging(&self, hook: impl FnOnce() + Send + 'static) {
        set(&self.before_allocate_staging, |()| hook());
    }

    /// The next submission runs `hook` first.
    pub(crate) fn before_next_submit(&self, hook: impl FnOnce() + Send + 'static) {
        set(&self.before_submit, |()| hook());
    }

    /// The next submission that succeeds runs `hook` with its position before it returns.
    pub(crate) fn after_next_submit(&self, hook: impl FnOnce(u64) + Send + 'static) {
        set(&self.after_submit, hook);
    }
}

fn set<T>(hook: &Hook<T>, code: impl FnOnce(T) + Send + 'static) {
    *hook.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(code));
}

/// Without the lock: the code may panic, or take its time.
fn run<T>(hook: &Hook<T>, with: T) {
    let code = hook.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(code) = code {
        code(with);
    }
}

// SAFETY: every call is that of the simulated device. A hook that panics does so before the call, or behind a submission
// that the simulated device knows of, which is what any backend may do.
unsafe impl Backend for Hooked {
    fn device(&self) -> DeviceId {
        self.device.device()
    }

    fn description(&self) -> &str {
        self.device.description()
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn counters(&self) -> Counters {
        self.device.counters()
    }

    fn properties(&self) -> Result<DeviceProperties> {
        self.device.properties()
    }

    fn create_stream(&self, priority: StreamPriority) -> Result<Arc<dyn BackendStream>> {
        self.device.create_stream(priority)
    }

    fn allocate(&self, bytes: usize, stream: &dyn BackendStream) -> Result<Box<dyn Buffer>> {
        run(&self.before_allocate, ());
        self.device.allocate(bytes, stream)
    }

    fn allocate_staging(&self, bytes: usize, direction: Direction) -> Result<Box<dyn Staging>> {
        run(&self.before_allocate_staging, ());
        self.device.allocate_staging(bytes, direction)
    }

    unsafe fn wrap(&self, memory: RawMemory, owner: Box<dyn Any + Send + Sync>) -> Result<Box<dyn Buffer>> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.device.wrap(memory, owner) }
    }

    unsafe fn submit(&self, ops: &[CopyOp<'_>], stream: &dyn BackendStream) -> Result<Submission> {
        run(&self.before_submit, ());
        // SAFETY: the caller's promise is the same.
        let submission = unsafe { self.device.submit(ops, stream) }?;
        run(&self.after_submit, submission.position);
        Ok(submission)
    }

    unsafe fn submit_gathered(
        &self,
        ops: &[CopyOp<'_>],
        table: KernelTable<'_>,
        stream: &dyn BackendStream,
    ) -> Result<Submission> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.device.submit_gathered(ops, table, stream) }
    }

    fn copy_streams(&self) -> usize {
        self.device.copy_streams()
    }

    fn reaches(&self, other: &dyn Backend) -> bool {
        let other: &dyn Any = other;
        other.downcast_ref::<Self>().is_some_and(|other| self.device.reaches(&*other.device))
    }

    fn reads_staging_of(&self, other: &dyn Backend) -> bool {
        let other: &dyn Any = other;
        other.downcast_ref::<Self>().is_some_and(|other| self.device.reads_staging_of(&*other.device))
    }

    fn trim(&self) -> usize {
        self.device.trim()
    }

    fn synchronize(&self) -> Result<()> {
        self.device.synchronize()
    }
}
