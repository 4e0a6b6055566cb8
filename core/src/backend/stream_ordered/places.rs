//! Where the ends of a copy lie.

use std::ptr::NonNull;

use crate::backend::stream_ordered::api::Api;
use crate::backend::stream_ordered::context::Context;
use crate::backend::{Buffer, CopyOp, GatherTo, HostSide, ScatterFrom, Staging};
use crate::error::{Error, Result};

/// Where a copy that a kernel can make begins, and where it goes.
pub(crate) fn places<A: Api>(context: &Context<A>, op: &CopyOp<'_>) -> Result<(u64, u64)> {
    match *op {
        CopyOp::Download { from, from_offset, to, .. } => {
            let to = destination(context, &to)?.as_ptr().expose_provenance() as u64;
            Ok((address(context, from, from_offset)?, to))
        }
        CopyOp::Between { from, from_offset, to, to_offset, .. } => {
            Ok((address(context, from, from_offset)?, address(context, to, to_offset)?))
        }
        CopyOp::Gather { from, elements, to, .. } => {
            let to = match to {
                GatherTo::Host(to) => destination(context, &to)?.as_ptr().expose_provenance() as u64,
                GatherTo::Device(to, to_offset) => address(context, to, to_offset)?,
            };
            Ok((address(context, from, elements.offset)?, to))
        }
        CopyOp::UploadCast { from, from_offset, to, to_offset, .. } => {
            Ok((staged(context, from, from_offset)?, address(context, to, to_offset)?))
        }
        CopyOp::Scatter { from, to, elements, .. } => {
            let from = match from {
                ScatterFrom::Staging(from) => staged(context, from, elements.from.offset)?,
                ScatterFrom::Device(from) => address(context, from, elements.from.offset)?,
            };
            Ok((from, address(context, to, elements.to.offset)?))
        }
        CopyOp::Upload { .. } | CopyOp::Clear { .. } => {
            Err(unsupported(context, "have a kernel make such a copy"))
        }
    }
}

/// The address of a place in a staging block that a kernel reads.
fn staged<A: Api>(context: &Context<A>, block: &dyn Staging, offset: usize) -> Result<u64> {
    Ok(source(context, &HostSide::Staging(block, offset))?.as_ptr().expose_provenance() as u64)
}

/// The address of a place in device memory.
pub(crate) fn address<A: Api>(context: &Context<A>, buffer: &dyn Buffer, offset: usize) -> Result<u64> {
    match buffer.address() {
        Some(address) => Ok(address + offset as u64),
        None => Err(unsupported(context, "copy from or to a buffer without a device address")),
    }
}

/// Where the host memory lies that a copy reads.
pub(crate) fn source<A: Api>(context: &Context<A>, side: &HostSide<'_>) -> Result<NonNull<u8>> {
    side.source().ok_or_else(|| unsupported(context, "read a host range that is not mapped"))
}

/// Where the host memory lies that a copy writes.
pub(crate) fn destination<A: Api>(context: &Context<A>, side: &HostSide<'_>) -> Result<NonNull<u8>> {
    side.destination().ok_or_else(|| unsupported(context, "write to a host range that is read-only"))
}

/// The error of a copy that the device cannot make.
pub(crate) fn unsupported<A: Api>(context: &Context<A>, what: &'static str) -> Error {
    Error::Unsupported { device: context.id(), what }
}
