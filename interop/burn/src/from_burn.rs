//! Tensors of burn as tensors of transship.

use burn_cubecl::Cube;
use burn_dispatch::{BackendTensor, DispatchKindConversion, DispatchTensor};
use burn_tensor::Tensor;

use crate::device::SharedDevice;
use crate::element::{Kind, of_burn};
use crate::error::{Error, Result};
use crate::part::span;
use crate::primitive;

impl SharedDevice {
    /// A tensor of transship over the same memory, without a copy: to be copied to the host, with others in one structure, or elsewhere.
    ///
    /// A copy of it comes behind all that this thread has given to burn, and the thread that has made the tensor. What another thread has
    /// given comes before it if that thread has called burn's `Device::sync`; on wgpu `flush` is enough. Nothing is copied into it. The memory
    /// is kept until the last copy is done with it.
    ///
    /// Shape and strides stay. A `Bool` becomes what burn stores it as, `u8` or `u32`, each 0 or 1.
    ///
    /// Blocks until cubecl's thread has got through what it was given before, as every read of burn's does, but not for the device.
    ///
    /// ```no_run
    /// use burn_tensor::Device;
    /// use transship::prelude::*;
    /// use transship_burn::SharedDevice;
    ///
    /// let gpu = SharedDevice::open(Device::wgpu_options())?;
    /// let scores = burn_tensor::Tensor::<2>::ones([2, 3], gpu.burn()) * 2.0;
    /// let scores = transship::start_copy(gpu.from_burn(scores)?, &transship::Device::host(), CopyOptions::default());
    /// let scores = scores.and_then(|copy| copy.wait()).map_err(transship::Error::from)?;
    /// assert_eq!(scores.as_slice::<f32>()?, [2.0; 6]);
    /// # Ok::<(), transship_burn::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::OtherDevice`], [`Error::NotShown`] for tensors that gradients flow through, [`Error::NotCopied`] for quantized ones;
    /// [`Error::Cubecl`] if what burn computes has failed.
    pub fn from_burn<const D: usize, K: Kind>(&self, tensor: Tensor<D, K>) -> Result<transship::Tensor> {
        let tensor =
            <DispatchTensor as DispatchKindConversion<Cube>>::try_into_backend(tensor.into_dispatch());
        let cube = match tensor.map_err(|reason| Error::NotShown { reason })? {
            BackendTensor::Float(tensor) | BackendTensor::Int(tensor) | BackendTensor::Bool(tensor) => {
                primitive::into_cube(tensor)
            }
            BackendTensor::Quantized(_) => return Err(Error::NotCopied { dtype: "QFloat".to_owned() }),
            #[allow(unreachable_patterns, reason = "burn has more with other features")]
            _ => return Err(Error::NotShown { reason: "it is tracked by autodiff".to_owned() }),
        };
        if cube.device != self.cube {
            let (actual, expected) = (format!("{:?}", cube.device), format!("{:?}", self.cube));
            return Err(Error::OtherDevice { actual, expected });
        }
        let dtype =
            of_burn(cube.dtype).ok_or_else(|| Error::NotCopied { dtype: format!("{:?}", cube.dtype) })?;
        let (shape, strides) = (cube.meta.shape().to_vec(), cube.meta.strides().to_vec());
        if shape.contains(&0) {
            return Ok(transship::Tensor::empty(&shape, dtype, &self.transship)?);
        }
        let elements = span(&shape, &strides);
        let run = self.runtime.lend(cube, elements, dtype, (&self.transship, &self.client))?;
        Ok(run.as_strided(&shape, &strides, 0)?)
    }
}
