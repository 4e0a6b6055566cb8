//! Memory of the program that is registered.

use std::ptr::NonNull;
use std::sync::Arc;

use transship_core::backend::{HostAccess, Registration};
use transship_core::{Error, Result};

use crate::calls::Call;
use crate::instance::{Instance, State};
use crate::queue::Op;

/// What a driver locks at once.
const PAGE: usize = 4096;

/// One registration.
pub(crate) struct Registered {
    start: usize,
    bytes: usize,
    access: HostAccess,
}

/// It, as the library holds it.
pub(crate) struct LateRegistration {
    instance: Arc<Instance>,
    device: usize,
    id: u64,
}

impl Instance {
    /// Registers a range with all devices.
    pub(crate) fn register(
        self: &Arc<Self>,
        device: usize,
        start: NonNull<u8>,
        bytes: usize,
        access: HostAccess,
    ) -> Result<LateRegistration> {
        if self.config.mapped_staging {
            let what = "read memory of the program";
            return Err(Error::Unsupported { device: self.devices[device], what });
        }
        let mut state = self.enter(Call::Register, true, device)?;
        let new = Registered { start: start.addr().get(), bytes, access };
        if bytes == 0 || state.registered.values().any(|known| known.shares_a_page_with(&new)) {
            state.violations.push(format!("{bytes} bytes at {start:p} cannot be registered, or are already"));
        }
        let id = state.new_id();
        state.registered.insert(id, new);
        Ok(LateRegistration { instance: self.clone(), device, id })
    }
}

impl State {
    /// The registration that a range lies in, which copies may use like that.
    pub(crate) fn registration(&self, start: NonNull<u8>, bytes: usize, writes: bool) -> Option<u64> {
        let holds = |known: &Registered| {
            let offset = start.addr().get().checked_sub(known.start)?;
            (offset.checked_add(bytes)? <= known.bytes).then_some(())
        };
        let may = |known: &Registered| !writes || known.access == HostAccess::ReadWrite;
        self.registered.iter().find_map(|(id, known)| holds(known).filter(|()| may(known)).map(|()| *id))
    }
}

impl Registered {
    fn shares_a_page_with(&self, other: &Self) -> bool {
        let pages = |of: &Self| (of.start / PAGE, (of.start + of.bytes - 1) / PAGE);
        let ((first, last), (begin, end)) = (pages(self), pages(other));
        first <= end && begin <= last
    }
}

// SAFETY: what is not in the list is known to nobody.
unsafe impl Registration for LateRegistration {
    fn is_reached_by_kernels(&self) -> bool {
        true
    }

    unsafe fn end(&mut self) -> Result<()> {
        let mut state = self.instance.enter(Call::Unregister, true, self.device)?;
        let uses = |op: &Op| op.registrations().any(|id| id == self.id);
        if state.streams.iter().any(|queue| queue.pending.iter().any(uses)) {
            state.violations.push("memory is unregistered while a copy uses it".to_owned());
        }
        if state.registered.remove(&self.id).is_none() {
            state.violations.push("memory is unregistered twice".to_owned());
        }
        Ok(())
    }
}
