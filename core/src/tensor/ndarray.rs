//! Arrays of the crate `ndarray` as tensors. Nothing is copied.

use ndarray::{ArcArray, Array, ArrayRef, Dimension};

use crate::backend::host::memory::HostMemory;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::tensor::layout::Layout;
use crate::tensor::storage::Storage;
use crate::tensor::tensor::Tensor;

/// Any strides but negative ones.
impl<T: Element, D: Dimension> TryFrom<Array<T, D>> for Tensor {
    type Error = Error;

    fn try_from(array: Array<T, D>) -> Result<Self> {
        let layout = layout_of(&array)?;
        let (data, first) = array.into_raw_vec_and_offset();
        let storage = Storage::new(Box::new(HostMemory::from_vec(data)), None, None);
        Self::from_storage(storage, first.unwrap_or(0) * size_of::<T>(), layout)
    }
}

/// Any order of the axes, but neither gaps nor negative strides; read-only.
impl<T: Element, D: Dimension + 'static> TryFrom<ArcArray<T, D>> for Tensor {
    type Error = Error;

    fn try_from(array: ArcArray<T, D>) -> Result<Self> {
        let layout = layout_of(&array)?;
        if array.as_slice_memory_order().is_none() {
            return Err(layout.not_contiguous("call as_standard_layout() first"));
        }
        let storage = Storage::new(Box::new(HostMemory::from_owner(AsBytes(array))), None, None);
        Self::from_storage(storage, 0, layout)
    }
}

/// Lends the bytes of a shared array without gaps.
struct AsBytes<T, D>(ArcArray<T, D>);

impl<T: Element, D: Dimension + 'static> AsRef<[u8]> for AsBytes<T, D> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(self.0.as_slice_memory_order().unwrap_or_default())
    }
}

fn layout_of<T: Element, D: Dimension>(array: &ArrayRef<T, D>) -> Result<Layout> {
    let dims = array.shape().iter().zip(array.strides());
    // The stride of an axis of less than two says nothing, whatever its sign.
    let strides = dims.map(|(size, stride)| if *size < 2 { Some(0) } else { usize::try_from(*stride).ok() });
    let strides = strides.collect::<Option<Vec<usize>>>().ok_or_else(|| Error::InvalidOption {
        name: "strides",
        value: format!("{:?}", array.strides()),
        reason: "a tensor has no negative ones; call as_standard_layout() first",
    })?;
    Layout::strided(T::DTYPE, array.shape(), &strides)
}
