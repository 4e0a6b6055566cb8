//! Memory that another process writes, as the process that reads it has it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use transship_core::{Device, Manifest, RepeatedPut, SharedOwner, TensorTree};

use crate::error::IpcError;
use crate::event_fd::EventFd;
use crate::imported::Imported;
use crate::ledger::Ledger;
use crate::packed::Packed;
use crate::received::Received;

/// Memory of this process that an importer writes: see [`Connection::open_window`](crate::Connection::open_window). The importer has it first, and again whenever what it has written is
/// not used any more.
///
/// Dropped, and all tensors over it too, it is taken from the importer, which frees it when it next listens.
pub struct Window {
    shared: Arc<Shared>,
    device: Device,
    /// What is handed out next, if that was made before it was written.
    ready: Mutex<Option<Ready>>,
}

/// What the window and tensors over it have.
struct Shared {
    ledger: Arc<Ledger>,
    ticket: u64,
    put: Arc<RepeatedPut>,
    packed: Packed,
    /// Where somebody waits by a descriptor.
    event: OnceLock<Arc<EventFd>>,
}

/// Tensors over the window that nobody has seen.
struct Ready {
    received: Received,
    is_taken: Arc<AtomicBool>,
}

/// What tensors own. Dropped, the importer may write again, if they were handed out.
struct Held {
    shared: Arc<Shared>,
    is_taken: Arc<AtomicBool>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.is_taken.load(Ordering::Acquire) {
            self.shared.ledger.give_again(self.shared.ticket);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.ledger.close_window(self.ticket);
    }
}

impl Window {
    pub(crate) fn new(
        ledger: &Arc<Ledger>,
        ticket: u64,
        (manifest, packed): (Manifest, Packed),
        device: &Device,
    ) -> Self {
        let (put, event) = (Arc::new(RepeatedPut::new(manifest)), OnceLock::new());
        let shared = Shared { ledger: Arc::clone(ledger), ticket, put, packed, event };
        Self { shared: Arc::new(shared), device: device.clone(), ready: Mutex::new(None) }
    }

    /// What the importer has written, waiting for it for at most `limit`: tensors over the window. The importer writes there again once they and what this returns are dropped,
    /// and no copy and no stream uses them any more. A copy that is done keeps them as long as its handle was not waited for.
    ///
    /// # Errors
    ///
    /// [`IpcError::NotInTime`], also if the tensors of the time before are still used; [`IpcError::PeerGone`], in the middle of a write as well, but not for what
    /// was finished before; [`IpcError::WindowClosed`]; [`IpcError::Forked`]; [`IpcError::Tensors`].
    pub fn written_within(&self, limit: Duration) -> Result<Imported, IpcError> {
        let (ready, ()) = self.take_within(limit, |_| Ok(()))?;
        Ok(Imported::of(ready.received))
    }

    /// The same, put into the places of the tensors of `tree`, as [`Imported::put_into`] does. All but the last step of that is done before it is waited for, while the importer writes;
    /// `tree` stays as it is until then. Where nothing is written within `limit`, the next call does it once more: who asks often waits by the [descriptor](Self::descriptor).
    ///
    /// # Errors
    ///
    /// As [`written_within`](Self::written_within) and [`Imported::put_into`]: a tree that does not fit is an error at once, and what is written stays to be taken. Only a tree that changes
    /// between the two steps ([`TreeChanged`](transship_core::Error::TreeChanged)) is found out behind that: what was written is gone then, and the importer writes again.
    pub fn put_written_within<S: TensorTree + ?Sized>(
        &self,
        tree: &mut S,
        limit: Duration,
    ) -> Result<(), IpcError> {
        let (_ready, prepared) = self.take_within(limit, |received| Ok(received.prepare(tree)?))?;
        Ok(prepared.put()?)
    }

