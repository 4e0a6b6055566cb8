//! What can go wrong, in words that say what to do next.

use std::sync::Arc;
use std::time::Duration;

use crate::device_id::{DeviceId, ParseDeviceIdError};
use crate::dtype::{DType, ParseDTypeError};

mod copy_error;
mod kind;
mod refused;

pub use copy_error::CopyError;
pub use kind::ErrorKind;
pub use refused::Refused;

/// The kind of memory of the program that is page-locked where it lies, in errors.
pub(crate) const PAGE_LOCKED: &str = "page-locked";

/// `Result` with the [`Error`] of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong. Cloning is cheap: a failed copy hands the same error to everyone who waits for it.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A shape needs another number of bytes than there are.
    #[error(
        "shape {shape:?} of {dtype} needs {}, but there {} {actual}; change the shape or the data",
        count(*expected, "byte"),
        if *actual == 1 { "is" } else { "are" }
    )]
    ShapeMismatch {
        /// The shape asked for.
        shape: Vec<usize>,
        /// The element type.
        dtype: DType,
        /// Bytes that the shape needs.
        expected: usize,
        /// Bytes that are there.
        actual: usize,
    },
    /// The number of elements or bytes does not fit into `usize`.
    #[error(
        "shape {shape:?} of {dtype} has more bytes than a machine word can count; use smaller dimensions"
    )]
    SizeOverflow {
        /// The shape asked for.
        shape: Vec<usize>,
        /// The element type.
        dtype: DType,
    },
    /// A view reaches beyond the tensor or the memory that it looks into.
    #[error("{what} {} lies outside of 0..{limit}; ask for a part of it", shown_range(*start, *end))]
    OutOfRange {
        /// What was indexed: a dimension, a range of bytes.
        what: &'static str,
        /// First index asked for.
        start: usize,
        /// One behind the last index asked for; `usize::MAX` where that is more than can be counted.
        end: usize,
        /// One behind the last index there is.
        limit: usize,
    },
    /// An address or offset is not a multiple of what the element type or the device needs.
    #[error("{what} {value:#x} is not a multiple of {alignment}; {cure}")]
    Misaligned {
        /// What is misaligned.
        what: &'static str,
        /// The address or offset.
        value: u64,
        /// What it must be a multiple of, in bytes.
        alignment: usize,
        /// What to do, as in `copy the data to an aligned place`.
        cure: &'static str,
    },
    /// The elements are of another type.
    #[error("the tensor holds {actual}, not {asked}; ask for {actual}")]
    WrongDType {
        /// What the tensor holds.
        actual: DType,
        /// What was asked for.
        asked: DType,
    },
    /// The tensor has another number of dimensions.
    #[error("a tensor of shape {shape:?} has {}, not {asked}; ask for as many, or reshape it", count(shape.len(), "dimension"))]
    WrongRank {
        /// Its shape.
        shape: Vec<usize>,
        /// How many dimensions were asked for.
        asked: usize,
    },
    /// A slice or a reshape needs elements that lie in one run, in order.
    #[error("a tensor of shape {shape:?} with strides {strides:?} is not contiguous; {cure}")]
    NotContiguous {
        /// Its shape.
        shape: Vec<usize>,
        /// Its strides, in elements.
        strides: Vec<usize>,
        /// What to do, as in `call contiguous() first`.
        cure: &'static str,
    },
    /// The tensor is not a vector as it lies in memory.
    #[error("a tensor of shape {shape:?} with strides {strides:?} {why}; copy its elements (to_vec)")]
    NotVector {
        /// Its shape.
        shape: Vec<usize>,
        /// Its strides, in elements.
        strides: Vec<usize>,
        /// What is in the way, as in `does not lie in a vector`.
        why: String,
    },
    /// Bytes that are no value of the element type (a bool that is neither 0 nor 1).
    #[error("the bytes are not valid {dtype} values; read them with as_bytes() or to_bytes()")]
    InvalidBits {
        /// The element type.
        dtype: DType,
    },
    /// The memory lies on a device and cannot be read by the host.
    #[error("the tensor lies on {device}; copy it to the host first")]
    NotOnHost {
        /// Where it lies.
        device: DeviceId,
    },
    /// The tensor lies on another device than the operation needs.
    #[error("the tensor lies on {actual}, not on {expected}; use one that lies there")]
    WrongDevice {
        /// Where it lies.
        actual: DeviceId,
        /// Where it should lie.
        expected: DeviceId,
    },
    /// Somebody else uses the same memory, or it may not be written.
    #[error("the memory of the tensor is {why}; {cure}")]
    NotWritable {
        /// Shared, in flight, or not ours to write.
        why: &'static str,
        /// What to do, as in `drop the other tensors over it`.
        cure: &'static str,
    },
    /// The memory may change while it is read.
    #[error(
        "the memory of the tensor is shared with others, which may write to it at any time, or lies in pieces; copy it first, without a cast \
         (start_copy, which copies it to the host as well)"
    )]
    SharedMemory,
    /// The process was forked from one that has opened devices, or had threads of this crate.
    #[error(
        "this process was forked from one that uses devices: their driver and the threads of transship are the parent's; \
         copy there, or start this process anew instead (spawn, forkserver, exec)"
    )]
    Forked,
    /// The structure to copy into memory that the caller holds differs from the one there.
    #[error(
        "{}: {value} to copy, but {into} to copy into; copy into a structure with the same keys, lengths and variants",
        place(path)
    )]
    StructureMismatch {
        /// Where they differ, as in `.layers["attn.q"][3]`; empty where the structures themselves do.
        path: String,
        /// What the structure to copy has there.
        value: String,
        /// What the one to copy into has.
        into: String,
    },
    /// A type does not say what belongs together in two of its values.
    #[error(
        "{}: {type_name} implements TensorTree without pair(), which copies into held memory need; derive TensorTree, or write \
         pair() with Pairs::part, or with Pairs::in_order if equal values always show their tensors in the same order",
        place(path)
    )]
    Unpaired {
        /// Where it is in its structure, as in `.layers["attn.q"][3]`; empty where it is all of it.
        path: String,
        /// The type.
        type_name: &'static str,
    },
    /// A type does not say which tensors it holds, and by which paths.
    #[error(
        "{}: {type_name} implements TensorTree without show(), which saving and listing its tensors need; derive TensorTree, or \
         write show() with Paths::part",
        place(path)
    )]
    NotShown {
        /// Where it is in its structure, as in `.layers["attn.q"][3]`; empty where it is all of it.
        path: String,
        /// The type.
        type_name: &'static str,
    },
    /// A tensor and the one to copy it into differ.
    #[error(
        "{} has shape {shape:?} of {dtype}, the one to copy it into {into_shape:?} of {into_dtype}; copy into one of the same \
         shape and type",
        place(path)
    )]
    DestinationMismatch {
        /// Where the tensor is in its structure, as in `.layers["attn.q"][3]`; empty where it is all of it.
        path: String,
        /// Its shape.
        shape: Vec<usize>,
        /// Its element type.
        dtype: DType,
        /// The shape of the one to copy it into.
        into_shape: Vec<usize>,
        /// Its element type.
        into_dtype: DType,
    },
    /// A tensor cannot be split like that.
    #[error("the tensor cannot be split: {why}; {cure}")]
    NotSplittable {
        /// What is in the way.
        why: String,
        /// What to do, as in `let them add up to it`.
        cure: &'static str,
    },
    /// Tensors are not all the parts of one that was split.
    #[error("the parts cannot be joined: {why}; {cure}")]
    NotJoinable {
        /// Which part is missing, or wrong.
        why: String,
        /// What to do, as in `fill that part again`.
        cure: &'static str,
    },
    /// A tensor does not suit a copy into memory that the caller holds, or cannot be cast.
    #[error("{} {role}: {error}", place(path))]
    UnsuitedTensor {
        /// Its number in its structure, counted from 0 in the order in which tensors are paired.
        index: usize,
        /// Where it is in its structure, as in `.layers["attn.q"][3]`; empty where it is all of it, or this is not known.
        path: String,
        /// Which structure: `to copy` or `to copy into`.
        role: &'static str,
        /// What is wrong with it.
        error: Arc<Error>,
    },
    /// The copy that fills this memory, or the work of a stream that does, is not done.
    #[error(
        "the copy, or the work of a stream, that fills this tensor is not done; wait for its handle, or for the stream \
         (Stream::synchronize), or use the tensor on a stream that waits for it"
    )]
    NotReady,
    /// The copy was not done within its deadline.
    #[error(
        "the copy was not done within {limit:?}; what is in flight stays owned until the device is done with it: copy again, \
         or give it more time (CopyOptions::deadline)"
    )]
    DeadlineExceeded {
        /// How long it was given.
        limit: Duration,
    },
    /// The copy was stopped before all of it was submitted.
    #[error("the copy was cancelled before all of it was submitted; copy again")]
    Cancelled,
    /// The handle of a copy was asked for its structure once more.
    #[error(
        "the copy is over, and its handle has given the structure out already; do not poll a handle once it was ready"
    )]
    Finished,
    /// The tensor was taken out of its structure by a copy in progress.
    #[error(
        "the tensor is part of a copy in progress; wait for its handle, which gives it back; a structure that shows a \
         tensor twice must show it once"
    )]
    Taken,
    /// The copy that should have filled this memory failed.
    #[error(
        "the copy that should have filled this tensor {}; copy its source again; memory that you hold can be read again once any \
         copy has filled it (start_copy_into)",
        copy_error::outcome(.0.kind())
    )]
    CopyFailed(
        /// Why it failed.
        #[source]
        Arc<Error>,
    ),
    /// An option has a value that it cannot have.
    #[error("option {name} cannot be {value}: {reason}")]
    InvalidOption {
        /// The option.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it should be.
        reason: &'static str,
    },
    /// A description of foreign memory is wrong.
    #[error("{} at {address:#x} cannot be wrapped: {reason}", count(*bytes, "byte"))]
    InvalidMemory {
        /// The address given.
        address: u64,
        /// The size given.
        bytes: usize,
        /// What is wrong.
        reason: String,
    },
    /// Memory of the program cannot be page-locked where it lies.
    #[error("{} at {address:#x} cannot be page-locked for {device}: {reason}; {cure}", count(*bytes, "byte"))]
    NotLockable {
        /// The device that asked for it.
        device: DeviceId,
        /// Where the memory lies.
        address: u64,
        /// Its size.
        bytes: usize,
        /// What is in the way.
        reason: String,
        /// What to do, as in `take tensors out of the one that is registered`.
        cure: &'static str,
    },
    /// A tensor of DLPack says what transship cannot take.
    #[error("{field} of the DLPack tensor cannot be {value}: {reason}")]
    InvalidDlpack {
        /// The field of its struct.
        field: &'static str,
        /// What it says.
        value: String,
        /// What it may say, or what to do.
        reason: &'static str,
    },
    /// Bytes that are no manifest of this version, or a structure that has none.
    #[error("byte {at} of the manifest: {reason}")]
    InvalidManifest {
        /// Where that was noticed, in bytes from its start.
        at: usize,
        /// What is wrong, or what to do.
        reason: &'static str,
    },
    /// A manifest and a structure, or two manifests, differ.
    #[error("{}: {own} here, {other} there; both sides must have the same tensors", place(path))]
    ManifestMismatch {
        /// The first tensor that differs, as in `.layers["attn.q"][3]`; empty where the structure is the tensor.
        path: String,
        /// What this side has there.
        own: String,
        /// What the other one has.
        other: String,
    },
    /// Two tensors of a structure have one path, since keys of a map print alike (`Debug`), and the order of a map does not tell which is which.
    #[error(
        "{path}: two tensors have this path, since keys of a map print alike; let `Debug` of the keys print all that tells them apart"
    )]
    KeysPrintAlike {
        /// The path, as in `.layers["attn.q"][3]`.
        path: String,
    },
    /// A text does not name a device.
    #[error("{text:?} does not name a device; write a driver and a number such as cuda:0, or host")]
    InvalidDeviceId {
        /// The text.
        text: String,
    },
    /// A text does not name an element type.
    #[error("{text:?} does not name an element type; write one such as float32, f32, int64 or bool")]
    InvalidDType {
        /// The text.
        text: String,
    },
    /// No driver of this name is compiled in or registered. A crate that is only listed in `Cargo.toml` is not part of the
    /// program: one that depends on a backend crate itself, and not through a feature of `transship`, must name it
    /// (`use transship_cuda as _;`).
    #[error(
        "no driver {name:?} in this program (there are: {known}); enable the cargo feature of that name or register it; a \
         backend crate that nothing names is not linked: write `use transship_{name} as _;`"
    )]
    UnknownDriver {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The driver is compiled in, but cannot be used on this machine.
    #[error("driver {driver} cannot be used here: {reason}")]
    DriverUnavailable {
        /// The driver.
        driver: &'static str,
        /// What is missing.
        reason: String,
    },
    /// The driver has no device of this number.
    #[error("there is no device {device}: {}", numbers(*count))]
    NoSuchDevice {
        /// The device asked for.
        device: DeviceId,
        /// How many there are.
        count: usize,
    },
    /// A device demands what no copy can keep.
    #[error("{device} says that its {field} is {value}, and {reason}; this is for the author of its backend")]
    InvalidLimit {
        /// The device.
        device: DeviceId,
        /// The field of [`Limits`](crate::backend::Limits).
        field: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        reason: &'static str,
    },
    /// A driver of this name exists already.
    #[error("a driver named {name:?} is registered already; give yours another name")]
    DriverExists {
        /// The name.
        name: &'static str,
    },
    /// A tensor has a value that the type to which it is to be cast cannot hold.
    #[error(
        "{}: element {element} of shape {shape:?} is {value}, which {to} cannot hold; say Cast::saturating, or copy {from} \
         without a cast",
        place(path)
    )]
    DoesNotFit {
        /// Where the tensor is in its structure, as in `.layers["attn.q"][3]`; empty where it is all of it, or this is not known.
        path: String,
        /// The number of the element, counted from 0 in row-major order.
        element: usize,
        /// Its value.
        value: i128,
        /// The shape of the tensor.
        shape: Vec<usize>,
        /// Its type.
        from: DType,
        /// The type to which it is to be cast.
        to: DType,
    },
    /// The copy policy forbids the copy that would be needed.
    #[error("cannot move tensor from {from} to {to} without copying; allow copying to do so")]
    NeverCopy {
        /// Where the tensor lies.
        from: DeviceId,
        /// Where it should go.
        to: DeviceId,
    },
    /// The copy policy forbids the copy that a cast is.
    #[error(
        "{}: cannot cast {from} to {to} without copying; allow copying to do so, or copy {from} without a cast",
        place(path)
    )]
    NeverCast {
        /// Where the tensor is in its structure, as in `.layers["attn.q"][3]`; empty where it is all of it, or this is not known.
        path: String,
        /// Its type.
        from: DType,
        /// The type to which it is to be cast.
        to: DType,
    },
    /// Memory ran out; it may be there later.
    #[error(
        "{device} is out of {kind} memory: {} asked for{}; free some and try again{}",
        count(*requested, "byte"),
        of_total(*free, *total),
        if *kind == PAGE_LOCKED { ", or raise the limit of locked memory (ulimit -l)" } else { "" }
    )]
    OutOfMemory {
        /// The device asked.
        device: DeviceId,
        /// `device`, `pinned`, `staging`, `host`, or `page-locked` for memory of the program.
        kind: &'static str,
        /// Bytes asked for.
        requested: usize,
        /// Bytes that were free (0 where the driver does not tell).
        free: usize,
        /// Bytes there are in all (0 where the driver does not tell).
        total: usize,
    },
    /// Tensors would have more memory of the device than its budget.
    #[error(
        "{device} has a budget of {} for tensors: {requested} asked for, and {used} in use{}; drop tensors there{}, ask for less, or raise \
         the budget (Device::set_memory_budget)",
        count(*budget, "byte"),
        if *leaving == 0 { String::new() } else { format!(", {leaving} of them dropped and still used by streams") },
        if *leaving == 0 { "" } else { ", wait for those streams (Device::synchronize)" }
    )]
    OverBudget {
        /// The device.
        device: DeviceId,
        /// Bytes asked for.
        requested: usize,
        /// Bytes in use.
        used: usize,
        /// How many of these were dropped, and are free when streams that use them have come by.
        leaving: usize,
        /// Bytes that tensors may have ([`Device::set_memory_budget`](crate::Device::set_memory_budget)).
        budget: usize,
    },
    /// More memory than there can ever be.
    #[error(
        "{} of {kind} memory can never fit on {device}, which has {limit}; ask for less at once{}",
        count(*requested, "byte"),
        budget(kind, *limit)
    )]
    TooLarge {
        /// The device asked.
        device: DeviceId,
        /// `device`, `pinned`, `staging` or `host`.
        kind: &'static str,
        /// Bytes asked for.
        requested: usize,
        /// Bytes there are at most.
        limit: usize,
    },
    /// The copy cannot start now without blocking, and background work was switched off; or pinned memory cannot be had now.
    #[error(
        "{} cannot be had on {device} without waiting: {reason}; {cure}",
        count(*requested, "byte")
    )]
    Busy {
        /// The device.
        device: DeviceId,
        /// Bytes to be copied or pinned.
        requested: usize,
        /// Why it would block.
        reason: &'static str,
        /// What to do, as in `wait for other copies`.
        cure: &'static str,
    },
    /// A structure is nested more than [`MAX_DEPTH`](crate::MAX_DEPTH) levels deep, or more deeply than the stack of the thread
    /// has room for.
    #[error(
        "the structure is nested more than {limit} levels deep; flatten it{}",
        if *limit < 1024 { ", or give the thread more stack" } else { "" }
    )]
    TooDeep {
        /// The most levels there may be, here.
        limit: usize,
    },
    /// A structure showed other tensors on the second visit than on the first.
    #[error(
        "the structure showed {} when the copy started and others at its end, which was noticed after {second}; \
         its TensorTree must show the same ones at each visit, each once",
        count(*first, "tensor")
    )]
    TreeChanged {
        /// Tensors visited at first.
        first: usize,
        /// Tensors visited then, until that was noticed.
        second: usize,
    },
    /// A structure went to the host, where no stream can wait for it.
    #[error("a copy to the host has no stream to wait on; use wait(), or await the handle")]
    HostTarget,
    /// The stream belongs to another device than the copy needs.
    #[error("the stream belongs to {actual}, the copy needs one of {expected}")]
    WrongStream {
        /// The device of the stream.
        actual: DeviceId,
        /// The device that the copy runs on.
        expected: DeviceId,
    },
    /// The stream is being captured into a graph: meanwhile it can neither wait nor be waited for, and of copies it takes those alone that
    /// [`start_copy_into`](crate::start_copy_into()) makes between contiguous tensors of its device.
    #[error(
        "a stream of {device} is being captured into a graph, {why}; use another one, or end the capture first"
    )]
    StreamCaptured {
        /// The device of the stream.
        device: DeviceId,
        /// Why that is in the way, as in `which takes no copy that needs staging`.
        why: &'static str,
    },
    /// The device cannot do this.
    #[error("{device} cannot {what}")]
    Unsupported {
        /// The device.
        device: DeviceId,
        /// What was asked.
        what: &'static str,
    },
    /// A call that should have shown how far a stream has come failed, and nothing will show it any more. What the stream may
    /// still use is kept for ever; nothing is submitted to it. Copies that run on no stream of the program's get a new one.
    #[error(
        "a stream of {device} is lost: {error}; what it may still use is never used again: copy again, into other memory, and on \
         another stream if it is one of your own (Device::create_stream)"
    )]
    StreamLost {
        /// The device of the stream.
        device: DeviceId,
        /// What the call came to.
        error: Arc<Error>,
    },
    /// The device is gone: it was reset, removed or destroyed.
    #[error("{device} is lost: {reason}; open it again, and copy what lay on it once more")]
    DeviceLost {
        /// The device.
        device: DeviceId,
        /// How that was noticed.
        reason: String,
    },
    /// A call of the driver failed.
    #[error(
        "{call} failed on {device}: {message} (code {code}); see the driver's documentation of that code"
    )]
    Driver {
        /// The device.
        device: DeviceId,
        /// The call.
        call: &'static str,
        /// The code that it returned.
        code: i64,
        /// The driver's own words.
        message: String,
    },
    /// The allocator of the program gave no memory for results.
    #[error(
        "the allocator of the options (CopyOptions::allocator) gave no {} for results on {device}: {error}; free some there, or copy \
         without it",
        count(*requested, "byte")
    )]
    AllocatorFailed {
        /// The device.
        device: DeviceId,
        /// Bytes asked for.
        requested: usize,
        /// What it says.
        error: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// The copy was given up because the code that ran it panicked: that of this library, of a backend, or of an
    /// [`Allocate`](crate::Allocate).
    #[error("code that the copy ran panicked: {message}; this is a bug, please report it to its author")]
    Panicked {
        /// The panic's message.
        message: String,
    },
    /// A worker thread could not be started.
    #[error("a thread could not be started: {reason}; raise the limit on threads")]
    NoThread {
        /// The system's own words.
        reason: String,
    },
}

