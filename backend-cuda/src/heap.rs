//! Allocating device memory in stream order, and giving it back behind its last use without blocking.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys::CUresult;
use transship_core::backend::{StreamPriority, Ticket, count_leak};
use transship_core::{Error, Result};

use crate::calls::is_code;
use crate::context::{Context, ContextGuard};
use crate::pool::Pool;
use crate::stream::{CudaStream, Queue};

/// The memory of one device. Buffers hold it, and with it the context.
pub(crate) struct Heap {
    /// Waits, on the device, for uses of memory and frees it behind them.
    reclaim: CudaStream,
    pool: Option<Pool>,
    /// Bytes allocated where there is no pool.
    plain_bytes: AtomicU64,
    total: usize,
    context: Arc<Context>,
}

/// What a buffer owns.
pub(crate) enum Held {
    /// Memory of the pool, allocated on a stream: at this position if the stream is not ours.
    Pooled {
        /// Where it lies.
        address: u64,
        /// Where it was allocated.
        home: Arc<Queue>,
        /// Behind what.
        position: Option<u64>,
    },
    /// Memory allocated without a pool.
    Plain {
        /// Where it lies.
        address: u64,
        /// How much.
        bytes: usize,
    },
    /// Memory of somebody else.
    Lent(Box<dyn Any + Send + Sync>),
}

impl Held {
    /// Gives it up: nothing proves that the device is done with it.
    pub(crate) fn leak(self) {
        count_leak(if let Self::Plain { bytes, .. } = &self { *bytes } else { 0 });
        std::mem::forget(self);
    }
}

impl Heap {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self> {
        let mut total = 0;
        // SAFETY: the device exists; the result is written to a local.
        unsafe { context.enter()?.device_total_memory(&mut total, context.device())? };
        Ok(Self {
            reclaim: CudaStream::create(context, StreamPriority::Normal)?,
            pool: Pool::create(context)?,
            plain_bytes: AtomicU64::new(0),
            total,
            context: context.clone(),
        })
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn pool(&self) -> Option<&Pool> {
        self.pool.as_ref()
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

    /// Allocates memory, usable in stream order on `stream`; `bytes` is not 0.
    pub(crate) fn allocate(&self, bytes: usize, stream: &CudaStream) -> Result<(u64, Held)> {
        if bytes > self.total {
            let device = self.context.id();
            return Err(Error::TooLarge { device, kind: "device", requested: bytes, limit: self.total });
        }
        let driver = self.context.enter()?;
        let allocated = match &self.pool {
            Some(pool) => Self::allocate_pooled(&driver, pool, bytes, stream.queue()),
            None => self.allocate_plain(&driver, bytes),
        };
        allocated.map_err(|error| match is_code(&error, CUresult::CUDA_ERROR_OUT_OF_MEMORY) {
            true => self.out_of_memory(&driver, bytes),
            false => error,
        })
    }

    fn allocate_pooled(
        driver: &ContextGuard<'_>,
        pool: &Pool,
        bytes: usize,
        queue: &Arc<Queue>,
    ) -> Result<(u64, Held)> {
        queue.check_uncaptured(driver)?;
        let mut address = 0;
        // SAFETY: pool and stream are alive and of this context, which is current; the address goes to a local.
        unsafe { driver.allocate_from_pool(&mut address, bytes, pool.handle(), queue.handle())? };
        let position = match queue.is_own() {
            true => None,
            false => match queue.record(driver) {
                Ok(position) => Some(position),
                Err(error) => {
                    // SAFETY: just allocated on this stream, and nobody knows of it.
                    let _ = unsafe { driver.free_async(address, queue.handle()) };
                    return Err(error);
                }
            },
        };
        Ok((address, Held::Pooled { address, home: queue.clone(), position }))
    }

    fn allocate_plain(&self, driver: &ContextGuard<'_>, bytes: usize) -> Result<(u64, Held)> {
        let mut address = 0;
        // SAFETY: the context is current; the address goes to a local.
        unsafe { driver.allocate(&mut address, bytes)? };
        self.plain_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok((address, Held::Plain { address, bytes }))
    }

    fn out_of_memory(&self, driver: &ContextGuard<'_>, requested: usize) -> Error {
        let (mut free, mut total) = (0, self.total);
        // SAFETY: the context is current; the results go to locals, which stay as they are if it fails.
        let _ = unsafe { driver.memory_info(&mut free, &mut total) };
        Error::OutOfMemory { device: self.context.id(), kind: "device", requested, free, total }
    }

    /// Frees or drops `held` once every ticket of `after` is reached, if that can be said to the device; gives it back
    /// to be kept where it cannot. Never blocks where there is a pool; without one, the driver may synchronise the device
    /// when it frees. What can never be proved to be reached is leaked.
    pub(crate) fn give_back(&self, held: Held, after: &[Ticket]) -> Option<Held> {
        let mut pending = Vec::new();
        for ticket in after {
            match ticket.is_reached() {
                Ok(true) => {}
                Ok(false) => pending.push(ticket.clone()),
                Err(_) => {
                    held.leak();
                    return None;
                }
            }
        }
        match held {
            held if pending.is_empty() => self.free(held),
            Held::Pooled { address, home, position } if pending.iter().all(is_ours) => {
                self.reclaim(address, &home, position, &pending);
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
    fn free(&self, held: Held) {
        match held {
            Held::Pooled { address, home, position: None } => {
                // SAFETY: allocated on this stream, which is ours and alive, and used by nobody any more.
                let free = |driver: ContextGuard<'_>| unsafe { driver.free_async(address, home.handle()) };
                if self.context.enter().and_then(free).is_err() {
                    count_leak(0);
                }
            }
            Held::Pooled { address, home, position } => {
                self.reclaim(address, &home, position, &[]);
            }
            Held::Plain { address, bytes } => {
                self.plain_bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
                // SAFETY: allocated by `allocate_plain` and used by nobody any more.
                let free = |driver: ContextGuard<'_>| unsafe { driver.free(address) };
                if self.context.enter().and_then(free).is_err() {
                    count_leak(bytes);
                }
            }
            Held::Lent(owner) => {
                // Owners that free device memory find the context current, and leave the caller's as it was.
                let _current = self.context.enter();
                drop(owner);
            }
        }
    }

    /// Frees pooled memory on a stream of its own, behind its allocation and behind `after`, without blocking. An error
    /// leaks it.
    fn reclaim(&self, address: u64, home: &Queue, position: Option<u64>, after: &[Ticket]) {
        if self.try_reclaim(address, home, position, after).is_err() {
            count_leak(0);
        }
    }

    fn try_reclaim(&self, address: u64, home: &Queue, position: Option<u64>, after: &[Ticket]) -> Result<()> {
        let queue = self.reclaim.queue();
        let allocated = match position {
            Some(position) => position,
            None => home.record(&self.context.enter()?)?,
        };
        queue.wait_for(home, allocated)?;
        for ticket in after {
            if let Some(stream) = CudaStream::of(&*ticket.stream) {
                queue.wait_for(stream.queue(), ticket.position)?;
            }
        }
        let driver = self.context.enter()?;
        // SAFETY: allocated from the pool; this stream waits for the allocation and for every use.
        unsafe { driver.free_async(address, queue.handle()) }
    }
}

fn is_ours(ticket: &Ticket) -> bool {
    CudaStream::of(&*ticket.stream).is_some()
}
