//! Devices.

use std::ffi::{CStr, c_char, c_int, c_uint};

use crate::codes::{INVALID_VALUE, answer, check};
use crate::cuda::cuda;
use crate::current;
use crate::exports::forward;

/// The version of the interface that the functions here have.
const VERSION: c_int = 50_422_803;

/// HIP's numbers of attributes, and CUDA's.
const ATTRIBUTES: &[(c_uint, c_uint)] = &[(88, 115), (85, 41), (23, 75), (61, 76)];

/// CUDA's attributes that say where a device is plugged in.
const PCI_DOMAIN: c_uint = 50;
const PCI_BUS: c_uint = 33;
const PCI_DEVICE: c_uint = 34;

forward! {
    fn hipDeviceSynchronize() = cuCtxSynchronize();
    fn hipDeviceGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) =
        cuCtxGetStreamPriorityRange(least, greatest);
}

/// It is the thread's, whatever device that has.
#[unsafe(no_mangle)]
extern "C" fn hipThreadExchangeStreamCaptureMode(mode: *mut u32) -> u32 {
    // SAFETY: the caller passes a place for a mode.
    answer(cuda().and_then(|cuda| check(unsafe { (cuda.cuThreadExchangeStreamCaptureMode)(mode) })))
}

#[unsafe(no_mangle)]
extern "C" fn hipInit(_flags: c_uint) -> u32 {
    answer(cuda().map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn hipRuntimeGetVersion(version: *mut c_int) -> u32 {
    answer(put(version, VERSION))
}

#[unsafe(no_mangle)]
extern "C" fn hipGetDeviceCount(count: *mut c_int) -> u32 {
    answer(current::count().and_then(|devices| put(count, devices)))
}

#[unsafe(no_mangle)]
extern "C" fn hipGetDevice(ordinal: *mut c_int) -> u32 {
    answer(put(ordinal, current::device()))
}

#[unsafe(no_mangle)]
extern "C" fn hipSetDevice(ordinal: c_int) -> u32 {
    answer(current::set_device(ordinal))
}

#[unsafe(no_mangle)]
extern "C" fn hipDeviceGet(device: *mut c_int, ordinal: c_int) -> u32 {
    // SAFETY: the caller passes a place for a number.
    answer(cuda().and_then(|cuda| check(unsafe { (cuda.cuDeviceGet)(device, ordinal) })))
}

#[unsafe(no_mangle)]
extern "C" fn hipDeviceGetName(name: *mut c_char, length: c_int, device: c_int) -> u32 {
    answer(device_name(device).and_then(|text| put_text(name, length, &text)))
}

#[unsafe(no_mangle)]
extern "C" fn hipDeviceGetAttribute(value: *mut c_int, attribute: c_uint, ordinal: c_int) -> u32 {
    let attribute = ATTRIBUTES.iter().find(|(hip, _)| *hip == attribute).map(|(_, cuda)| *cuda);
    answer(attribute.ok_or(INVALID_VALUE).and_then(|attribute| {
        // SAFETY: the caller passes a place for a number.
        check(unsafe { (cuda()?.cuDeviceGetAttribute)(value, attribute, ordinal) })
    }))
}

#[unsafe(no_mangle)]
extern "C" fn hipDeviceGetUuid(uuid: *mut [u8; 16], device: c_int) -> u32 {
    // SAFETY: the caller passes a place for 16 bytes.
    answer(cuda().and_then(|cuda| check(unsafe { (cuda.cuDeviceGetUuid_v2)(uuid, device) })))
}

#[unsafe(no_mangle)]
extern "C" fn hipDeviceGetPCIBusId(text: *mut c_char, length: c_int, ordinal: c_int) -> u32 {
    let number = |attribute| {
        let mut value = 0;
        // SAFETY: the value is written to a local.
        check(unsafe { (cuda()?.cuDeviceGetAttribute)(&mut value, attribute, ordinal) }).map(|()| value)
    };
    let place = || {
        let (domain, bus, device) = (number(PCI_DOMAIN)?, number(PCI_BUS)?, number(PCI_DEVICE)?);
        Ok(format!("{domain:04x}:{bus:02x}:{device:02x}.0"))
    };
    answer(place().and_then(|place| put_text(text, length, &place)))
}

#[unsafe(no_mangle)]
extern "C" fn hipDeviceTotalMem(bytes: *mut usize, device: c_int) -> u32 {
    // SAFETY: the caller passes a place for a number.
    answer(cuda().and_then(|cuda| check(unsafe { (cuda.cuDeviceTotalMem_v2)(bytes, device) })))
}

#[unsafe(no_mangle)]
extern "C" fn hipDeviceCanAccessPeer(able: *mut c_int, ordinal: c_int, peer: c_int) -> u32 {
    // SAFETY: the caller passes a place for a number.
    answer(cuda().and_then(|cuda| check(unsafe { (cuda.cuDeviceCanAccessPeer)(able, ordinal, peer) })))
}

#[unsafe(no_mangle)]
extern "C" fn hipDeviceEnablePeerAccess(peer: c_int, flags: c_uint) -> u32 {
    answer(current::context(peer).and_then(|peer| {
        // SAFETY: both contexts are retained.
        check(unsafe { (current::enter()?.cuCtxEnablePeerAccess)(peer, flags) })
    }))
}

fn device_name(device: c_int) -> Result<String, u32> {
    let mut name = [0; 256];
    // SAFETY: the name is written to a local of the length given, with a zero behind it.
    check(unsafe { (cuda()?.cuDeviceGetName)(name.as_mut_ptr(), name.len() as c_int, device) })?;
    // SAFETY: the driver has ended the name with a zero.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    Ok(format!("{} as HIP", name.to_string_lossy()))
}

/// Writes as much of `text` as fits, and a zero behind it.
fn put_text(place: *mut c_char, length: c_int, text: &str) -> Result<(), u32> {
    let room = usize::try_from(length).ok().and_then(|length| length.checked_sub(1)).ok_or(INVALID_VALUE)?;
    let bytes = &text.as_bytes()[..room.min(text.len())];
    if place.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller passes a place for `length` bytes, one more than are copied at the most.
    unsafe {
        place.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        place.add(bytes.len()).write(0);
    }
    Ok(())
}

pub(crate) fn put<T>(place: *mut T, value: T) -> Result<(), u32> {
    if place.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller passes a place for such a value.
    unsafe { place.write(value) };
    Ok(())
}
