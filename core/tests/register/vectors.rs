//! Vectors that are registered, copied into and given back.

use std::time::{Duration, Instant};

use late_backend::{Call, LateConfig};
use transship_core::{
    Cancelled, DType, Device, Error, MemoryKind, Tensor, TimedWait, start_copy, start_copy_into,
};

use crate::support::{PATIENCE, bytes_of, eventually, late, no_violations, on, with};
use crate::{MIB, calls, numbers, options, spaced};

/// Mutants: a vector is given out while others use it; what the driver has not unlocked is given out.
#[test]
fn a_vector_is_copied_into_and_comes_back() {
    let (late, device) = late();
    let vec = spaced(1.0_f32, MIB / 2);
    let (start, capacity) = (vec.as_ptr(), vec.capacity());
    let held = device.register_vec(vec, &[2, MIB / 4]).unwrap();
    assert_eq!(held.memory_kind().unwrap(), MemoryKind::Pinned);
    let there = start_copy(Tensor::from(vec![2.5_f32; MIB / 2]), &device, options()).unwrap().wait().unwrap();
    let there = there.reshape(&[2, MIB / 4]).unwrap();
    let (mut held, report) =
        start_copy_into(there.clone(), held, options()).unwrap().wait_with_report().unwrap();
    assert_eq!((report.pinned_staging_bytes, report.pageable_staging_bytes), (0, 0), "{report}");
    held.as_mut_slice::<f32>().unwrap()[0] = 4.0;

    // In flight, shared, of another type: it stays a tensor.
    late.stall();
    let copy = start_copy(held.clone(), &device, options()).unwrap();
    let refused = held.into_vec::<f32>().unwrap_err();
    assert!(matches!(refused.error(), Error::NotWritable { .. }), "{refused}");
    late.release();
    let back = copy.wait().unwrap();
    let refused = refused.into_value().into_vec::<u32>().unwrap_err();
    assert!(matches!(refused.error(), Error::WrongDType { .. }), "{refused}");
    let held = refused.into_value();
    late.fail_next(Call::Unregister, 0);
    let refused = held.into_vec::<f32>().unwrap_err();
    assert!(matches!(refused.error(), Error::Driver { .. }), "{refused}");
    let held = refused.into_value();
    assert_eq!(held.memory_kind().unwrap(), MemoryKind::Pinned);

    let vec = held.into_vec::<f32>().unwrap();
    assert_eq!((vec.as_ptr(), vec.capacity(), vec.len()), (start, capacity, MIB / 2));
    assert!(vec[0] == 4.0 && vec[1..].iter().all(|value| *value == 2.5));
    assert_eq!(calls(&late, Call::Unregister), 2);
    assert_eq!(bytes_of(&back)[..4], 4.0_f32.to_ne_bytes());
    no_violations(&late);
}

/// A copy down that nobody waits for writes it until it is over.
#[test]
fn a_vector_does_not_come_back_while_it_is_filled() {
    let (late, device) = late();
    let there = on(&device, &numbers(MIB));
    let held = device.register_vec(spaced(0_u8, MIB), &[MIB]).unwrap();
    late.stall();
    let handle = start_copy_into(there, held, options()).unwrap();
    let TimedWait::Pending(handle) = handle.wait_timeout(Duration::from_millis(5)).unwrap() else {
        panic!("the device stands still");
    };
    let Cancelled { value, into, .. } = handle.cancel();
    assert_eq!(calls(&late, Call::Unregister), 0);
    for held in [value, into].into_iter().flatten() {
        // The source is on a device, what was to be filled is not done.
        assert!(held.into_vec::<u8>().is_err());
    }
    late.release();
    eventually("it is unregistered", || calls(&late, Call::Unregister) == 1);
    no_violations(&late);
}

#[test]
fn small_results_come_down_into_one_vector() {
    let (late, device) =
        with(LateConfig { gather: Some(24), gather_strided: Some(176), ..LateConfig::new("late") });
    let there = on(&device, &numbers(100 * 256));
    let leaves = |tensor: &Tensor| -> Vec<_> {
        (0..100).map(|index| tensor.narrow(0, index * 256, 256).unwrap()).collect()
    };
    let held = device.register_vec(spaced(0_u8, 100 * 256), &[100 * 256]).unwrap();
    let parts = leaves(&held);
    drop(held);
    let (parts, report) =
        start_copy_into(leaves(&there), parts, options()).unwrap().wait_with_report().unwrap();
    assert_eq!(report.pinned_staging_bytes, 0, "{report}");
    assert!(parts.iter().flat_map(|part| part.to_bytes().unwrap()).collect::<Vec<_>>() == numbers(100 * 256));
    no_violations(&late);
}

/// Mutant: bits are not looked at.
#[test]
fn bools_that_are_none_stay_in_their_tensor() {
    let (late, device) = late();
    let there = on(&device, &[7; 10]);
    let held = device.register_vec(spaced(true, 10), &[10]).unwrap();
    drop(there);
    let mut held = held;
    held.as_mut_bytes().unwrap()[3] = 7;
    let refused = held.into_vec::<bool>().unwrap_err();
    assert!(matches!(refused.error(), Error::InvalidBits { dtype: DType::Bool }), "{refused}");
    assert_eq!(calls(&late, Call::Unregister), 0);
    let mut held = refused.into_value();
    held.as_mut_bytes().unwrap()[3] = 0;
    assert_eq!(held.into_vec::<bool>().unwrap().iter().filter(|set| **set).count(), 9);
    no_violations(&late);
}

