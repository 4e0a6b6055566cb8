//! Our tensors for others.

use std::alloc;
use std::alloc::Layout as Block;
use std::ffi::c_void;
use std::fmt;
use std::mem::offset_of;
use std::ptr::NonNull;

use smallvec::SmallVec;

use crate::backend::host::memory::not_allocated;
use crate::device::stream::Stream;
use crate::dlpack::abi::{DLManagedTensor, DLManagedTensorVersioned, DLTensor};
use crate::dlpack::managed::Managed;
use crate::dlpack::order::order;
use crate::dlpack::words::{data_type_of, device_of};
use crate::error::{Error, Result};
use crate::runtime::foreign;
use crate::tensor::tensor::Tensor;

impl Tensor {
    /// The tensor as a struct of DLPack, in place, for whoever consumes it: memory of the host, page-locked or not (all of it as `kDLCPU`), of CUDA
    /// and of HIP (`kDLROCM`). The memory lives until the struct's `deleter` is called, once, on any thread; if nobody calls it, for ever.
    ///
    /// Memory that nothing else holds may be written by the consumer. Otherwise the struct says that it is read-only: memory that another tensor
    /// shares (a [clone](Clone) of this one that is kept, or what was packed with it), that a copy in flight uses, or that was lent to be read.
    ///
    /// `consumer` is the stream on which memory of a device is used: its work from now on comes behind the copy that fills the tensor and
    /// behind other streams that use it, on the device, and after the `deleter` was called the memory is not given back before its work up to
    /// then is done. Blocks at most until the last piece of that copy is submitted. `None`: all of that must be done, and the
    /// consumer calls the `deleter` when its own work is. On the host the tensor must be ready, whatever the consumer.
    ///
    /// # Errors
    ///
    /// The tensor comes back with each. [`Error::NotReady`] as said above, [`Error::CopyFailed`], [`Error::Taken`];
    /// [`Error::Unsupported`] for memory of other devices (wgpu), and if `consumer` is of another driver; [`Error::SizeOverflow`] if a
    /// size does not fit into 64 bits with a sign; [`Error::OutOfMemory`]; what the driver says.
    pub fn into_dlpack(
        self,
        consumer: Option<&Stream>,
    ) -> Result<NonNull<DLManagedTensorVersioned>, ExportError> {
        export(self, consumer)
    }

    /// As [`into_dlpack`](Self::into_dlpack), as the struct of before version 1.0. That cannot say that memory is read-only.
    ///
    /// # Errors
    ///
    /// As [`into_dlpack`](Self::into_dlpack); [`Error::NotWritable`] for memory that the consumer must not write.
    pub fn into_dlpack_unversioned(
        self,
        consumer: Option<&Stream>,
    ) -> Result<NonNull<DLManagedTensor>, ExportError> {
        export(self, consumer)
    }
}

/// Why a tensor cannot go out, and the tensor. It prints as the plain [`Error`], and becomes that with `?`.
pub struct ExportError(Box<(Error, Tensor)>);

impl ExportError {
    /// What went wrong.
    pub fn error(&self) -> &Error {
        &self.0.0
    }

    /// The tensor, as it was.
    pub fn into_tensor(self) -> Tensor {
        self.0.1
    }
}

impl From<ExportError> for Error {
    fn from(failed: ExportError) -> Self {
        failed.0.0
    }
}

impl fmt::Display for ExportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error().fmt(f)
    }
}

impl fmt::Debug for ExportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ExportError").field(self.error()).finish()
    }
}

impl std::error::Error for ExportError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(self.error())
    }
}

fn export<M: Managed>(mut tensor: Tensor, consumer: Option<&Stream>) -> Result<NonNull<M>, ExportError> {
    match Content::of(&mut tensor, consumer, M::SAYS_READ_ONLY)
        .and_then(|content| Ok((Room::of(&content)?, content)))
    {
        Ok((room, content)) => Ok(room.fill(content, tensor)),
        Err(error) => Err(ExportError(Box::new((error, tensor)))),
    }
}

/// What a struct says.
struct Content {
    /// Without its numbers.
    tensor: DLTensor,
    /// Sizes, and then strides.
    numbers: SmallVec<[i64; 8]>,
    read_only: bool,
}

impl Content {
    fn of(tensor: &mut Tensor, consumer: Option<&Stream>, says_read_only: bool) -> Result<Self> {
        let device = device_of(tensor.device_id()?)?;
        let numbers = numbers(tensor)?;
        // Asked before a stream is made to wait.
        if !says_read_only && !may_be_written(tensor)? {
            let cure = "hand it out with into_dlpack, or a copy of it (CopyPolicy::Always)";
            return Err(Error::NotWritable { why: "shared, in flight, or lent read-only", cure });
        }
        order(tensor, consumer)?;
        let tensor_of_c = DLTensor {
            data: data(tensor)?,
            device,
            // There are as many as memory has room for at most.
            ndim: i32::try_from(tensor.rank()).map_err(|_| size_overflow(tensor))?,
            dtype: data_type_of(tensor.dtype()),
            shape: std::ptr::null_mut(),
            strides: std::ptr::null_mut(),
            byte_offset: 0,
        };
        Ok(Self { tensor: tensor_of_c, numbers, read_only: !may_be_written(tensor)? })
    }
}

