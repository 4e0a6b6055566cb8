//! Vectors that come back out of tensors.

use std::any::Any;

use crate::backend::Buffer;
use crate::backend::host::memory::HostMemory;
use crate::element::Element;
use crate::error::{Error, Refused, Result, count};
use crate::runtime::fork;
use crate::staging::page_locked::PageLocked;
use crate::tensor::tensor::{Tensor, TensorMemory};

impl Tensor {
    /// The vector that the tensor is, of [`from_vec`](Tensor::from_vec) or [`Device::register_vec`](crate::Device::register_vec), with its
    /// room for more (`Vec::capacity`). Nothing is copied. What was registered is unlocked first, which may block for milliseconds.
    ///
    /// After a copy into it ([`start_copy_into`](crate::start_copy_into)) that has failed, or was cancelled, it comes back once nothing of
    /// that is in flight any more; each element is what it was or what was copied then.
    ///
    /// # Errors
    ///
    /// The tensor comes back with each: [`Error::WrongDType`]; [`Error::NotOnHost`]; [`Error::NotVector`] if it lies in no vector, or is not all
    /// of one, in row-major order; [`Error::NotWritable`] while anything else shares the memory, a copy or a stream included;
    /// [`Error::NotReady`] while a copy into it is in flight, [`Error::CopyFailed`] if nobody will ever know whether one is;
    /// [`Error::SharedMemory`] if others may write to it at any time; [`Error::Taken`]; [`Error::InvalidBits`] if a bool is neither 0 nor 1; what the
    /// driver says, in which case it is still registered.
    pub fn into_vec<T: Element>(mut self) -> Result<Vec<T>, Refused<Self>> {
        self.take_vec().map_err(|error| Refused::new(error, self))
    }

    /// The same, or a copy of the elements in row-major order where the tensor is not alone, or not all of a vector.
    pub(crate) fn into_vec_or_copy<T: Element>(self) -> Result<Vec<T>, Refused<Self>> {
        let refused = match self.into_vec() {
            Ok(elements) => return Ok(elements),
            Err(refused) => refused,
        };
        match refused.into_parts() {
            (Error::NotVector { .. } | Error::NotWritable { .. }, tensor) => {
                tensor.to_vec().map_err(|error| Refused::new(error, tensor))
            }
            (error, tensor) => Err(Refused::new(error, tensor)),
        }
    }

    fn take_vec<T: Element>(&mut self) -> Result<Vec<T>> {
        if self.dtype() != T::DTYPE {
            return Err(Error::WrongDType { actual: self.dtype(), asked: T::DTYPE });
        }
        let TensorMemory::Here { storage, .. } = &mut self.memory else { return Err(Error::Taken) };
        if storage.device().is_some() {
            return Err(Error::NotOnHost { device: storage.device_id() });
        }
        storage.check_unshared()?;
        storage.settle();
        let no_vector = || self.layout.not_vector("does not lie in a vector".to_owned());
        if !vector_memory(storage.buffer()).is_some_and(HostMemory::is_vec_of::<T>) {
            return Err(no_vector());
        }
        if !self.layout.is_contiguous() || self.layout.nbytes() != storage.bytes() {
            let all = count(storage.bytes() / size_of::<T>(), "element");
            return Err(self
                .layout
                .not_vector(format!("is not all of its vector, {all}, in row-major order")));
        }
        let buffer = storage.buffer_mut()?.ok_or_else(no_vector)?;
        vector_memory(&**buffer).map_or(Ok(()), check_bits::<T>)?;
        let memory = take(buffer)?;
        // SAFETY: the vector's elements were initialised when it came, copies have filled some since, and `check_bits` has looked.
        let vec = memory.and_then(|memory| unsafe { memory.into_vec::<T>() });
        vec.ok_or_else(no_vector)
    }
}

/// Ordinary memory, registered or not.
fn vector_memory(buffer: &dyn Buffer) -> Option<&HostMemory> {
    let buffer = PageLocked::of(buffer).map_or(buffer, PageLocked::memory);
    (buffer as &dyn Any).downcast_ref()
}

/// Takes the memory out, unlocked.
fn take(buffer: &mut Box<dyn Buffer>) -> Result<Option<HostMemory>> {
    let any: &mut dyn Any = &mut **buffer;
    let memory: &mut dyn Any = match any.downcast_mut::<PageLocked>() {
        Some(locked) => {
            fork::check()?;
            // SAFETY: `Storage::buffer_mut` has shown that no tensor, no copy and no stream holds the memory.
            &mut **unsafe { locked.unlock()? }
        }
        None => &mut **buffer,
    };
    let memory = memory.downcast_mut::<HostMemory>();
    Ok(memory.map(|memory| std::mem::replace(memory, HostMemory::empty())))
}

/// Looks at the elements of memory that nobody else uses.
fn check_bits<T: Element>(memory: &HostMemory) -> Result<()> {
    let Some((start, _)) = memory.host_pointer() else { return Ok(()) };
    // SAFETY: the memory is that of a vector of `T` (`HostMemory::is_vec_of`), all of it initialised, and `Bits` is of the same size and
    // alignment, any bytes allowed; `Storage::buffer_mut` has shown that nobody writes to it.
    let bits = unsafe {
        std::slice::from_raw_parts(start.as_ptr().cast::<T::Bits>(), memory.bytes() / size_of::<T>())
    };
    match bits.iter().all(T::is_valid_bit_pattern) {
        true => Ok(()),
        false => Err(Error::InvalidBits { dtype: T::DTYPE }),
    }
}
