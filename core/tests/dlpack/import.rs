//! What comes in.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use std::thread;

use transship_core::dlpack::{DLPackVersion, Managed, device_type, flag, type_code};
use transship_core::{
    CopyOptions, DType, Device, DeviceId, Error, MemoryKind, Result, Tensor, start_copy, start_copy_into,
};

use crate::support::{eventually, late, no_violations};
use crate::theirs::{Deleted, Theirs, device, let_go};

fn taken<M: Managed>((managed, deleted): (NonNull<M>, Deleted)) -> (Tensor, Deleted) {
    // SAFETY: `Theirs` is what it says, and nobody writes to its memory.
    (unsafe { Tensor::from_dlpack(managed, None) }.unwrap(), deleted)
}

fn taken_mut<M: Managed>((managed, deleted): (NonNull<M>, Deleted)) -> (Result<Tensor>, Deleted) {
    // SAFETY: as above, and nobody reads it.
    (unsafe { Tensor::from_dlpack_mut(managed, None) }, deleted)
}

/// catches: 280-deleter-never-called, 281-deleter-called-twice, 282-deleter-called-at-once
#[test]
fn a_tensor_comes_in_in_place_and_goes_with_its_last_view() {
    let (managed, deleted) = Theirs::matrix().versioned();
    // SAFETY: it is there until the tensor goes.
    let address = unsafe { (*managed.as_ptr()).dl_tensor.data };
    let (tensor, _) = taken((managed, deleted.clone()));
    assert_eq!((tensor.dtype(), tensor.shape()), (DType::I32, &[2, 3][..]));
    assert_eq!(tensor.device_id().unwrap(), DeviceId::HOST);
    assert_eq!(tensor.memory_kind().unwrap(), MemoryKind::Pageable);
    assert_eq!(tensor.as_slice::<i32>().unwrap(), [0, 1, 2, 3, 4, 5]);
    assert_eq!(tensor.address().unwrap(), Some(address.addr() as u64));
    let column = tensor.narrow(1, 1, 1).unwrap();
    drop(tensor);
    assert_eq!((deleted.count(), column.to_vec::<i32>().unwrap()), (0, vec![1, 4]));
    drop(column);
    assert_eq!(deleted.count(), 1);
}

#[test]
fn the_struct_of_before_comes_in_as_well() {
    let (tensor, deleted) = taken(Theirs::matrix().strides(&[1, 2]).unversioned());
    assert_eq!(tensor.to_vec::<i32>().unwrap(), [0, 2, 4, 1, 3, 5]);
    drop(tensor);
    assert_eq!(deleted.count(), 1);
}

/// Later minor versions, and flags that are not known, have the same layout.
#[test]
fn later_minor_versions_come_in() {
    let version = DLPackVersion { major: 1, minor: 99 };
    let theirs = Theirs { version, flags: flag::IS_COPIED | 1 << 40, ..Theirs::matrix() };
    let (tensor, deleted) = taken(theirs.versioned());
    assert_eq!(tensor.as_slice::<i32>().unwrap().len(), 6);
    drop(tensor);
    assert_eq!(deleted.count(), 1);
}

#[test]
fn strides_and_offsets_are_theirs() {
    let read = |theirs: Theirs| taken(theirs.versioned()).0;
    // Before version 1.2 null is row-major.
    assert!(read(Theirs::matrix()).is_contiguous());
    assert!(read(Theirs::matrix().strides(&[3, 1])).is_contiguous());
    let transposed = read(Theirs::of(&[0, 1, 2, 3, 4, 5], &[3, 2]).strides(&[1, 3]));
    assert_eq!(transposed.to_vec::<i32>().unwrap(), [0, 3, 1, 4, 2, 5]);
    let repeated = read(Theirs::of(&[7, 8], &[3, 2]).strides(&[0, 1]));
    assert_eq!(repeated.to_vec::<i32>().unwrap(), [7, 8, 7, 8, 7, 8]);
    // The stride of one says nothing, whatever its sign.
    let one = read(Theirs::of(&[5, 6], &[1, 2]).strides(&[-9, 1]));
    assert_eq!(one.as_slice::<i32>().unwrap(), [5, 6]);
    let offset = read(Theirs { byte_offset: 8, ..Theirs::of(&[0, 1, 2, 3], &[2]) });
    assert_eq!(offset.as_slice::<i32>().unwrap(), [2, 3]);
}

