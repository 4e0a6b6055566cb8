//! Tensors of transship as tensors of burn.

use std::any::Any;

use burn_backend::cubecl::dtype_to_storage_type;
use burn_cubecl::Cube;
use burn_cubecl::cubecl::ir::features::TypeUsage;
use burn_cubecl::cubecl::server::Handle;
use burn_cubecl::cubecl::zspace::metadata::Metadata;
use burn_cubecl::tensor::CubeTensor;
use transship::Tensor;
use transship::wgpu::{WgpuBuffer, WgpuSlice};

use crate::device::SharedDevice;
use crate::element::Kind;
use crate::error::{Error, Result};
use crate::memory::Chunk;
use crate::primitive;

impl SharedDevice {
    /// A tensor of burn over the same memory, without a copy.
    ///
    /// The tensor need not have arrived: kernels of burn come behind the copy that fills it. Blocks at most until that is submitted, as it
    /// is behind `wait` and `wait_on`.
    ///
    /// Shape and strides stay. A tensor without dimensions becomes a `Tensor<1>` of one element. `bool` and `u8`, or `u32` where the
    /// device has no bytes (as with WGSL), become a `Tensor<D, Bool>`: 0 is false and 1 is true, nothing else.
    ///
    /// burn does not write to the memory while `tensor`, a clone or another tensor of its packed block is there: it copies where it would work in
    /// place. It does see what copies into `tensor` write later (`start_copy_into`, `Prefetch::reuse`): make a tensor of its own of what outlives
    /// that.
    ///
    /// ```no_run
    /// use burn_tensor::{Device, Int};
    /// use transship::prelude::*;
    /// use transship_burn::SharedDevice;
    ///
    /// let gpu = SharedDevice::open(Device::wgpu_options())?;
    /// let batch = (Tensor::from_vec(vec![0.5_f32; 12], &[3, 4])?, Tensor::from(vec![1_i32, 2, 3]));
    /// let batch = transship::start_copy(batch, gpu.device(), CopyOptions::default()).map_err(transship::Error::from)?;
    /// let (images, labels) = batch.wait().map_err(transship::Error::from)?;
    /// let images: burn_tensor::Tensor<2> = gpu.to_burn(&images)?;
    /// let labels: burn_tensor::Tensor<1, Int> = gpu.to_burn(&labels)?;
    /// # let _ = (images, labels);
    /// # Ok::<(), transship_burn::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NotShared`], [`Error::NoSuchElements`], [`Error::WrongRank`], [`Error::Misaligned`]; the error of the copy if that failed.
    pub fn to_burn<const D: usize, K: Kind>(&self, tensor: &Tensor) -> Result<burn_tensor::Tensor<D, K>> {
        let dtype = self.burn_dtype::<K>(tensor)?;
        let (shape, strides) = dimensions::<D>(tensor)?;
        let handle = self.handle_of(tensor)?;
        let metadata = Metadata::new(shape, strides);
        let cube = CubeTensor::new(self.client.clone(), handle, metadata, self.cube.clone(), dtype);
        Ok(burn_tensor::Tensor::from_primitive::<Cube>(primitive::of_cube(cube)))
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
        let WgpuSlice { offset, bytes, .. } = transship::wgpu::wgpu_view(tensor)?;
        let buffer: &dyn Any = tensor.buffer()?;
        let owner = buffer.downcast_ref().and_then(WgpuBuffer::owner);
        let chunk = owner.and_then(|owner| owner.downcast_ref::<Chunk>());
        let chunk = chunk.ok_or(Error::NotShared { actual, expected })?;
        let alignment = self.client.properties().memory.alignment;
        if !offset.is_multiple_of(alignment) {
            return Err(Error::Misaligned { offset, alignment });
        }
        let start = offset - chunk.place.offset;
        let behind = chunk.bytes as u64 - start - bytes;
        Ok(chunk.handle.clone().offset_start(start).offset_end(behind))
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
