//! The one type of tensor, whatever its device.

use std::fmt;

use crate::alignment::Alignment;
use crate::backend::MemoryKind;
use crate::device::device::Device;
use crate::device_id::DeviceId;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::device_list::kernels_reach;
use crate::tensor::layout::Layout;
use crate::tensor::storage::Storage;
use crate::tensor::strides::Strides;

/// A tensor: shared memory on some device, and where in it which elements lie.
///
/// Cloning shares the memory. A view keeps the whole storage alive; [`retained_bytes`](Tensor::retained_bytes) says
/// how large that is.
///
/// ```
/// use transship_core::{DType, DeviceId, Tensor};
///
/// let tensor = Tensor::from_vec(vec![1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
/// assert_eq!((tensor.dtype(), tensor.shape()), (DType::F32, &[2, 3][..]));
/// assert_eq!(tensor.device_id()?, DeviceId::HOST);
///
/// let column = tensor.narrow(1, 1, 1)?;
/// assert!(column.shares_memory_with(&tensor));
/// assert_eq!(column.to_vec::<f32>()?, [2.0, 5.0]);
/// # Ok::<(), transship_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Tensor {
    pub(crate) memory: TensorMemory,
    pub(crate) layout: Layout,
}

#[derive(Clone)]
pub(crate) enum TensorMemory {
    /// In a storage, where the first element lies so many bytes behind the start.
    Here { storage: Storage, offset: usize },
    /// With a copy, which knows the tensor by this.
    Taken(Mark),
}

/// Which tensor of which copy. Shape and type stay with the tensor, so that whoever has the mark has them too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The number of the copy. Numbers come back after 2^32 copies: what is put back by one is checked for its range.
    pub(crate) copy: u32,
    /// The number of the tensor among those of its structure.
    pub(crate) leaf: u32,
}

// One visit of a large structure goes through all of them.
const _: () = assert!(size_of::<Tensor>() <= 96 && size_of::<TensorMemory>() == 16);

/// Where a tensor lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryInfo {
    /// The device: its driver and its number.
    pub device: DeviceId,
    /// What kind of memory it is.
    pub kind: MemoryKind,
    /// The address of the first element on the device; `None` where memory has no addresses.
    pub address: Option<u64>,
    /// How the first element is aligned, counted up to 1 MiB.
    pub alignment: Alignment,
    /// Bytes from the first element to behind the last.
    pub bytes: usize,
    /// Bytes that the tensor keeps alive.
    pub retained_bytes: usize,
}

