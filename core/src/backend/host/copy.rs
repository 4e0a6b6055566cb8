//! The copies of the host.

use std::ptr::NonNull;

use crate::backend::{Buffer, CopyOp};
use crate::device_id::DeviceId;
use crate::error::{Error, Result};

/// One copy with its ends found.
pub(crate) struct HostCopyOp {
    /// `None` is zeros.
    from: Option<NonNull<u8>>,
    to: NonNull<u8>,
    pub(crate) bytes: usize,
}

impl HostCopyOp {
    pub(crate) fn of(op: &CopyOp<'_>) -> Result<Self> {
        let (from, to, bytes) = match *op {
            CopyOp::Upload { from, to, to_offset, bytes } => {
                (Some(from.source()), writable(to, to_offset), bytes)
            }
            CopyOp::Download { from, from_offset, to, bytes } => {
                (Some(readable(from, from_offset)), to.destination(), bytes)
            }
            CopyOp::Between { from, from_offset, to, to_offset, bytes } => {
                (Some(readable(from, from_offset)), writable(to, to_offset), bytes)
            }
            CopyOp::Clear { to, to_offset, bytes } => (None, writable(to, to_offset), bytes),
            // Sources on the host are gathered and cast by core.
            CopyOp::Gather { .. } | CopyOp::Scatter { .. } | CopyOp::UploadCast { .. } => {
                return Err(Error::Unsupported { device: DeviceId::HOST, what: "gather as a device does" });
            }
        };
        let unreadable =
            Error::Unsupported { device: DeviceId::HOST, what: "read memory that has no host pointer" };
        let unwritable = Error::Unsupported {
            device: DeviceId::HOST,
            what: "write to memory that is not writable by the host",
        };
        let from = match from {
            Some(source) => Some(source.ok_or(unreadable)?),
            None => None,
        };
        Ok(Self { from, to: to.ok_or(unwritable)?, bytes })
    }

    /// # Safety
    ///
    /// Both ends must be valid for `bytes` bytes, and nobody else may touch them during the call.
    pub(crate) unsafe fn run(&self) {
        // SAFETY: the caller's promise; `copy` allows the two ends to overlap.
        unsafe {
            match self.from {
                Some(from) => self.to.copy_from(from, self.bytes),
                None => self.to.write_bytes(0, self.bytes),
            }
        }
    }
}

fn readable(buffer: &dyn Buffer, offset: usize) -> Option<NonNull<u8>> {
    // SAFETY: `submit` was promised that the range lies within the buffer.
    buffer.host_pointer().map(|(start, _)| unsafe { start.add(offset) })
}

fn writable(buffer: &dyn Buffer, offset: usize) -> Option<NonNull<u8>> {
    // SAFETY: as in `readable`.
    buffer.host_pointer().filter(|(_, writable)| *writable).map(|(start, _)| unsafe { start.add(offset) })
}
