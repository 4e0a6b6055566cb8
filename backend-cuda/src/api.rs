//! The calls of the driver, as the layer for stream-ordered drivers wants them.

use std::ffi::{CStr, c_void};
#[cfg(unix)]
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use cudarc::driver::sys::{
    self, CUmemPool_attribute_enum as PoolAttribute, CUpointer_attribute_enum as PointerAttribute, CUresult,
};
#[cfg(unix)]
use transship_core::backend::MemoryName;
use transship_core::backend::stream_ordered::{Api, EventKind, Refusal, is_code};
use transship_core::backend::{HostAccess, MemoryKind, StreamPriority};
use transship_core::{Alignment, DeviceId, DeviceMemory, DeviceProperties, Error, Result};

use crate::device::{Cuda, ordinal};
use crate::guard::ContextGuard;
use crate::interop::Adopted;
#[cfg(unix)]
use crate::shared_pools;
use crate::{graphs, kernels, pool_properties, properties};

/// Since CUDA 11.1.
const READ_ONLY_HOST_REGISTER_SUPPORTED: u32 =
    sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED as u32;

// SAFETY: 1. each call is the driver's own of that meaning; handles of CUDA belong to no thread. 2. and 3. so NVIDIA's
// reference says of events, of allocations, and of `cuMemFreeAsync`.
unsafe impl Api for Cuda {
    type Guard<'a> = ContextGuard<'a>;
    type Stream = sys::CUstream;
    type Event = sys::CUevent;
    type Pool = sys::CUmemoryPool;
    type Module = sys::CUmodule;
    type Kernel = sys::CUfunction;
    type Attached = Adopted;

    /// What `cuMemAlloc` and pools align to at the least.
    const BUFFER_ALIGNMENT: Alignment = match Alignment::new(256) {
        Some(alignment) => alignment,
        None => Alignment::ONE,
    };
    const REGISTERS_OWN_PAGES: bool = true;

    fn id(&self) -> DeviceId {
        self.calls().device()
    }

    fn is_same(&self, other: &Self) -> bool {
        self.cu_context() == other.cu_context()
    }

    fn call_count(&self) -> u64 {
        self.calls().count()
    }

    fn is_out_of_memory(&self, error: &Error) -> bool {
        is_code(error, CUresult::CUDA_ERROR_OUT_OF_MEMORY as i64)
    }

    fn refusal(&self, error: &Error) -> Option<Refusal> {
        const NOT_LOCKABLE: [CUresult; 4] = [
            CUresult::CUDA_ERROR_INVALID_VALUE,
            CUresult::CUDA_ERROR_OPERATING_SYSTEM,
            CUresult::CUDA_ERROR_NOT_PERMITTED,
            CUresult::CUDA_ERROR_NOT_SUPPORTED,
        ];
        match error {
            _ if self.is_out_of_memory(error) => Some(Refusal::OutOfMemory),
            _ if is_code(error, CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED as i64) => {
                Some(Refusal::IsRegistered)
            }
            _ => NOT_LOCKABLE.iter().any(|code| is_code(error, *code as i64)).then_some(Refusal::NotLockable),
        }
    }

