//! Python objects that were let go of without the GIL.
//!
//! No thread of ours takes it: a thread that holds the GIL may wait for us. They are queued, and dropped by the next call into this module, or
//! by the interpreter's main thread, which is asked to look in. Once the interpreter ends they are leaked.

use std::ffi::{c_int, c_void};
use std::mem;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::fetch::fetch;
use crate::forked;

static QUEUE: Mutex<Queue> =
    Mutex::new(Queue { objects: Vec::new(), is_asked: false, asking: 0, is_closed: false });

struct Queue {
    objects: Vec<Py<PyAny>>,
    /// Whether the main thread was asked, and has not looked in yet.
    is_asked: bool,
    /// How many threads are about to ask it. Until they have, the interpreter is there.
    asking: usize,
    /// Whether the interpreter ends.
    is_closed: bool,
}

/// How many objects before it is let go of an object is fetched: its count lies in no cache where much was copied since.
const AHEAD: usize = 8;

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
    let mut objects = taken.unwrap_or_default().into_iter();
    while let Some(object) = objects.next() {
        if let Some(later) = objects.as_slice().get(AHEAD) {
            fetch(later.as_ptr().cast());
        }
        drop(object);
    }
}

/// What is let go of from now on is leaked. Called when the interpreter ends.
pub fn close(py: Python<'_>) {
    drain(py);
    // Held for longer than that only by a thread that a `fork` has left behind.
    let deadline = Instant::now() + Duration::from_millis(100);
    while let Some(mut queue) = QUEUE.try_lock_until(deadline) {
        queue.is_closed = true;
        if queue.asking == 0 || Instant::now() >= deadline {
            return;
        }
        drop(queue);
        thread::yield_now();
    }
}

fn push(mut objects: Vec<Py<PyAny>>) {
    if objects.is_empty() {
        return;
    }
    let Some(mut queue) = forked::lock_at_once(&QUEUE).filter(|queue| !queue.is_closed) else {
        mem::forget(objects);
        return;
    };
    queue.objects.append(&mut objects);
    let asks = !mem::replace(&mut queue.is_asked, true);
    queue.asking += usize::from(asks);
    drop(queue);
    if asks {
        ask();
    }
}

/// Asks the main thread to look in, without the lock: Python takes locks of its own for it.
fn ask() {
    // SAFETY: it needs no GIL, and the interpreter is there: before it ends, it waits for who is about to ask.
    let is_asked = unsafe { pyo3::ffi::Py_AddPendingCall(Some(look_in), std::ptr::null_mut()) } == 0;
    if let Some(mut queue) = forked::lock_at_once(&QUEUE) {
        queue.asking -= 1;
        queue.is_asked &= is_asked;
    }
}

/// Runs on the main thread, with the GIL.
extern "C" fn look_in(_: *mut c_void) -> c_int {
    // Waited for: if it went on saying that the main thread is asked, nobody would ask it again. Who has it waits for nothing.
    if let Some(mut queue) = forked::lock_at_once(&QUEUE) {
        queue.is_asked = false;
    }
    // The GIL is held already; this tells it to the crate that counts references.
    Python::attach(drain);
    0
}