    /// Waits until the window is this process's, with what is made of the tensors over it before.
    fn take_within<T>(
        &self,
        limit: Duration,
        prepare: impl FnOnce(&Received) -> Result<T, IpcError>,
    ) -> Result<(Ready, T), IpcError> {
        let Shared { ledger, ticket, .. } = &*self.shared;
        ledger.check_here()?;
        let known = self.ready().take();
        let ready = known.map_or_else(|| self.make_ready(), Ok)?;
        let taken = prepare(&ready.received).and_then(|made| {
            ledger.take_written(*ticket, limit)?;
            ready.is_taken.store(true, Ordering::Release);
            Ok(made)
        });
        match taken {
            Ok(made) => Ok((ready, made)),
            Err(error) => {
                let more = self.ready().replace(ready);
                drop(more);
                Err(error)
            }
        }
    }

    fn make_ready(&self) -> Result<Ready, IpcError> {
        let (put, packed) = (Arc::clone(&self.shared.put), &self.shared.packed);
        let is_taken = Arc::new(AtomicBool::new(false));
        let held = Held { shared: Arc::clone(&self.shared), is_taken: Arc::clone(&is_taken) };
        let owner = SharedOwner::new(held, &self.device);
        // SAFETY: the memory has room for all of the manifest, and is there until `owner` is dropped (`Packed`); that of the host was made of zeros. Nobody sees the tensors before the
        // window is this process's (`take_written`), and the importer does not write to it from then on until `owner` is dropped; one that does changes bytes where no reference points.
        let received = unsafe { Received::new(put, &owner, packed.memory()?)? };
        Ok(Ready { received, is_taken })
    }

    fn ready(&self) -> MutexGuard<'_, Option<Ready>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A descriptor for loops that wait for several things at a time: readable exactly as long as [`written_within`](Self::written_within) would not wait: the window was written, or has
    /// ended. It is made by the first call. Nothing is to be read there.
    ///
    /// A server whose trainers write when they like:
    ///
    /// ```
    /// use std::{thread, time::Duration};
    /// use rustix::event::{PollFd, PollFlags, poll};
    /// use transship_core::{Device, Tensor};
    /// use transship_ipc::{Exporter, Importer};
    ///
    /// const LIMIT: Duration = Duration::from_secs(10);
    /// let weights = |value: u8| vec![Tensor::from(vec![value; 1000])];
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("weights");
    /// let exporter = Exporter::bind(&path)?;
    ///
    /// // Two processes, usually.
    /// let train = |path: std::path::PathBuf, value| move || {
    ///     let mut importer = Importer::connect(path, &Device::host())?;
    ///     let mut turn = importer.next_turn_within(LIMIT)?.ok_or("nobody wants weights")?;
    ///     turn.put(&weights(value))?;
    ///     turn.finish()?;
    ///     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(importer)
    /// };
    /// let trainers = [1, 2].map(|value| thread::spawn(train(path.clone(), value)));
    ///
    /// let mut windows = Vec::new();
    /// let mut connections = Vec::new();
    /// for _ in 0..2 {
    ///     let mut connection = exporter.accept_within(LIMIT)?;
    ///     windows.push(connection.open_window(&weights(0), &Device::host())?);
    ///     connections.push(connection);
    /// }
    /// let mut written = 0;
    /// while written < 2 {
    ///     let descriptors: Result<Vec<_>, _> = windows.iter().map(|window| window.descriptor()).collect();
    ///     let mut polled: Vec<_> =
    ///         descriptors?.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    ///     poll(&mut polled, None)?;
    ///     for (window, polled) in windows.iter().zip(&polled) {
    ///         if !polled.revents().is_empty() {
    ///             let mut held = weights(0);
    ///             window.written_within(Duration::ZERO)?.put_into(&mut held)?;
    ///             written += 1;
    ///         }
    ///     }
    /// }
    /// # for trainer in trainers { trainer.join().unwrap().unwrap(); }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`IpcError::System`] if there are no more descriptors; [`IpcError::Forked`].
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>, IpcError> {
        let Shared { ledger, ticket, event, .. } = &*self.shared;
        ledger.check_here()?;
        let event = match event.get() {
            Some(event) => event,
            None => {
                let made = Arc::new(EventFd::new()?);
                event.get_or_init(|| made)
            }
        };
        // Each time: the thread that has made it may not have come so far.
        ledger.signal_when_written(*ticket, event);
        Ok(event.as_fd())
    }
}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Window").field("manifest", self.shared.put.manifest()).finish_non_exhaustive()
    }
}