#[test]
fn tensors_without_dimensions_and_without_elements_come_in() {
    let scalar = Theirs { shape: None, ..Theirs::of(&[9], &[]) };
    let (tensor, _) = taken(scalar.versioned());
    assert_eq!((tensor.shape(), tensor.item::<i32>().unwrap()), (&[][..], 9));
    for strides in [None, Some(vec![-3, i64::MIN])] {
        let none = Theirs { null: true, strides, byte_offset: u64::MAX, ..Theirs::of(&[], &[0, i64::MAX]) };
        let (tensor, deleted) = taken(none.versioned());
        assert_eq!((tensor.shape(), tensor.nbytes()), (&[0, i64::MAX as usize][..], 0));
        assert_eq!(tensor.as_slice::<i32>().unwrap(), []);
        assert_eq!(tensor.to_vec::<i32>().unwrap(), []);
        drop(tensor);
        assert_eq!(deleted.count(), 1);
    }
}

#[test]
fn page_locked_memory_is_memory_of_the_host() {
    for kind in [device_type::CUDA_HOST, device_type::ROCM_HOST] {
        let (tensor, _) = taken(Theirs { device: device(kind, 0), ..Theirs::matrix() }.versioned());
        assert_eq!(tensor.device_id().unwrap(), DeviceId::HOST);
        assert_eq!(tensor.memory_kind().unwrap(), MemoryKind::Pinned);
        assert_eq!(tensor.as_slice::<i32>().unwrap(), [0, 1, 2, 3, 4, 5]);
    }
}

#[test]
fn eight_bit_floats_come_in() {
    let theirs = Theirs::of(&[0x0102_0304], &[4]).dtype(type_code::FLOAT8_E4M3FN, 8, 1);
    let (tensor, _) = taken(theirs.versioned());
    assert_eq!((tensor.dtype(), tensor.as_bytes().unwrap()), (DType::F8E4M3FN, &[4, 3, 2, 1][..]));
}

/// catches: 283-read-only-not-looked-at, 284-lent-to-be-read-is-written
#[test]
fn memory_is_written_where_that_was_allowed() {
    let (mut tensor, _) = taken(Theirs::matrix().versioned());
    assert!(matches!(tensor.as_mut_slice::<i32>(), Err(Error::NotWritable { .. })));
    let into = start_copy_into(Tensor::from(vec![0_i32; 6]).reshape(&[2, 3]).unwrap(), tensor, options());
    let refused = into.map(drop).unwrap_err();
    assert!(refused.error().to_string().contains("lent read-only"), "{refused:#}");

    let (refused, deleted) = {
        let (managed, deleted) = Theirs { flags: flag::READ_ONLY, ..Theirs::matrix() }.versioned();
        let (refused, _) = taken_mut((managed, deleted.clone()));
        assert_eq!(deleted.count(), 0);
        let_go(managed);
        (refused.unwrap_err(), deleted)
    };
    assert!(matches!(refused, Error::NotWritable { why: "lent read-only", .. }), "{refused}");
    assert_eq!(deleted.count(), 1);

    let (tensor, deleted) = taken_mut(Theirs::matrix().versioned());
    let mut tensor = tensor.unwrap();
    tensor.as_mut_slice::<i32>().unwrap()[0] = 10;
    assert_eq!(tensor.as_slice::<i32>().unwrap(), [10, 1, 2, 3, 4, 5]);
    let source = Tensor::from(vec![6_i32, 7, 8, 9, 10, 11]).reshape(&[2, 3]).unwrap();
    let mut filled = start_copy_into(source, tensor, options()).unwrap().wait().unwrap();
    assert_eq!(filled.as_mut_slice::<i32>().unwrap(), [6, 7, 8, 9, 10, 11]);
    // Another tensor over the same memory.
    let twin = filled.clone();
    assert!(matches!(filled.as_mut_slice::<i32>(), Err(Error::NotWritable { .. })));
    drop((filled, twin));
    assert_eq!(deleted.count(), 1);
}

