//! Arrays of the crate `ndarray` as tensors, and tensors as arrays.

use std::sync::Arc;

use ndarray::{ArcArray, Array, ArrayRef, ArrayView, Dimension, ShapeBuilder};

use crate::backend::host::memory::HostMemory;
use crate::element::Element;
use crate::error::{Error, Refused, Result};
use crate::tensor::layout::{Layout, size_overflow};
use crate::tensor::storage::Storage;
use crate::tensor::tensor::{Tensor, TensorMemory};

/// In place, with the strides that the array has. Where one of them is negative the elements are copied, in row-major order: a tensor
/// has no negative strides.
impl<T: Element, D: Dimension> From<Array<T, D>> for Tensor {
    fn from(array: Array<T, D>) -> Self {
        let Some(layout) = layout_of(&array) else { return row_major(&array) };
        let (data, first) = array.into_raw_vec_and_offset();
        over(HostMemory::from_vec(data), first.unwrap_or(0) * size_of::<T>(), layout)
    }
}

/// In place. Read-only while other arrays share the elements; an array that shares them with nobody is taken as an `Array` is. A shared one
/// with gaps or negative strides is copied, in row-major order.
impl<T: Element, D: Dimension + 'static> From<ArcArray<T, D>> for Tensor {
    fn from(array: ArcArray<T, D>) -> Self {
        match array.try_into_owned_nocopy() {
            Ok(array) => Self::from(array),
            Err(shared) => lend(shared, |shared| shared),
        }
    }
}

/// In place, as an [`ArcArray`].
impl<T: Element, D: Dimension + 'static> From<Arc<Array<T, D>>> for Tensor {
    fn from(array: Arc<Array<T, D>>) -> Self {
        match Arc::try_unwrap(array) {
            Ok(array) => Self::from(array),
            Err(shared) => lend(shared, |shared| shared),
        }
    }
}

/// A copy of the elements: a copy in flight may outlive what is borrowed.
impl<T: Element, D: Dimension> From<ArrayView<'_, T, D>> for Tensor {
    fn from(view: ArrayView<'_, T, D>) -> Self {
        match layout_of(&view) {
            Some(_) => Self::from(view.to_owned()),
            None => row_major(&view),
        }
    }
}

impl Tensor {
    /// The elements in place, whatever the strides, as an array of rank `D` (`IxDyn` is any). On the host, as
    /// [`as_slice`](Tensor::as_slice).
    ///
    /// ```
    /// use ndarray::{Array2, Ix2, array};
    /// use transship_core::Tensor;
    ///
    /// let tensor = Tensor::from(array![[1.0_f32, 2.0], [3.0, 4.0]]);
    /// assert_eq!(tensor.transpose(0, 1)?.as_array::<f32, Ix2>()?, array![[1.0, 3.0], [2.0, 4.0]]);
    ///
    /// let array: Array2<f32> = tensor.into_array()?; // nobody else has it: not copied
    /// assert_eq!(array, array![[1.0, 2.0], [3.0, 4.0]]);
    /// # Ok::<(), transship_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::WrongDType`](crate::Error::WrongDType); [`Error::WrongRank`](crate::Error::WrongRank); as any reading,
    /// [`Error::NotOnHost`](crate::Error::NotOnHost), [`Error::Taken`](crate::Error::Taken), [`Error::NotReady`](crate::Error::NotReady)
    /// and [`Error::CopyFailed`](crate::Error::CopyFailed); [`Error::InvalidBits`](crate::Error::InvalidBits) if a bool, between the
    /// elements too, is neither 0 nor 1; [`Error::SizeOverflow`](crate::Error::SizeOverflow) for a shape without elements that
    /// `ndarray` refuses.
    pub fn as_array<T: Element, D: Dimension>(&self) -> Result<ArrayView<'_, T, D>> {
        self.check_dtype::<T>()?;
        let shape = dimension::<D>(&self.layout)?;
        let elements = self.as_span::<T>()?;
        let view = match self.layout.explicit_strides() {
            None => ArrayView::from_shape(shape, elements),
            Some(strides) => ArrayView::from_shape(shape.strides(filled::<D>(strides)), elements),
        };
        view.map_err(|_| overflow(&self.layout))
    }

    /// The elements as an array of rank `D` (`IxDyn` is any). They are not copied where the tensor is alone and is all of a vector, in
    /// whatever order of its axes: what came as a vector, or as an [`Array`] without gaps. Everything else is copied without its gaps,
    /// such as results that came packed. The array has its axes in memory in the order that the tensor has.
    ///
    /// # Errors
    ///
    /// The tensor comes back with each: as [`as_array`](Tensor::as_array), and [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn into_array<T: Element, D: Dimension>(mut self) -> Result<Array<T, D>, Refused<Self>> {
        let checked = dimension::<D>(&self.layout).and_then(|_| in_memory_order(&self.layout));
        let (axes, ordered) = match checked {
            Ok(ordered) => ordered,
            Err(error) => return Err(Refused::new(error, self)),
        };
        let shape = filled::<D>(ordered.shape());
        let layout = std::mem::replace(&mut self.layout, ordered);
        let elements = match self.into_vec_or_copy::<T>() {
            Ok(elements) => elements,
            Err(refused) => return Err(refused.map(|tensor| Self { layout, ..tensor })),
        };
        match Array::from_shape_vec(shape, elements) {
            Ok(array) => Ok(array.permuted_axes(filled::<D>(&inverse(&axes)))),
            // There are as many elements as the shape has, and `dimension` has looked at the rest of what is asked for.
            Err(_) => Err(Refused::new(overflow(&layout), Self::from(Vec::<T>::new()))),
        }
    }
}

