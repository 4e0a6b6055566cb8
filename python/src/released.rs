//! Python objects that were let go of without the GIL.
//!
//! No thread of ours takes it: a thread that holds the GIL may wait for us. They are queued, and dropped by the next call into this module, or
//! by the interpreter's main thread, which is asked to look in. Once the interpreter ends they are leaked.

use std::ffi::{c_int, c_void};
use std::mem;
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::prelude::*;

static QUEUE: Mutex<Queue> = Mutex::new(Queue { objects: Vec::new(), is_asked: false, is_closed: false });

struct Queue {
    objects: Vec<Py<PyAny>>,
    /// Whether the main thread was asked, and has not looked in yet.
    is_asked: bool,
    /// Whether the interpreter ends.
    is_closed: bool,
}

/// Objects that a copy uses. They may be dropped on any thread.
pub struct Held(Vec<Py<PyAny>>);

impl Held {
    pub fn new(objects: Vec<Py<PyAny>>) -> Self {
        Self(objects)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        push(mem::take(&mut self.0));
    }
}

/// Drops what is queued. Called at the begin and at the end of each call.
pub fn drain(_py: Python<'_>) {
    // Nobody holds it for long; after a `fork` it may be held for ever.
    let taken = QUEUE.try_lock().map(|mut queue| mem::take(&mut queue.objects));
    drop(taken);
}

/// What is let go of from now on is leaked. Called when the interpreter ends.
pub fn close(py: Python<'_>) {
    drain(py);
    // Held for longer than that only by a thread that a `fork` has left behind.
    if let Some(mut queue) = QUEUE.try_lock_for(Duration::from_millis(100)) {
        queue.is_closed = true;
    }
}

fn push(mut objects: Vec<Py<PyAny>>) {
    if objects.is_empty() {
        return;
    }
    let mut queue = QUEUE.lock();
    if queue.is_closed {
        mem::forget(objects);
        return;
    }
    queue.objects.append(&mut objects);
    if !queue.is_asked {
        // SAFETY: it needs no GIL, and the interpreter is there: it closes the queue, under this lock, before it ends.
        queue.is_asked = unsafe { pyo3::ffi::Py_AddPendingCall(Some(look_in), std::ptr::null_mut()) } == 0;
    }
}

/// Runs on the main thread, with the GIL.
extern "C" fn look_in(_: *mut c_void) -> c_int {
    if let Some(mut queue) = QUEUE.try_lock() {
        queue.is_asked = false;
    }
    // The GIL is held already; this tells it to the crate that counts references.
    Python::attach(drain);
    0
}
