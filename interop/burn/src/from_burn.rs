//! Tensors of burn as tensors of transship.

use burn_backend::TensorMetadata as _;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{Cube, CubeDevice};
use burn_dispatch::{BackendTensor, DispatchAutodiffContext, DispatchKindConversion, DispatchTensor};
use transship::{Layout, Tensor};

use crate::device::SharedDevice;
use crate::element::of_burn;
use crate::error::{Error, Result};
use crate::loan::{Loan, Refused};
use crate::primitive::{self, Primitive};
use crate::tree::{BurnTree, located};

impl SharedDevice {
    /// Tensors of transship over the memory of a tensor of burn, or of all in a structure ([`BurnTree`]), without a copy: to be copied to the host, with
    /// others in one structure, or elsewhere.
    ///
    /// A copy of them comes behind all that this thread has given to burn, and the threads that have made the tensors. What another thread has
    /// given comes before it if that thread has called burn's `Device::sync`; on wgpu `flush` is enough. Nothing is copied into them. The memory
    /// is kept until the last copy is done with it; on CUDA that of a whole structure, until the last one of its tensors has gone.
    ///
    /// Shape and strides stay. A `Bool` becomes what burn stores it as, `u8` or `u32`, each 0 or 1.
    ///
    /// Blocks until cubecl's thread has got through what it was given before, as every read of burn's does, but not for the device. It is
    /// asked once, however many tensors there are; with the feature `fusion` so is burn's own thread before it, until what was queued for
    /// them is launched, and once more for each that another thread has made.
    ///
    /// ```no_run
    /// use burn_tensor::Device;
    /// use transship::prelude::*;
    /// use transship_burn::SharedDevice;
    ///
    /// let gpu = SharedDevice::open(Device::wgpu_options())?;
    /// let scores = burn_tensor::Tensor::<2>::ones([2, 3], gpu.burn()) * 2.0;
    /// let layers = vec![scores.clone().transpose(), scores.clone() + 1.0];
    /// let all = transship::start_copy(gpu.from_burn((scores, layers))?, &transship::Device::host(), CopyOptions::default());
    /// let (scores, layers) = all.and_then(|copy| copy.wait()).map_err(transship::Error::from)?;
    /// assert_eq!((scores.as_slice::<f32>()?, layers[0].shape()), (&[2.0; 6][..], &[3, 2][..]));
    /// # Ok::<(), transship_burn::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::OtherDevice`], [`Error::NotShown`] for tensors of an autodiff device (`Tensor::inner` leaves it), [`Error::NotCopied`] for quantized ones;
    /// [`Error::Cubecl`] if what burn computes has failed, or, with the feature `fusion`, `Error::NotComputed`. In a structure [`Error::InStructure`], which says of which tensor.
    pub fn from_burn<T: BurnTree>(&self, tensors: T) -> Result<T::Tree> {
        let mut taken = Vec::new();
        let frame = tensors.take(&mut taken);
        let count = taken.len();
        let lent = self.lend_all(taken).map_err(|refused| located::<T>(&frame, refused))?;
        let changed = transship::Error::TreeChanged { first: count, second: count };
        T::put(frame, &mut lent.into_iter()).ok_or_else(|| changed.into())
    }

    /// In their order.
    fn lend_all(&self, tensors: Vec<DispatchTensor>) -> Result<Vec<Tensor>, Refused> {
        let (mut loans, mut empty) = (Vec::with_capacity(tensors.len()), Vec::with_capacity(tensors.len()));
        let primitives = tensors
            .into_iter()
            .enumerate()
            .map(|(number, tensor)| self.primitive_of(tensor).map_err(|error| Refused::at(number, error)));
        let cubes = primitive::into_cubes(primitives.collect::<Result<_, _>>()?)?;
        for (number, cube) in cubes.into_iter().enumerate() {
            let layout = layout_of(&cube).map_err(|error| Refused::at(number, error))?;
            if layout.numel() == 0 {
                empty.push(Some(Tensor::empty(layout.shape(), layout.dtype(), &self.transship)?));
            } else {
                empty.push(None);
                loans.push(Loan { number, cube, layout });
            }
        }
        if loans.is_empty() {
            return Ok(empty.into_iter().flatten().collect());
        }
        let mut lent = self.runtime.lend(loans, &self.transship)?.into_iter();
        Ok(empty.into_iter().filter_map(|empty| empty.or_else(|| lent.next())).collect())
    }

    fn primitive_of(&self, tensor: DispatchTensor) -> Result<Primitive> {
        let primitive = primitive_of(tensor, &self.cube)?;
        let device = primitive::device_of(&primitive);
        if *device != self.cube {
            let (actual, expected) = (format!("{device:?}"), format!("{:?}", self.cube));
            return Err(Error::OtherDevice { actual, expected });
        }
        Ok(primitive)
    }
}

fn primitive_of(tensor: DispatchTensor, expected: &CubeDevice) -> Result<Primitive> {
    if tensor.autodiff != DispatchAutodiffContext::Disabled {
        return Err(Error::NotShown { reason: "it is on an autodiff device".to_owned() });
    }
    let device = tensor.device();
    let tensor = <DispatchTensor as DispatchKindConversion<Cube>>::try_into_backend(tensor);
    let other = |_| Error::OtherDevice { actual: format!("{device:?}"), expected: format!("{expected:?}") };
    match tensor.map_err(other)? {
        BackendTensor::Float(tensor) | BackendTensor::Int(tensor) | BackendTensor::Bool(tensor) => Ok(tensor),
        BackendTensor::Quantized(_) => Err(Error::NotCopied { dtype: "QFloat".to_owned() }),
        #[allow(unreachable_patterns, reason = "burn has more with other features")]
        _ => Err(Error::NotShown { reason: "it is tracked by autodiff".to_owned() }),
    }
}

fn layout_of(cube: &CubeTensor) -> Result<Layout> {
    let not_copied = || Error::NotCopied { dtype: format!("{:?}", cube.dtype) };
    let dtype = of_burn(cube.dtype).ok_or_else(not_copied)?;
    Ok(Layout::strided(dtype, cube.meta.shape(), cube.meta.strides())?)
}
