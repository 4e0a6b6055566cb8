//! What a device may demand of a plan: looked at once, when it is opened.

use crate::backend::Limits;
use crate::device_id::DeviceId;
use crate::error::{Error, Result};
use crate::plan::rules::DEFAULT_ALIGNMENT;
use crate::staging::size_class::SMALLEST_BLOCK;

/// Fails if `limits` demand what no copy can keep. All that is not named here may have any value.
pub(crate) fn check(device: DeviceId, limits: &Limits) -> Result<()> {
    let &Limits { copy_granularity, buffer_alignment, largest_buffer, mapped_staging, gather, .. } = limits;
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
    match gather {
        Some(entry) if mapped_staging => refuse(
            "gather",
            &entry,
            "it must be None where mapped_staging is set: a block is used by one submission",
        ),
        Some(entry) if entry > SMALLEST_BLOCK / FEWEST_GATHERED => refuse(
            "gather",
            &entry,
            "it can be at most 8192: a table for the fewest copies must fit into the smallest block",
        ),
        _ => Ok(()),
    }
}

/// So many small copies are worth a kernel: it costs about as much as five of them.
pub(crate) const FEWEST_GATHERED: usize = 8;
