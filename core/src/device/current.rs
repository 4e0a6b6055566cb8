//! The current device and the current stream of a thread.

use std::cell::RefCell;
use std::marker::PhantomData;

use crate::device::device::Device;
use crate::device::stream::Stream;
use crate::runtime::sync::thread_local;

/// While it lives, a device or a stream is the current one of this thread; then the one before is again.
pub struct Scope {
    number: u64,
    not_send: PhantomData<*const ()>,
}

enum Entered {
    Device(Device),
    Stream(Stream),
}

thread_local! {
    static CURRENT: RefCell<Vec<(u64, Entered)>> = const { RefCell::new(Vec::new()) };
}

/// What was entered last of those that `find` looks for. At the end of a thread nothing is.
fn entered<R>(find: impl Fn(&Entered) -> Option<R>) -> Option<R> {
    let last = |current: &RefCell<Vec<(u64, Entered)>>| {
        current.borrow().iter().rev().find_map(|(_, entered)| find(entered))
    };
    CURRENT.try_with(last).ok().flatten()
}

impl Scope {
    fn new(entered: Entered) -> Self {
        let enter = |current: &RefCell<Vec<(u64, Entered)>>| {
            let mut current = current.borrow_mut();
            let number = current.last().map_or(0, |(last, _)| last + 1);
            current.push((number, entered));
            number
        };
        // At the end of a thread there is nothing to enter: no scope has this number.
        Self { number: CURRENT.try_with(enter).unwrap_or(u64::MAX), not_send: PhantomData }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        // The thread may be at its end already.
        let left = CURRENT.try_with(|current| {
            let mut current = current.borrow_mut();
            let index = current.iter().position(|(number, _)| *number == self.number)?;
            Some(current.remove(index))
        });
        // Only now, when nothing is borrowed: that may run foreign code.
        drop(left);
    }
}

impl Device {
    /// Makes this the current device of this thread, until the scope is dropped.
    #[must_use = "the scope ends when it is dropped"]
    pub fn enter(&self) -> Scope {
        Scope::new(Entered::Device(self.clone()))
    }

    /// The current device of this thread: the one entered last, else the host.
    pub fn current() -> Self {
        let device = |entered: &Entered| match entered {
            Entered::Device(device) => Some(device.clone()),
            Entered::Stream(_) => None,
        };
        entered(device).unwrap_or_else(Self::host)
    }
}

impl Stream {
    /// Makes this the current stream of its device on this thread, until the scope is dropped: copies that name no
    /// stream run on it.
    #[must_use = "the scope ends when it is dropped"]
    pub fn enter(&self) -> Scope {
        Scope::new(Entered::Stream(self.clone()))
    }

    /// The current stream of `device` on this thread, if one was entered.
    pub fn current(device: &Device) -> Option<Self> {
        entered(|entered| match entered {
            Entered::Stream(stream) if stream.device.same_as(device) => Some(stream.clone()),
            _ => None,
        })
    }
}