/// Lends the bytes of a shared array without gaps.
struct AsBytes<A>(A);

impl<T: Element, D: Dimension> AsRef<[u8]> for AsBytes<ArcArray<T, D>> {
    fn as_ref(&self) -> &[u8] {
        bytes_of(&self.0)
    }
}

impl<T: Element, D: Dimension> AsRef<[u8]> for AsBytes<Arc<Array<T, D>>> {
    fn as_ref(&self) -> &[u8] {
        bytes_of(&self.0)
    }
}

fn bytes_of<T: Element, D: Dimension>(array: &ArrayRef<T, D>) -> &[u8] {
    bytemuck::cast_slice(array.as_slice_memory_order().unwrap_or_default())
}

/// The tensor of a shared array, which `owner` keeps: in place if it has neither gaps nor negative strides.
fn lend<T: Element, D: Dimension, A>(owner: A, array: impl Fn(&A) -> &ArrayRef<T, D>) -> Tensor
where
    AsBytes<A>: AsRef<[u8]> + Send + Sync + 'static,
{
    match layout_of(array(&owner)) {
        Some(layout) if array(&owner).as_slice_memory_order().is_some() => {
            over(HostMemory::from_owner(AsBytes(owner)), 0, layout)
        }
        _ => row_major(array(&owner)),
    }
}

/// A tensor over memory that an array has lain in, which reaches as far as its elements do.
fn over(memory: HostMemory, offset: usize, layout: Layout) -> Tensor {
    let storage = Storage::new(Box::new(memory), None, None);
    debug_assert!(offset + layout.span() <= storage.bytes());
    Tensor { memory: TensorMemory::Here { storage, offset }, layout }
}

/// A copy of the elements in row-major order.
fn row_major<T: Element, D: Dimension>(array: &ArrayRef<T, D>) -> Tensor {
    Tensor::from_elements(array.iter().copied().collect(), array.shape())
}

/// `None` if a stride is negative.
fn layout_of<T: Element, D: Dimension>(array: &ArrayRef<T, D>) -> Option<Layout> {
    let dims = array.shape().iter().zip(array.strides());
    // The stride of an axis of less than two says nothing, whatever its sign.
    let strides = dims.map(|(size, stride)| if *size < 2 { Some(0) } else { usize::try_from(*stride).ok() });
    Layout::strided(T::DTYPE, array.shape(), &strides.collect::<Option<Vec<usize>>>()?).ok()
}

/// The axes from the largest stride to the smallest, and the layout with them in that order.
fn in_memory_order(layout: &Layout) -> Result<(Vec<usize>, Layout)> {
    let strides = layout.strides();
    let mut axes: Vec<usize> = (0..layout.rank()).collect();
    axes.sort_by_key(|axis| std::cmp::Reverse(strides[*axis]));
    let (ordered, _) = layout.permute(&axes)?;
    Ok((axes, ordered))
}

fn inverse(axes: &[usize]) -> Vec<usize> {
    let mut inverse = vec![0; axes.len()];
    for (place, axis) in axes.iter().enumerate() {
        inverse[*axis] = place;
    }
    inverse
}

/// The shape, if there is an array of it.
fn dimension<D: Dimension>(layout: &Layout) -> Result<D> {
    let shape = layout.shape();
    match D::NDIM {
        Some(asked) if asked != shape.len() => Err(layout.wrong_rank(asked)),
        _ => {
            // `ndarray` counts no further, and leaves zeros out.
            let mut sizes = shape.iter().filter(|size| **size > 0);
            let all = sizes.try_fold(1_usize, |all, size| all.checked_mul(*size));
            match all.is_some_and(|all| isize::try_from(all).is_ok()) {
                true => Ok(filled(shape)),
                false => Err(overflow(layout)),
            }
        }
    }
}

fn overflow(layout: &Layout) -> Error {
    size_overflow(layout.dtype(), layout.shape())
}

/// Of the right rank.
fn filled<D: Dimension>(numbers: &[usize]) -> D {
    let mut filled = D::zeros(numbers.len());
    filled.slice_mut().copy_from_slice(numbers);
    filled
}
