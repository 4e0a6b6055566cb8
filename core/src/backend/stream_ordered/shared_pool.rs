//! Pools whose memory two processes have.

use std::any::Any;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustc_hash::{FxBuildHasher, FxHashSet};

use crate::backend::StreamPriority;
use crate::backend::shared_pool::{ImportedPool, MemoryName, PeerMemory, SharedPool};
use crate::backend::stream_ordered::allocator::DeviceAllocator;
use crate::backend::stream_ordered::api::Api;
use crate::backend::stream_ordered::context::{Context, Current};
use crate::backend::stream_ordered::imported_pools::OpenTo;
use crate::backend::stream_ordered::stream::OrderedStream;
use crate::error::{Error, Result};
use crate::runtime::fork;
use crate::runtime::leaks::count_leak;
use crate::runtime::sync::{Mutex, statics};

statics! {
    // Locked while something is imported and given back, so that what comes is nobody else's.
    static IMPORTED: Mutex<Imports> = Mutex::new(Imports::NONE);
}

/// What this process has of others: pools by their handles, memory by its addresses. A driver has each once: who imports it again gets the
/// same one, and who gives that back takes it from all (H100, `exported_pools.py`).
struct Imports {
    pools: FxHashSet<u64>,
    memory: FxHashSet<u64>,
}

impl Imports {
    const NONE: Self =
        Self { pools: FxHashSet::with_hasher(FxBuildHasher), memory: FxHashSet::with_hasher(FxBuildHasher) };
}

/// A pool for another process, or of one.
pub(crate) struct PeerPool<A: Api>(Arc<Handle<A>>);

/// It stays until the last memory of it has gone.
struct Handle<A: Api> {
    /// On which nothing happens but allocating and freeing.
    stream: OrderedStream<A>,
    pool: A::Pool,
    is_imported: bool,
    context: Arc<Context<A>>,
}

// SAFETY: a pool handle may be used by every thread (`Api`, promise 1).
unsafe impl<A: Api> Send for Handle<A> {}
// SAFETY: as above.
unsafe impl<A: Api> Sync for Handle<A> {}

/// Memory of a pool.
struct Memory<A: Api> {
    address: u64,
    bytes: usize,
    pool: Arc<Handle<A>>,
    /// Dropped once the memory is given back.
    loan: Option<Box<dyn Any + Send + Sync>>,
}

impl<A: Api> PeerPool<A> {
    /// A new one, which keeps what is freed for what is allocated next.
    pub(crate) fn create(context: &Arc<Context<A>>) -> Result<Self> {
        let driver = context.enter()?;
        // SAFETY: the device is current.
        if unsafe { !driver.has_pools()? } {
            return Err(Error::Unsupported { device: driver.id(), what: HAS_NO_POOLS });
        }
        // SAFETY: the device is current and has pools.
        let pool = Self::own(context, unsafe { driver.create_shared_pool()? }, false)?;
        // SAFETY: the device is current, the pool new.
        unsafe { driver.keep_all(pool.0.pool)? };
        Ok(pool)
    }

    /// That of another process, opened to the peers of the device.
    pub(crate) fn import(allocator: &DeviceAllocator<A>, descriptor: BorrowedFd<'_>) -> Result<Self> {
        let context = allocator.context();
        let driver = context.enter()?;
        let mut imported = IMPORTED.lock();
        // SAFETY: the device is current.
        let pool = unsafe { driver.import_pool(descriptor)? };
        if !imported.pools.insert(A::number_of_pool(pool)) {
            return Err(Error::Unsupported { device: driver.id(), what: IS_IMPORTED });
        }
        drop(imported);
        let pool = Self::own(context, pool, true)?;
        let handle: Arc<dyn OpenTo<A>> = pool.0.clone();
        allocator.imported().add(&handle);
        Ok(pool)
    }

    /// The only one with this handle.
    fn own(context: &Arc<Context<A>>, pool: A::Pool, is_imported: bool) -> Result<Self> {
        match OrderedStream::<A>::create(context, StreamPriority::Normal) {
            Ok(stream) => Ok(Self(Arc::new(Handle { stream, pool, is_imported, context: context.clone() }))),
            Err(error) => {
                // SAFETY: the pool is new, and nobody knows of it.
                unsafe { destroy(context, pool, is_imported) };
                Err(error)
            }
        }
    }

    fn memory(&self, address: u64, bytes: usize, loan: Option<Box<dyn Any + Send + Sync>>) -> Memory<A> {
        Memory { address, bytes, pool: self.0.clone(), loan }
    }
}

const HAS_NO_POOLS: &str =
    "share its memory with another process: it has no memory pools; copy to the host first";
