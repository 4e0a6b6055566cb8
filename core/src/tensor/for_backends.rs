//! What backend crates need to show a tensor to kernels, and to make one out of memory of their own.

use std::sync::Arc;

use crate::backend::{BackendStream, Buffer, Ticket};
use crate::device::device::Device;
use crate::device::stream::Stream;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::in_flight::completion::Completion;
use crate::in_flight::stream_uses::StreamUses;
use crate::runtime::fork;
use crate::tensor::layout::Layout;
use crate::tensor::storage::{Lent, Storage, poisoned};
use crate::tensor::tensor::Tensor;

impl Tensor {
    /// A tensor over the start of `buffer`, a buffer of `device`. Whoever uses it waits until `filled` is reached, on
    /// the device; `None` if it may be used at once.
    ///
    /// # Safety
    ///
    /// `buffer` is one of `device`. Where it has a host pointer, its bytes are initialised once `filled` is reached, and
    /// nobody else writes them.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) if the buffer is smaller than the layout,
    /// [`Error::Misaligned`](crate::Error::Misaligned) if it is not aligned for the elements.
    pub unsafe fn from_buffer(
        device: &Device,
        buffer: Box<dyn Buffer>,
        filled: Option<Ticket>,
        layout: Layout,
    ) -> Result<Self> {
        let filled = filled.map(|ticket| Completion::at(device.queue_of(ticket.stream), ticket.position));
        Self::from_storage(Storage::lent(buffer, Some(device.clone()), filled), 0, layout)
    }

    /// As [`from_buffer`](Self::from_buffer), for a buffer that may be written as well: [`start_copy_into`](crate::start_copy_into) fills it.
    ///
    /// # Safety
    ///
    /// As [`from_buffer`](Self::from_buffer); the buffer may be written by copies, and nobody else reads it but in an order with them
    /// that the device keeps.
    ///
    /// # Errors
    ///
    /// As [`from_buffer`](Self::from_buffer).
    pub unsafe fn from_buffer_mut(
        device: &Device,
        buffer: Box<dyn Buffer>,
        filled: Option<Ticket>,
        layout: Layout,
    ) -> Result<Self> {
        let filled = filled.map(|ticket| Completion::at(device.queue_of(ticket.stream), ticket.position));
        let storage = Storage::lent_to(Lent::ToWrite, buffer, Some(device.clone()), filled);
        let storage = storage.seen_up_to(layout.span());
        Self::from_storage(storage, 0, layout)
    }

    /// The buffer that the tensor lies in, for a downcast in the backend's own crate. While the host may still write it, nobody
    /// is shown it: [`wait_on_backend`](Self::wait_on_backend) waits until that is over.
    ///
    /// # Errors
    ///
    /// [`Error::Taken`](crate::Error::Taken) while a copy has taken the tensor; [`Error::NotReady`](crate::Error::NotReady)
    /// until all of the copy that fills it is submitted; [`Error::CopyFailed`](crate::Error::CopyFailed) if that has failed.
    pub fn buffer(&self) -> Result<&dyn Buffer> {
        let storage = self.storage()?;
        storage.check_submitted()?;
        Ok(storage.buffer())
    }

    /// The device that the tensor lies on.
    ///
    /// # Errors
    ///
    /// [`Error::Taken`](crate::Error::Taken) while a copy has taken the tensor.
    pub fn device(&self) -> Result<Device> {
        Ok(self.storage()?.device().cloned().unwrap_or_else(Device::host))
    }

    /// Makes later work of `stream` wait for the copy that fills the tensor, on the device. Blocks at most until the
    /// copy's last piece is submitted.
    ///
    /// # Errors
    ///
    /// [`Error::CopyFailed`](crate::Error::CopyFailed), or what the driver says.
    pub fn wait_on_backend(&self, stream: &Arc<dyn BackendStream>) -> Result<()> {
        let Some(copy) = self.storage()?.pending() else { return Ok(()) };
        copy.wait_submitted(None).map_err(poisoned)?;
        for (queue, position) in copy.positions() {
            queue.precede(stream, position)?;
        }
        // A failure clears the positions: look again.
        copy.is_done().map(|_| ()).map_err(poisoned)
    }

