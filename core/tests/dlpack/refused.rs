//! What cannot come in. The caller keeps it.

use transship_core::dlpack::{DLPackVersion, type_code};
use transship_core::{DType, Device, Error, Layout, MemoryKind, RawMemory, SharedOwner, Tensor};

use crate::theirs::{Theirs, device, let_go};

/// The error, after the struct was found to be untouched.
fn refused(theirs: Theirs) -> Error {
    let (managed, deleted) = theirs.versioned();
    // SAFETY: what it says cannot be, but its pointers are what they should be.
    let error = unsafe { Tensor::from_dlpack(managed, None) }.unwrap_err();
    assert_eq!(deleted.count(), 0, "{error}");
    let_go(managed);
    assert_eq!(deleted.count(), 1);
    error
}

#[track_caller]
fn names(theirs: Theirs, asked: &str, said: &str) {
    let error = refused(theirs);
    assert!(matches!(&error, Error::InvalidDlpack { field, .. } if *field == asked), "{error}");
    assert!(error.to_string().contains(said), "{error}");
}

#[test]
fn other_versions_are_refused_before_anything_is_read() {
    for (major, minor) in [(2, 0), (0, 8), (u32::MAX, 1)] {
        let version = DLPackVersion { major, minor };
        // Whatever there is behind the deleter.
        let theirs = Theirs { version, ndim: i32::MAX, shape: None, ..Theirs::matrix() };
        names(theirs, "version", &format!("{major}.{minor}"));
    }
}

#[test]
fn elements_that_are_not_ours_are_refused() {
    for (code, bits, lanes) in [
        (type_code::FLOAT, 32, 4),
        (type_code::FLOAT, 32, 0),
        (type_code::FLOAT, 80, 1),
        (type_code::INT, 4, 1),
        (type_code::BOOL, 1, 1),
        (3, 64, 1),
        (8, 8, 1),
        (17, 4, 1),
        (255, 255, u16::MAX),
    ] {
        let said = format!("code {code} of {bits} bits and {lanes} lanes");
        names(Theirs::matrix().dtype(code, bits, lanes), "dtype", &said);
    }
}

#[test]
fn devices_that_are_not_ours_are_refused() {
    for kind in [0, 4, 7, 8, 12, 13, 14, 15, 99, -1, i32::MAX] {
        names(Theirs { device: device(kind, 0), ..Theirs::matrix() }, "device_type", &kind.to_string());
    }
    names(Theirs { device: device(2, -1), ..Theirs::matrix() }, "device_id", "-1");
    // There is no driver of this name in this program.
    let missing = refused(Theirs { device: device(10, 0), ..Theirs::matrix() });
    assert!(matches!(&missing, Error::UnknownDriver { name, .. } if name == "hip"), "{missing}");
}

/// catches: 285-negative-strides-taken, 286-end-not-looked-at
#[test]
fn numbers_that_cannot_be_are_refused() {
    names(Theirs { ndim: -1, ..Theirs::matrix() }, "ndim", "-1");
    names(Theirs { shape: None, ..Theirs::matrix() }, "shape", "null");
    names(Theirs::of(&[1, 2], &[2, -1]), "shape", "[2, -1]");
    names(Theirs::matrix().strides(&[-3, 1]), "strides", "[-3, 1]");
    names(Theirs::matrix().strides(&[3, i64::MIN]), "strides", "contiguous copy");
    names(Theirs { null: true, ..Theirs::matrix() }, "data", "null");
    for byte_offset in [u64::MAX, u64::MAX - 64, u64::MAX / 2 + (1 << 63)] {
        names(Theirs { byte_offset, ..Theirs::matrix() }, "byte_offset", &byte_offset.to_string());
    }
    for shape in [&[i64::MAX, 2][..], &[i64::MAX], &[1 << 31, 1 << 31], &[1 << 62, 1 << 62, 1 << 62]] {
        let error = refused(Theirs::of(&[1], shape));
        assert!(matches!(error, Error::SizeOverflow { .. }), "{error}");
    }
    for strides in [[i64::MAX, 1], [1 << 62, 1 << 62]] {
        let error = refused(Theirs::matrix().strides(&strides));
        assert!(matches!(error, Error::SizeOverflow { .. }), "{error}");
    }
    // It fits by itself, but not behind the address.
    let error = refused(Theirs { byte_offset: u64::MAX / 2, ..Theirs::of(&[1], &[i64::MAX / 4]) });
    assert!(matches!(&error, Error::InvalidDlpack { field: "byte_offset", .. }), "{error}");
}

/// catches: 287-alignment-not-looked-at
#[test]
fn memory_that_is_misaligned_is_refused() {
    for byte_offset in [1, 2, 6] {
        let error = refused(Theirs { byte_offset, ..Theirs::of(&[1, 2, 3, 4], &[2]) });
        assert!(matches!(error, Error::Misaligned { alignment: 4, .. }), "{error}");
    }
}

#[test]
fn memory_that_another_process_writes_stays_here() {
    let mut theirs = [1_u8; 8];
    let address = theirs.as_mut_ptr().expose_provenance() as u64;
    let memory = RawMemory::new(address, 8, MemoryKind::Pageable);
    let layout = Layout::contiguous(DType::U8, &[8]).unwrap();
    // SAFETY: it stays where it is until the tensor has gone.
    let tensor = unsafe { SharedOwner::new((), &Device::host()).tensor_over_shared(memory, layout) };
    let refused = tensor.unwrap().into_dlpack(None).unwrap_err();
    assert!(matches!(Error::from(refused), Error::SharedMemory));
}
