//! The calls of the driver, as the layer for stream-ordered drivers wants them.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use hip_sys::hiprt::{self, hipMemPoolAttr as PoolAttribute, hipPointer_attribute as PointerAttribute};
use transship_core::backend::stream_ordered::{Api, EventKind, Refusal, is_code};
use transship_core::backend::{HostAccess, MemoryKind, StreamPriority};
use transship_core::{Alignment, DeviceId, DeviceMemory, DeviceProperties, Error, Result};

use crate::calls::{
    HOST_MEMORY_ALREADY_REGISTERED, INVALID_VALUE, NOT_SUPPORTED, OPERATING_SYSTEM, OUT_OF_MEMORY,
    PEER_ACCESS_ALREADY_ENABLED,
};
use crate::device::{Hip, pointer};
use crate::guard::DeviceGuard;
use crate::{kernels, pool_properties, properties};

const NOT_CAPTURED: u32 = hiprt::hipStreamCaptureStatus::hipStreamCaptureStatusNone as u32;

const HOST_FLAGS: u32 = hiprt::hipHostMallocPortable | hiprt::hipHostMallocCoherent;

// SAFETY: 1. each call is the runtime's own of that meaning; its handles belong to no thread. 2. and 3. so AMD's reference
// says of events, of allocations, and of `hipFreeAsync`.
unsafe impl Api for Hip {
    type Guard<'a> = DeviceGuard<'a>;
    type Stream = hiprt::hipStream_t;
    type Event = hiprt::hipEvent_t;
    type Pool = hiprt::hipMemPool_t;
    type Module = hiprt::hipModule_t;
    type Kernel = hiprt::hipFunction_t;
    type Attached = ();

    /// What `hipMalloc` and pools align to at the least.
    const BUFFER_ALIGNMENT: Alignment = match Alignment::new(256) {
        Some(alignment) => alignment,
        None => Alignment::ONE,
    };
    /// The driver's own memory is coherent by its flags.
    const REGISTERS_OWN_PAGES: bool = false;

    fn id(&self) -> DeviceId {
        self.calls().device()
    }

    fn is_same(&self, other: &Self) -> bool {
        self.ordinal() == other.ordinal()
    }

    fn call_count(&self) -> u64 {
        self.calls().count()
    }

    fn is_out_of_memory(&self, error: &Error) -> bool {
        is_code(error, i64::from(OUT_OF_MEMORY))
    }

    fn refusal(&self, error: &Error) -> Option<Refusal> {
        let is = |code: u32| is_code(error, i64::from(code));
        match error {
            _ if is(OUT_OF_MEMORY) => Some(Refusal::OutOfMemory),
            _ if is(HOST_MEMORY_ALREADY_REGISTERED) => Some(Refusal::IsRegistered),
            _ if is(INVALID_VALUE) || is(OPERATING_SYSTEM) || is(NOT_SUPPORTED) => Some(Refusal::NotLockable),
            _ => None,
        }
    }