const IS_IMPORTED: &str = "import a pool or memory of another process twice: drop what has it first";

impl<A: Api> SharedPool for PeerPool<A> {
    fn export(&self) -> Result<OwnedFd> {
        // SAFETY: the device is current, the pool alive.
        unsafe { self.0.context.enter()?.export_pool(self.0.pool) }
    }

    fn allocate(&self, bytes: usize) -> Result<(MemoryName, Box<dyn PeerMemory>)> {
        let (driver, stream) = (self.0.context.enter()?, self.0.stream.handle());
        // SAFETY: the device is current, pool and stream are alive and of it.
        let allocated = unsafe { driver.allocate_pooled(bytes.max(1), self.0.pool, stream) };
        let address = allocated.map_err(|error| out_of_memory(&driver, error, bytes))?;
        let memory = self.memory(address, bytes, None);
        // SAFETY: as above. Behind this every stream finds the memory allocated.
        unsafe { driver.synchronize_stream(stream)? };
        // SAFETY: the device is current, the memory of a shared pool.
        let name = unsafe { driver.export_pooled(address)? };
        Ok((name, Box::new(memory)))
    }
}

impl<A: Api> ImportedPool for PeerPool<A> {
    fn import(&self, name: &MemoryName, loan: Box<dyn Any + Send + Sync>) -> Result<Box<dyn PeerMemory>> {
        let driver = self.0.context.enter()?;
        let mut imported = IMPORTED.lock();
        // SAFETY: the device is current, the pool alive and imported; the driver looks the name up.
        let address = unsafe { driver.import_pooled(self.0.pool, name)? };
        if !imported.memory.insert(address) {
            return Err(Error::Unsupported { device: driver.id(), what: IS_IMPORTED });
        }
        Ok(Box::new(self.memory(address, 0, Some(loan))))
    }
}

// SAFETY: the driver gave the address; it is freed by `drop` alone. `allocate` has waited for the allocation, and what is imported was allocated before.
unsafe impl<A: Api> PeerMemory for Memory<A> {
    fn address(&self) -> u64 {
        self.address
    }
}

impl<A: Api> Drop for Memory<A> {
    fn drop(&mut self) {
        if fork::is_child() {
            std::mem::forget((self.loan.take(), self.pool.clone()));
            return;
        }
        let stream = self.pool.stream.handle();
        // SAFETY: the device is current, the stream one of it; nobody uses the memory any more (`PeerMemory`).
        let free = |driver: Current<'_, A>| unsafe {
            driver.free_pooled(self.address, stream)?;
            driver.synchronize_stream(stream)
        };
        let mut imported = self.loan.is_some().then(|| IMPORTED.lock());
        let freed = self.pool.context.enter().and_then(free);
        match (&freed, &mut imported) {
            (Ok(()), Some(imported)) => drop(imported.memory.remove(&self.address)),
            (Ok(()), None) => {}
            (Err(_), _) => {
                count_leak(self.bytes);
                std::mem::forget(self.loan.take());
            }
        }
    }
}

impl<A: Api> Drop for PeerPool<A> {
    fn drop(&mut self) {
        // The driver, and the lock of what is imported, are those of the parent.
        if fork::is_child() {
            std::mem::forget(self.0.clone());
        }
    }
}

impl<A: Api> OpenTo<A> for Handle<A> {
    fn open_to(&self, peer: &Context<A>) -> Result<()> {
        // SAFETY: the device is current, the pool alive.
        unsafe { self.context.enter()?.open_pool(self.pool, peer.api()) }
    }
}

impl<A: Api> Drop for Handle<A> {
    fn drop(&mut self) {
        // SAFETY: no memory of it is left, and it is not used again.
        unsafe { destroy(&self.context, self.pool, self.is_imported) };
    }
}

/// # Safety
///
/// Nobody uses the pool, or memory of it, any more.
unsafe fn destroy<A: Api>(context: &Arc<Context<A>>, pool: A::Pool, is_imported: bool) {
    let mut imported = is_imported.then(|| IMPORTED.lock());
    // SAFETY: the device is current; the caller's promise.
    let destroyed = context.enter().and_then(|driver| unsafe { driver.destroy_pool(pool) });
    if let (Ok(()), Some(imported)) = (destroyed, &mut imported) {
        imported.pools.remove(&A::number_of_pool(pool));
    }
}

fn out_of_memory<A: Api>(driver: &Current<'_, A>, error: Error, requested: usize) -> Error {
    if !driver.is_out_of_memory(&error) {
        return error;
    }
    // SAFETY: the device is current.
    let (free, total) = unsafe { driver.memory_info() }.unwrap_or((0, 0));
    Error::OutOfMemory { device: driver.id(), kind: "device", requested, free, total }
}
