//! A window of another process that this one may write.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, getpid};
use transship_core::{
    Device, Error, ForkCount, Manifest, RawMemory, RepeatedPacking, Result, SharedOwner, Tensor, TensorTree,
};

use crate::arrived::Arrived;
use crate::copy_in_parts::{Places, copy_in_parts, is_lost, places_of};
use crate::error::{IpcError, check_here};
use crate::packed::ALIGNMENT;
use crate::socket::tell;
use crate::turns::Turns;
use crate::wire::Message;

/// A window of another process ([`Connection::open_window`](crate::Connection::open_window)) that is this one's to write until [`finish`](Self::finish).
///
/// Dropped before, it is given once more by [`Importer::next_turn_within`](crate::Importer::next_turn_within), with what was written so far. A process that is forked from this one
/// may drop it, which changes nothing, and is refused all else ([`IpcError::Forked`]).
pub struct Turn {
    window: Arc<PeerWindow>,
    turns: Arc<Turns>,
    is_over: bool,
}

/// Memory of another process.
pub(crate) struct PeerWindow {
    pub(crate) ticket: u64,
    socket: Arc<OwnedFd>,
    packing: RepeatedPacking,
    memory: RawMemory,
    owner: Arc<dyn Any + Send + Sync>,
    device: Device,
    process: Pid,
    forks: ForkCount,
    /// Whether the other process uses it.
    is_theirs: AtomicBool,
    places: Mutex<WindowPlaces>,
}

/// The places of tensors in a window. They stay from one copy to the next, which so comes behind one that has failed.
enum WindowPlaces {
    Unmade,
    /// Nothing was copied there, or all of it.
    Whole(Places),
    /// A copy has failed; the error of one whose stream or device is lost, if there was such a one.
    Half(Places, Option<Error>),
    /// That has ended a copy which still has the memory, and has it for ever.
    Lost(Error),
    /// A copy has them, or has not given them back.
    Taken,
}

impl Turn {
    pub(crate) fn new(window: Arc<PeerWindow>, turns: &Arc<Turns>) -> Self {
        Self { window, turns: Arc::clone(turns), is_over: false }
    }

    /// Which tensors the window has.
    pub fn manifest(&self) -> &Manifest {
        self.window.packing.manifest()
    }

    /// Copies `tree` there, from wherever its tensors lie. Waits until that is done, behind all work that they wait for. `tree` is not used any more then.
    ///
    /// # Errors
    ///
    /// [`ManifestMismatch`](transship_core::Error::ManifestMismatch) unless `tree` has the paths, types and shapes of the window, and shares memory where it does; as
    /// [`start_copy_into`](transship_core::start_copy_into), with the path of a tensor that is not suited; [`Forked`](transship_core::Error::Forked) in a child of the process that has the turn. A copy that has failed may have written a part: the window cannot be handed
    /// over then before another one has succeeded. Behind [`StreamLost`](transship_core::Error::StreamLost) and [`DeviceLost`](transship_core::Error::DeviceLost) nothing may show when that copy is over: where it still has the memory, this is the error of each
    /// later call, and the exporter opens another window.
    pub fn put<S: TensorTree + ?Sized>(&mut self, tree: &S) -> Result<()> {
        if !self.window.forks.is_now() {
            return Err(Error::Forked);
        }
        let tensors = self.window.packing.tensors(tree)?;
        let (places, lost) = match self.window.change_places(WindowPlaces::Taken) {
            WindowPlaces::Whole(places) => (places, None),
            WindowPlaces::Half(places, lost) => (places, lost),
            WindowPlaces::Unmade => (self.window.make_places(&tensors)?, None),
            WindowPlaces::Taken => return Err(Error::Taken),
            WindowPlaces::Lost(error) => {
                self.window.change_places(WindowPlaces::Lost(error.clone()));
                return Err(error);
            }
        };
        let (places, outcome) = match copy_in_parts(tensors, places, self.manifest()) {
            Ok(places) => (WindowPlaces::Whole(places), Ok(())),
            Err((error, places)) => match lost {
                Some(lost) if is_held(&error) => (WindowPlaces::Lost(lost.clone()), Err(lost)),
                lost => {
                    let lost = is_lost(&error).then(|| error.clone()).or(lost);
                    (
                        places.map_or(WindowPlaces::Taken, |places| WindowPlaces::Half(places, lost)),
                        Err(error),
                    )
                }
            },
        };
        self.window.change_places(places);
        outcome
    }

