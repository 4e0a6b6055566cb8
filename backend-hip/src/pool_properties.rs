//! How a pool of the runtime is described.

use std::ffi::c_int;

use hip_sys::hiprt;

/// Ordinary memory of one device, not shared with other processes.
pub(crate) fn properties(ordinal: c_int) -> hiprt::hipMemPoolProps {
    hiprt::hipMemPoolProps {
        allocType: hiprt::hipMemAllocationType::hipMemAllocationTypePinned,
        handleTypes: hiprt::hipMemAllocationHandleType::hipMemHandleTypeNone,
        location: location(ordinal),
        win32SecurityAttributes: std::ptr::null_mut(),
        // Newer versions have a limit there, of which 0 is none.
        reserved: [0; 64],
    }
}

/// Access of one more device, to read and write.
pub(crate) fn access(ordinal: c_int) -> hiprt::hipMemAccessDesc {
    hiprt::hipMemAccessDesc {
        location: location(ordinal),
        flags: hiprt::hipMemAccessFlags::hipMemAccessFlagsProtReadWrite,
    }
}

fn location(ordinal: c_int) -> hiprt::hipMemLocation {
    hiprt::hipMemLocation { type_: hiprt::hipMemLocationType::hipMemLocationTypeDevice, id: ordinal }
}
