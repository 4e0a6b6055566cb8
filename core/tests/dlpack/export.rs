//! What goes out of the host.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use transship_core::dlpack::{DLManagedTensorVersioned, VERSION, flag};
use transship_core::{DType, Device, Error, MemoryKind, RawMemory, SharedOwner, Tensor};

use crate::support::{Drops, bytes_of, late, no_violations, on};
use crate::theirs::{Context, device, let_go};

fn out(tensor: Tensor) -> NonNull<DLManagedTensorVersioned> {
    tensor.into_dlpack(None).unwrap()
}

fn is_read_only(managed: NonNull<DLManagedTensorVersioned>) -> bool {
    // SAFETY: it is there until it is let go of.
    unsafe { (*managed.as_ptr()).flags & flag::READ_ONLY != 0 }
}

fn numbers<M: Context>(mut managed: NonNull<M>) -> (Vec<i64>, Vec<i64>) {
    // SAFETY: as above.
    let tensor = unsafe { managed.as_mut() }.tensor();
    // SAFETY: there are so many of each.
    let list = |start: *mut i64| unsafe { std::slice::from_raw_parts(start, tensor.ndim as usize) }.to_vec();
    (list(tensor.shape), list(tensor.strides))
}

#[test]
fn memory_of_its_own_goes_out_to_be_written() {
    let tensor = Tensor::from_vec((0..12_u32).collect(), &[3, 4]).unwrap();
    let address = tensor.address().unwrap().unwrap();
    let managed = out(tensor.narrow(0, 1, 2).unwrap().transpose(0, 1).unwrap());
    assert!(is_read_only(managed), "another tensor shares it");
    drop(tensor);
    assert_eq!(numbers(managed), (vec![4, 2], vec![1, 4]));
    // SAFETY: it is there until it is let go of.
    let said = unsafe { *managed.as_ptr() };
    assert_eq!((said.version, said.dl_tensor.byte_offset, said.dl_tensor.ndim), (VERSION, 0, 2));
    assert_eq!(said.dl_tensor.device, device(1, 0));
    assert_eq!(said.dl_tensor.data.addr() as u64, address + 16);
    // SAFETY: the tensor has eight elements there.
    let elements = unsafe { std::slice::from_raw_parts(said.dl_tensor.data.cast::<u32>(), 8) };
    assert_eq!(elements, [4, 5, 6, 7, 8, 9, 10, 11]);
    let_go(managed);

    let managed = out(Tensor::from(vec![1_u32, 2]));
    assert!(!is_read_only(managed));
    // SAFETY: it has two elements, and may be written.
    unsafe { (*managed.as_ptr()).dl_tensor.data.cast::<u32>().write(7) };
    // SAFETY: our own struct, which nobody else uses.
    let mut back = unsafe { Tensor::from_dlpack_mut(managed, None) }.unwrap();
    back.as_mut_slice::<u32>().unwrap()[1] = 9;
    assert_eq!(back.as_slice::<u32>().unwrap(), [7, 9]);
}

/// catches: 288-exported-memory-goes-at-once, 289-shared-memory-goes-out-writable, 290-unversioned-shared
#[test]
fn memory_that_others_have_goes_out_read_only() {
    let drops = Drops::default();
    let lent = drops.tensor(vec![1, 2, 3]);
    let managed = out(lent);
    assert!(is_read_only(managed));
    assert_eq!(drops.count(), 0);
    let_go(managed);
    assert_eq!(drops.count(), 1);

    let shared = Tensor::from(vec![1_u8, 2]);
    let (twin, address) = (shared.clone(), shared.address().unwrap());
    let failed = shared.into_dlpack_unversioned(None).unwrap_err();
    assert!(matches!(failed.error(), Error::NotWritable { .. }), "{failed}");
    let shared = failed.into_tensor();
    assert_eq!((shared.address().unwrap(), shared.as_slice::<u8>().unwrap()), (address, &[1, 2][..]));
    let failed = drops.tensor(vec![1]).into_dlpack_unversioned(None).unwrap_err();
    assert!(matches!(Error::from(failed), Error::NotWritable { .. }));
    assert_eq!(drops.count(), 2);

    let managed = out(shared.clone());
    assert!(is_read_only(managed));
    drop(twin);
    let mut shared = shared;
    assert!(matches!(shared.as_mut_slice::<u8>(), Err(Error::NotWritable { .. })), "the consumer reads it");
    let_go(managed);
    shared.as_mut_slice::<u8>().unwrap()[0] = 5;
    let managed = shared.into_dlpack_unversioned(None).unwrap();
    assert_eq!(numbers(managed), (vec![2], vec![1]));
    let_go(managed);
}

