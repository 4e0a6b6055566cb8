//! Tensors over memory of the host that is there already. Nothing is copied but out of slices.

use std::sync::Arc;

use crate::backend::host::memory::HostMemory;
use crate::dtype::DType;
use crate::element::Element;
use crate::error::Result;
use crate::tensor::layout::Layout;
use crate::tensor::storage::Storage;
use crate::tensor::tensor::{Tensor, TensorMemory};

impl Tensor {
    /// The elements of a vector, in row-major order. [`into_vec`](Tensor::into_vec) gives it back.
    ///
    /// # Errors
    ///
    /// The vector is dropped with each; [`Device::register_vec`](crate::Device::register_vec) of the host gives it back:
    /// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch) if the shape has another number of elements;
    /// [`Error::SizeOverflow`](crate::Error::SizeOverflow).
    pub fn from_vec<T: Element>(data: Vec<T>, shape: &[usize]) -> Result<Self> {
        Self::over(
            Storage::new(Box::new(HostMemory::from_vec(data)), None, None),
            Layout::contiguous(T::DTYPE, shape)?,
        )
    }

    /// The elements of a shared slice, in row-major order; read-only.
    ///
    /// # Errors
    ///
    /// This share of the slice is dropped with each: as [`from_vec`](Tensor::from_vec).
    pub fn from_arc<T: Element>(data: Arc<[T]>, shape: &[usize]) -> Result<Self> {
        Self::over(shared(data), Layout::contiguous(T::DTYPE, shape)?)
    }

    /// The bytes of any owner, such as a memory map, in the order of this machine; read-only. The owner is dropped with
    /// the last tensor over them. Whether they are values of `dtype` (a bool is 0 or 1) shows when they are read.
    ///
    /// # Errors
    ///
    /// The owner is dropped with each, on this thread; where that must not be, register it with the host
    /// ([`Device::register`](crate::Device::register)) and take the tensor out of that. As [`from_vec`](Tensor::from_vec);
    /// [`Error::Misaligned`](crate::Error::Misaligned) if elements of `dtype` cannot lie there.
    pub fn from_owner(
        owner: impl AsRef<[u8]> + Send + Sync + 'static,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Self> {
        let layout = Layout::contiguous(dtype, shape)?;
        Self::over(Storage::lent(Box::new(HostMemory::from_owner(owner)), None, None), layout)
    }

    /// One element, of rank 0.
    pub fn scalar<T: Element>(value: T) -> Self {
        Self::whole(HostMemory::from_vec(vec![value]), Layout::scalar(T::DTYPE))
    }

    /// As many elements as the shape has.
    pub(crate) fn from_elements<T: Element>(elements: Vec<T>, shape: &[usize]) -> Self {
        let layout = Layout::of_elements(&elements, shape);
        Self::whole(HostMemory::from_vec(elements), layout)
    }

    fn over(storage: Storage, layout: Layout) -> Result<Self> {
        if layout.nbytes() != storage.bytes() {
            return Err(layout.shape_mismatch(storage.bytes()));
        }
        Self::from_storage(storage, 0, layout)
    }

    /// TensorMemory that was made for the layout.
    pub(crate) fn whole(memory: HostMemory, layout: Layout) -> Self {
        Self::over_whole(Storage::new(Box::new(memory), None, None), layout)
    }

    /// The same over memory of any kind.
    pub(crate) fn over_whole(storage: Storage, layout: Layout) -> Self {
        debug_assert!(layout.span() == storage.bytes());
        Self { memory: TensorMemory::Here { storage, offset: 0 }, layout }
    }
}

/// One dimension, as long as the vector.
impl<T: Element> From<Vec<T>> for Tensor {
    fn from(data: Vec<T>) -> Self {
        let shape = [data.len()];
        Self::from_elements(data, &shape)
    }
}

/// As of the vector.
impl<T: Element> From<Box<[T]>> for Tensor {
    fn from(data: Box<[T]>) -> Self {
        Self::from(data.into_vec())
    }
}

/// One dimension, as long as the slice; read-only.
impl<T: Element> From<Arc<[T]>> for Tensor {
    fn from(data: Arc<[T]>) -> Self {
        let layout = Layout::of_slice(&data);
        Self::over_whole(shared(data), layout)
    }
}

/// One dimension, as long as the vector; read-only while others share it. A vector that nobody else has is taken as a `Vec` is.
impl<T: Element> From<Arc<Vec<T>>> for Tensor {
    fn from(data: Arc<Vec<T>>) -> Self {
        match Arc::try_unwrap(data) {
            Ok(data) => Self::from(data),
            Err(data) => {
                let layout = Layout::of_slice(&data);
                Self::over_whole(shared(data), layout)
            }
        }
    }
}

/// A copy of the elements, in one dimension as long as the slice. [`Tensor::reshape`] gives it another shape.
///
/// ```
/// use transship_core::Tensor;
///
/// let tensor = Tensor::from(&[1.0_f32, 2.0, 3.0, 4.0][..]).reshape(&[2, 2])?;
/// assert_eq!(tensor.shape(), [2, 2]);
/// # Ok::<(), transship_core::Error>(())
/// ```
impl<T: Element> From<&[T]> for Tensor {
    fn from(data: &[T]) -> Self {
        Self::from(data.to_vec())
    }
}

/// Elements that others share. No code of the program runs when they go.
fn shared<E>(elements: Arc<E>) -> Storage
where
    E: ?Sized,
    AsBytes<E>: AsRef<[u8]> + Send + Sync + 'static,
{
    Storage::new(Box::new(HostMemory::from_owner(AsBytes(elements))), None, None)
}

/// Lends the bytes of shared elements.
struct AsBytes<E: ?Sized>(Arc<E>);

impl<T: Element> AsRef<[u8]> for AsBytes<[T]> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

impl<T: Element> AsRef<[u8]> for AsBytes<Vec<T>> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}
