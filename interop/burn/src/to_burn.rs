//! Tensors of transship as tensors of burn.

use burn_backend::cubecl::dtype_to_storage_type;
use burn_cubecl::cubecl::ir::features::TypeUsage;
use burn_cubecl::cubecl::server::Handle;
use burn_cubecl::cubecl::zspace::metadata::Metadata;
use burn_cubecl::tensor::CubeTensor;
use transship::Tensor;

use crate::device::SharedDevice;
use crate::element::Kind;
use crate::error::{Error, Result};
use crate::loan::Refused;
use crate::part::Part;
use crate::primitive;
use crate::tree::{BurnTree, located};

impl SharedDevice {
    /// A tensor of burn over the same memory, without a copy. Many become burn's in fewer operations with [`to_burn_all`](Self::to_burn_all).
    ///
    /// The tensor need not have arrived: kernels of burn come behind the copy that fills it, whichever thread launches them. Blocks at most
    /// until that is submitted, as it is behind `wait` and `wait_on`; and for the first tensor of a packed block, on wgpu only where burn has let
    /// go of one, until cubecl's thread has got through what it was given before, or another thread has with such a call. On CUDA also, for another
    /// part of a block ([`Tensor::split`]) of which burn has been shown one, until the copies of all that it was shown are done.
    ///
    /// On CUDA a tensor that has not arrived holds up what starts later until it has: copies into memory of cubecl's, and burn's use of
    /// what is shown later. Those wait for the stream that waits for its copy.
    ///
    /// Shape and strides stay. A tensor without dimensions becomes a `Tensor<1>` of one element. `bool` and `u8`, or `u32` where the
    /// device has no bytes (as with WGSL), become a `Tensor<D, Bool>`: 0 is false and 1 is true, nothing else.
    ///
    /// burn does not write to the memory: it copies where it would work in place. Nor does a copy into `tensor` (`start_copy_into`) write to what
    /// burn reads: it is refused, as into memory that is shared, until burn has
    /// let go of all tensors of the block, and its kernels are submitted, or on CUDA have ended. That is looked for where another copy to the device
    /// allocates, and on wgpu where something else is shown. `Prefetch::reuse` takes other memory meanwhile.
    ///
    /// ```no_run
    /// use burn_tensor::{Device, Int};
    /// use transship::prelude::*;
    /// use transship_burn::SharedDevice;
    ///
    /// let gpu = SharedDevice::open(Device::wgpu_options())?;
    /// let batch = (Tensor::from_vec(vec![0.5_f32; 12], &[3, 4])?, Tensor::from(vec![1_i32, 2, 3]));
    /// let batch = transship::start_copy(batch, gpu.device(), gpu.copy_options()).map_err(transship::Error::from)?;
    /// let (images, labels) = batch.wait().map_err(transship::Error::from)?;
    /// let images: burn_tensor::Tensor<2> = gpu.to_burn(&images)?;
    /// let labels: burn_tensor::Tensor<1, Int> = gpu.to_burn(&labels)?;
    /// # let _ = (images, labels);
    /// # Ok::<(), transship_burn::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NotShared`], for what [`from_burn`](Self::from_burn) gave as well; [`Error::NoSuchElements`], [`Error::WrongRank`],
    /// [`Error::Misaligned`]; the error of the copy if that failed.
    pub fn to_burn<const D: usize, K: Kind>(&self, tensor: &Tensor) -> Result<burn_tensor::Tensor<D, K>> {
        self.to_burn_all(tensor)
    }