#[test]
fn vectors_come_out_of_ordinary_tensors_as_well() {
    let tensor = Tensor::from_vec(vec![1_u16, 2, 3, 4], &[2, 2]).unwrap();
    let row = tensor.narrow(0, 1, 1).unwrap();
    let refused = tensor.into_vec::<u16>().unwrap_err();
    assert!(matches!(refused.error(), Error::NotWritable { .. }), "{refused}");
    drop(row);
    assert_eq!(refused.into_value().into_vec::<u16>().unwrap(), [1, 2, 3, 4]);
    let zeros = Tensor::zeros(&[4], DType::U8, &Device::host()).unwrap();
    let lent = Tensor::from_owner(vec![1_u8], DType::U8, &[1]).unwrap();
    for none in [zeros, lent] {
        let refused = none.into_vec::<u8>().unwrap_err();
        assert!(matches!(refused.error(), Error::NotVector { .. }), "{refused}");
        assert!(
            refused.to_string().ends_with("does not lie in a vector; copy its elements (to_vec)"),
            "{refused}"
        );
    }
    let (_late, device) = late();
    let refused = on(&device, &[1, 2]).into_vec::<u8>().unwrap_err();
    assert!(
        matches!(refused.error(), Error::NotOnHost { device: there } if *there == device.id()),
        "{refused}"
    );
}

/// Its elements would be others than those of `to_vec`.
///
/// Mutant: whatever part of a vector a tensor shows, all of it comes out.
#[test]
fn what_shows_a_vector_otherwise_does_not_become_it() {
    let tensor = || Tensor::from_vec(vec![1_u16, 2, 3, 4], &[2, 2]).unwrap();
    let views = [
        tensor().narrow(0, 0, 1).unwrap(),
        tensor().narrow(0, 1, 1).unwrap(),
        tensor().narrow(0, 0, 0).unwrap(),
        tensor().transpose(0, 1).unwrap(),
        tensor().as_strided(&[4], &[0], 0).unwrap(),
        tensor().as_strided(&[8], &[0], 3).unwrap(),
    ];
    for view in views {
        let elements = view.to_vec::<u16>().unwrap();
        let shape_and_strides = format!("shape {:?} with strides {:?} ", view.shape(), &*view.strides());
        let refused = view.into_vec::<u16>().unwrap_err();
        assert!(matches!(refused.error(), Error::NotVector { .. }), "{refused}");
        let text = refused.to_string();
        assert!(
            text.contains(&shape_and_strides) && text.contains("4 elements") && text.contains("to_vec"),
            "{text}"
        );
        assert_eq!(refused.into_value().to_vec::<u16>().unwrap(), elements);
    }
    let same = tensor().reshape(&[4]).unwrap().unsqueeze(0).unwrap().transpose(0, 1).unwrap();
    assert_eq!(same.into_vec::<u16>().unwrap(), [1, 2, 3, 4]);
}

#[test]
fn a_vector_of_no_elements_keeps_its_room() {
    let (_late, device) = late();
    for device in [device, Device::host()] {
        let vec = Vec::<f32>::with_capacity(1000);
        let start = vec.as_ptr();
        let vec = device.register_vec(vec, &[0, 5]).unwrap().into_vec::<f32>().unwrap();
        assert_eq!((vec.len(), vec.capacity(), vec.as_ptr()), (0, 1000, start));
    }
    assert_eq!(Tensor::from(Vec::<f64>::new()).into_vec::<f64>().unwrap().capacity(), 0);
}

/// Once nothing is in flight, whatever it holds.
///
/// Mutant: it never comes back.
#[test]
fn a_vector_comes_back_after_a_failed_copy_into_it() {
    let (late, device) = late();
    let there = on(&device, &numbers(MIB));
    for registered in [true, false] {
        let vec = spaced(7_u8, MIB);
        let held = match registered {
            true => device.register_vec(vec, &[MIB]).unwrap(),
            false => Tensor::from_vec(vec, &[MIB]).unwrap(),
        };
        late.stall();
        let hurried = options().deadline(Duration::from_millis(5));
        let failed = start_copy_into(there.clone(), held, hurried).unwrap().wait().unwrap_err();
        assert!(matches!(failed.error(), Error::DeadlineExceeded { .. }), "{failed:#}");
        let mut held = failed.into_both().1.unwrap();
        for _ in 0..10 {
            let refused = held.into_vec::<u8>().unwrap_err();
            assert!(matches!(refused.error(), Error::NotReady | Error::NotWritable { .. }), "{refused}");
            held = refused.into_value();
        }
        let read = held.to_bytes().unwrap_err();
        assert!(
            matches!(read, Error::CopyFailed(_)) && read.to_string().contains("start_copy_into"),
            "{read}"
        );
        late.release();
        let start = Instant::now();
        let vec = loop {
            match held.into_vec::<u8>() {
                Ok(vec) => break vec,
                Err(refused) if start.elapsed() < PATIENCE => held = refused.into_value(),
                Err(refused) => panic!("{refused}"),
            }
        };
        assert!(vec.iter().zip(numbers(MIB)).all(|(is, copied)| *is == 7 || *is == copied));
    }
    no_violations(&late);
}
