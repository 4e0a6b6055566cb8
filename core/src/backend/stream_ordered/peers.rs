//! Which other devices of the driver a device works with.

use std::sync::{Arc, Weak};

use crate::backend::stream_ordered::allocator::DeviceAllocator;
use crate::backend::stream_ordered::api::Api;
use crate::backend::stream_ordered::buffer::OrderedBuffer;
use crate::backend::stream_ordered::context::Context;
use crate::backend::stream_ordered::gather_kernel::Gather;
use crate::backend::stream_ordered::places::unsupported;
use crate::backend::{CopyOp, GatherTo};
use crate::cast::Cast;
use crate::error::Result;
use crate::runtime::sync::Mutex;

/// The devices that one was asked about.
pub(crate) struct Peers<A: Api>(Mutex<Vec<Peer<A>>>);

struct Peer<A: Api> {
    allocator: Weak<DeviceAllocator<A>>,
    /// This device reads and writes memory of that one.
    is_reached: bool,
    /// Kernels of that device, if they write to memory of this one.
    writer: Option<Weak<Gather<A>>>,
}

impl<A: Api> Peers<A> {
    pub(crate) fn new() -> Self {
        Self(Mutex::default())
    }

    /// Whether the device of `own` reaches memory of the device of `other`. At the first call both are opened to each other.
    pub(crate) fn reaches(
        &self,
        own: &DeviceAllocator<A>,
        other: &Arc<DeviceAllocator<A>>,
        kernels_of_other: Option<&Arc<Gather<A>>>,
    ) -> bool {
        let mut peers = self.0.lock();
        if let Some(peer) = peers.iter().find(|peer| peer.is(other)) {
            return peer.is_reached;
        }
        let is_reached = open(own, other).unwrap_or(false);
        let writer = kernels_of_other.filter(|_| is_reached && open(other, own).unwrap_or(false));
        let peer = Peer { allocator: Arc::downgrade(other), is_reached, writer: writer.map(Arc::downgrade) };
        peers.push(peer);
        is_reached
    }

    /// Whether kernels of the device of `other` write to memory of the device that these are the peers of.
    pub(crate) fn is_written_by(&self, other: &DeviceAllocator<A>) -> bool {
        self.writer_of(other).is_some()
    }

    /// The kernels of the device that `op` reads, if they are to write to memory of `own`, another device; `None` if kernels of `own` read
    /// it.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if neither may: the program has allocated what is read there.
    pub(crate) fn writer(&self, own: &Context<A>, op: &CopyOp<'_>) -> Result<Option<Arc<Gather<A>>>> {
        let CopyOp::Gather { from, elements, to, .. } = *op else { return Ok(None) };
        let Some(from) = OrderedBuffer::<A>::of(from).filter(|from| !from.context().is_same(own)) else {
            return Ok(None);
        };
        let is_written = match to {
            GatherTo::Device(to, _) => {
                OrderedBuffer::<A>::of(to).is_some_and(|to| to.is_reached_by(from.context()))
            }
            GatherTo::Host(_) => false,
        };
        let may_be_read = from.is_reached_by(own);
        // What gets wider on the way had better be read over the link.
        let had_better_be_read = may_be_read && elements.cast.as_ref().is_some_and(Cast::widens);
        match self.writer_of(from.allocator()).filter(|_| is_written && !had_better_be_read) {
            None if !may_be_read => {
                Err(unsupported(own, "read what the program has allocated on another device"))
            }
            writer => Ok(writer),
        }
    }

    fn writer_of(&self, other: &DeviceAllocator<A>) -> Option<Arc<Gather<A>>> {
        self.0.lock().iter().find(|peer| peer.is(other))?.writer.as_ref()?.upgrade()
    }
}

impl<A: Api> Peer<A> {
    fn is(&self, other: &DeviceAllocator<A>) -> bool {
        std::ptr::eq(self.allocator.as_ptr(), other)
    }
}

/// Lets the device of `own` read and write memory of the device of `other`; `false` if the hardware does not.
fn open<A: Api>(own: &DeviceAllocator<A>, other: &DeviceAllocator<A>) -> Result<bool> {
    let peer = other.context();
    let driver = own.context().enter()?;
    // SAFETY: the device is current; both are held open.
    unsafe {
        if !driver.can_access(peer.api())? {
            return Ok(false);
        }
        driver.enable_access(peer.api())?;
    }
    other.pool().map_or(Ok(()), |pool| pool.open_to(own.context()))?;
    other.imported().open_to(own.context());
    Ok(true)
}
