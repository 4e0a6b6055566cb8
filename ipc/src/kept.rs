//! Memory that an importer has mapped and no tree lies in, as the exporter has it: for the next tree of the same manifest.

use std::sync::Arc;

use transship_core::{DeviceId, RepeatedPacking};

use crate::copy_in_parts::Places;

/// Memory of a device that is kept so has so many bytes at most. To map more again takes little beside the copy into it, and a pool that has it back gives it to trees of all kinds.
pub(crate) const LARGEST_KEPT: usize = 64 << 20;

/// What is known of such memory.
pub(crate) struct Kept {
    /// Which trees fit.
    pub(crate) packing: Arc<RepeatedPacking>,
    /// Where it lies.
    pub(crate) device: DeviceId,
    /// Of the tensors that the packing gives, in their order. They keep the memory.
    pub(crate) places: Places,
}

impl Kept {
    /// Whether trees of this packing go there.
    pub(crate) fn fits(&self, packing: &Arc<RepeatedPacking>, device: DeviceId) -> bool {
        self.device == device && (Arc::ptr_eq(&self.packing, packing) || self.packing.has_places_of(packing))
    }
}
