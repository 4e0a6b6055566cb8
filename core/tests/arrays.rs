//! Arrays of `ndarray` that become tensors, and tensors that become arrays.

#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

use std::sync::Arc;

use ndarray::{ArcArray, Array, Array1, Array2, Array3, ArrayD, Axis, Ix1, Ix2, Ix3, IxDyn, array, s};
use transship_core::{CopyOptions, CopyPolicy, Device, Error, MemoryKind, Tensor, start_copy};

fn address(array: *const impl Sized) -> Option<u64> {
    Some(array.addr() as u64)
}

fn numbers() -> Array3<i16> {
    Array::from_shape_vec((2, 3, 4), (0..24).collect()).unwrap()
}

/// Arrays of many strides over the same numbers.
fn strided() -> Vec<ArrayD<i16>> {
    let inverted = |axes: &[usize]| {
        let mut array = numbers();
        axes.iter().for_each(|axis| array.invert_axis(Axis(*axis)));
        array
    };
    vec![
        numbers().into_dyn(),
        numbers().reversed_axes().into_dyn(),
        numbers().permuted_axes([1, 2, 0]).into_dyn(),
        numbers().slice_move(s![1.., ..;2, 1..3]).into_dyn(),
        numbers().slice_move(s![.., ..0, ..]).into_dyn(),
        numbers().slice_move(s![1, 2, 3]).into_dyn(),
        inverted(&[0]).into_dyn(),
        inverted(&[0, 1, 2]).into_dyn(),
        inverted(&[1]).slice_move(s![.., 1.., ..;3]).into_dyn(),
        Array3::zeros((1, 0, 5)).into_dyn(),
    ]
}

#[test]
fn arrays_of_any_stride_have_the_same_elements_as_tensors() {
    for array in strided() {
        let expected: Vec<i16> = array.iter().copied().collect();
        let holder = array.to_shared();
        let kept = Arc::new(array.clone());
        for tensor in [
            Tensor::from(array.clone()),
            Tensor::from(array.view()),
            Tensor::from(holder.clone()),
            Tensor::from(array.to_shared()),
            Tensor::from(Arc::clone(&kept)),
            Tensor::from(Arc::new(array.clone())),
        ] {
            assert_eq!((tensor.shape(), tensor.to_vec::<i16>().unwrap()), (array.shape(), expected.clone()));
            assert_eq!(tensor.as_array::<i16, IxDyn>().unwrap(), array);
            assert_eq!(tensor.into_array::<i16, IxDyn>().unwrap(), array);
        }
    }
}

#[test]
fn arrays_stay_where_they_are() {
    let array = numbers();
    let first = address(array.as_ptr());
    let tensor = Tensor::from(array.reversed_axes());
    assert_eq!(tensor.address().unwrap(), first);
    assert_eq!(tensor.as_array::<i16, Ix3>().unwrap().as_ptr().addr() as u64, first.unwrap());
    let array: Array3<i16> = tensor.into_array().unwrap();
    assert_eq!((address(array.as_ptr()), &array), (first, &numbers().reversed_axes()), "and back");

    let part = array.slice_move(s![1.., .., ..]);
    let first = address(part.as_ptr());
    assert_eq!(Tensor::from(part).address().unwrap(), first);
}

#[test]
fn shared_arrays_are_lent_in_place_and_those_of_nobody_else_are_taken() {
    let array: ArcArray<u8, Ix2> = array![[1, 2], [3, 4]].into_shared();
    let first = address(array.as_ptr());
    let lent = Tensor::from(array.clone().reversed_axes());
    assert_eq!((lent.address().unwrap(), lent.to_vec::<u8>().unwrap()), (first, vec![1, 3, 2, 4]));
    let copied: Array2<u8> = lent.into_array().unwrap();
    assert_ne!(address(copied.as_ptr()), first);
    let mut lent = Tensor::from(array.clone());
    assert!(matches!(lent.as_mut_slice::<u8>(), Err(Error::NotWritable { why: "lent read-only", .. })));
    drop(lent);
    let mut taken = Tensor::from(array);
    assert_eq!(taken.address().unwrap(), first);
    taken.as_mut_slice::<u8>().unwrap()[0] = 9;
    assert_eq!(taken.into_array::<u8, Ix2>().unwrap(), array![[9, 2], [3, 4]]);

    let array = Arc::new(array![1.5_f64, 2.5]);
    let lent = Tensor::from(Arc::clone(&array));
    assert_eq!(lent.address().unwrap(), address(array.as_ptr()));
    drop(array);
    assert_eq!(lent.as_slice::<f64>().unwrap(), [1.5, 2.5], "the tensor keeps it");
}

