//! One CUDA device behind the seam.

use std::any::Any;
use std::ffi::{CStr, c_int, c_uint};
use std::sync::{Arc, Weak};

use cudarc::driver::sys::{self, CUresult};
use parking_lot::Mutex;
use transship_core::backend::{
    Backend, BackendStream, Buffer, CopyOp, Counters, Direction, Limits, RawMemory, Staging, StreamPriority,
    Submission,
};
use transship_core::{Alignment, DeviceId, Error, Result};

use crate::calls::is_code;
use crate::context::Context;
use crate::copy;
use crate::driver;
use crate::heap::Heap;
use crate::memory::CudaBuffer;
use crate::staging::CudaStaging;
use crate::stream::{CudaStream, refuse_per_thread};

/// What `cuMemAlloc` and pools align to at the least.
const BUFFER_ALIGNMENT: Alignment = match Alignment::of(256) {
    Some(alignment) => alignment,
    None => Alignment::ONE,
};

/// A CUDA device, its primary context retained.
pub struct CudaBackend {
    heap: Arc<Heap>,
    limits: Limits,
    description: String,
    /// Which devices this one was asked about, and whether it reaches them.
    peers: Mutex<Vec<(Weak<Heap>, bool)>>,
    /// The objects that count the positions of cudarc's streams.
    adopted: Mutex<Vec<Arc<CudaStream>>>,
}

impl CudaBackend {
    /// Retains the primary context of the device `id`. The driver is initialised and has this device.
    pub(crate) fn open(id: DeviceId) -> Result<Self> {
        let context = Arc::new(Context::retain(id)?);
        let heap = Arc::new(Heap::new(&context)?);
        let limits = Limits {
            copy_granularity: Alignment::ONE,
            bindable_alignment: Alignment::ONE,
            buffer_alignment: BUFFER_ALIGNMENT,
            largest_buffer: heap.total(),
            host_writable: false,
            mapped_staging: false,
            gather: None,
        };
        let description = describe(&context)?;
        Ok(Self { heap, limits, description, peers: Mutex::default(), adopted: Mutex::default() })
    }

    /// The primary context, for calls of the driver. It is retained for as long as this object lives.
    pub fn cu_context(&self) -> sys::CUcontext {
        self.context().handle()
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        self.heap.context()
    }

    /// The object that counts the positions of a stream of cudarc's; always the same one for as long as somebody else
    /// holds the stream.
    ///
    /// # Errors
    ///
    /// [`Error::WrongStream`] if the stream is of another device, [`Error::Unsupported`] if of another context, or if it
    /// is the per-thread default stream.
    pub(crate) fn adopt(&self, stream: &Arc<cudarc::driver::CudaStream>) -> Result<Arc<CudaStream>> {
        self.check_context(stream.context())?;
        refuse_per_thread(self.device(), stream.cu_stream())?;
        let mut adopted = self.adopted.lock();
        if let Some(known) = adopted.iter().find(|known| known.cu_stream() == stream.cu_stream()) {
            return Ok(known.clone());
        }
        adopted.retain(|known| !known.is_orphan());
        let object = Arc::new(CudaStream::from_cudarc(self.context(), stream.clone()));
        adopted.push(object.clone());
        Ok(object)
    }

    pub(crate) fn check_context(&self, context: &cudarc::driver::CudaContext) -> Result<()> {
        let expected = self.device();
        let actual = DeviceId::new(driver::NAME, context.ordinal())?;
        match (actual == expected, context.cu_ctx() == self.cu_context()) {
            (true, true) => Ok(()),
            (true, false) => {
                let what = "use a context other than its primary one; make it with CudaContext::new";
                Err(Error::Unsupported { device: expected, what })
            }
            (false, _) => Err(Error::WrongStream { actual, expected }),
        }
    }