fn options() -> CopyOptions {
    CopyOptions::default()
}

/// catches: 282-deleter-called-at-once
#[test]
fn the_deleter_waits_for_copies_in_flight() {
    let (late, device) = late();
    device.prepare(64).unwrap();
    late.stall();
    // Large enough to be read where it lies by the device.
    let mut copies = Vec::new();
    let mut counts = Vec::new();
    for pinned in [true, false] {
        let kind = if pinned { device_type::CUDA_HOST } else { device_type::CPU };
        let theirs =
            Theirs { device: crate::theirs::device(kind, 0), ..Theirs::of(&[3; 1 << 16], &[1 << 16]) };
        let (tensor, deleted) = taken(theirs.versioned());
        copies.push(start_copy(tensor, &device, options()).unwrap());
        counts.push(deleted);
    }
    late.release();
    for copy in copies {
        let there = copy.wait().unwrap();
        let back = start_copy(there, &Device::host(), options()).unwrap().wait().unwrap();
        assert_eq!(back.to_bytes().unwrap(), 3_i32.to_ne_bytes().repeat(1 << 16));
    }
    for deleted in counts {
        eventually("the deleter was called", || deleted.count() == 1);
    }
    no_violations(&late);
}

/// Debug builds assert that no lock of ours is held, and that it is no thread that others wait for.
#[test]
fn the_deleter_may_lock_copy_and_run_on_any_thread() {
    let (late, device) = late();
    let lock = Arc::new(Mutex::new(0));
    let held = lock.clone();
    let on_delete = move || {
        *held.lock().unwrap() += 1;
        let copy = start_copy(Tensor::from(vec![1_u8; 8]), &Device::host(), options()).unwrap();
        assert_eq!(copy.wait().unwrap().nbytes(), 8);
    };
    let theirs = Theirs { on_delete: Box::new(on_delete), ..Theirs::matrix() };
    let (tensor, deleted) = taken(theirs.versioned());
    let copy = start_copy(vec![tensor], &device, options()).unwrap();
    thread::spawn(move || drop(copy)).join().unwrap();
    device.synchronize().unwrap();
    eventually("it has gone", || deleted.count() == 1 && *lock.lock().unwrap() == 1);
    no_violations(&late);
}

#[test]
fn a_struct_without_a_deleter_is_nobodys() {
    let (mut managed, deleted) = Theirs::matrix().versioned();
    // SAFETY: nobody else has it.
    let deleter = unsafe { managed.as_mut() }.deleter.take().unwrap();
    let (tensor, _) = taken((managed, deleted.clone()));
    assert_eq!(tensor.as_slice::<i32>().unwrap(), [0, 1, 2, 3, 4, 5]);
    drop(tensor);
    assert_eq!(deleted.count(), 0);
    // SAFETY: nobody has called it.
    unsafe { deleter(managed.as_ptr()) };
    assert_eq!(deleted.count(), 1);
}

/// Each of them owns the one before.
///
/// catches: 300-owners-dropped-inside-of-owners
#[test]
fn a_tensor_that_goes_out_and_comes_back_many_times_is_let_go_of() {
    let rounds = if cfg!(miri) { 20 } else { 100_000 };
    let (theirs, deleted) = Theirs::matrix().versioned();
    // SAFETY: nobody writes the memory.
    let mut tensor = unsafe { Tensor::from_dlpack(theirs, None) }.unwrap();
    for _ in 0..rounds {
        let out = tensor.into_dlpack(None).unwrap();
        // SAFETY: as above.
        tensor = unsafe { Tensor::from_dlpack(out, None) }.unwrap();
    }
    assert_eq!((tensor.as_slice::<i32>().unwrap()[5], deleted.count()), (5, 0));
    drop(tensor);
    assert_eq!(deleted.count(), 1);
}
