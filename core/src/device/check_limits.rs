//! What a device may demand of a plan: looked at once, when it is opened.

use crate::alignment::Alignment;
use crate::backend::Limits;
use crate::device_id::DeviceId;
use crate::error::{Error, Result};
use crate::plan::rules::DEFAULT_ALIGNMENT;
use crate::staging::size_class::SMALLEST_BLOCK;

/// Fails if `limits` demand what no copy can keep. All that is not named here may have any value.
pub(crate) fn check(device: DeviceId, limits: &Limits) -> Result<()> {
    let &Limits { copy_granularity, buffer_alignment, largest_buffer, mapped_staging, .. } = limits;
    let refuse = |field, value: &dyn ToString, reason| {
        Err(Error::InvalidLimit { device, field, value: value.to_string(), reason })
    };
    // A segment of a copy is made of whole granules and lies in one block; `plan::Leaf::skew` counts within a granule.
    if copy_granularity.bytes() > SMALLEST_BLOCK {
        return refuse(
            "copy_granularity",
            &copy_granularity,
            "it can be at most 65536, the smallest staging block",
        );
    }
    if buffer_alignment < DEFAULT_ALIGNMENT {
        let reason = "it must be at least 16, which copies with default options ask for";
        return refuse("buffer_alignment", &buffer_alignment, reason);
    }
    if largest_buffer < copy_granularity.bytes() {
        let reason = "it must be at least the copy_granularity, of which buffers are made";
        return refuse("largest_buffer", &largest_buffer, reason);
    }
    for (field, entry) in [("gather", limits.gather), ("gather_strided", limits.gather_strided)] {
        match entry {
            Some(entry) if mapped_staging => {
                let reason = "it must be None where mapped_staging is set: a block is used by one submission";
                return refuse(field, &entry, reason);
            }
            Some(entry) if entry > SMALLEST_BLOCK / FEWEST_GATHERED => {
                let reason =
                    "it can be at most 8192: a table for the fewest copies must fit into the smallest block";
                return refuse(field, &entry, reason);
            }
            _ => {}
        }
    }
    let has_tables = limits.gather.is_some() || limits.gather_strided.is_some();
    match limits.gather_strided {
        _ if has_tables && limits.largest_strided > 0 => {
            let reason =
                "it must be 0 where gather or gather_strided is set: it is for devices without a table";
            refuse("largest_strided", &limits.largest_strided, reason)
        }
        Some(entry) if copy_granularity != Alignment::ONE => {
            let reason = "it must be None where copy_granularity is not 1: elements are no granules";
            refuse("gather_strided", &entry, reason)
        }
        _ if limits.largest_scattered_run > 0 && limits.largest_strided == 0 => {
            let reason = "it must be 0 where largest_strided is 0, which bounds what is scattered";
            refuse("largest_scattered_run", &limits.largest_scattered_run, reason)
        }
        _ => Ok(()),
    }
}

/// So many small copies are worth a kernel: it costs about as much as five of them.
pub(crate) const FEWEST_GATHERED: usize = 8;