impl From<ParseDeviceIdError> for Error {
    fn from(ParseDeviceIdError { text }: ParseDeviceIdError) -> Self {
        Self::InvalidDeviceId { text }
    }
}

impl From<ParseDTypeError> for Error {
    fn from(ParseDTypeError { text }: ParseDTypeError) -> Self {
        Self::InvalidDType { text }
    }
}

impl Error {
    /// What to do next about it. What wraps the reason of a failure ([`CopyFailed`](Self::CopyFailed),
    /// [`UnsuitedTensor`](Self::UnsuitedTensor), [`StreamLost`](Self::StreamLost)) is of the kind of that reason: a copy that needs one that missed its deadline
    /// [timed out](ErrorKind::TimedOut) as well.
    ///
    /// ```
    /// use transship_core::{Error, ErrorKind, Tensor};
    ///
    /// let error = Tensor::from_vec(vec![1_u8; 5], &[2, 3]).unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::InvalidInput);
    /// ```
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::ShapeMismatch { .. }
            | Self::SizeOverflow { .. }
            | Self::OutOfRange { .. }
            | Self::Misaligned { .. }
            | Self::WrongDType { .. }
            | Self::NotContiguous { .. }
            | Self::NotVector { .. }
            | Self::WrongRank { .. }
            | Self::InvalidBits { .. }
            | Self::NotOnHost { .. }
            | Self::WrongDevice { .. }
            | Self::NotWritable { .. }
            | Self::SharedMemory
            | Self::StructureMismatch { .. }
            | Self::DestinationMismatch { .. }
            | Self::NotSplittable { .. }
            | Self::NotJoinable { .. }
            | Self::InvalidOption { .. }
            | Self::InvalidMemory { .. }
            | Self::NotLockable { .. }
            | Self::InvalidDlpack { .. }
            | Self::InvalidManifest { .. }
            | Self::ManifestMismatch { .. }
            | Self::KeysPrintAlike { .. }
            | Self::InvalidDeviceId { .. }
            | Self::InvalidDType { .. }
            | Self::DriverExists { .. }
            | Self::DoesNotFit { .. }
            | Self::NeverCopy { .. }
            | Self::NeverCast { .. }
            | Self::TooDeep { .. }
            | Self::HostTarget
            | Self::WrongStream { .. } => ErrorKind::InvalidInput,
            Self::UnsuitedTensor { error, .. } | Self::StreamLost { error, .. } => error.kind(),
            Self::CopyFailed(cause) => cause.kind(),
            Self::NotReady | Self::Taken => ErrorKind::NotReady,
            Self::Busy { .. } | Self::StreamCaptured { .. } | Self::NoThread { .. } => ErrorKind::Busy,
            Self::OutOfMemory { .. }
            | Self::TooLarge { .. }
            | Self::OverBudget { .. }
            | Self::AllocatorFailed { .. } => ErrorKind::OutOfMemory,
            Self::Forked
            | Self::UnknownDriver { .. }
            | Self::DriverUnavailable { .. }
            | Self::NoSuchDevice { .. }
            | Self::Unsupported { .. } => ErrorKind::Unsupported,
            Self::DeviceLost { .. } => ErrorKind::DeviceLost,
            Self::Driver { .. } => ErrorKind::Driver,
            Self::Cancelled => ErrorKind::Cancelled,
            Self::DeadlineExceeded { .. } => ErrorKind::TimedOut,
            Self::Finished => ErrorKind::Finished,
            Self::Unpaired { .. }
            | Self::NotShown { .. }
            | Self::InvalidLimit { .. }
            | Self::TreeChanged { .. }
            | Self::Panicked { .. } => ErrorKind::Bug,
        }
    }

    /// The error of a copy whose code panicked.
    pub(crate) fn panicked(panic: &(dyn std::any::Any + Send)) -> Self {
        let message = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let message = message.or_else(|| panic.downcast_ref::<String>().cloned());
        Self::Panicked { message: message.unwrap_or_default() }
    }

    /// The same, found at `path`, if it says where it was found.
    pub(crate) fn at(mut self, found: String) -> Self {
        if let Self::StructureMismatch { path, .. }
        | Self::Unpaired { path, .. }
        | Self::NotShown { path, .. }
        | Self::DestinationMismatch { path, .. }
        | Self::DoesNotFit { path, .. }
        | Self::NeverCast { path, .. }
        | Self::UnsuitedTensor { path, .. } = &mut self
            && path.is_empty()
        {
            *path = found;
        }
        self
    }
}

