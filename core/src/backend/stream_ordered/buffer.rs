//! Buffers: device memory of the pool, and memory of somebody else.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::backend::stream_ordered::allocator::{Allocation, DeviceAllocator};
use crate::backend::stream_ordered::api::Api;
use crate::backend::stream_ordered::context::{Context, Current};
use crate::backend::stream_ordered::peer_access::PeerAccess;
use crate::backend::stream_ordered::stream::OrderedStream;
use crate::backend::{Buffer, MemoryKind, RawMemory, Ticket};
use crate::device_id::DeviceId;
use crate::error::{Error, Result};

/// Memory that a device can use.
pub struct OrderedBuffer<A: Api> {
    /// `None` once it was given back, and for no bytes at all.
    held: Option<Allocation<A>>,
    memory: RawMemory,
    allocator: Arc<DeviceAllocator<A>>,
}

impl<A: Api> OrderedBuffer<A> {
    pub(crate) fn allocate(
        allocator: &Arc<DeviceAllocator<A>>,
        bytes: usize,
        stream: &OrderedStream<A>,
    ) -> Result<Self> {
        Self::with(allocator, bytes, |allocator| allocator.allocate(bytes, stream))
    }

    /// The same outside of the pool.
    pub(crate) fn allocate_alone(allocator: &Arc<DeviceAllocator<A>>, bytes: usize) -> Result<Self> {
        Self::with(allocator, bytes, |allocator| allocator.allocate_alone(bytes))
    }

    fn with(
        allocator: &Arc<DeviceAllocator<A>>,
        bytes: usize,
        allocate: impl FnOnce(&DeviceAllocator<A>) -> Result<(u64, Allocation<A>)>,
    ) -> Result<Self> {
        let (address, held) = match bytes {
            0 => (0, None),
            _ => allocate(allocator).map(|(address, held)| (address, Some(held)))?,
        };
        let memory = RawMemory::new(address, bytes, MemoryKind::Device);
        Ok(Self { held, memory, allocator: allocator.clone() })
    }

    /// Describes memory of somebody else, which is let go of with the buffer.
    pub(crate) fn wrap(
        allocator: &Arc<DeviceAllocator<A>>,
        memory: RawMemory,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Self> {
        if let Err(error) = check(allocator.context(), &memory) {
            // Owners that free device memory find the device current, also when they are refused.
            let _current = allocator.context().enter();
            drop(owner);
            return Err(error);
        }
        let held = Some(Allocation::Lent { owner, access: PeerAccess::default() });
        Ok(Self { held, memory, allocator: allocator.clone() })
    }

    /// What keeps the memory, where it is somebody else's.
    pub fn owner(&self) -> Option<&(dyn Any + Send + Sync)> {
        match &self.held {
            Some(Allocation::Lent { owner, .. }) => Some(&**owner),
            _ => None,
        }
    }

    /// This kind of buffer behind the seam, if it is one.
    pub(crate) fn of(buffer: &dyn Buffer) -> Option<&Self> {
        (buffer as &dyn Any).downcast_ref()
    }

    pub(crate) fn context(&self) -> &Arc<Context<A>> {
        self.allocator.context()
    }

    pub(crate) fn allocator(&self) -> &Arc<DeviceAllocator<A>> {
        &self.allocator
    }

    /// Whether kernels of `peer`, which is this device or one that it is open to, reach the memory: it is ours, its owner has opened it, or it is page-locked and they use the
    /// addresses of the host.
    pub(crate) fn is_reached_by(&self, peer: &Context<A>) -> bool {
        if self.memory.kind == MemoryKind::Pinned {
            return self.is_reached_on_the_host(peer).unwrap_or(false);
        }
        match &self.held {
            Some(Allocation::Pooled { .. } | Allocation::Plain { .. }) => true,
            Some(Allocation::Lent { access, .. }) => access.of(peer, self.context(), &self.memory),
            None => false,
        }
    }

    /// `None` where the driver does not say.
    fn is_reached_on_the_host(&self, peer: &Context<A>) -> Option<bool> {
        let (start, _) = self.host_pointer()?;
        // SAFETY: the device is current; `wrap` has asked the driver whether it has page-locked the memory.
        unsafe { peer.enter().ok()?.kernels_reach_registered(start) }.ok()
    }
}

// SAFETY: the memory stays where it is until it is given back; the pool hands it out again only behind `after`, and
// the owner of foreign memory is kept until `after` is reached.
unsafe impl<A: Api> Buffer for OrderedBuffer<A> {
    fn bytes(&self) -> usize {
        self.memory.bytes
    }

    fn kind(&self) -> MemoryKind {
        self.memory.kind
    }

    fn address(&self) -> Option<u64> {
        let on_device = matches!(self.memory.kind, MemoryKind::Device | MemoryKind::Managed);
        (on_device && self.memory.address != 0).then_some(self.memory.address)
    }

    fn host_pointer(&self) -> Option<(NonNull<u8>, bool)> {
        match self.memory.kind {
            MemoryKind::Pinned | MemoryKind::Managed => {
                let start = usize::try_from(self.memory.address).ok()?;
                Some((NonNull::new(std::ptr::with_exposed_provenance_mut(start))?, false))
            }
            _ => None,
        }
    }

    fn release_after(&mut self, after: &[Ticket]) -> bool {
        self.held =
            self.held.take().and_then(|held| self.allocator.give_back(held, self.memory.bytes, after));
        self.held.is_none()
    }
}

impl<A: Api> Drop for OrderedBuffer<A> {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            // Nothing is left to wait for.
            let _ = self.allocator.give_back(held, self.memory.bytes, &[]);
        }
    }
}

/// Asks the driver about the first and the last byte: memory mapped piece by piece has no other range.
fn check<A: Api>(context: &Context<A>, memory: &RawMemory) -> Result<()> {
    let RawMemory { address, bytes, kind } = *memory;
    let wrong = |reason: String| Error::InvalidMemory { address, bytes, reason };
    let Some(beyond_first) = (bytes as u64).checked_sub(1) else { return Ok(()) };
    let last = address.checked_add(beyond_first).filter(|_| address != 0);
    let last = last.ok_or_else(|| wrong("no memory can lie there".to_owned()))?;
    if !matches!(kind, MemoryKind::Device | MemoryKind::Pinned | MemoryKind::Managed) {
        return Err(wrong("it is ordinary host memory; wrap it as memory of the host".to_owned()));
    }
    let driver = context.enter()?;
    check_address(&driver, address, kind).and_then(|()| check_address(&driver, last, kind)).map_err(wrong)
}

fn check_address<A: Api>(driver: &Current<'_, A>, address: u64, kind: MemoryKind) -> Result<(), String> {
    // SAFETY: the device is current; any address may be asked about.
    let known = unsafe { driver.memory_at(address) }.map_err(|error| error.to_string())?;
    let Some((known, ordinal)) = known else {
        return Err(format!("the driver knows no memory at {address:#x}"));
    };
    if known != kind {
        return Err(format!("the driver knows {address:#x} as {known:?} memory, and not as {kind:?}"));
    }
    if kind != MemoryKind::Device {
        return Ok(());
    }
    let (expected, actual) = (driver.id(), DeviceId::new(driver.id().driver(), ordinal));
    match actual {
        Ok(actual) if actual == expected => Ok(()),
        Ok(actual) => Err(format!("{address:#x} lies on {actual}, not on {expected}")),
        Err(error) => Err(error.to_string()),
    }
}
