//! Allocating device memory in stream order, and giving it back behind its last use without blocking.

use std::any::Any;
use std::sync::Arc;

use crate::backend::stream_ordered::api::Api;
use crate::backend::stream_ordered::context::{Context, Current};
use crate::backend::stream_ordered::imported_pools::ImportedPools;
use crate::backend::stream_ordered::mem_pool::MemPool;
use crate::backend::stream_ordered::peer_access::PeerAccess;
use crate::backend::stream_ordered::stream::{OrderedStream, StreamState};
use crate::backend::{DeviceMemory, StreamPriority, Ticket};
use crate::error::{Error, Result};
use crate::runtime::leaks::count_leak;
use crate::runtime::sync::atomic::{AtomicU64, Ordering};

/// The memory of one device. Buffers hold it, and with it the context.
pub(crate) struct DeviceAllocator<A: Api> {
    /// Waits, on the device, for uses of memory and frees it behind them.
    reclaim: OrderedStream<A>,
    pool: Option<MemPool<A>>,
    imported: ImportedPools<A>,
    /// Bytes allocated outside of the pool, or where there is none, and the most that ever were.
    plain_bytes: AtomicU64,
    most_plain_bytes: AtomicU64,
    total: usize,
    context: Arc<Context<A>>,
}

/// What a buffer owns.
pub(crate) enum Allocation<A: Api> {
    /// Memory of the pool, allocated on a stream: at this position if the stream is not ours.
    Pooled {
        /// Where it lies.
        address: u64,
        /// Where it was allocated.
        home: Arc<StreamState<A>>,
        /// Behind what.
        position: Option<u64>,
    },
    /// Memory allocated without a pool.
    Plain {
        /// Where it lies.
        address: u64,
    },
    /// Memory of somebody else.
    Lent { owner: Box<dyn Any + Send + Sync>, access: PeerAccess },
}

impl<A: Api> Allocation<A> {
    /// Gives it up, `bytes` bytes: nothing proves that the device is done with it.
    fn leak(self, bytes: usize) {
        count_leak(bytes);
        std::mem::forget(self);
    }
}

impl<A: Api> DeviceAllocator<A> {
    pub(crate) fn new(context: &Arc<Context<A>>) -> Result<Self> {
        // SAFETY: the device is current.
        let total = unsafe { context.enter()?.total_memory()? };
        Ok(Self {
            reclaim: OrderedStream::<A>::create(context, StreamPriority::Normal)?,
            pool: MemPool::create(context)?,
            imported: ImportedPools::new(),
            plain_bytes: AtomicU64::new(0),
            most_plain_bytes: AtomicU64::new(0),
            total,
            context: context.clone(),
        })
    }

    pub(crate) fn context(&self) -> &Arc<Context<A>> {
        &self.context
    }

    pub(crate) fn pool(&self) -> Option<&MemPool<A>> {
        self.pool.as_ref()
    }

    /// Those of other processes, on this device.
    pub(crate) fn imported(&self) -> &ImportedPools<A> {
        &self.imported
    }

    /// A stream of the device's own.
    pub(crate) fn state(&self) -> &StreamState<A> {
        self.reclaim.state()
    }

    /// Bytes of the device.
    pub(crate) fn total(&self) -> usize {
        self.total
    }