/// How a path in a structure is written in an error.
fn place(path: &str) -> &str {
    if path.is_empty() { "the value" } else { path }
}

/// What was asked for. An end that could not be counted is none: two ends that are the same would say that nothing was asked for.
fn shown_range(start: usize, end: usize) -> String {
    match end {
        usize::MAX => format!("{start}.. (to more than can be counted)"),
        end => format!("{start}..{end}"),
    }
}

/// So many of what is called `thing`.
pub(crate) fn count(number: usize, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{plural}")
}

/// Which numbers the devices of a driver have.
fn numbers(count: usize) -> String {
    match count {
        0 => "the driver has none here; use another driver, or the host".to_owned(),
        count => format!("the driver has {count}; use a number below that"),
    }
}

/// How much memory was free, where the driver tells.
fn of_total(free: usize, total: usize) -> String {
    if total == 0 { String::new() } else { format!(", {free} of {total} free") }
}

/// Which budget is the limit of a kind of memory, if it is one that the program sets.
fn budget(kind: &str, limit: usize) -> &'static str {
    match kind {
        _ if limit >= isize::MAX.unsigned_abs() => "",
        "pinned" => ", or raise the budget (Device::set_result_budget)",
        "staging" => ", or raise the budget (Device::set_staging_budget)",
        _ => "",
    }
}