/// Memory that was lent to be written stays that.
#[test]
fn memory_that_may_be_written_goes_out_writable() {
    let mut bytes = [1_u8, 2, 3];
    let address = bytes.as_mut_ptr().expose_provenance() as u64;
    let memory = RawMemory::new(address, 3, MemoryKind::Pageable);
    let host = Device::host();
    // SAFETY: nobody else touches the bytes before the tensor has gone.
    let tensor = unsafe { Tensor::from_raw_mut(memory, Box::new(()), &[3], DType::U8, &host) }.unwrap();
    let managed = out(tensor);
    assert!(!is_read_only(managed));
    // SAFETY: it may be written, and has three elements.
    unsafe { (*managed.as_ptr()).dl_tensor.data.cast::<u8>().write(9) };
    let_go(managed);
    let owner = SharedOwner::new((), &host);
    let layout = transship_core::Layout::contiguous(DType::U8, &[3]).unwrap();
    // SAFETY: as above.
    let mut tensor = unsafe { owner.tensor_mut(memory, layout) }.unwrap();
    tensor.as_mut_bytes().unwrap()[1] = 8;
    drop(tensor);
    assert_eq!(bytes, [9, 8, 3]);
}

#[test]
fn tensors_of_any_shape_go_out() {
    let host = Device::host();
    let managed = out(Tensor::scalar(5_i16));
    assert_eq!(unsafe_ndim(managed), 0);
    let_go(managed);
    for shape in [&[0][..], &[0, 7], &[2, 0, 3]] {
        let managed = out(Tensor::empty(shape, DType::F64, &host).unwrap());
        assert!(data_of(managed).is_null());
        assert_eq!(numbers(managed).0, shape.iter().map(|size| *size as i64).collect::<Vec<_>>());
        let_go(managed);
    }
    let deep = Tensor::from(vec![1_u8; 64]).reshape(&[2; 6]).unwrap();
    let managed = out(deep);
    assert_eq!(numbers(managed), (vec![2; 6], vec![32, 16, 8, 4, 2, 1]));
    let_go(managed);
    let wide = Tensor::empty(&[0, usize::MAX], DType::U8, &host).unwrap();
    let failed = wide.into_dlpack(None).unwrap_err();
    assert!(matches!(failed.error(), Error::SizeOverflow { .. }), "{failed}");
    assert_eq!(failed.into_tensor().shape(), [0, usize::MAX]);
}

fn unsafe_ndim(managed: NonNull<DLManagedTensorVersioned>) -> i32 {
    // SAFETY: it is there until it is let go of.
    unsafe { (*managed.as_ptr()).dl_tensor.ndim }
}

fn data_of(managed: NonNull<DLManagedTensorVersioned>) -> *mut std::ffi::c_void {
    // SAFETY: it is there until it is let go of.
    unsafe { (*managed.as_ptr()).dl_tensor.data }
}

#[test]
fn memory_of_devices_that_dlpack_has_not_stays() {
    let (late, device) = late();
    let failed = on(&device, &[5; 8]).into_dlpack(None).unwrap_err();
    assert!(matches!(failed.error(), Error::Unsupported { .. }), "{failed}");
    assert!(failed.to_string().contains("late:0"), "{failed}");
    assert_eq!(bytes_of(&failed.into_tensor()), [5; 8]);
    no_violations(&late);
}

/// The deleter is called by whatever thread of whatever language: nothing unwinds into it.
#[test]
fn the_deleter_runs_anywhere_and_never_unwinds() {
    struct Panics(Arc<AtomicBool>);

    impl AsRef<[u8]> for Panics {
        fn as_ref(&self) -> &[u8] {
            &[1, 2]
        }
    }

    impl Drop for Panics {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
            panic!("an owner that panics");
        }
    }

    let dropped = Arc::new(AtomicBool::new(false));
    let managed = out(Tensor::from_owner(Panics(dropped.clone()), DType::U8, &[2]).unwrap());
    let address = managed.as_ptr().expose_provenance();
    let elsewhere = thread::spawn(move || {
        let managed = std::ptr::with_exposed_provenance_mut::<DLManagedTensorVersioned>(address);
        let_go(NonNull::new(managed).unwrap());
    });
    elsewhere.join().unwrap();
    assert!(dropped.load(Ordering::SeqCst));
}