/// Whether nobody else holds the memory, or has lent it to be read.
fn may_be_written(tensor: &Tensor) -> Result<bool> {
    let storage = tensor.storage()?;
    Ok(storage.is_writable() && storage.is_exclusive())
}

/// Sizes and strides. Those of a tensor without elements say nothing, and may be larger than what fits.
fn numbers(tensor: &Tensor) -> Result<SmallVec<[i64; 8]>> {
    let sizes = tensor.shape().iter().map(|size| i64::try_from(*size).map_err(|_| size_overflow(tensor)));
    let strides = tensor.strides();
    let strides = strides.iter().map(|stride| Ok(i64::try_from(*stride).unwrap_or(i64::MAX)));
    sizes.chain(strides).collect()
}

fn size_overflow(tensor: &Tensor) -> Error {
    Error::SizeOverflow { shape: tensor.shape().to_vec(), dtype: tensor.dtype() }
}

/// Where the first element is; null if there is none.
fn data(tensor: &Tensor) -> Result<*mut c_void> {
    let storage = tensor.storage()?;
    if tensor.numel() == 0 {
        return Ok(std::ptr::null_mut());
    }
    storage.check_unshared()?;
    if storage.device().is_none() {
        return Ok(storage.host_range(tensor.offset(), tensor.layout().span())?.as_ptr().cast());
    }
    let address = tensor.address()?.and_then(|address| usize::try_from(address).ok());
    let what = "hand out memory that has no address";
    let address = address.ok_or(Error::Unsupported { device: tensor.device_id()?, what })?;
    Ok(std::ptr::with_exposed_provenance_mut(address))
}

/// What goes out. Sizes and strides are behind it, in the same allocation.
#[repr(C)]
struct Exported<M> {
    managed: M,
    tensor: Tensor,
    block: Block,
}

/// Memory for one.
struct Room<M> {
    start: NonNull<Exported<M>>,
    /// Where the numbers begin, in bytes.
    numbers: usize,
    block: Block,
}

impl<M: Managed> Room<M> {
    fn of(content: &Content) -> Result<Self> {
        const { assert!(offset_of!(Exported<M>, managed) == 0) };
        let count = content.numbers.len();
        let whole =
            Block::array::<i64>(count).and_then(|numbers| Block::new::<Exported<M>>().extend(numbers));
        let (block, numbers) = whole.map_err(|_| not_allocated(usize::MAX))?;
        // SAFETY: the block is not empty.
        let start = NonNull::new(unsafe { alloc::alloc(block) }.cast());
        Ok(Self { start: start.ok_or_else(|| not_allocated(block.size()))?, numbers, block })
    }

    fn fill(self, content: Content, tensor: Tensor) -> NonNull<M> {
        let Self { start, numbers, block } = self;
        let Content { tensor: mut described, numbers: all, read_only } = content;
        // SAFETY: the block has room for so many numbers there, and nobody else has it.
        unsafe {
            let shape = start.cast::<u8>().add(numbers).cast::<i64>();
            shape.copy_from_nonoverlapping(NonNull::from(all.as_slice()).cast(), all.len());
            if !all.is_empty() {
                described.shape = shape.as_ptr();
                described.strides = shape.add(all.len() / 2).as_ptr();
            }
        }
        let managed = M::new(described, read_only, start.as_ptr().cast(), delete::<M>);
        // SAFETY: the block begins with this, and is aligned for it.
        unsafe { start.write(Exported { managed, tensor, block }) };
        start.cast()
    }
}

/// The deleter of what went out. A panic of an owner of lent memory ends here: there is no way for it through C.
///
/// # Safety
///
/// `managed` was made by [`Room::fill`], and is used by nobody any more.
unsafe extern "C" fn delete<M: Managed>(managed: *mut M) {
    let Some(managed) = NonNull::new(managed) else { return };
    // SAFETY: the caller's promise: its context is the whole of it.
    let Some(exported) = NonNull::new(unsafe { M::context(managed) }.cast::<Exported<M>>()) else { return };
    // SAFETY: the same; it was written there, with the block that it is in.
    let Exported { tensor, block, .. } = unsafe { exported.read() };
    // SAFETY: allocated with this block, and read out just now.
    unsafe { alloc::dealloc(exported.as_ptr().cast(), block) };
    foreign::caught(move || drop(tensor));
}
