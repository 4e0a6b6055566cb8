//! How a pool of the driver is described.

use std::ffi::c_int;

use cudarc::driver::sys;

/// Ordinary memory of one device, not shared with other processes.
pub(crate) fn properties(ordinal: c_int) -> sys::CUmemPoolProps {
    // SAFETY: every field is a number, a pointer or an enum with a value 0, in every version of the struct.
    let mut properties: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
    properties.allocType = sys::CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = location(ordinal);
    properties
}

/// Access of one more device, to read and write.
pub(crate) fn access(ordinal: c_int) -> sys::CUmemAccessDesc {
    sys::CUmemAccessDesc {
        location: location(ordinal),
        flags: sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    }
}

/// The field of the ordinal lies inside of a union in newer versions of the bindings, always at the same place.
fn location(ordinal: c_int) -> sys::CUmemLocation {
    const { assert!(size_of::<sys::CUmemLocation>() == 2 * size_of::<c_int>()) };
    // SAFETY: a number and an enum with a value 0.
    let mut location: sys::CUmemLocation = unsafe { std::mem::zeroed() };
    location.type_ = sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
    // SAFETY: the struct is two words (asserted), of which the first is the type and the second the ordinal.
    unsafe { (&raw mut location).cast::<c_int>().add(1).write(ordinal) };
    location
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_the_type_and_then_the_ordinal() {
        let location = location(5);
        // SAFETY: both are eight bytes without padding.
        let words: [i32; 2] = unsafe { std::mem::transmute(location) };
        assert_eq!(words, [1, 5]);
    }
}
