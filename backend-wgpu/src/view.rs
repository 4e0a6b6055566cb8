//! A tensor as an argument of a pipeline.

use std::sync::Arc;

use transship_core::backend::BackendStream;
use transship_core::{Error, Result, Tensor};

use crate::interop::backend;
use crate::memory::WgpuBuffer;
use crate::stream::WgpuStream;

/// The bytes of a tensor in a buffer.
#[derive(Debug, Clone)]
pub struct WgpuSlice {
    /// The buffer, which other tensors may lie in as well, and which may be larger than they need. wgpu keeps its memory for
    /// as long as this, and until the submissions that use it are done; it is not used again for other tensors.
    pub buffer: wgpu::Buffer,
    /// Where the tensor begins, in bytes.
    pub offset: u64,
    /// From its first element to behind its last one, in bytes.
    pub bytes: u64,
    alignment: u32,
}

impl WgpuSlice {
    /// The binding of the tensor alone, as a storage buffer.
    ///
    /// ```no_run
    /// # fn bind(tensor: &transship_core::Tensor) -> transship_core::Result<()> {
    /// let slice = transship_wgpu::wgpu_view(tensor)?;
    /// let entry = wgpu::BindGroupEntry { binding: 0, resource: wgpu::BindingResource::Buffer(slice.binding()?) };
    /// # drop(entry);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Misaligned`] if the offset does not suit the device: copy with `CopyOptions::bindable(true)`, or bind the whole
    /// buffer and index inside. [`Error::OutOfRange`] if there are no bytes, or if they
    /// are no multiple of 4 and nothing lies behind them in the buffer.
    pub fn binding(&self) -> Result<wgpu::BufferBinding<'_>> {
        if !self.offset.is_multiple_of(u64::from(self.alignment)) {
            return Err(Error::Misaligned {
                what: "offset of a binding",
                value: self.offset,
                alignment: self.alignment as usize,
                cure: "copy it with CopyOptions::bindable(true), or bind the whole buffer and index inside",
            });
        }
        let size = self.bytes.next_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT);
        let there = self.buffer.size() - self.offset;
        match wgpu::BufferSize::new(size).filter(|_| size <= there) {
            Some(_) => Ok(wgpu::BufferBinding {
                buffer: &self.buffer,
                offset: self.offset,
                size: wgpu::BufferSize::new(size),
            }),
            None => {
                Err(Error::OutOfRange { what: "bytes", start: 0, end: size as usize, limit: there as usize })
            }
        }
    }
}

/// Where a tensor lies, for work that the program submits to the device's queue from now on: the copy that fills the tensor
/// is submitted by then, so that the work comes behind it. Blocks at most until that is so.
///
/// The bytes are those from the first element to behind the last one, strides included.
///
/// # Errors
///
/// [`Error::Unsupported`] if the tensor does not lie on a wgpu device, or has no bytes; the error of the copy if that failed.
pub fn wgpu_view(tensor: &Tensor) -> Result<WgpuSlice> {
    let device = tensor.device()?;
    let backend = backend(&device)?;
    let stream: Arc<dyn BackendStream> = Arc::new(WgpuStream::new(backend.context()));
    tensor.wait_on_backend(&stream)?;
    let memory = WgpuBuffer::of(tensor.buffer()?);
    let buffer = memory.and_then(|memory| Some((memory.buffer()?.clone(), memory.offset())));
    let (buffer, start) =
        buffer.ok_or_else(|| backend.context().unsupported("bind a tensor without bytes"))?;
    let limits = backend.context().device().limits();
    Ok(WgpuSlice {
        buffer,
        offset: (start + tensor.offset()) as u64,
        bytes: tensor.layout().span() as u64,
        alignment: limits.min_storage_buffer_offset_alignment,
    })
}
