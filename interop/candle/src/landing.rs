//! Memory that candle allocates and a copy fills.

use std::alloc::{self, Layout};
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::op::BackpropOp;
use candle_core::{Device, Storage, Tensor, WithDType};
use smallvec::SmallVec;
use transship::{DType, DeviceId, MemoryKind, RawMemory};

use crate::device::Target;
use crate::element::{in_candle, with_element};
use crate::error::{Error, Result};
use crate::plan::{self, Chunk, Plan, Spot, Wanted};

/// Up to so many bytes a tensor shares an allocation with others: as `CopyOptions::max_packed_bytes` has it by default.
const LARGEST_PACKED: usize = 512 << 10;

/// A tensor to arrive.
pub(crate) struct Arriving {
    wanted: Wanted,
    shape: SmallVec<[usize; 4]>,
}

impl Arriving {
    pub(crate) fn new(dtype: DType, shape: &[usize]) -> Self {
        let wanted = Wanted { dtype, elements: shape.iter().product() };
        Self { wanted, shape: SmallVec::from_slice(shape) }
    }
}

/// The memory for the tensors of a copy, in the order in which they were asked for.
pub(crate) struct Landing {
    chunks: Vec<SharedChunk>,
    tensors: Vec<Arriving>,
    /// Where they are to lie.
    pub(crate) spots: Vec<Spot>,
    /// Their numbers as they lie: chunk by chunk, each behind the one before it.
    pub(crate) order: Vec<usize>,
}

/// Memory of candle's: a `Vec`, or a slice of cudarc's.
pub(crate) trait Memory: Send {
    fn raw(&mut self) -> RawMemory;

    /// The memory as candle's storage. It is filled, or work that candle's stream was given before fills it.
    fn into_storage(self: Box<Self>) -> Storage;
}

/// The copy has a share, which keeps the memory while it is written. It is taken out when the copy is over.
type SharedChunk = Arc<Mutex<Option<Box<dyn Memory>>>>;

impl Landing {
    /// Allocates on the target, through candle.
    pub(crate) fn new(tensors: Vec<Arriving>, target: &Target) -> Result<Self> {
        let wanted: Vec<_> = tensors.iter().map(|tensor| tensor.wanted).collect();
        let Plan { chunks, spots, order } = plan::place(&wanted, LARGEST_PACKED);
        let share = |memory| Arc::new(Mutex::new(Some(memory)));
        let chunks = chunks.iter().map(|chunk| allocate(chunk, &target.candle).map(share));
        let chunks = chunks.collect::<Result<_>>()?;
        #[cfg(feature = "cuda")]
        crate::cuda::settle_allocations(target)?;
        Ok(Self { chunks, tensors, spots, order })
    }

    /// Tensors of transship over it, as each of `sources` is, which go to `spots`.
    pub(crate) fn lend(
        &self,
        sources: &[transship::Tensor],
        spots: &[Spot],
        target: &Target,
    ) -> Result<Vec<transship::Tensor>> {
        let mut chunks: Vec<Option<transship::Tensor>> = vec![None; self.chunks.len()];
        let lend = |(source, spot): (&transship::Tensor, &Spot)| {
            let empty = || Error::from(transship::Error::Taken);
            let chunk = chunks.get_mut(spot.chunk).ok_or_else(empty)?;
            if chunk.is_none() {
                *chunk = Some(self.lend_chunk(spot.chunk, source.dtype(), target)?);
            }
            let chunk = chunk.as_ref().ok_or_else(empty)?;
            let part = chunk.narrow(0, spot.first, source.numel())?;
            if source.rank() == 1 { Ok(part) } else { Ok(part.reshape(source.shape())?) }
        };
        sources.iter().zip(spots).map(lend).collect()
    }

    fn lend_chunk(&self, number: usize, dtype: DType, target: &Target) -> Result<transship::Tensor> {
        let chunk = self.chunks.get(number).ok_or(transship::Error::Taken)?;
        let raw = chunk.lock().unwrap_or_else(PoisonError::into_inner).as_mut().map(|memory| memory.raw());
        let raw = raw.ok_or(transship::Error::Taken)?;
        let elements = raw.bytes / dtype.size();
        // SAFETY: the memory is valid and initialised, and nobody sees it before `into_tensors`, which is called when the copy is over.
        // The share of it keeps it that long, whatever becomes of the handle.
        let tensor = unsafe {
            transship::Tensor::from_raw_mut(raw, Box::new(chunk.clone()), &[elements], dtype, &target.device)
        };
        Ok(tensor?)
    }

    /// The tensors, now that they are filled, or will be by what candle's stream was given before.
    ///
    /// Those of a chunk are views of one storage, made without a copy.
    pub(crate) fn into_tensors(self) -> Result<Vec<Tensor>> {
        let chunks: Vec<_> = self.chunks.into_iter().map(into_tensor).collect::<Result<_>>()?;
        let view = |(tensor, spot): (Arriving, Spot)| {
            let chunk = chunks.get(spot.chunk).ok_or(transship::Error::Taken)?;
            let part = chunk.narrow(0, spot.first, tensor.wanted.elements)?;
            if tensor.shape.len() == 1 { Ok(part) } else { Ok(part.reshape(&tensor.shape[..])?) }
        };
        self.tensors.into_iter().zip(self.spots).map(view).collect()
    }
}

/// All of a chunk, in one dimension.
fn into_tensor(chunk: SharedChunk) -> Result<Tensor> {
    let mut memory =
        chunk.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or(transship::Error::Taken)?;
    let bytes = memory.raw().bytes;
    let storage = memory.into_storage();
    let elements = bytes / storage.dtype().size_in_bytes();
    Ok(Tensor::from_storage(storage, elements, BackpropOp::none(), false))
}

fn allocate(chunk: &Chunk, device: &Device) -> Result<Box<dyn Memory>> {
    let unknown = || Error::NotInCandle { path: String::new(), dtype: chunk.dtype };
    let dtype = in_candle(chunk.dtype).ok_or_else(unknown)?;
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => {
            with_element!(dtype, T => crate::cuda::allocate::<T>(chunk.elements, device), else Err(unknown()))
        }
        _ => {
            with_element!(dtype, T => Ok(Box::new(zeros::<T>(chunk.elements)?)), else Err(unknown()))
        }
    }
}

/// As the system has them: `vec!` writes each of those of 16 and of 8 bits, in one thread, and ends the process where there is no memory.
fn zeros<T: WithDType>(elements: usize) -> Result<Vec<T>> {
    if elements == 0 {
        return Ok(Vec::new());
    }
    let requested = elements.saturating_mul(size_of::<T>());
    let missing =
        transship::Error::OutOfMemory { device: DeviceId::HOST, kind: "host", requested, free: 0, total: 0 };
    let Ok(layout) = Layout::array::<T>(elements) else { return Err(missing.into()) };
    // SAFETY: it has at least one element, and candle has none of no size.
    let start = unsafe { alloc::alloc_zeroed(layout) }.cast::<T>();
    if start.is_null() {
        return Err(missing.into());
    }
    // SAFETY: allocated just now as a `Vec` of so many has it; elements of candle are numbers, for which zeros are valid.
    Ok(unsafe { Vec::from_raw_parts(start, elements, elements) })
}

impl<T: WithDType> Memory for Vec<T> {
    fn raw(&mut self) -> RawMemory {
        let address = self.as_mut_ptr().expose_provenance() as u64;
        RawMemory::new(address, size_of_val(&self[..]), MemoryKind::Pageable)
    }

    fn into_storage(self: Box<Self>) -> Storage {
        Storage::Cpu(T::to_cpu_storage_owned(*self))
    }
}