    /// All tensors of a structure as burn's, each as by [`to_burn`](Self::to_burn).
    ///
    /// With the feature `fusion` burn queues an operation for each 64 of them, and not one for each.
    ///
    /// What it is assigned to says what they become ([`BurnTree`]): ranks and kinds in tuples, arrays, `Vec` and `Option`. Parts of a structure of
    /// the program's are given as a tuple.
    ///
    /// ```no_run
    /// use burn_tensor::{Device, Int};
    /// use transship::prelude::*;
    /// use transship_burn::SharedDevice;
    ///
    /// #[derive(TensorTree)]
    /// struct Batch {
    ///     images: Tensor,
    ///     labels: Vec<Tensor>,
    /// }
    ///
    /// let gpu = SharedDevice::open(Device::wgpu_options())?;
    /// let images = Tensor::from_vec(vec![0.5_f32; 12], &[1, 3, 4])?;
    /// let batch = Batch { images, labels: vec![Tensor::from(vec![1_i32, 2, 3])] };
    /// let batch = transship::start_copy(batch, gpu.device(), gpu.copy_options()).map_err(transship::Error::from)?;
    /// let Batch { images, labels } = batch.wait().map_err(transship::Error::from)?;
    /// let (images, labels): (burn_tensor::Tensor<3>, Vec<burn_tensor::Tensor<1, Int>>) = gpu.to_burn_all(&(images, labels))?;
    /// # let _ = (images, labels);
    /// # Ok::<(), transship_burn::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`to_burn`](Self::to_burn) in [`Error::InStructure`], which says of which tensor. burn is given none then.
    pub fn to_burn_all<T: BurnTree>(&self, tensors: &T::Tree) -> Result<T> {
        let mut wanted = Vec::new();
        let frame = T::list(tensors, &mut wanted);
        let count = wanted.len();
        let cubes = wanted.iter().enumerate().map(|(number, Wanted { tensor, make })| {
            make(self, tensor).map_err(|error| located::<T>(&frame, Refused::at(number, error)))
        });
        let made = primitive::of_cubes(cubes.collect::<Result<_>>()?);
        let changed = transship::Error::TreeChanged { first: count, second: count };
        T::fill(frame, &mut made.into_iter()).ok_or_else(|| changed.into())
    }

    fn cube_of<const D: usize, K: Kind>(&self, tensor: &Tensor) -> Result<CubeTensor> {
        let dtype = self.burn_dtype::<K>(tensor)?;
        let (shape, strides) = dimensions::<D>(tensor)?;
        let handle = self.handle_of(tensor)?;
        let metadata = Metadata::new(shape, strides);
        Ok(CubeTensor::new(self.client.clone(), handle, metadata, self.cube.clone(), dtype))
    }

    fn burn_dtype<K: Kind>(&self, tensor: &Tensor) -> Result<burn_tensor::DType> {
        let is_stored = |dtype: &burn_tensor::DType| {
            let usage = self.client.properties().type_usage(dtype_to_storage_type(*dtype));
            usage.is_superset(TypeUsage::Buffer | TypeUsage::Conversion)
        };
        let dtype = tensor.dtype();
        let refused = || Error::NoSuchElements { dtype, kind: K::NAME, instead: K::INSTEAD };
        K::in_burn(dtype).filter(is_stored).ok_or_else(refused)
    }

    /// The part of cubecl's memory that the tensor lies in.
    fn handle_of(&self, tensor: &Tensor) -> Result<Handle> {
        let (actual, expected) = (tensor.device_id()?, self.transship.id());
        if actual != expected {
            return Err(Error::NotShared { actual, expected });
        }
        if tensor.numel() == 0 {
            return Ok(self.client.empty(0));
        }
        let part = self.runtime.part_of(tensor)?.ok_or(Error::NotShared { actual, expected })?;
        self.check_alignment(&part)?;
        Ok(part.into_handle())
    }

    /// Kernels of cubecl's rely on it.
    fn check_alignment(&self, part: &Part) -> Result<()> {
        let (offset, alignment) = (part.place, self.client.properties().memory.alignment);
        match offset.is_multiple_of(alignment) {
            true => Ok(()),
            false => Err(Error::Misaligned { offset, alignment }),
        }
    }
}

/// A tensor, and what it is to become.
pub struct Wanted<'a> {
    tensor: &'a Tensor,
    make: fn(&SharedDevice, &Tensor) -> Result<CubeTensor>,
}

impl<'a> Wanted<'a> {
    pub(crate) fn of<const D: usize, K: Kind>(tensor: &'a Tensor) -> Self {
        Self { tensor, make: SharedDevice::cube_of::<D, K> }
    }
}

/// Shape and strides, in elements. burn has no tensors without dimensions.
fn dimensions<const D: usize>(tensor: &Tensor) -> Result<(Vec<usize>, Vec<usize>)> {
    if tensor.rank() == 0 && D == 1 {
        return Ok((vec![1], vec![1]));
    }
    if tensor.rank() != D {
        return Err(Error::WrongRank { expected: D, actual: tensor.rank() });
    }
    Ok((tensor.shape().to_vec(), tensor.strides().to_vec()))
}
