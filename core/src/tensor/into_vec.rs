//! Vectors that come back out of tensors.

use std::any::Any;

use crate::backend::Buffer;
use crate::backend::host::memory::HostMemory;
use crate::device_id::DeviceId;
use crate::element::Element;
use crate::error::{Error, Refused, Result};
use crate::runtime::fork;
use crate::staging::page_locked::PageLocked;
use crate::tensor::tensor::Tensor;

impl Tensor {
    /// The vector that the tensor lies in, of [`from_vec`](Tensor::from_vec) or [`Device::register_vec`](crate::Device::register_vec): all
    /// of it, whatever part the tensor shows. Nothing is copied. What was registered is unlocked first, which may block for
    /// milliseconds.
    ///
    /// # Errors
    ///
    /// The tensor comes back with each: [`Error::NotWritable`] while anything else shares the memory, a copy or a stream included;
    /// [`Error::NotReady`], [`Error::CopyFailed`] or [`Error::Taken`] as for [`as_slice`](Tensor::as_slice); [`Error::WrongDType`];
    /// [`Error::InvalidBits`] if a bool is neither 0 nor 1; [`Error::Unsupported`] if the memory is no vector's; what the driver says,
    /// in which case it is still registered.
    pub fn into_vec<T: Element>(mut self) -> Result<Vec<T>, Refused<Self>> {
        self.take_vec().map_err(|error| Refused::new(error, self))
    }

    fn take_vec<T: Element>(&mut self) -> Result<Vec<T>> {
        if self.dtype() != T::DTYPE {
            return Err(Error::WrongDType { actual: self.dtype(), asked: T::DTYPE });
        }
        let storage = self.storage_mut()?;
        let bytes = storage.bytes();
        let (device, what) =
            (DeviceId::HOST, "give out as a vector what is none; copy the elements (to_vec)");
        let no_vector = Error::Unsupported { device, what };
        let memory = storage.buffer_mut()?.and_then(|buffer| vector_memory(&**buffer));
        if !memory.is_some_and(HostMemory::is_vec_of::<T>) {
            return Err(no_vector);
        }
        check_bits::<T>(storage.host_bytes(0, bytes)?)?;
        let Some(buffer) = storage.buffer_mut()? else { return Err(no_vector) };
        let memory = take(buffer)?;
        // SAFETY: the vector's elements were initialised when it came, copies have filled them since, and `check_bits` has looked.
        let vec = memory.and_then(|memory| unsafe { memory.into_vec::<T>() });
        vec.ok_or(no_vector)
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

fn check_bits<T: Element>(bytes: &[u8]) -> Result<()> {
    // SAFETY: the memory is aligned for `T` (`HostMemory::is_vec_of`), and `Bits` is of the same size and alignment, any bytes allowed.
    let bits =
        unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast::<T::Bits>(), bytes.len() / size_of::<T>()) };
    match bits.iter().all(T::is_valid_bit_pattern) {
        true => Ok(()),
        false => Err(Error::InvalidBits { dtype: T::DTYPE }),
    }
}
