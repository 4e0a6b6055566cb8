//! A tensor as an argument of a kernel.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaView, DevicePtrMut, DeviceRepr};
use transship_core::backend::stream_ordered::Context;
use transship_core::backend::{BackendStream, count_leak};
use transship_core::{Element, Result, Tensor};

use crate::CudaBackend;
use crate::device::Cuda;
use crate::interop::{adopt, backend};

/// Lends the elements of a tensor to work on `stream`.
///
/// From now on the stream waits, on the device, for the copy that fills the tensor; and the memory is not given back
/// before everything is done that is submitted to the stream for as long as the tensor or the view lives. Other streams of
/// cudarc's wait for the same where cudarc tracks events; of several that read the view, cudarc remembers the last one: a view
/// for each of them makes all of them count.
///
/// The view has a share of the tensor's memory. Forgetting it keeps that memory for ever.
///
/// ```no_run
/// use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
/// use std::sync::Arc;
/// use transship_core::Tensor;
///
/// # fn launch(tensor: &Tensor, stream: &Arc<CudaStream>, kernel: &CudaFunction)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// let elements = transship_cuda::cuda_view::<f32>(tensor, stream)?;
/// let view = elements.view();
/// let mut launch = stream.launch_builder(kernel);
/// launch.arg(&view);
/// // SAFETY: the kernel reads as many floats as the view has.
/// unsafe { launch.launch(LaunchConfig::for_num_elems(view.len() as u32))? };
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// `Error::WrongDType`, `Error::NotContiguous` or `Error::Misaligned` if the tensor is no run of `T`;
/// `Error::WrongStream` or `Error::Unsupported` if it does not lie where the stream works; the error of the copy if that
/// failed, or what the driver says.
pub fn cuda_view<T: Element + DeviceRepr>(
    tensor: &Tensor,
    stream: &Arc<cudarc::driver::CudaStream>,
) -> Result<CudaTensorView<T>> {
    let device = tensor.device()?;
    let backend = backend(&device)?;
    let adopted: Arc<dyn BackendStream> = adopt(backend, stream)?;
    let address = tensor.elements_address::<T>()?;
    tensor.record_backend_stream(&adopted)?;
    // SAFETY: the tensor's memory at this address has so many elements. The view has a share of it (`memory`), and
    // `record_backend_stream` keeps it for what `adopted` does. `Drop` leaks the slice.
    let slice = unsafe { lend(backend, stream, address, tensor.numel())? };
    Ok(CudaTensorView {
        slice: ManuallyDrop::new(slice),
        context: backend.context().clone(),
        memory: ManuallyDrop::new(tensor.clone()),
    })
}

/// The elements of a tensor, for reading on the stream that [`cuda_view`] was given. It is cudarc's slice, but never frees.
pub struct CudaTensorView<T> {
    slice: ManuallyDrop<CudaSlice<T>>,
    context: Arc<Context<Cuda>>,
    /// A share of the memory: copies that safe code makes of the slice on other streams are waited for by `Drop`, and where
    /// that does not run nothing is freed.
    memory: ManuallyDrop<Tensor>,
}

impl<T> CudaTensorView<T> {
    /// The argument for a kernel.
    pub fn view(&self) -> CudaView<'_, T> {
        self.slice.as_view()
    }
}

impl<T> Deref for CudaTensorView<T> {
    type Target = CudaSlice<T>;

    fn deref(&self) -> &CudaSlice<T> {
        &self.slice
    }
}

impl<T> Drop for CudaTensorView<T> {
    fn drop(&mut self) {
        let current = self.context.enter();
        // SAFETY: the field is not used again.
        let slice = unsafe { ManuallyDrop::take(&mut self.slice) };
        // SAFETY: as above.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        match wait_for_readers(slice) && current.is_ok() {
            true => drop(memory),
            false => {
                // Nothing makes the stream wait for a reader on another one, so nothing proves that it is done.
                count_leak(memory.retained_bytes());
                std::mem::forget(memory);
            }
        }
    }
}

/// Makes the slice's stream wait for the uses on other streams that cudarc knows of, and frees nothing. The stream itself is
/// recorded on the tensor, so that these uses are covered as well. `false` if it cannot wait.
fn wait_for_readers<T>(slice: CudaSlice<T>) -> bool {
    let cudarc = slice.context().clone();
    // cudarc keeps the errors of this for the next call of somebody, who must find those of before as well.
    let earlier = cudarc.check_err();
    slice.leak();
    let waited = cudarc.check_err();
    let is_waiting = waited.is_ok();
    cudarc.record_err(earlier);
    cudarc.record_err(waited);
    is_waiting
}

/// A slice of cudarc's over memory that it does not own, marked as written by `stream` up to here.
///
/// # Safety
///
/// The memory at `address` has `elements` elements, and the slice is leaked before it is freed.
unsafe fn lend<T>(
    backend: &CudaBackend,
    stream: &Arc<cudarc::driver::CudaStream>,
    address: u64,
    elements: usize,
) -> Result<CudaSlice<T>> {
    let _current = backend.context().enter()?;
    // Errors that cudarc kept from earlier drops: the next call would panic on them.
    stream.context().check_err().map_err(|error| backend.context().api().error("cudarc", error.0))?;
    // SAFETY: the caller's promise.
    let mut slice = ManuallyDrop::new(unsafe { stream.upgrade_device_ptr::<T>(address, elements) });
    drop(slice.device_ptr_mut(stream).1);
    Ok(ManuallyDrop::into_inner(slice))
}
