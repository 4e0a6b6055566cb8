//! Which other devices of the driver a device works with.

use std::sync::{Arc, Weak};

use crate::backend::stream_ordered::allocator::DeviceAllocator;
use crate::backend::stream_ordered::api::Api;
use crate::backend::stream_ordered::buffer::OrderedBuffer;
use crate::backend::stream_ordered::context::Context;
use crate::backend::stream_ordered::gather_kernel::Gather;
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

    /// The kernels of the device that `op` reads, if that is another one than `own` and they had better write to memory of `own`. What
    /// gets wider on the way had better be read over the link.
    pub(crate) fn writer(&self, own: &Context<A>, op: &CopyOp<'_>) -> Option<Arc<Gather<A>>> {
        let CopyOp::Gather { from, elements, to: GatherTo::Device(to, _), .. } = *op else { return None };
        let (from, to) = (OrderedBuffer::<A>::of(from)?, OrderedBuffer::<A>::of(to)?);
        let widens = elements.cast.as_ref().is_some_and(Cast::widens);
        if from.context().is_same(own) || widens || !to.is_open_to_peers() {
            return None;
        }
        self.0.lock().iter().find(|peer| peer.is(from.allocator()))?.writer.as_ref()?.upgrade()
    }
}

impl<A: Api> Peer<A> {
    fn is(&self, other: &Arc<DeviceAllocator<A>>) -> bool {
        std::ptr::eq(self.allocator.as_ptr(), &raw const **other)
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
    Ok(true)
}
