//! `cuMemcpy2DAsync` into columns of matrices.

use std::ffi::c_void;
use std::ptr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use transship::Tensor;
use transship::cuda::cudarc::driver::sys;

use super::driver::Cuda;
use crate::Result;
use crate::input::Input;
use crate::measure::Method;
use crate::ours::is_copy;

/// One call for each tensor, out of ordinary memory or out of that of the device, of as many rows as it has.
pub(super) struct Pitched {
    cuda: Rc<Cuda>,
    /// Matrices of bytes, their columns side by side.
    held: Vec<Tensor>,
    within: bool,
}

impl Pitched {
    pub(super) fn new(cuda: Rc<Cuda>, held: Vec<Tensor>, within: bool) -> Self {
        Self { cuda, held, within }
    }

    fn copy(&self, from: &Tensor, to: &Tensor) -> Result<sys::CUDA_MEMCPY2D> {
        let &[rows, columns] = from.shape() else { return Err("a matrix was expected".into()) };
        let device = |tensor: &Tensor| -> Result<u64> { Ok(tensor.address()?.ok_or("no address")?) };
        let (kind, host, source) = match self.within {
            true => (sys::CUmemorytype::CU_MEMORYTYPE_DEVICE, ptr::null(), device(from)?),
            false => (sys::CUmemorytype::CU_MEMORYTYPE_HOST, from.as_bytes()?.as_ptr().cast::<c_void>(), 0),
        };
        Ok(sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: kind,
            srcHost: host,
            srcDevice: source,
            srcArray: ptr::null_mut(),
            srcPitch: columns,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: ptr::null_mut(),
            dstDevice: device(to)?,
            dstArray: ptr::null_mut(),
            dstPitch: to.strides()[0],
            WidthInBytes: columns,
            Height: rows,
        })
    }
}

impl Method<Vec<Tensor>> for Pitched {
    fn run(&mut self, input: &Input<Vec<Tensor>>) -> Result<Duration> {
        let copies = input.leaves.iter().zip(&self.held);
        let copies = copies.map(|(from, to)| self.copy(from, to)).collect::<Result<Vec<_>>>()?;
        self.cuda.bind()?;
        let started = Instant::now();
        for copy in &copies {
            // SAFETY: both matrices are there and have so many rows and columns; they outlive the synchronisation below.
            unsafe { sys::cuMemcpy2DAsync_v2(copy, self.cuda.stream) }.result()?;
        }
        self.cuda.synchronize()?;
        Ok(started.elapsed())
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        is_copy(self.held.clone(), expected)
    }
}