#[test]
fn views_are_copied_at_the_call() {
    let mut array = numbers();
    let tensor = Tensor::from(array.slice(s![.., 1, ..]));
    array.fill(0);
    assert_eq!(tensor.to_vec::<i16>().unwrap(), [4, 5, 6, 7, 16, 17, 18, 19]);
}

#[test]
fn views_of_tensors_are_arrays_whatever_their_strides() {
    let tensor = Tensor::from(numbers());
    let part = tensor.slice(2, 1..4, 2).unwrap().permute(&[2, 0, 1]).unwrap();
    assert_eq!(
        part.as_array::<i16, Ix3>().unwrap(),
        numbers().slice(s![.., .., 1..;2]).permuted_axes([2, 0, 1])
    );
    let repeated = Tensor::from(vec![7_i16]).as_strided(&[2, 3], &[0, 0], 0).unwrap();
    assert_eq!(repeated.as_array::<i16, Ix2>().unwrap(), Array2::from_elem((2, 3), 7));
    assert_eq!(repeated.into_array::<i16, Ix2>().unwrap(), Array2::from_elem((2, 3), 7));
}

#[test]
fn what_others_share_is_copied_into_an_array() {
    let tensor = Tensor::from(numbers());
    let twin = tensor.clone();
    let array: Array3<i16> = tensor.into_array().unwrap();
    assert_ne!(address(array.as_ptr()), twin.address().unwrap());
    assert_eq!(array, numbers());
    let column = twin.narrow(2, 1, 1).unwrap();
    drop(twin);
    assert_eq!(column.into_array::<i16, Ix3>().unwrap(), numbers().slice(s![.., .., 1..2]));

    let packed = (Tensor::from(vec![1_u8; 5]), Tensor::from(array![[2.5_f32]]));
    let options = CopyOptions::default().policy(CopyPolicy::Always);
    let (bytes, number) = start_copy(packed, &Device::host(), options).unwrap().wait().unwrap();
    assert!(bytes.shares_memory_with(&number));
    assert_eq!(bytes.into_array::<u8, Ix1>().unwrap(), Array1::from_elem(5, 1));
    assert_eq!(number.into_array::<f32, Ix2>().unwrap(), array![[2.5]]);
}

#[test]
fn what_is_no_such_array_is_refused_and_comes_back() {
    let tensor = Tensor::from(numbers().reversed_axes());
    let strides = tensor.strides();
    let refused = tensor.into_array::<i16, Ix2>().unwrap_err();
    assert!(matches!(refused.error(), Error::WrongRank { asked: 2, .. }));
    assert_eq!(
        refused.to_string(),
        "a tensor of shape [4, 3, 2] has 3 dimensions, not 2; ask for as many, or reshape it"
    );
    let refused = refused.into_value().into_array::<u16, Ix3>().unwrap_err();
    assert!(matches!(refused.error(), Error::WrongDType { .. }));
    let tensor = refused.into_value();
    assert_eq!(tensor.strides(), strides, "as it was");
    assert_eq!(tensor.as_array::<i16, Ix3>().unwrap(), numbers().reversed_axes());
    assert!(matches!(tensor.as_array::<i16, Ix1>(), Err(Error::WrongRank { asked: 1, .. })));
    assert!(matches!(tensor.as_array::<i32, Ix3>(), Err(Error::WrongDType { .. })));

    let bytes = Tensor::from_owner([0_u8, 2], transship_core::DType::Bool, &[2]).unwrap();
    assert!(matches!(bytes.as_array::<bool, Ix1>(), Err(Error::InvalidBits { .. })));
    assert!(matches!(bytes.into_array::<bool, Ix1>().unwrap_err().error(), Error::InvalidBits { .. }));

    let endless = Tensor::from_vec(Vec::<u8>::new(), &[usize::MAX, 0, 2]).unwrap();
    assert!(matches!(endless.as_array::<u8, Ix3>(), Err(Error::SizeOverflow { .. })));
    let refused = endless.into_array::<u8, Ix3>().unwrap_err();
    assert_eq!(refused.into_value().shape(), [usize::MAX, 0, 2]);
}

#[test]
fn arrays_are_copied_to_a_device_as_they_lie_in_memory() {
    let sent = (Tensor::from(numbers().reversed_axes()), Tensor::from(numbers().slice_move(s![.., 1, ..;2])));
    let options = CopyOptions::default().policy(CopyPolicy::Always);
    let (all, part) = start_copy(sent, &Device::host(), options).unwrap().wait().unwrap();
    assert_eq!(all.as_array::<i16, Ix3>().unwrap(), numbers().reversed_axes());
    assert_eq!(part.as_array::<i16, Ix2>().unwrap(), numbers().slice(s![.., 1, ..;2]));
    assert_eq!(part.memory_kind().unwrap(), MemoryKind::Pageable);
}
