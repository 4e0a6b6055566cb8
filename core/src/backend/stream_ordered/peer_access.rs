//! Which peers reach memory of the program.

use smallvec::SmallVec;

use crate::backend::RawMemory;
use crate::backend::stream_ordered::api::Api;
use crate::backend::stream_ordered::context::Context;
use crate::device_id::DeviceId;
use crate::error::Result;
use crate::runtime::sync::Mutex;

/// Which peers reach memory of somebody else, as far as the driver was asked.
#[derive(Default)]
pub(crate) struct PeerAccess(Mutex<SmallVec<[(DeviceId, bool); 1]>>);

impl PeerAccess {
    /// Whether kernels of `peer` reach `memory`, which lies on the device of `owner`: the driver is asked once.
    pub(crate) fn of<A: Api>(&self, peer: &Context<A>, owner: &Context<A>, memory: &RawMemory) -> bool {
        let known = self.0.lock().iter().find(|(id, _)| *id == peer.id()).map(|(_, is_open)| *is_open);
        known.unwrap_or_else(|| {
            let is_open = is_open_to(owner, peer, memory).unwrap_or(false);
            self.0.lock().push((peer.id(), is_open));
            is_open
        })
    }
}

/// The driver is asked about at most so many allocations that memory of somebody else goes through.
const MOST_ALLOCATIONS: usize = 16;

/// Whether kernels of `peer` reach all of `memory`, which lies on the device of `owner`: each allocation in it is asked about, and there is nothing between them.
fn is_open_to<A: Api>(owner: &Context<A>, peer: &Context<A>, memory: &RawMemory) -> Result<bool> {
    let (mut at, end) = (memory.address, memory.address.saturating_add(memory.bytes as u64));
    for _ in 0..MOST_ALLOCATIONS {
        if at >= end {
            return Ok(true);
        }
        // SAFETY: the device is current, and has access to that of `owner` (`is_reached_by`); any address may be asked about.
        if unsafe { !peer.enter()?.reaches_memory(at, owner.api())? } {
            return Ok(false);
        }
        // SAFETY: the device is current; any address may be asked about.
        let (start, bytes) = unsafe { owner.enter()?.allocation_of(at)? };
        at = start.saturating_add(bytes as u64).max(at.saturating_add(1));
    }
    Ok(at >= end)
}