    /// Bytes held from the driver.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        let pooled = self.pool.as_ref().and_then(|pool| pool.reserved_bytes().ok());
        pooled.unwrap_or(0) + self.plain_bytes.load(Ordering::Relaxed)
    }

    /// What the device has, and what of it is held and used.
    pub(crate) fn memory(&self) -> Result<DeviceMemory> {
        let plain = self.plain_memory();
        let held = match &self.pool {
            Some(pool) => together(pool.memory()?, &plain),
            None => plain,
        };
        // SAFETY: the device is current.
        let (free, total) = unsafe { self.context.enter()?.memory_info()? };
        // A driver may begin to count from nothing at a reset.
        let at_least = |peak: Option<u64>, now| peak.map(|peak| peak.max(now));
        Ok(DeviceMemory {
            free: Some(free as u64),
            total: Some(total as u64),
            peak_reserved: at_least(held.peak_reserved, held.reserved.unwrap_or(0)),
            peak_used: at_least(held.peak_used, held.used.unwrap_or(0)),
            ..held
        })
    }

    /// Lets the peaks of [`memory`](Self::memory) begin anew.
    pub(crate) fn reset_peaks(&self) -> Result<()> {
        self.most_plain_bytes.store(0, Ordering::Relaxed);
        self.pool.as_ref().map_or(Ok(()), MemPool::reset_peaks)
    }

    /// Outside of the pool all that is held is used.
    fn plain_memory(&self) -> DeviceMemory {
        let now = Some(self.plain_bytes.load(Ordering::Relaxed));
        let most = Some(self.most_plain_bytes.load(Ordering::Relaxed));
        DeviceMemory {
            reserved: now,
            used: now,
            peak_reserved: most,
            peak_used: most,
            ..DeviceMemory::default()
        }
    }

    /// Allocates memory, usable in stream order on `stream`; `bytes` is not 0.
    pub(crate) fn allocate(&self, bytes: usize, stream: &OrderedStream<A>) -> Result<(u64, Allocation<A>)> {
        self.with_driver(bytes, |driver| match &self.pool {
            Some(pool) => Self::allocate_pooled(driver, pool, bytes, stream.state()),
            None => self.allocate_plain(driver, bytes),
        })
    }

    /// Allocates memory outside of the pool; `bytes` is not 0.
    pub(crate) fn allocate_alone(&self, bytes: usize) -> Result<(u64, Allocation<A>)> {
        self.with_driver(bytes, |driver| self.allocate_plain(driver, bytes))
    }

    fn with_driver<T>(&self, bytes: usize, allocate: impl FnOnce(&Current<'_, A>) -> Result<T>) -> Result<T> {
        if bytes > self.total {
            let device = self.context.id();
            return Err(Error::TooLarge { device, kind: "device", requested: bytes, limit: self.total });
        }
        let driver = self.context.enter()?;
        allocate(&driver).map_err(|error| match driver.is_out_of_memory(&error) {
            true => self.out_of_memory(&driver, bytes),
            false => error,
        })
    }

    fn allocate_pooled(
        driver: &Current<'_, A>,
        pool: &MemPool<A>,
        bytes: usize,
        state: &Arc<StreamState<A>>,
    ) -> Result<(u64, Allocation<A>)> {
        state.check()?;
        state.check_uncaptured(driver)?;
        // SAFETY: pool and stream are alive and of this device, which is current.
        let address = unsafe { driver.allocate_pooled(bytes, pool.handle(), state.handle())? };
        let position = match state.is_own() {
            true => None,
            false => match state.record(driver) {
                Ok(position) => Some(position),
                Err(error) => {
                    // SAFETY: just allocated on this stream, and nobody knows of it.
                    let _ = unsafe { driver.free_pooled(address, state.handle()) };
                    return Err(error);
                }
            },
        };
        Ok((address, Allocation::Pooled { address, home: state.clone(), position }))
    }

    fn allocate_plain(&self, driver: &Current<'_, A>, bytes: usize) -> Result<(u64, Allocation<A>)> {
        // SAFETY: the device is current.
        let address = unsafe { driver.allocate(bytes)? };
        let bytes = bytes as u64;
        let now = self.plain_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.most_plain_bytes.fetch_max(now, Ordering::Relaxed);
        Ok((address, Allocation::Plain { address }))
    }

    fn out_of_memory(&self, driver: &Current<'_, A>, requested: usize) -> Error {
        // SAFETY: the device is current.
        let (free, total) = unsafe { driver.memory_info() }.unwrap_or((0, self.total));
        Error::OutOfMemory { device: self.context.id(), kind: "device", requested, free, total }
    }

    /// Frees or drops `held`, `bytes` bytes, once every ticket of `after` is reached, if that can be said to the device; gives it back
    /// to be kept where it cannot. Never blocks where there is a pool; without one, the driver may synchronise the device
    /// when it frees. What can never be proved to be reached is leaked.
    pub(crate) fn give_back(
        &self,
        held: Allocation<A>,
        bytes: usize,
        after: &[Ticket],
    ) -> Option<Allocation<A>> {
        let mut pending = Vec::new();
        for ticket in after {
            match ticket.is_reached() {
                Ok(true) => {}
                Ok(false) => pending.push(ticket.clone()),
                Err(_) => {
                    held.leak(bytes);
                    return None;
                }
            }
        }
        match held {
            held if pending.is_empty() => self.free(held, bytes),
            Allocation::Pooled { address, home, position } if pending.iter().all(is_ours::<A>) => {
                count_if_refused(self.reclaim(address, &home, position, &pending), bytes);
            }
            held => return Some(held),
        }
        None
    }

    /// Gives idle memory of the pool back to the driver; returns how many bytes.
    pub(crate) fn trim(&self) -> usize {
        let before = self.reserved_bytes();
        if let Some(pool) = &self.pool {
            // What the driver does not take back stays in the pool.
            let _ = pool.trim();
        }
        usize::try_from(before.saturating_sub(self.reserved_bytes())).unwrap_or(usize::MAX)
    }

    /// Frees memory that nobody uses any more. What the driver refuses to free is leaked and counted.
    fn free(&self, held: Allocation<A>, bytes: usize) {
        match held {
            Allocation::Pooled { address, home, position: None } => {
                // SAFETY: allocated on this stream, which is ours and alive, and used by nobody any more.
                let free = |driver: Current<'_, A>| unsafe { driver.free_pooled(address, home.handle()) };
                count_if_refused(self.context.enter().and_then(free), bytes);
            }
            Allocation::Pooled { address, home, position } => {
                count_if_refused(self.reclaim(address, &home, position, &[]), bytes);
            }
            Allocation::Plain { address } => {
                self.plain_bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
                // SAFETY: allocated by `allocate_plain` and used by nobody any more.
                let free = |driver: Current<'_, A>| unsafe { driver.free(address) };
                count_if_refused(self.context.enter().and_then(free), bytes);
            }
            Allocation::Lent { owner, .. } => {
                // Owners that free device memory find the device current, and leave the caller's as it was.
                let _current = self.context.enter();
                drop(owner);
            }
        }
    }

    /// Frees pooled memory on a stream of its own, behind its allocation and behind `after`, without blocking. An error
    /// leaks it.
    fn reclaim(
        &self,
        address: u64,
        home: &StreamState<A>,
        position: Option<u64>,
        after: &[Ticket],
    ) -> Result<()> {
        let state = self.reclaim.state();
        let allocated = match position {
            Some(position) => position,
            None => home.record(&self.context.enter()?)?,
        };
        state.wait_for(home, allocated)?;
        for ticket in after {
            if let Some(stream) = OrderedStream::<A>::of(&*ticket.stream) {
                state.wait_for(stream.state(), ticket.position)?;
            }
        }
        let driver = self.context.enter()?;
        // SAFETY: allocated from the pool; this stream waits for the allocation and for every use.
        unsafe { driver.free_pooled(address, state.handle()) }
    }
}

/// What the pool holds, and what is held beside it. Peaks of the two need not have been at the same time: their sum is the most that can have been.
fn together(pool: DeviceMemory, plain: &DeviceMemory) -> DeviceMemory {
    let sum = |pooled: Option<u64>, plain: Option<u64>| Some(pooled? + plain.unwrap_or(0));
    DeviceMemory {
        reserved: sum(pool.reserved, plain.reserved),
        used: sum(pool.used, plain.used),
        peak_reserved: sum(pool.peak_reserved, plain.peak_reserved),
        peak_used: sum(pool.peak_used, plain.peak_used),
        ..pool
    }
}

/// Counts `bytes` bytes as leaked if they could not be freed.
fn count_if_refused(freed: Result<()>, bytes: usize) {
    if freed.is_err() {
        count_leak(bytes);
    }
}

fn is_ours<A: Api>(ticket: &Ticket) -> bool {
    OrderedStream::<A>::of(&*ticket.stream).is_some()
}
