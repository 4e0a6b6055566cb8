//! The windows that a process may write, in the order in which they came to it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{IpcError, broken};
use crate::turn::{PeerWindow, Turn};
use crate::wire::MOST_SLOTS;

/// The windows of an exporter. Each is in line, or is written by who has its [`Turn`], or is the exporter's.
#[derive(Default)]
pub(crate) struct Turns(Mutex<Windows>);

#[derive(Default)]
struct Windows {
    /// By their tickets.
    open: BTreeMap<u64, Arc<PeerWindow>>,
    line: VecDeque<Arc<PeerWindow>>,
}

impl Turns {
    /// A new window, which is this process's to write.
    pub(crate) fn open(&self, window: PeerWindow) -> Result<(), IpcError> {
        let mut windows = self.windows();
        if windows.open.len() >= MOST_SLOTS || windows.open.contains_key(&window.ticket) {
            drop(windows);
            return Err(broken("an exporter opens too many windows"));
        }
        let window = Arc::new(window);
        windows.open.insert(window.ticket, Arc::clone(&window));
        windows.line.push_back(window);
        Ok(())
    }

    /// The exporter does not use a window any more.
    pub(crate) fn give_again(&self, ticket: u64) -> Result<(), IpcError> {
        let mut windows = self.windows();
        let window = windows.open.get(&ticket).filter(|window| window.come_back()).cloned();
        let window = window.ok_or_else(|| broken("an exporter gives a window that it has not got"))?;
        windows.line.push_back(window);
        Ok(())
    }

    /// The first one in line.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Turn> {
        let window = self.windows().line.pop_front();
        window.map(|window| Turn::new(window, self))
    }

    /// A turn is given back, of a window that was not closed meanwhile: it is the next one.
    pub(crate) fn put_back(&self, window: &Arc<PeerWindow>) {
        let mut windows = self.windows();
        if windows.open.contains_key(&window.ticket) {
            windows.line.push_front(Arc::clone(window));
        }
    }

    /// The exporter wants it back, or has refused it before.
    pub(crate) fn close(&self, ticket: u64) {
        let mut windows = self.windows();
        let window = windows.open.remove(&ticket);
        windows.line.retain(|window| window.ticket != ticket);
        // Memory is given back without the lock.
        drop(windows);
        drop(window);
    }

    /// There are no more.
    pub(crate) fn close_all(&self) {
        let closed = std::mem::take(&mut *self.windows());
        drop(closed);
    }

    fn windows(&self) -> MutexGuard<'_, Windows> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
