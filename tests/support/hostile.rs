//! Programs that behave as badly as safe code may: owners of memory and wakers with code of their own.

#![allow(dead_code, reason = "no test uses all of it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{RawWaker, RawWakerVTable, Waker};

/// Something that happens once, on any thread.
#[derive(Clone, Default)]
pub(crate) struct Flag(Arc<AtomicBool>);

impl Flag {
    pub(crate) fn raise(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_raised(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Bytes whose owner runs code when they go: for `Tensor::from_owner`.
pub(crate) struct Owner {
    pub(crate) bytes: Vec<u8>,
    on_drop: Option<Box<dyn FnOnce(Vec<u8>) + Send + Sync>>,
}

impl Owner {
    /// `on_drop` gets the bytes back.
    pub(crate) fn new(bytes: Vec<u8>, on_drop: impl FnOnce(Vec<u8>) + Send + Sync + 'static) -> Self {
        Self { bytes, on_drop: Some(Box::new(on_drop)) }
    }
}

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        if let Some(on_drop) = self.on_drop.take() {
            on_drop(bytes);
        }
    }
}

/// What a panic carries, if it shall panic once more when that is dropped.
pub(crate) struct PanicsWhenDropped(pub(crate) &'static str);

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            std::panic::panic_any(self.0);
        }
    }
}

/// What a waker does at each of its calls.
pub(crate) trait Task: Send + Sync + 'static {
    fn cloned(&self) {}

    fn woken(&self) {}

    fn dropped(&self) {}
}

/// A waker that runs code of `task` whenever it is cloned, woken or dropped.
pub(crate) fn waker(task: Arc<dyn Task>) -> Waker {
    // SAFETY: the functions of the table keep to the contract of `RawWaker`: each waker has a box of its own.
    unsafe { Waker::from_raw(raw(task)) }
}

fn raw(task: Arc<dyn Task>) -> RawWaker {
    const TABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, wake_by_ref, drop_waker);
    RawWaker::new(Box::into_raw(Box::new(task)).cast_const().cast(), &TABLE)
}

unsafe fn clone(data: *const ()) -> RawWaker {
    // SAFETY: `data` is the box of a waker that is alive (`raw`).
    let task = unsafe { &*data.cast::<Arc<dyn Task>>() };
    task.cloned();
    raw(task.clone())
}

unsafe fn wake(data: *const ()) {
    // SAFETY: as in `clone`; the waker is used up, and so is its box.
    let task = unsafe { Box::from_raw(data.cast_mut().cast::<Arc<dyn Task>>()) };
    task.woken();
}

unsafe fn wake_by_ref(data: *const ()) {
    // SAFETY: as in `clone`.
    unsafe { &*data.cast::<Arc<dyn Task>>() }.woken();
}

unsafe fn drop_waker(data: *const ()) {
    // SAFETY: as in `wake`.
    let task = unsafe { Box::from_raw(data.cast_mut().cast::<Arc<dyn Task>>()) };
    task.dropped();
}
