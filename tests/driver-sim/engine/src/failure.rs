//! What a call can come to, whatever the vendor's numbers are.

/// Why a call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// An argument is wrong.
    InvalidValue,
    /// There is not so much memory.
    OutOfMemory,
    /// The driver was not initialised.
    NotInitialized,
    /// There is no device at all.
    NoDevice,
    /// There is no such device.
    InvalidDevice,
    /// No context is current, or a wrong one.
    InvalidContext,
    /// The context was destroyed.
    ContextDestroyed,
    /// No such stream, event, pool, module or graph, or one of another context.
    InvalidHandle,
    /// The name is not known.
    NotFound,
    /// The work before it is not done.
    NotReady,
    /// The device cannot do this.
    NotSupported,
    /// The call is not allowed here.
    NotPermitted,
    /// Peers are reached already.
    PeerAlreadyEnabled,
    /// Some of the memory is page-locked already.
    AlreadyRegistered,
    /// The peer cannot be reached.
    PeerUnsupported,
    /// The call is unsafe while a stream is captured.
    CaptureUnsupported,
    /// The capture was broken by an unsafe call.
    CaptureInvalidated,
    /// An address that the device cannot use; the context is lost.
    IllegalAddress,
    /// A kernel or copy failed; the context is lost.
    LaunchFailed,
    /// The device is gone.
    DeviceLost,
    /// Something else.
    Unknown,
}
