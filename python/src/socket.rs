//! Wakes an event loop of Python: by a byte to a socket that it watches.

use std::io::Write;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::task::{Wake, Waker};

use pyo3::prelude::*;

/// Writes to the socket of this number, of which it keeps a share. It takes no GIL, and never blocks: a full socket has woken the loop already.
pub fn waker(socket: i32) -> PyResult<Waker> {
    // SAFETY: the caller holds the socket open during the call.
    let share = unsafe { BorrowedFd::borrow_raw(socket) }.try_clone_to_owned()?;
    let socket = UnixStream::from(share);
    socket.set_nonblocking(true)?;
    Ok(Waker::from(Arc::new(Socket(socket))))
}

struct Socket(UnixStream);

impl Wake for Socket {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Whoever has closed the other end does not wait any more.
        let _ = (&self.0).write(&[1]);
    }
}