    fn enter(&self) -> Result<ContextGuard<'_>> {
        self.guard()
    }

    fn properties(&self) -> Result<DeviceProperties> {
        properties::read(self.calls(), self.device())
    }

    unsafe fn description(&self) -> Result<String> {
        let (name, version) =
            (properties::name(self.calls(), self.device())?, properties::version(self.calls())?);
        Ok(format!("{name}, driver {version}"))
    }

    unsafe fn total_memory(&self) -> Result<usize> {
        let mut total = 0;
        // SAFETY: the device exists; the result is written to a local.
        unsafe { self.calls().device_total_memory(&mut total, self.device())? };
        Ok(total)
    }

    unsafe fn memory_info(&self) -> Result<(usize, usize)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the context is current (caller); the results are written to locals.
        unsafe { self.calls().memory_info(&mut free, &mut total)? };
        Ok((free, total))
    }

    unsafe fn synchronize(&self) -> Result<()> {
        // SAFETY: the context is current (caller).
        unsafe { self.calls().context_synchronize() }
    }

    unsafe fn can_access(&self, peer: &Self) -> Result<bool> {
        properties::can_access(self.calls(), self.device(), peer.device())
    }

    unsafe fn enable_access(&self, peer: &Self) -> Result<()> {
        // SAFETY: both contexts are retained, ours is current (caller).
        match unsafe { self.calls().enable_peer_access(peer.cu_context(), 0) } {
            Err(error) if is_code(&error, CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED as i64) => Ok(()),
            answer => answer,
        }
    }

    unsafe fn create_stream(&self, priority: StreamPriority) -> Result<sys::CUstream> {
        let (mut least, mut greatest) = (0, 0);
        let mut stream = std::ptr::null_mut();
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current (caller); the results are written to locals.
        unsafe {
            self.calls().context_priorities(&mut least, &mut greatest)?;
            let priority = match priority {
                StreamPriority::High => greatest,
                _ => 0,
            };
            self.calls().stream_create(&mut stream, flags, priority)?;
        }
        Ok(stream)
    }

    unsafe fn destroy_stream(&self, stream: sys::CUstream) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().stream_destroy(stream) }
    }

    unsafe fn synchronize_stream(&self, stream: sys::CUstream) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().stream_synchronize(stream) }
    }

    unsafe fn is_capturing(&self, stream: sys::CUstream) -> Result<bool> {
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the caller's promises; the status is written to a local.
        unsafe { self.calls().stream_is_capturing(stream, &mut status)? };
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    unsafe fn create_share(
        &self,
        share: *mut c_void,
        end: unsafe extern "C" fn(*mut c_void),
    ) -> Result<NonNull<c_void>> {
        // SAFETY: the caller's promises.
        unsafe { graphs::create_share(self.calls(), share, end) }
    }

    unsafe fn move_share(&self, object: NonNull<c_void>, stream: sys::CUstream) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { graphs::move_share(self.calls(), object, stream) }
    }

    unsafe fn release_share(&self, object: NonNull<c_void>) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { graphs::release_share(self.calls(), object) }
    }

    unsafe fn wait_event(&self, stream: sys::CUstream, event: sys::CUevent) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().stream_wait_event(stream, event, 0) }
    }

    unsafe fn create_event(&self, kind: EventKind) -> Result<sys::CUevent> {
        use sys::CUevent_flags_enum::{CU_EVENT_DEFAULT, CU_EVENT_DISABLE_TIMING};
        let flags = match kind {
            EventKind::Plain => CU_EVENT_DISABLE_TIMING as u32,
            EventKind::Timing => CU_EVENT_DEFAULT as u32,
        };
        let mut event = std::ptr::null_mut();
        // SAFETY: the context is current (caller); the handle is written to a local.
        unsafe { self.calls().event_create(&mut event, flags)? };
        Ok(event)
    }

    unsafe fn destroy_event(&self, event: sys::CUevent) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().event_destroy(event) }
    }

    unsafe fn record_event(&self, event: sys::CUevent, stream: sys::CUstream) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().event_record(event, stream) }
    }

    unsafe fn query_event(&self, event: sys::CUevent) -> Result<bool> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().event_query(event) }
    }

    unsafe fn elapsed(&self, start: sys::CUevent, end: sys::CUevent) -> Result<Option<f64>> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().event_elapsed(start, end) }
    }

    unsafe fn has_pools(&self) -> Result<bool> {
        let attribute = sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED;
        let mut supported = 0;
        // SAFETY: the device exists; the result is written to a local.
        unsafe { self.calls().device_attribute(&mut supported, attribute, self.device())? };
        Ok(supported != 0)
    }

    unsafe fn create_pool(&self) -> Result<sys::CUmemoryPool> {
        let properties = pool_properties::properties(ordinal(self.id()));
        let mut pool = std::ptr::null_mut();
        // SAFETY: the properties are read within the call; the handle is written to a local.
        unsafe { self.calls().pool_create(&mut pool, &properties)? };
        Ok(pool)
    }

    unsafe fn destroy_pool(&self, pool: sys::CUmemoryPool) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().pool_destroy(pool) }
    }

    unsafe fn keep_all(&self, pool: sys::CUmemoryPool) -> Result<()> {
        let threshold = sys::CUmemPool_attribute_enum::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        let mut all = u64::MAX;
        // SAFETY: the attribute is a 64-bit number, read within the call; the rest is the caller's promise.
        unsafe { self.calls().pool_set_attribute(pool, threshold, (&raw mut all).cast()) }
    }

    unsafe fn pool_reserved(&self, pool: sys::CUmemoryPool) -> Result<u64> {
        // SAFETY: the caller's promises.
        unsafe { self.pool_figure(pool, PoolAttribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) }
    }

    unsafe fn pool_memory(&self, pool: sys::CUmemoryPool) -> Result<DeviceMemory> {
        // SAFETY: the caller's promises.
        let figure = |attribute| unsafe { self.pool_figure(pool, attribute) }.map(Some);
        let mut memory = DeviceMemory::default();
        memory.reserved = figure(PoolAttribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
        memory.used = figure(PoolAttribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?;
        memory.peak_reserved = figure(PoolAttribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)?;
        memory.peak_used = figure(PoolAttribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH)?;
        Ok(memory)
    }

    unsafe fn reset_pool_peaks(&self, pool: sys::CUmemoryPool) -> Result<()> {
        for peak in
            [PoolAttribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, PoolAttribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH]
        {
            // The only value that the driver takes.
            let mut none = 0_u64;
            // SAFETY: the attribute is a 64-bit number, read within the call; the rest is the caller's promise.
            unsafe { self.calls().pool_set_attribute(pool, peak, (&raw mut none).cast())? };
        }
        Ok(())
    }

    unsafe fn trim_pool(&self, pool: sys::CUmemoryPool) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().pool_trim(pool, 0) }
    }

    unsafe fn open_pool(&self, pool: sys::CUmemoryPool, peer: &Self) -> Result<()> {
        let access = pool_properties::access(ordinal(peer.id()));
        // SAFETY: the caller's promises; one description is read within the call.
        unsafe { self.calls().pool_set_access(pool, &access, 1) }
    }

    #[cfg(unix)]
    unsafe fn create_shared_pool(&self) -> Result<sys::CUmemoryPool> {
        shared_pools::create(self.calls(), self.device(), ordinal(self.id()))
    }

    #[cfg(unix)]
    unsafe fn export_pool(&self, pool: sys::CUmemoryPool) -> Result<OwnedFd> {
        // SAFETY: the caller's promises.
        unsafe { shared_pools::export(self.calls(), pool) }
    }

    #[cfg(unix)]
    unsafe fn import_pool(&self, descriptor: BorrowedFd<'_>) -> Result<sys::CUmemoryPool> {
        shared_pools::import(self.calls(), self.device(), descriptor)
    }

    #[cfg(unix)]
    unsafe fn export_pooled(&self, address: u64) -> Result<MemoryName> {
        // SAFETY: the caller's promises.
        unsafe { shared_pools::name(self.calls(), address) }
    }

    #[cfg(unix)]
    unsafe fn import_pooled(&self, pool: sys::CUmemoryPool, name: &MemoryName) -> Result<u64> {
        // SAFETY: the caller's promises.
        unsafe { shared_pools::find(self.calls(), pool, name) }
    }

    #[cfg(unix)]
    fn number_of_pool(pool: Self::Pool) -> u64 {
        pool.addr() as u64
    }

    unsafe fn allocate_pooled(
        &self,
        bytes: usize,
        pool: sys::CUmemoryPool,
        stream: sys::CUstream,
    ) -> Result<u64> {
        let mut address = 0;
        // SAFETY: the caller's promises; the address is written to a local.
        unsafe { self.calls().allocate_from_pool(&mut address, bytes, pool, stream)? };
        Ok(address)
    }

    unsafe fn free_pooled(&self, address: u64, stream: sys::CUstream) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().free_async(address, stream) }
    }

    unsafe fn allocate(&self, bytes: usize) -> Result<u64> {
        let mut address = 0;
        // SAFETY: the context is current (caller); the address is written to a local.
        unsafe { self.calls().allocate(&mut address, bytes)? };
        Ok(address)
    }

    unsafe fn free(&self, address: u64) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().free(address) }
    }

    /// Cached by the processor in both directions: write-combined memory is no faster to upload from, and slow to read.
    unsafe fn allocate_host(&self, bytes: usize) -> Result<Option<NonNull<u8>>> {
        let mut start = std::ptr::null_mut::<c_void>();
        // SAFETY: the context is current (caller); the address is written to a local.
        unsafe { self.calls().allocate_host(&mut start, bytes, sys::CU_MEMHOSTALLOC_PORTABLE)? };
        Ok(NonNull::new(start.cast()))
    }

    unsafe fn free_host(&self, start: NonNull<u8>) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().free_host(start.as_ptr().cast()) }
    }

    /// Memory that is only read may be mapped read-only, where the device knows how to lock that.
    unsafe fn register_host(&self, start: NonNull<u8>, bytes: usize, access: HostAccess) -> Result<()> {
        let locks_read_only = match access {
            HostAccess::Read => {
                self.calls().known_attribute(READ_ONLY_HOST_REGISTER_SUPPORTED, self.device())
            }
            HostAccess::ReadWrite => None,
        };
        let flags = match locks_read_only {
            Some(1..) => sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_READ_ONLY,
            _ => sys::CU_MEMHOSTREGISTER_PORTABLE,
        };
        // SAFETY: the caller's promises.
        unsafe { self.calls().register_host(start.as_ptr().cast(), bytes, flags) }
    }

    unsafe fn kernels_reach_registered(&self, _: NonNull<u8>) -> Result<bool> {
        let attribute =
            sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM;
        let mut same_addresses = 0;
        // SAFETY: the device exists; the result is written to a local.
        unsafe { self.calls().device_attribute(&mut same_addresses, attribute, self.device())? };
        Ok(same_addresses != 0)
    }

    unsafe fn unregister_host(&self, start: NonNull<u8>) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().unregister_host(start.as_ptr().cast()) }
    }

    unsafe fn memory_at(&self, address: u64) -> Result<Option<(MemoryKind, usize)>> {
        const HOST: u32 = sys::CUmemorytype_enum::CU_MEMORYTYPE_HOST as u32;
        const DEVICE: u32 = sys::CUmemorytype_enum::CU_MEMORYTYPE_DEVICE as u32;
        // Asked for together, they are no error of memory that the driver does not know, which has no type then (H200).
        let [kind, is_managed, ordinal] = self.pointer_attributes(
            [
                PointerAttribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                PointerAttribute::CU_POINTER_ATTRIBUTE_IS_MANAGED,
                PointerAttribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            ],
            address,
        )?;
        let kind = match kind {
            _ if is_managed != 0 => MemoryKind::Managed,
            HOST => MemoryKind::Pinned,
            DEVICE => MemoryKind::Device,
            _ => return Ok(None),
        };
        Ok(Some((kind, ordinal as usize)))
    }

    unsafe fn reaches_memory(&self, address: u64, owner: &Self) -> Result<bool> {
        // The attribute for access says yes of pools that are not open as well (H200, driver 580).
        match self.handle_of(PointerAttribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address)? {
            // Other memory is opened to contexts by the context that has allocated it. What is mapped piece by piece, such as PyTorch's expandable segments, has none (H100).
            0 => {
                let context = self.handle_of(PointerAttribute::CU_POINTER_ATTRIBUTE_CONTEXT, address)?;
                Ok(context == owner.cu_context().addr())
            }
            pool => {
                let mut location = pool_properties::access(ordinal(self.id())).location;
                let mut flags = sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_NONE;
                let pool = std::ptr::with_exposed_provenance_mut(pool);
                // SAFETY: the driver has named the pool, which is there as long as memory of it is; the location is read within the call, and the result is written to a local.
                unsafe { self.calls().pool_access(&mut flags, pool, &mut location)? };
                Ok(flags == sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            }
        }
    }

    unsafe fn allocation_of(&self, address: u64) -> Result<(u64, usize)> {
        let (mut start, mut bytes) = (0, 0);
        // SAFETY: any address may be asked about; the results are written to locals.
        unsafe { self.calls().address_range(&mut start, &mut bytes, address)? };
        Ok((start, bytes))
    }

    unsafe fn copy_up(&self, to: u64, from: NonNull<u8>, bytes: usize, stream: sys::CUstream) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().copy_up(to, from.as_ptr().cast(), bytes, stream) }
    }

    unsafe fn copy_down(
        &self,
        to: NonNull<u8>,
        from: u64,
        bytes: usize,
        stream: sys::CUstream,
    ) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().copy_down(to.as_ptr().cast(), from, bytes, stream) }
    }

    unsafe fn copy_within(&self, to: u64, from: u64, bytes: usize, stream: sys::CUstream) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().copy_within(to, from, bytes, stream) }
    }

    unsafe fn copy_from_peer(
        &self,
        to: u64,
        peer: &Self,
        from: u64,
        bytes: usize,
        stream: sys::CUstream,
    ) -> Result<()> {
        let (here, there) = (self.cu_context(), peer.cu_context());
        // SAFETY: the caller's promises; both contexts are retained.
        unsafe { self.calls().copy_from_peer(to, here, from, there, bytes, stream) }
    }

    unsafe fn load_kernels(&self) -> Result<Option<sys::CUmodule>> {
        // SAFETY: the caller's promises.
        unsafe { kernels::load(self) }
    }

    unsafe fn kernel(&self, module: sys::CUmodule, name: &CStr) -> Result<sys::CUfunction> {
        let mut kernel = std::ptr::null_mut();
        // SAFETY: the caller's promises; the result is written to a local, the name is read within the call.
        unsafe { self.calls().module_function(&mut kernel, module, name.as_ptr())? };
        Ok(kernel)
    }

    unsafe fn launch(
        &self,
        kernel: sys::CUfunction,
        blocks: u32,
        threads: u32,
        arguments: &mut [*mut c_void],
        stream: sys::CUstream,
    ) -> Result<()> {
        let (arguments, extra) = (arguments.as_mut_ptr(), std::ptr::null_mut());
        // SAFETY: the caller's promises.
        unsafe { self.calls().launch(kernel, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, extra) }
    }

    unsafe fn unload_kernels(&self, module: sys::CUmodule) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().module_unload(module) }
    }

    unsafe fn clear(&self, to: u64, bytes: usize, stream: sys::CUstream) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().set_bytes(to, 0, bytes, stream) }
    }
}
