//! Device memory and page-locked memory.

use std::ptr::null_mut;

use crate::cuda::Cuda;
use crate::{say, show};

/// More than any processor addresses.
pub(crate) const TOO_MUCH: usize = 1 << 50;

/// # Safety
///
/// As [`crate::GROUPS`] are called: alone in the process.
pub(crate) unsafe fn all(cuda: &Cuda) {
    cuda.start();
    let (mut device, mut pinned, mut bytes, local) = (0, 0, 0, [0u8; 64]);
    let pageable = local.as_ptr().expose_provenance();
    // SAFETY: results are written to locals; drivers look up what they are to free.
    unsafe {
        say("cuMemAlloc null", (cuda.cuMemAlloc_v2)(null_mut(), 512));
        say("cuMemAlloc 0 bytes", (cuda.cuMemAlloc_v2)(&raw mut device, 0));
        say("cuMemAlloc too much", (cuda.cuMemAlloc_v2)(&raw mut device, TOO_MUCH));
        say("cuMemAlloc all", (cuda.cuMemAlloc_v2)(&raw mut device, usize::MAX));
        say("cuMemGetInfo", (cuda.cuMemGetInfo_v2)(&raw mut bytes, &raw mut bytes));
        say("cuMemGetInfo null", (cuda.cuMemGetInfo_v2)(null_mut(), null_mut()));
        let code = (cuda.cuMemAlloc_v2)(&raw mut device, 1);
        show("cuMemAlloc 1 byte: aligned to 256", code, device % 256 == 0);
        say("cuMemFree inside", (cuda.cuMemFree_v2)(device + 1));
        say("cuMemFreeHost of device memory", (cuda.cuMemFreeHost)(device));
        say("cuMemFreeAsync of it", (cuda.cuMemFreeAsync)(device, 0));
        say("cuCtxSynchronize", (cuda.cuCtxSynchronize)());
        say("cuMemFree", (cuda.cuMemFree_v2)(device));
        say("cuMemFree again", (cuda.cuMemFree_v2)(device));
        say("cuMemFree null", (cuda.cuMemFree_v2)(0));
        say("cuMemFree pageable", (cuda.cuMemFree_v2)(pageable));
        say("cuMemHostAlloc null", (cuda.cuMemHostAlloc)(null_mut(), 512, 1));
        say("cuMemHostAlloc 0 bytes", (cuda.cuMemHostAlloc)(&raw mut pinned, 0, 1));
        say("cuMemHostAlloc too much", (cuda.cuMemHostAlloc)(&raw mut pinned, TOO_MUCH, 1));
        say("cuMemHostAlloc flags 0xff00", (cuda.cuMemHostAlloc)(&raw mut pinned, 512, 0xff00));
        for flags in [0, 1, 2, 4, 7] {
            let code = (cuda.cuMemHostAlloc)(&raw mut pinned, 4097, flags);
            show(&format!("cuMemHostAlloc flags {flags}: aligned to 512"), code, pinned % 512 == 0);
            say("cuMemFreeHost", (cuda.cuMemFreeHost)(pinned));
        }
        pinned = cuda.pinned(4096, 1);
        say("cuMemFreeHost inside", (cuda.cuMemFreeHost)(pinned + 1));
        say("cuMemFree of page-locked memory", (cuda.cuMemFree_v2)(pinned));
        say("cuMemFreeHost", (cuda.cuMemFreeHost)(pinned));
        say("cuMemFreeHost again", (cuda.cuMemFreeHost)(pinned));
        say("cuMemFreeHost null", (cuda.cuMemFreeHost)(0));
        say("cuMemFreeHost pageable", (cuda.cuMemFreeHost)(pageable));
    }
}

/// # Safety
///
/// As [`all`].
pub(crate) unsafe fn registered(cuda: &Cuda) {
    const BYTES: usize = 64 << 10;
    let context = cuda.start();
    let memory = vec![0u8; 4 * BYTES];
    let start = memory.as_ptr().addr().next_multiple_of(4096);
    // SAFETY: the memory outlives all that is done with it here; odd addresses are for the driver to refuse.
    unsafe {
        say("cuMemHostRegister null", (cuda.cuMemHostRegister_v2)(0, BYTES, 1));
        say("cuMemHostRegister 0 bytes", (cuda.cuMemHostRegister_v2)(start, 0, 1));
        say("cuMemHostRegister", (cuda.cuMemHostRegister_v2)(start, BYTES, 1));
        say("cuMemHostRegister again", (cuda.cuMemHostRegister_v2)(start, BYTES, 1));
        say("cuMemHostRegister inside", (cuda.cuMemHostRegister_v2)(start + 4096, 4096, 1));
        say("cuMemHostRegister over its end", (cuda.cuMemHostRegister_v2)(start + BYTES - 4096, BYTES, 1));
        say("cuMemHostRegister behind", (cuda.cuMemHostRegister_v2)(start + BYTES, BYTES, 1));
        ask(cuda, "registered", (start, start), context);
        ask(cuda, "inside registered", (start + 100, start), context);
        say("cuMemFreeHost of it", (cuda.cuMemFreeHost)(start));
        say("cuMemHostUnregister inside", (cuda.cuMemHostUnregister)(start + 4096));
        say("cuMemHostUnregister", (cuda.cuMemHostUnregister)(start));
        say("cuMemHostUnregister again", (cuda.cuMemHostUnregister)(start));
        say("cuMemHostUnregister", (cuda.cuMemHostUnregister)(start + BYTES));
        say("cuMemHostUnregister null", (cuda.cuMemHostUnregister)(0));
        let pinned = cuda.pinned(4096, 1);
        say("cuMemHostUnregister of the driver's own", (cuda.cuMemHostUnregister)(pinned));
        say("cuMemFreeHost", (cuda.cuMemFreeHost)(pinned));
    }
}

