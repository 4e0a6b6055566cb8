//! What to do next about an error.

/// What to do next about an [`Error`](crate::Error), which [`Error::kind`](crate::Error::kind) tells: programs match on this, and
/// on the variants of the error where they need what is inside.
///
/// ```
/// use transship_core::{CopyOptions, Device, Error, ErrorKind, Tensor, start_copy};
///
/// fn load(batch: Vec<Tensor>, device: &Device) -> Result<Vec<Tensor>, Error> {
///     let copied = start_copy(batch, device, CopyOptions::default()).and_then(|copy| copy.wait());
///     match copied {
///         Ok(batch) => Ok(batch),
///         Err(failed) => match failed.into_parts() {
///             // The batch stays on the host.
///             (error, Some(batch)) if error.kind() == ErrorKind::OutOfMemory => Ok(batch),
///             (error, _) => Err(error),
///         },
///     }
/// }
/// assert_eq!(load(vec![Tensor::scalar(1_u8)], &Device::best()?)?.len(), 1);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The call does not suit what it was given: change an argument, an option or the structure. The same call fails again.
    InvalidInput,
    /// The tensor waits for a copy: wait for that copy, then call again.
    NotReady,
    /// Others are in the way: wait for them, or allow waiting, and call again.
    Busy,
    /// There is too little memory: free some, copy less at once, or stay on the host. [`Error::TooLarge`](crate::Error::TooLarge)
    /// among them comes again however much is freed.
    OutOfMemory,
    /// This program, machine, process or device cannot do it: take another device or another way.
    Unsupported,
    /// The device is gone: open it again, and copy what lay on it once more.
    DeviceLost,
    /// A call of the driver failed for a reason that only the driver knows: its code and its words are in
    /// [`Error::Driver`](crate::Error::Driver).
    Driver,
    /// The program has stopped the copy: copy again, if it is still wanted.
    Cancelled,
    /// The deadline is over: copy again, or give the copy more time.
    TimedOut,
    /// The handle has given its structure out already: do not ask it again.
    Finished,
    /// Code breaks its promises, that of this library, of a backend or of a
    /// [`TensorTree`](crate::TensorTree): correct or report it.
    Bug,
}
