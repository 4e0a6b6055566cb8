//! Memory of the program, page-locked where it lies.

use std::any::Any;
use std::mem::ManuallyDrop;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use crate::backend::{Backend, Buffer, HostAccess, MemoryKind, Registration};
use crate::device_id::DeviceId;
use crate::error::{Error, Result};
use crate::runtime::leaks::count_leak;
use crate::runtime::{lent_collector, workers};
use crate::staging::locked_pages::{Holder, LockedPages};

/// Memory of the program that copies use as it is. It is unlocked before it goes.
pub(crate) struct PageLocked {
    memory: ManuallyDrop<Box<dyn Buffer>>,
    lock: Option<Lock>,
    device: DeviceId,
    is_reached_by_kernels: bool,
    /// Its destructor is the program's code.
    is_lent: bool,
}

/// What keeps memory page-locked. Dropped without [`end`](Self::end) it does so for ever.
pub(crate) struct Lock {
    registration: ManuallyDrop<Box<dyn Registration>>,
    pages: LockedPages,
}

impl Lock {
    /// Page-locks a range for `backend`. May block for milliseconds; up to a second where memory is being unlocked.
    ///
    /// # Safety
    ///
    /// As [`Backend::register`].
    pub(crate) unsafe fn new(
        backend: &dyn Backend,
        start: NonNull<u8>,
        bytes: NonZeroUsize,
        access: HostAccess,
    ) -> Result<Self> {
        let device = backend.device();
        let pages = LockedPages::claim(device.driver(), start, bytes)
            .map_err(|(page, holder)| in_the_way(device, start, bytes.get(), page, holder))?;
        // SAFETY: the caller's promise.
        match unsafe { backend.register(start, bytes.get(), access) } {
            Ok(registration) => Ok(Self { registration: ManuallyDrop::new(registration), pages }),
            Err(error) => {
                pages.release();
                Err(error)
            }
        }
    }

    /// Ends it, or gives it back, to be held by `on_failure` then. May block for milliseconds.
    ///
    /// # Safety
    ///
    /// No copy uses the memory any more.
    unsafe fn end(mut self, on_failure: Holder) -> Result<(), Box<(Error, Self)>> {
        self.pages.note(Holder::Ending);
        // SAFETY: the caller's promise; `self` goes with the first success.
        match unsafe { self.registration.end() } {
            Ok(()) => {
                drop(ManuallyDrop::into_inner(self.registration));
                self.pages.release();
                Ok(())
            }
            Err(error) => {
                self.pages.note(on_failure);
                Err(Box::new((error, self)))
            }
        }
    }
}

/// The error of a range of which another registration has a page.
#[cold]
fn in_the_way(device: DeviceId, start: NonNull<u8>, bytes: usize, page: usize, holder: Holder) -> Error {
    let (what, cure) = match holder {
        Holder::Ending => {
            let reason = "memory there that was registered before is still being unlocked";
            return Error::Busy { device, requested: bytes, reason, cure: "try again" };
        }
        Holder::Users => (
            "memory that is registered already",
            "take tensors out of that (Registered::tensor); if nobody holds it any more, wait for the copies and streams that use it; a \
             vector has its pages for itself with room for a page more than it needs (Vec::with_capacity)",
        ),
        Holder::Driver => ("memory that the driver did not unlock", "use other memory"),
    };
    let reason = format!("the page at {page:#x} holds {what}");
    Error::NotLockable { device, address: start.addr().get() as u64, bytes, reason, cure }
}

impl PageLocked {
    /// `memory`, which lies on the host and which `lock` keeps locked. `is_lent`: by the program, whose code its destructor is.
    pub(crate) fn new(memory: Box<dyn Buffer>, lock: Lock, device: DeviceId, is_lent: bool) -> Self {
        let is_reached_by_kernels = lock.registration.is_reached_by_kernels();
        Self { memory: ManuallyDrop::new(memory), lock: Some(lock), device, is_reached_by_kernels, is_lent }
    }

    pub(crate) fn of(buffer: &dyn Buffer) -> Option<&Self> {
        (buffer as &dyn Any).downcast_ref()
    }

    /// Whether copies of `driver` use it as it is.
    pub(crate) fn is_for(&self, driver: &str) -> bool {
        self.lock.is_some() && self.device.driver() == driver
    }

    /// Whether all that `device` does may write to it.
    pub(crate) fn is_written_by(&self, device: DeviceId) -> bool {
        let is_writable = || self.host_pointer().is_some_and(|(_, writable)| writable);
        self.lock.is_some() && self.device == device && self.is_reached_by_kernels && is_writable()
    }

    /// The memory, unlocked; on an error it stays locked. May block for milliseconds.
    ///
    /// # Safety
    ///
    /// No copy uses the memory any more.
    pub(crate) unsafe fn unlock(&mut self) -> Result<&mut Box<dyn Buffer>> {
        if let Some(lock) = self.lock.take() {
            // SAFETY: the caller's promise.
            if let Err(failed) = unsafe { lock.end(Holder::Users) } {
                let (error, lock) = *failed;
                self.lock = Some(lock);
                return Err(error);
            }
        }
        Ok(&mut self.memory)
    }

    /// The memory, locked or not.
    pub(crate) fn memory(&self) -> &dyn Buffer {
        &**self.memory
    }
}

// SAFETY: the memory is that of `memory`, which keeps promise 3 of `Backend`, and which is dropped after this.
unsafe impl Buffer for PageLocked {
    fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::Pinned
    }

    fn address(&self) -> Option<u64> {
        self.memory.address()
    }

    fn host_pointer(&self) -> Option<(NonNull<u8>, bool)> {
        self.memory.host_pointer()
    }
}

impl Drop for PageLocked {
    /// Unlocking takes milliseconds, and drivers may wait for a device in it: not on whatever thread happens to let go of the memory.
    fn drop(&mut self) {
        // SAFETY: this is `drop`, which runs once and does not touch the field again.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        match self.lock.take() {
            Some(lock) => {
                lock.pages.note(Holder::Ending);
                workers::dispose(Ending { held: Some((memory, lock)), is_lent: self.is_lent });
            }
            None => let_go(memory, self.is_lent),
        }
    }
}

/// Memory on its way out, which is unlocked and let go of when this is dropped.
struct Ending {
    held: Option<(Box<dyn Buffer>, Lock)>,
    is_lent: bool,
}

impl Drop for Ending {
    /// What the driver does not unlock stays where it is for ever: a later allocation there would be taken for page-locked.
    fn drop(&mut self) {
        let Some((memory, lock)) = self.held.take() else { return };
        // SAFETY: a copy that uses the memory holds its storage until it is over, and `PageLocked` was dropped with that.
        match unsafe { lock.end(Holder::Driver) } {
            Ok(()) => let_go(memory, self.is_lent),
            Err(_) => {
                let bytes = memory.bytes();
                std::mem::forget(memory);
                count_leak(bytes);
            }
        }
    }
}

fn let_go(memory: Box<dyn Buffer>, is_lent: bool) {
    match is_lent {
        true => lent_collector::let_go(memory),
        false => drop(memory),
    }
}