    /// Makes later work of `stream` wait, on the device, for what the streams that use the memory were given so far, as a copy that reads the
    /// tensor does: kernels there may write it. Never blocks.
    ///
    /// # Errors
    ///
    /// [`Error::Taken`](crate::Error::Taken) while a copy has taken the tensor; [`Error::Unsupported`](crate::Error::Unsupported) if it cannot wait
    /// for one of them, such as one of another driver; or what the driver says.
    pub fn wait_on_uses(&self, stream: &Stream) -> Result<()> {
        fork::check()?;
        let mut uses = StreamUses::new();
        self.storage()?.add_uses(&mut uses);
        let own = stream.backend_stream();
        for (other, position) in uses.iter().filter(|(other, _)| !Arc::ptr_eq(other, own)) {
            let position = position.map_or_else(|| other.record(), Ok)?;
            if other.reached()? < position {
                own.wait_for(&**other, position)?;
            }
        }
        Ok(())
    }

    /// Keeps the memory from being reused before `ticket` is reached.
    ///
    /// # Errors
    ///
    /// [`Error::Taken`](crate::Error::Taken) while a copy has taken the tensor.
    pub fn record_use(&self, ticket: Ticket) -> Result<()> {
        self.storage()?.record_use(ticket);
        Ok(())
    }

    /// Makes later work of `stream` wait for the copy that fills the tensor, on the device, and keeps the memory from
    /// being reused before the work submitted to `stream` up to the drop of the last tensor over it is done. A stream that nobody
    /// holds any more is let go of when its work is done, however long the memory stays. While the stream is being captured into
    /// a graph, memory whose last tensor goes waits until the capture has ended.
    ///
    /// # Errors
    ///
    /// As [`wait_on_backend`](Self::wait_on_backend).
    pub fn record_stream(&self, stream: &Stream) -> Result<()> {
        // What a lost stream is handed is leaked.
        stream.queue().check()?;
        self.wait_on_backend(stream.backend_stream())?;
        self.storage()?.hand_to(stream.queue().handed());
        Ok(())
    }

    /// Forgets the streams that the memory was handed to, by [`record_stream`](Self::record_stream) or by copies on streams of the caller: it goes
    /// without a look at them, on the thread that drops the last tensor over it. Copies in flight keep it as ever. For memory whose owner
    /// orders its next use himself, as allocators do that work in the order of a stream.
    ///
    /// # Safety
    ///
    /// What the program has submitted to these streams does not use the memory any more when that is given back, or used by its owner for something else,
    /// and not when another copy into it is started: that does not come behind them either.
    ///
    /// # Errors
    ///
    /// [`Error::Taken`](crate::Error::Taken) while a copy has taken the tensor.
    pub unsafe fn forget_streams(&self) -> Result<()> {
        self.storage()?.forget_streams();
        Ok(())
    }

    /// As [`record_stream`](Self::record_stream), for the stream of a backend.
    ///
    /// # Errors
    ///
    /// As [`wait_on_backend`](Self::wait_on_backend).
    pub fn record_backend_stream(&self, stream: &Arc<dyn BackendStream>) -> Result<()> {
        stream.check()?;
        self.wait_on_backend(stream)?;
        self.storage()?.record_stream(stream);
        Ok(())
    }

    /// Where its elements start on the device, for kernels; 0 if there are none.
    ///
    /// # Errors
    ///
    /// [`Error::WrongDType`], [`Error::NotContiguous`], [`Error::OutOfRange`] or [`Error::Misaligned`] unless they are a run of
    /// `T`; [`Error::SharedMemory`] if others may write them; [`Error::Taken`].
    pub fn elements_address<T: Element>(&self) -> Result<u64> {
        if self.dtype() != T::DTYPE {
            return Err(Error::WrongDType { actual: self.dtype(), asked: T::DTYPE });
        }
        if !self.is_contiguous() {
            return Err(self
                .layout()
                .not_contiguous("call contiguous() on the host, before it is copied to a device"));
        }
        let (first, behind, there) =
            (self.offset(), self.offset().saturating_add(self.nbytes()), self.storage()?.bytes());
        if behind > there {
            return Err(Error::OutOfRange { what: "bytes", start: first, end: behind, limit: there });
        }
        if self.nbytes() > 0 {
            self.storage()?.check_unshared()?;
        }
        let address = self.address()?.unwrap_or(0);
        match address % align_of::<T>() as u64 {
            0 => Ok(address),
            _ => {
                let (alignment, cure) = (align_of::<T>(), "copy it with CopyOptions::packed_alignment");
                Err(Error::Misaligned { what: "address", value: address, alignment, cure })
            }
        }
    }
}