    fn enter(&self) -> Result<DeviceGuard<'_>> {
        self.guard()
    }

    fn properties(&self) -> Result<DeviceProperties> {
        properties::read(self.calls(), self.ordinal(), self.device())
    }

    unsafe fn description(&self) -> Result<String> {
        let (name, version) =
            (properties::name(self.calls(), self.device())?, properties::version(self.calls())?);
        Ok(format!("{name}, HIP {version}"))
    }

    unsafe fn total_memory(&self) -> Result<usize> {
        let mut total = 0;
        // SAFETY: the device exists; the result is written to a local.
        unsafe { self.calls().device_total_memory(&mut total, self.device())? };
        Ok(total)
    }

    unsafe fn memory_info(&self) -> Result<(usize, usize)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the device is current (caller); the results are written to locals.
        unsafe { self.calls().memory_info(&mut free, &mut total)? };
        Ok((free, total))
    }

    unsafe fn synchronize(&self) -> Result<()> {
        // SAFETY: the device is current (caller).
        unsafe { self.calls().device_synchronize() }
    }

    unsafe fn can_access(&self, peer: &Self) -> Result<bool> {
        properties::can_access(self.calls(), self.ordinal(), peer.ordinal())
    }

    unsafe fn enable_access(&self, peer: &Self) -> Result<()> {
        // SAFETY: both devices exist, ours is current (caller).
        match unsafe { self.calls().enable_peer_access(peer.ordinal(), 0) } {
            Err(error) if is_code(&error, i64::from(PEER_ACCESS_ALREADY_ENABLED)) => Ok(()),
            answer => answer,
        }
    }

    unsafe fn create_stream(&self, priority: StreamPriority) -> Result<hiprt::hipStream_t> {
        let (mut least, mut greatest) = (0, 0);
        let mut stream = std::ptr::null_mut();
        let flags = hiprt::hipStreamNonBlocking;
        // SAFETY: the device is current (caller); the results are written to locals.
        unsafe {
            self.calls().device_priorities(&mut least, &mut greatest)?;
            let priority = match priority {
                StreamPriority::High => greatest,
                _ => 0,
            };
            self.calls().stream_create(&mut stream, flags, priority)?;
        }
        Ok(stream)
    }

    unsafe fn destroy_stream(&self, stream: hiprt::hipStream_t) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().stream_destroy(stream) }
    }

    unsafe fn synchronize_stream(&self, stream: hiprt::hipStream_t) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().stream_synchronize(stream) }
    }

    unsafe fn is_capturing(&self, stream: hiprt::hipStream_t) -> Result<bool> {
        if stream.is_null() {
            // The default stream cannot be captured, and not every version of the runtime can be asked about it.
            return Ok(false);
        }
        let mut status = NOT_CAPTURED;
        // SAFETY: the caller's promises; the status is written to a local.
        unsafe { self.calls().stream_is_capturing(stream, &mut status)? };
        Ok(status != NOT_CAPTURED)
    }

    unsafe fn create_share(
        &self,
        share: *mut c_void,
        end: unsafe extern "C" fn(*mut c_void),
    ) -> Result<NonNull<c_void>> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().create_share(share, end) }
    }

    unsafe fn move_share(&self, object: NonNull<c_void>, stream: hiprt::hipStream_t) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().move_share(object, stream) }
    }

    unsafe fn release_share(&self, object: NonNull<c_void>) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().release_share(object) }
    }

    unsafe fn wait_event(&self, stream: hiprt::hipStream_t, event: hiprt::hipEvent_t) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().stream_wait_event(stream, event, 0) }
    }

    unsafe fn create_event(&self, kind: EventKind) -> Result<hiprt::hipEvent_t> {
        let flags = match kind {
            EventKind::Plain => hiprt::hipEventDisableTiming,
            EventKind::Timing => hiprt::hipEventDefault,
        };
        let mut event = std::ptr::null_mut();
        // SAFETY: the device is current (caller); the handle is written to a local.
        unsafe { self.calls().event_create(&mut event, flags)? };
        Ok(event)
    }

    unsafe fn destroy_event(&self, event: hiprt::hipEvent_t) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().event_destroy(event) }
    }

    unsafe fn record_event(&self, event: hiprt::hipEvent_t, stream: hiprt::hipStream_t) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().event_record(event, stream) }
    }

    unsafe fn query_event(&self, event: hiprt::hipEvent_t) -> Result<bool> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().event_query(event) }
    }

    unsafe fn elapsed(&self, start: hiprt::hipEvent_t, end: hiprt::hipEvent_t) -> Result<Option<f64>> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().event_elapsed(start, end) }
    }

    unsafe fn has_pools(&self) -> Result<bool> {
        let attribute = hiprt::hipDeviceAttribute_t::hipDeviceAttributeMemoryPoolsSupported;
        let mut supported = 0;
        // SAFETY: the device exists; the result is written to a local.
        unsafe { self.calls().device_attribute(&mut supported, attribute, self.ordinal())? };
        Ok(supported != 0)
    }

    unsafe fn create_pool(&self) -> Result<hiprt::hipMemPool_t> {
        let properties = pool_properties::properties(self.ordinal());
        let mut pool = std::ptr::null_mut();
        // SAFETY: the properties are read within the call; the handle is written to a local.
        unsafe { self.calls().pool_create(&mut pool, &properties)? };
        Ok(pool)
    }

    /// HIP has the calls, and releases of it that map other memory than was named, without an error.
    #[cfg(unix)]
    unsafe fn create_shared_pool(&self) -> Result<hiprt::hipMemPool_t> {
        let what = "share its memory with another process: releases of HIP map wrong memory there without an error; copy to the host first";
        Err(Error::Unsupported { device: self.id(), what })
    }

    unsafe fn destroy_pool(&self, pool: hiprt::hipMemPool_t) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().pool_destroy(pool) }
    }

    unsafe fn keep_all(&self, pool: hiprt::hipMemPool_t) -> Result<()> {
        let threshold = hiprt::hipMemPoolAttr::hipMemPoolAttrReleaseThreshold;
        let mut all = u64::MAX;
        // SAFETY: the attribute is a 64-bit number, read within the call; the rest is the caller's promise.
        unsafe { self.calls().pool_set_attribute(pool, threshold, (&raw mut all).cast()) }
    }

    unsafe fn pool_reserved(&self, pool: hiprt::hipMemPool_t) -> Result<u64> {
        // SAFETY: the caller's promises.
        unsafe { self.pool_figure(pool, PoolAttribute::hipMemPoolAttrReservedMemCurrent) }
    }

    unsafe fn pool_memory(&self, pool: hiprt::hipMemPool_t) -> Result<DeviceMemory> {
        // SAFETY: the caller's promises.
        let figure = |attribute| unsafe { self.pool_figure(pool, attribute) }.map(Some);
        let mut memory = DeviceMemory::default();
        memory.reserved = figure(PoolAttribute::hipMemPoolAttrReservedMemCurrent)?;
        memory.used = figure(PoolAttribute::hipMemPoolAttrUsedMemCurrent)?;
        memory.peak_reserved = figure(PoolAttribute::hipMemPoolAttrReservedMemHigh)?;
        memory.peak_used = figure(PoolAttribute::hipMemPoolAttrUsedMemHigh)?;
        Ok(memory)
    }

    unsafe fn reset_pool_peaks(&self, pool: hiprt::hipMemPool_t) -> Result<()> {
        for peak in [PoolAttribute::hipMemPoolAttrReservedMemHigh, PoolAttribute::hipMemPoolAttrUsedMemHigh] {
            // The only value that the runtime takes.
            let mut none = 0_u64;
            // SAFETY: the attribute is a 64-bit number, read within the call; the rest is the caller's promise.
            unsafe { self.calls().pool_set_attribute(pool, peak, (&raw mut none).cast())? };
        }
        Ok(())
    }

    unsafe fn trim_pool(&self, pool: hiprt::hipMemPool_t) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().pool_trim(pool, 0) }
    }

    unsafe fn open_pool(&self, pool: hiprt::hipMemPool_t, peer: &Self) -> Result<()> {
        let access = pool_properties::access(peer.ordinal());
        // SAFETY: the caller's promises; one description is read within the call.
        unsafe { self.calls().pool_set_access(pool, &access, 1) }
    }

    #[cfg(unix)]
    fn number_of_pool(pool: Self::Pool) -> u64 {
        pool.addr() as u64
    }

    unsafe fn allocate_pooled(
        &self,
        bytes: usize,
        pool: hiprt::hipMemPool_t,
        stream: hiprt::hipStream_t,
    ) -> Result<u64> {
        let mut start = std::ptr::null_mut();
        // SAFETY: the caller's promises; the address is written to a local.
        unsafe { self.calls().allocate_from_pool(&mut start, bytes, pool, stream)? };
        Ok(start.expose_provenance() as u64)
    }

    unsafe fn free_pooled(&self, address: u64, stream: hiprt::hipStream_t) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().free_async(pointer(address), stream) }
    }

    unsafe fn allocate(&self, bytes: usize) -> Result<u64> {
        let mut start = std::ptr::null_mut();
        // SAFETY: the device is current (caller); the address is written to a local.
        unsafe { self.calls().allocate(&mut start, bytes)? };
        Ok(start.expose_provenance() as u64)
    }

    unsafe fn free(&self, address: u64) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().free(pointer(address)) }
    }

    /// Known to every device, and coherent in both directions: kernels read tables there and write results, which the other
    /// side must see once the event is reached; that does not flush the caches of devices by itself. Copy engines do not
    /// care. Never write-combined: results are read by the host.
    unsafe fn allocate_host(&self, bytes: usize) -> Result<Option<NonNull<u8>>> {
        let mut start = std::ptr::null_mut::<c_void>();
        // SAFETY: the device is current (caller); the address is written to a local.
        unsafe { self.calls().allocate_host(&mut start, bytes, HOST_FLAGS)? };
        Ok(NonNull::new(start.cast()))
    }

    unsafe fn free_host(&self, start: NonNull<u8>) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().free_host(start.as_ptr().cast()) }
    }

    /// Coherent, and read by every device. There is no flag for memory that is only read: its number is another one's.
    unsafe fn register_host(&self, start: NonNull<u8>, bytes: usize, _: HostAccess) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().register_host(start.as_ptr().cast(), bytes, hiprt::hipHostRegisterPortable) }
    }

    unsafe fn kernels_reach_registered(&self, start: NonNull<u8>) -> Result<bool> {
        let address = start.addr().get() as u64;
        let on_device =
            self.pointer_attribute(PointerAttribute::HIP_POINTER_ATTRIBUTE_DEVICE_POINTER, address)?;
        Ok(on_device == address)
    }

    unsafe fn unregister_host(&self, start: NonNull<u8>) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().unregister_host(start.as_ptr().cast()) }
    }

    /// The numbers of memory types changed with ROCm 6: what has an address on the host is told by that.
    unsafe fn memory_at(&self, address: u64) -> Result<Option<(MemoryKind, usize)>> {
        let asked = |attribute| self.pointer_attribute(attribute, address);
        let is_managed = match asked(PointerAttribute::HIP_POINTER_ATTRIBUTE_IS_MANAGED) {
            Err(error) if is_code(&error, i64::from(INVALID_VALUE)) => return Ok(None),
            answer => answer? != 0,
        };
        let on_host = asked(PointerAttribute::HIP_POINTER_ATTRIBUTE_HOST_POINTER);
        let kind = match on_host {
            _ if is_managed => MemoryKind::Managed,
            Ok(0) => MemoryKind::Device,
            Ok(_) => MemoryKind::Pinned,
            Err(error) if is_code(&error, i64::from(INVALID_VALUE)) => MemoryKind::Device,
            Err(error) => return Err(error),
        };
        let ordinal = match kind {
            MemoryKind::Device => asked(PointerAttribute::HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL)?,
            _ => 0,
        };
        Ok(Some((kind, ordinal as usize)))
    }

    unsafe fn allocation_of(&self, address: u64) -> Result<(u64, usize)> {
        let (mut start, mut bytes) = (pointer(0), 0);
        // SAFETY: any address may be asked about; the results are written to locals.
        unsafe { self.calls().address_range(&mut start, &mut bytes, pointer(address))? };
        Ok((start.expose_provenance() as u64, bytes))
    }

    unsafe fn copy_up(
        &self,
        to: u64,
        from: NonNull<u8>,
        bytes: usize,
        stream: hiprt::hipStream_t,
    ) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().copy_up(pointer(to), from.as_ptr().cast(), bytes, stream) }
    }

    unsafe fn copy_down(
        &self,
        to: NonNull<u8>,
        from: u64,
        bytes: usize,
        stream: hiprt::hipStream_t,
    ) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().copy_down(to.as_ptr().cast(), pointer(from), bytes, stream) }
    }

    unsafe fn copy_within(&self, to: u64, from: u64, bytes: usize, stream: hiprt::hipStream_t) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().copy_within(pointer(to), pointer(from), bytes, stream) }
    }

    unsafe fn copy_from_peer(
        &self,
        to: u64,
        peer: &Self,
        from: u64,
        bytes: usize,
        stream: hiprt::hipStream_t,
    ) -> Result<()> {
        let (here, there) = (self.ordinal(), peer.ordinal());
        // SAFETY: the caller's promises; both devices exist.
        unsafe { self.calls().copy_from_peer(pointer(to), here, pointer(from), there, bytes, stream) }
    }

    unsafe fn load_kernels(&self) -> Result<Option<hiprt::hipModule_t>> {
        // SAFETY: the caller's promises.
        unsafe { kernels::load(self) }
    }

    unsafe fn kernel(&self, module: hiprt::hipModule_t, name: &CStr) -> Result<hiprt::hipFunction_t> {
        let mut kernel = std::ptr::null_mut();
        // SAFETY: the caller's promises; the result is written to a local, the name is read within the call.
        unsafe { self.calls().module_function(&mut kernel, module, name.as_ptr())? };
        Ok(kernel)
    }

    unsafe fn launch(
        &self,
        kernel: hiprt::hipFunction_t,
        blocks: u32,
        threads: u32,
        arguments: &mut [*mut c_void],
        stream: hiprt::hipStream_t,
    ) -> Result<()> {
        let (arguments, extra) = (arguments.as_mut_ptr(), std::ptr::null_mut());
        // SAFETY: the caller's promises.
        unsafe { self.calls().launch(kernel, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, extra) }
    }

    unsafe fn unload_kernels(&self, module: hiprt::hipModule_t) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().module_unload(module) }
    }

    unsafe fn clear(&self, to: u64, bytes: usize, stream: hiprt::hipStream_t) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.calls().set_bytes(pointer(to), 0, bytes, stream) }
    }
}