impl Tensor {
    /// The element type.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.layout.dtype()
    }

    /// The size of each dimension.
    #[inline]
    pub fn shape(&self) -> &[usize] {
        self.layout.shape()
    }

    /// How many dimensions there are.
    pub fn rank(&self) -> usize {
        self.layout.rank()
    }

    /// From one element to the next along each dimension, in elements.
    pub fn strides(&self) -> Strides {
        self.layout.strides()
    }

    /// How many elements there are.
    #[inline]
    pub fn numel(&self) -> usize {
        self.layout.numel()
    }

    /// The size of the elements in bytes, without the gaps between them.
    #[inline]
    pub fn nbytes(&self) -> usize {
        self.layout.nbytes()
    }

    /// Where the first element lies in the memory that the tensor shares, in bytes; 0 while a copy has taken it.
    #[inline]
    pub fn offset(&self) -> usize {
        match self.memory {
            TensorMemory::Here { offset, .. } => offset,
            TensorMemory::Taken(_) => 0,
        }
    }

    /// Whether the elements lie in one run, in row-major order.
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        self.layout.is_contiguous()
    }

    /// Element type, shape and strides.
    #[inline]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Where the tensor lies.
    ///
    /// # Errors
    ///
    /// [`Error::Taken`].
    pub fn device_id(&self) -> Result<DeviceId> {
        Ok(self.storage()?.device_id())
    }

    /// What kind of memory the tensor lies in.
    ///
    /// # Errors
    ///
    /// [`Error::Taken`].
    pub fn memory_kind(&self) -> Result<MemoryKind> {
        Ok(self.storage()?.kind())
    }

    /// The address of the first element on the tensor's device; `None` where memory has no addresses. It says nothing
    /// about whether a copy into the tensor is done, nor for how long the memory lives.
    ///
    /// # Errors
    ///
    /// [`Error::Taken`].
    pub fn address(&self) -> Result<Option<u64>> {
        let start = self.storage()?.buffer().address();
        Ok(start.map(|start| start + self.offset() as u64))
    }

    /// The memory that the tensor lies in, described without naming a vendor.
    ///
    /// # Errors
    ///
    /// [`Error::Taken`].
    pub fn memory(&self) -> Result<MemoryInfo> {
        let storage = self.storage()?;
        let address = self.address()?;
        let first_bit = address.filter(|address| *address > 0).map_or(0, u64::trailing_zeros);
        Ok(MemoryInfo {
            device: storage.device_id(),
            kind: storage.kind(),
            address,
            alignment: Alignment::new(1 << first_bit.min(20)).unwrap_or(Alignment::ONE),
            bytes: self.layout.span(),
            retained_bytes: storage.retained_bytes(),
        })
    }

    /// Whether the copy that fills the tensor, if any, is done. Never blocks.
    ///
    /// # Errors
    ///
    /// [`Error::Taken`]; [`Error::CopyFailed`] if the copy failed.
    pub fn is_ready(&self) -> Result<bool> {
        match self.storage()?.check_ready() {
            Ok(()) => Ok(true),
            Err(Error::NotReady) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether both lie in the same storage, so that each keeps the memory of the other alive. `false` while a copy
    /// has taken one of them.
    pub fn shares_memory_with(&self, other: &Self) -> bool {
        match (self.storage(), other.storage()) {
            (Ok(own), Ok(other)) => own.identity() == other.identity(),
            _ => false,
        }
    }

    /// Whether kernels of `device` read its memory, which lies on another device: many small tensors of such memory are copied there by one launch, and
    /// each of any other by the driver. Memory that the program has lent is asked for at the driver, at the latest. Never blocks.
    ///
    /// # Errors
    ///
    /// [`Error::Taken`] while a copy has taken the tensor.
    pub fn is_read_by_kernels_of(&self, device: &Device) -> Result<bool> {
        let (storage, reader) = (self.storage()?, device.backend());
        Ok(storage.device().is_some_and(|source| {
            reader.limits().gathers()
                && reader.reaches(&**source.backend())
                && (!storage.is_lent()
                    || source.same_as(device)
                    || kernels_reach(&**reader, storage.buffer()))
        }))
    }

    /// The size of the whole storage that the tensor keeps alive; 0 while a copy has taken it.
    pub fn retained_bytes(&self) -> usize {
        self.storage().map_or(0, Storage::retained_bytes)
    }

    /// A tensor over a part of a storage.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the storage ends before the tensor does; [`Error::Misaligned`] if the element type
    /// cannot lie at `offset`.
    pub(crate) fn from_storage(storage: Storage, offset: usize, layout: Layout) -> Result<Self> {
        check_range(offset, layout.span(), storage.bytes())?;
        if layout.numel() > 0 {
            check_alignment(&storage, offset, layout.dtype())?;
        }
        Ok(Self { memory: TensorMemory::Here { storage, offset }, layout })
    }

    /// The memory and the offset in it, which a copy takes and leaves its mark for; `None` if another copy has them.
    #[inline]
    pub(crate) fn take(&mut self, mark: Mark) -> Option<(Storage, usize)> {
        match std::mem::replace(&mut self.memory, TensorMemory::Taken(mark)) {
            TensorMemory::Here { storage, offset } => Some((storage, offset)),
            taken => {
                self.memory = taken;
                None
            }
        }
    }

    /// What the copy that has taken the memory knows the tensor by.
    #[inline]
    pub(crate) fn mark(&self) -> Option<Mark> {
        match self.memory {
            TensorMemory::Here { .. } => None,
            TensorMemory::Taken(mark) => Some(mark),
        }
    }

    /// The memory that was taken, back again. `false`, and nothing is changed, if the elements would reach beyond it.
    #[inline]
    pub(crate) fn put_back(&mut self, storage: Storage, offset: usize) -> bool {
        self.put_copy(storage, offset, false)
    }

    /// Other memory with the same elements, at `offset` bytes; `contiguous`: in one run there. `false`, and nothing is
    /// changed, if they would reach beyond it.
    #[inline(always)]
    pub(crate) fn put_copy(&mut self, storage: Storage, offset: usize, contiguous: bool) -> bool {
        let bytes = if contiguous { self.layout.nbytes() } else { self.layout.span() };
        if storage.check_range(offset, bytes).is_err() {
            return false;
        }
        if contiguous {
            self.layout.make_contiguous();
        }
        self.memory = TensorMemory::Here { storage, offset };
        true
    }

    /// Makes room for elements of another type in the place of those that a copy has taken, in one run.
    pub(crate) fn become_contiguous(&mut self, dtype: DType) {
        self.layout.become_contiguous(dtype);
    }

    /// Makes room for the same elements where they lie otherwise: a layout of the same type and shape.
    pub(crate) fn lie_as(&mut self, layout: &Layout) {
        self.layout = layout.clone();
    }

    #[inline]
    pub(crate) fn storage(&self) -> Result<&Storage> {
        match &self.memory {
            TensorMemory::Here { storage, .. } => Ok(storage),
            TensorMemory::Taken(_) => Err(Error::Taken),
        }
    }

    #[inline]
    pub(crate) fn storage_mut(&mut self) -> Result<&mut Storage> {
        match &mut self.memory {
            TensorMemory::Here { storage, .. } => Ok(storage),
            TensorMemory::Taken(_) => Err(Error::Taken),
        }
    }
}

pub(crate) fn check_range(offset: usize, bytes: usize, limit: usize) -> Result<()> {
    match offset.checked_add(bytes) {
        Some(end) if end <= limit => Ok(()),
        end => Err(Error::OutOfRange { what: "bytes", start: offset, end: end.unwrap_or(usize::MAX), limit }),
    }
}

/// Checks the address on the host, else on the device, else the offset alone.
fn check_alignment(storage: &Storage, offset: usize, dtype: DType) -> Result<()> {
    let host = storage.host_range(offset, 0).map(|start| start.addr().get() as u64);
    let address = host.ok().or_else(|| Some(storage.buffer().address()? + offset as u64));
    let (what, value) = address.map_or(("offset", offset as u64), |address| ("address", address));
    let alignment = dtype.alignment().bytes();
    if value.is_multiple_of(alignment as u64) {
        return Ok(());
    }
    Err(Error::Misaligned { what, value, alignment, cure: "copy the data to an aligned place" })
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut tensor = f.debug_struct("Tensor");
        tensor.field("shape", &self.shape()).field("dtype", &format_args!("{}", self.dtype()));
        match self.device_id() {
            Ok(device) => tensor.field("device", &device),
            Err(_) => tensor.field("device", &format_args!("taken")),
        };
        tensor.finish()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

    use super::*;
    use crate::backend::host::memory::HostMemory;

    #[test]
    fn a_taken_tensor_has_a_shape_and_no_memory() {
        let mut tensor = Tensor::from(vec![1_u8, 2]);
        let twin = tensor.clone();
        let mark = Mark { copy: 7, leaf: 3 };
        let (storage, offset) = tensor.take(mark).unwrap();
        assert_eq!((offset, tensor.mark(), tensor.clone().mark()), (0, Some(mark), Some(mark)));
        assert!(tensor.take(Mark { copy: 8, leaf: 0 }).is_none() && tensor.mark() == Some(mark));
        assert_eq!((tensor.shape(), tensor.dtype(), tensor.retained_bytes()), (&[2][..], DType::U8, 0));
        assert!(!tensor.shares_memory_with(&twin) && !tensor.clone().shares_memory_with(&tensor));
        assert!(matches!(tensor.device_id(), Err(Error::Taken)));
        assert!(matches!(tensor.address(), Err(Error::Taken)));
        assert!(matches!(tensor.is_ready(), Err(Error::Taken)));
        assert!(matches!(tensor.as_slice::<u8>(), Err(Error::Taken)));
        assert!(matches!(tensor.as_mut_bytes(), Err(Error::Taken)));
        assert!(matches!(tensor.to_bytes(), Err(Error::Taken)));
        assert!(matches!(tensor.contiguous(), Err(Error::Taken)));
        assert!(matches!(tensor.narrow(0, 0, 1), Err(Error::Taken)));
        assert_eq!(format!("{tensor:?}"), "Tensor { shape: [2], dtype: uint8, device: taken }");
        assert!(!tensor.put_back(storage.clone(), 1), "it would reach beyond its memory");
        assert!(tensor.put_back(storage, 0));
        assert!(tensor.shares_memory_with(&twin));
        assert_eq!(tensor.as_slice::<u8>().unwrap(), [1, 2]);
    }

    #[test]
    fn a_tensor_reads_the_copy_that_was_put_into_it() {
        let mut tensor = Tensor::from(vec![0_u16, 1, 2, 3]).slice(0, 0..4, 2).unwrap();
        let memory = HostMemory::from_vec(vec![9_u16, 8, 7, 6]);
        assert!(tensor.put_copy(Storage::new(Box::new(memory), None, None), 4, true));
        assert_eq!((tensor.as_slice::<u16>().unwrap(), tensor.offset()), (&[7, 6][..], 4));
        let memory = HostMemory::from_vec(vec![9_u16, 8, 7, 6]);
        let mut strided = Tensor::from(vec![0_u16, 1, 2]).slice(0, 0..3, 2).unwrap();
        assert!(strided.put_copy(Storage::new(Box::new(memory), None, None), 2, false));
        assert_eq!(strided.to_vec::<u16>().unwrap(), [8, 6]);
    }

    #[test]
    fn a_storage_that_is_too_short_or_misaligned_is_refused() {
        let storage = || Storage::new(Box::new(HostMemory::zeroed(64).unwrap()), None, None);
        let layout = || Layout::strided(DType::F32, &[2], &[3]).unwrap();
        assert!(Tensor::from_storage(storage(), 48, layout()).is_ok());
        for offset in [52, 64, usize::MAX] {
            assert!(matches!(
                Tensor::from_storage(storage(), offset, layout()),
                Err(Error::OutOfRange { .. })
            ));
        }
        assert!(matches!(Tensor::from_storage(storage(), 2, layout()), Err(Error::Misaligned { .. })));
    }
}