/// # Safety
///
/// As [`all`].
pub(crate) unsafe fn kinds(cuda: &Cuda) {
    let context = cuda.start();
    let (device, pinned, mut ordered, mut value) = (cuda.device_memory(4096), cuda.pinned(4096, 1), 0, 0u64);
    let local = [0u8; 64];
    // SAFETY: results are written to locals of 8 bytes; freed addresses are asked about only.
    unsafe {
        say("cuMemAllocAsync", (cuda.cuMemAllocAsync)(&raw mut ordered, 4096, 0));
        say("cuCtxSynchronize", (cuda.cuCtxSynchronize)());
        let places = [
            ("device", device, device),
            ("inside device", device + 100, device),
            ("page-locked", pinned, pinned),
            ("inside page-locked", pinned + 100, pinned),
            ("ordered", ordered, ordered),
            ("pageable", local.as_ptr().addr(), 0),
            ("null", 0, 0),
        ];
        for (name, address, start) in places {
            ask(cuda, name, (address, start), context);
            ask_together(cuda, name, address);
        }
        say("cuPointerGetAttribute null", (cuda.cuPointerGetAttribute)(null_mut(), 2, device));
        for attribute in [-1, 0, 1000] {
            let code = (cuda.cuPointerGetAttribute)(&raw mut value, attribute, device);
            say(&format!("cuPointerGetAttribute {attribute}"), code);
        }
        say("cuMemFree", (cuda.cuMemFree_v2)(device));
        say("cuMemFreeHost", (cuda.cuMemFreeHost)(pinned));
        say("cuMemFreeAsync", (cuda.cuMemFreeAsync)(ordered, 0));
        say("cuCtxSynchronize", (cuda.cuCtxSynchronize)());
        say("kind of freed device memory", (cuda.cuPointerGetAttribute)(&raw mut value, 2, device));
        say("kind of freed page-locked memory", (cuda.cuPointerGetAttribute)(&raw mut value, 2, pinned));
        let code = (cuda.cuPointerGetAttribute)(&raw mut value, 2, ordered);
        say("kind of freed ordered memory, synchronised", code);
        for (name, address) in [("device", device), ("page-locked", pinned), ("ordered", ordered)] {
            ask_together(cuda, &format!("freed {name}"), address);
        }
    }
}

/// What the driver knows of an address: 4 bytes or less of an answer count, where it has no more.
fn ask(cuda: &Cuda, name: &str, (address, start): (usize, usize), context: usize) {
    for attribute in [1, 2, 3, 4, 8, 9, 11, 12] {
        let mut value = 0u64;
        // SAFETY: no attribute of these has more than 8 bytes.
        let code = unsafe { (cuda.cuPointerGetAttribute)(&raw mut value, attribute, address) };
        let label = format!("{name}: attribute {attribute}");
        match attribute {
            1 => show(
                &label,
                code,
                if value == 0 {
                    "null"
                } else if value == context as u64 {
                    "current"
                } else {
                    "other"
                },
            ),
            3 | 4 => show(&label, code, if value == address as u64 { "itself" } else { "other" }),
            11 => show(&label, code, if value == start as u64 { "start" } else { "other" }),
            _ => show(&label, code, value as i32),
        }
    }
}

/// What the library asks for of memory that it is lent: the kind, whether it is managed, the device.
fn ask_together(cuda: &Cuda, name: &str, address: usize) {
    let attributes = [2, 8, 9];
    let mut values = [77_u32, 0, 77];
    let places = values.each_mut().map(std::ptr::from_mut);
    // SAFETY: each of these has 4 bytes or one, and is written to a local.
    let code = unsafe { (cuda.cuPointerGetAttributes)(3, attributes.as_ptr(), places.as_ptr(), address) };
    show(&format!("{name}: attributes 2, 8 and 9"), code, format!("{:?}", values.map(|value| value as i32)));
}