    /// Hands the window over to the other process, with what is in it: what was put there, or what was there before. Of a new window, that is zeros on the host, and any bytes on a device. `Ok` does not say that anybody reads it.
    ///
    /// # Errors
    ///
    /// [`IpcError::PeerGone`]; [`IpcError::Forked`]; [`IpcError::HalfWritten`] if the last copy there has failed: the window is the next turn once more; [`IpcError::WindowLost`] if none can succeed any more: it is
    /// no turn again.
    pub fn finish(mut self) -> std::result::Result<(), IpcError> {
        check_here(self.window.forks)?;
        match &*self.window.places() {
            WindowPlaces::Unmade | WindowPlaces::Whole(_) => {}
            WindowPlaces::Half(..) | WindowPlaces::Taken => return Err(IpcError::HalfWritten),
            WindowPlaces::Lost(_) => return Err(IpcError::WindowLost),
        }
        self.is_over = true;
        self.window.is_theirs.store(true, Ordering::Release);
        tell(&self.window.socket, Message::Written { ticket: self.window.ticket })
    }
}

/// Whether an earlier copy still has the memory.
fn is_held(error: &Error) -> bool {
    matches!(error, Error::UnsuitedTensor { error, .. } if matches!(**error, Error::NotWritable { .. }))
}

impl Drop for Turn {
    fn drop(&mut self) {
        // In a child, whoever has made it, the parent has the turn, and another thread may have had the lock.
        if !self.is_over && self.window.process == getpid() && !self.window.is_lost() {
            self.turns.put_back(&self.window);
        }
    }
}

impl PeerWindow {
    /// It is this process's first.
    pub(crate) fn new(socket: &Arc<OwnedFd>, ticket: u64, arrived: Arrived) -> Self {
        let Arrived { put, memory, owner, device } = arrived;
        let packing = RepeatedPacking::new(put.manifest().clone(), ALIGNMENT);
        let (socket, is_theirs) = (Arc::clone(socket), AtomicBool::new(false));
        let (owner, places) = (Arc::from(owner), Mutex::new(WindowPlaces::Unmade));
        let (process, forks) = (getpid(), ForkCount::now());
        Self { ticket, socket, packing, memory, owner, device, process, forks, is_theirs, places }
    }

    fn make_places(&self, tensors: &[(usize, Tensor)]) -> Result<Places> {
        let owner = SharedOwner::new(Arc::clone(&self.owner), &self.device);
        // SAFETY: the memory is there until `owner` is dropped, and each tensor of the manifest lies in it (`Arrived`). Nothing else of this process uses it: there is one turn at a time
        // (`Turns`), and these are made once. The other process does not use it before it is told; one that does reads bytes of its own window. Offsets are those of a packing of this process, which has
        // a place of its own for each tensor.
        let made = unsafe { places_of(tensors, &owner, self.memory) };
        if made.is_err() {
            self.change_places(WindowPlaces::Unmade);
        }
        made
    }

    /// Gives those before.
    fn change_places(&self, places: WindowPlaces) -> WindowPlaces {
        std::mem::replace(&mut *self.places(), places)
    }

    fn places(&self) -> MutexGuard<'_, WindowPlaces> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_lost(&self) -> bool {
        matches!(*self.places(), WindowPlaces::Lost(_))
    }

    /// The other process has given it back. `false` if it had not got it.
    pub(crate) fn come_back(&self) -> bool {
        self.is_theirs.swap(false, Ordering::AcqRel)
    }
}

impl std::fmt::Debug for Turn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Turn").field("manifest", self.manifest()).finish()
    }
}
