//! How functions of C are exported, and how their arguments are read and written.

use std::ffi::CStr;
use std::ffi::c_char;

use driver_sim_engine::Failure;

/// Where a result goes.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

/// A value that is read.
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T> Out<T> {
    pub(crate) fn put(&self, value: T) -> Result<(), Failure> {
        if self.0.is_null() {
            return Err(Failure::InvalidValue);
        }
        // SAFETY: a caller of a driver passes a pointer to such a value, or null, which was looked for.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// As [`put`](Self::put), for what has to be made: nothing is, if nobody takes it.
    pub(crate) fn take(&self, make: impl FnOnce() -> Result<T, Failure>) -> Result<(), Failure> {
        match self.0.is_null() {
            true => Err(Failure::InvalidValue),
            false => self.put(make()?),
        }
    }

    /// As [`put`](Self::put), for results that need not be asked for.
    pub(crate) fn put_if_asked(&self, value: T) {
        // Null means that nobody asks.
        let _ = self.put(value);
    }
}

impl<T: Copy> Out<T> {
    /// What is there before.
    pub(crate) fn read(&self) -> Result<T, Failure> {
        In(self.0).read()
    }

    /// Writes several values, one behind the other.
    pub(crate) fn put_all(&self, values: impl Iterator<Item = T>) -> Result<(), Failure> {
        for (index, value) in values.enumerate() {
            Self(self.0.wrapping_add(index)).put(value)?;
        }
        Ok(())
    }
}

impl Out<std::ffi::c_void> {
    /// A place at an address.
    pub(crate) fn of(address: u64) -> Self {
        Self(std::ptr::with_exposed_provenance_mut(address as usize))
    }

    /// The same place, for a value of another type.
    pub(crate) fn cast<T>(&self) -> Out<T> {
        Out(self.0.cast())
    }
}

impl<T> In<T> {
    /// What lies at an address.
    pub(crate) fn of(address: u64) -> Self {
        Self(std::ptr::with_exposed_provenance(address as usize))
    }
}

impl<T: Copy> In<T> {
    pub(crate) fn read(&self) -> Result<T, Failure> {
        if self.0.is_null() {
            return Err(Failure::InvalidValue);
        }
        // SAFETY: a caller of a driver passes a pointer to such a value, or null, which was looked for; it need not be
        // aligned where it is an argument of a kernel.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// The value behind `index` others.
    pub(crate) fn at(&self, index: usize) -> Result<T, Failure> {
        if self.0.is_null() {
            return Err(Failure::InvalidValue);
        }
        Self(self.0.wrapping_add(index)).read()
    }
}

impl In<c_char> {
    pub(crate) fn text(&self) -> Result<String, Failure> {
        if self.0.is_null() {
            return Err(Failure::InvalidValue);
        }
        // SAFETY: a caller of a driver passes a string that ends with a zero, or null, which was looked for.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}

/// Exports functions: each is counted, may be made to fail, and answers with a number of CUDA's.
macro_rules! exports {
    ($(fn $name:ident($($argument:ident: $kind:ty),* $(,)?) |$sim:ident| $body:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($($argument: $kind),*) -> u32 {
                $crate::codes::number(driver_sim_engine::call(stringify!($name), |$sim| $body))
            }
        )*
    };
}
pub(crate) use exports;