    /// The stream, which must be one of this device.
    fn own<'a>(&self, stream: &'a dyn BackendStream) -> Result<&'a CudaStream> {
        let expected = self.device();
        let Some(stream) = CudaStream::of(stream) else {
            return Err(Error::Unsupported { device: expected, what: "use a stream of another driver" });
        };
        match stream.context().handle() == self.cu_context() {
            true => Ok(stream),
            false => Err(Error::WrongStream { actual: stream.context().id(), expected }),
        }
    }

    fn open_peer(&self, other: &Heap) -> Result<bool> {
        let peer = other.context();
        let driver = self.context().enter()?;
        let mut answer: c_int = 0;
        // SAFETY: both devices exist; the answer is written to a local.
        unsafe { driver.can_access_peer(&mut answer, self.context().device(), peer.device())? };
        if answer == 0 {
            return Ok(false);
        }
        let flags: c_uint = 0;
        // SAFETY: both contexts are retained, ours is current.
        match unsafe { driver.enable_peer_access(peer.handle(), flags) } {
            Err(error) if !is_code(&error, CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) => {
                return Err(error);
            }
            _ => {}
        }
        other.pool().map_or(Ok(()), |pool| pool.open_to(self.context()))?;
        Ok(true)
    }
}

// SAFETY: 1. positions: see `CudaStream`. 2. `copy::submit` synchronises the stream before it returns an error. 3. and 4.
// see `CudaBuffer` and `CudaStaging`. 5. no call below waits for a device but `synchronize`; `allocate_staging` and
// dropping a staging block may take long, as the trait says.
unsafe impl Backend for CudaBackend {
    fn device(&self) -> DeviceId {
        self.context().id()
    }

    fn description(&self) -> &str {
        &self.description
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn counters(&self) -> Counters {
        let device_bytes = self.heap.reserved_bytes();
        self.context().counting().read(self.context().call_count(), device_bytes)
    }

    fn create_stream(&self, priority: StreamPriority) -> Result<Arc<dyn BackendStream>> {
        Ok(Arc::new(CudaStream::create(self.context(), priority)?))
    }

    fn allocate(&self, bytes: usize, stream: &dyn BackendStream) -> Result<Box<dyn Buffer>> {
        Ok(Box::new(CudaBuffer::allocate(&self.heap, bytes, self.own(stream)?)?))
    }

    fn allocate_staging(&self, bytes: usize, _: Direction) -> Result<Box<dyn Staging>> {
        Ok(Box::new(CudaStaging::allocate(self.context(), bytes)?))
    }

    unsafe fn wrap(&self, memory: RawMemory, owner: Box<dyn Any + Send + Sync>) -> Result<Box<dyn Buffer>> {
        Ok(Box::new(CudaBuffer::wrap(&self.heap, memory, owner)?))
    }

    unsafe fn submit(&self, ops: &[CopyOp<'_>], stream: &dyn BackendStream) -> Result<Submission> {
        let stream = self.own(stream)?;
        // SAFETY: the caller's promises; the stream is of this device.
        unsafe { copy::submit(self.context(), ops, stream.queue()) }
    }

    fn reaches(&self, other: &dyn Backend) -> bool {
        let Some(other) = (other as &dyn Any).downcast_ref::<Self>() else { return false };
        if other.cu_context() == self.cu_context() {
            return true;
        }
        let mut peers = self.peers.lock();
        if let Some((_, reached)) = peers.iter().find(|(known, _)| std::ptr::eq(known.as_ptr(), &*other.heap))
        {
            return *reached;
        }
        let reached = self.open_peer(&other.heap).unwrap_or(false);
        peers.push((Arc::downgrade(&other.heap), reached));
        reached
    }

    fn trim(&self) -> usize {
        self.heap.trim()
    }

    fn synchronize(&self) -> Result<()> {
        // SAFETY: the context is current.
        unsafe { self.context().enter()?.context_synchronize() }
    }
}

fn describe(context: &Context) -> Result<String> {
    let mut name = [0; 256];
    let mut version = 0;
    let driver = context.enter()?;
    // SAFETY: the name is written to a local of the length given, with a zero behind it; the version to a local.
    unsafe {
        driver.device_name(name.as_mut_ptr(), name.len() as c_int, context.device())?;
        driver.driver_version(&mut version)?;
    }
    // SAFETY: the driver has ended the name with a zero, and the last byte is one in any case.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy();
    Ok(format!("{name}, driver {}", driver::version_text(version)))
}
